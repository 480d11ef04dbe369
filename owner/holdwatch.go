package owner

import (
	"github.com/keystead/keystead/owner/hold"
)

// HoldSight is an object that is held, for a watcher. If it is no news, all but Seen, Due and Meta
// is unset.
type HoldSight struct {
	Holders  []hold.Holding // the first of the grants that are in force, by token; not to be changed
	Holding  int            // how many there are
	Held     uint64         // their weight
	Capacity uint32         // 0 unless somebody holds it, or it is Fixed
	Fixed    bool           // the capacity was set
	Seen     Seen           // it exists if there is a Capacity
	Due      int64          // ns until time alone may make it another one; 0 = it does not
	Meta
}

// WatchLevel is the level of the cluster from which on semaphores and locks are watched.
const WatchLevel = 7

// MaxSighted is how many grants of a lock or a semaphore a watcher is told.
const MaxSighted = 16

// awaitHold reads what is held of an object, with so many of its grants at most. If that is nothing
// new to a watcher, changed is closed when it may have changed here: see AwaitRegister.
func (s *Store) awaitHold(now int64, kind Kind, ref Ref, seen Seen, most int) (a HoldSight, changed <-chan struct{}, err error) {
	t := target{ref: ref, kind: kind, now: now}
	if err := t.enter(s); err != nil {
		return HoldSight{}, nil, err
	}
	defer t.leave()
	if t.e != nil && t.e.rest != 0 {
		// What is shown to be over must be over: the expiry is a change of its own.
		if err := t.expireHoldLocked(); err != nil {
			return HoldSight{}, nil, err
		}
	}
	a.Meta = Meta{Permit: t.permit}
	changed, err = t.sightLocked(&a, seen)
	if err != nil {
		return HoldSight{}, nil, err
	}
	if _, news := seen.Then(a.Seen); news {
		if a.Seen.Exists {
			state := t.sh.holds.At(t.e.rest)
			a.Holders, a.Holding, a.Held = state.Grants(t.now, most)
			a.Capacity, a.Fixed = state.Capacity, state.Fixed
		}
		return a, nil, nil
	}
	return a, changed, nil
}

// sightLocked completes what a watcher sees by its version, and returns what is closed when it changes.
func (t *target) sightLocked(a *HoldSight, seen Seen) (changed <-chan struct{}, err error) {
	last := uint64(0)
	if t.e != nil && t.e.rest != 0 {
		state := t.sh.holds.At(t.e.rest)
		ends, held := state.Ends()
		if held {
			a.Due = max(ends-t.now, 1)
		}
		if held || state.Fixed {
			a.Seen.Exists = true
			a.Seen.Position, changed, err = t.heldVersionLocked(seen == Seen{})
			return changed, err
		}
		last = state.LastToken
	}
	a.Seen = t.nobodyLocked(last)
	return t.sh.watchedLocked(address{t.ref.Key, t.ref.Name}), nil
}
