package owner

import "github.com/keystead/keystead/owner/hold"

// HoldSight is an object that is held, for a watcher.
type HoldSight struct {
	Holders []hold.Holding // that are in force, by token, if they are news; not to be changed
	Seen    Seen
	Due     int64 // ns until time alone may make it another one; 0 = it does not
	Meta
}

// awaitHold reads who holds an object. If that is nothing new to a watcher, changed is closed when it
// may have changed here: see AwaitRegister.
func (s *Store) awaitHold(now int64, kind Kind, ref Ref, seen Seen) (a HoldSight, changed <-chan struct{}, err error) {
	t := target{ref: ref, kind: kind, now: now}
	if err := t.enter(s); err != nil {
		return HoldSight{}, nil, err
	}
	defer t.leave()
	a.Meta = Meta{Permit: t.permit}
	if t.e == nil || t.e.lock == 0 {
		a.Seen = t.nobodyLocked(0)
	} else {
		// What is shown to be over must be over: the expiry is a change of its own.
		if err := t.expireHoldLocked(); err != nil {
			return HoldSight{}, nil, err
		}
		state := t.sh.holds.At(t.e.lock)
		if ends, held := state.Ends(); held {
			a.Seen, a.Due = Seen{Position: state.LastToken, Exists: true}, max(ends-t.now, 1)
		} else {
			a.Seen = t.nobodyLocked(state.LastToken)
		}
		if _, news := seen.Then(a.Seen); news {
			a.Holders = state.Grants(t.now)
		}
	}
	if _, news := seen.Then(a.Seen); news {
		return a, nil, nil
	}
	return a, t.sh.watchedLocked(address{ref.Key, ref.Name}), nil
}
