package owner

import (
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/value"
)

// Seen is an object as a watcher has seen it: a register, or who holds something. The zero Seen is
// nothing.
type Seen struct {
	// Position is where that is among the changes of the object: its version; of one that
	// does not exist, a number that is not below any version that it had, and below all that
	// it will have, at any owner.
	Position uint64
	Exists   bool
	Unknown  bool // it does not exist, and may have existed before a loss
}

// Then returns what a watcher has seen that is told of another sight, and whether that is news
// to it. An earlier sight is none: those of several owners come in any order.
func (s Seen) Then(now Seen) (next Seen, news bool) {
	switch {
	case s == (Seen{}):
		return now, true
	//guard:watch-order
	case now.Position < s.Position || now.Exists && now.Position == s.Position:
		return s, false
	}
	return now, now.Exists || s.Exists || now.Unknown != s.Unknown
}

// Sight is a register as it is, for a watcher. Its value is not to be changed.
type Sight struct {
	value.State
	Seen Seen
	Meta
}

// AwaitRegister reads a register. If that is nothing new to a watcher, changed is closed when it
// may have changed here; it may be closed without that. A call that awaits it looks again now and
// then all the same: the register may be another process's by now. Of a watcher that does not
// come again nothing is left after a round of the sweep.
func (s *Store) AwaitRegister(now int64, ref Ref, seen Seen) (a Sight, changed <-chan struct{}, err error) {
	t := target{ref: ref, kind: KindRegister, now: now}
	if err := t.enter(s); err != nil {
		return Sight{}, nil, err
	}
	defer t.leave()
	a = Sight{State: t.registerLocked(), Meta: Meta{Permit: t.permit}}
	a.Seen = t.seenLocked(&a.State)
	if _, news := seen.Then(a.Seen); news {
		return a, nil, nil
	}
	return a, t.sh.watchedLocked(address{ref.Key, ref.Name}), nil
}

// seenLocked returns what a watcher sees now. Whatever was done before has a version below the
// token that is next here, and below the epoch of the row if another did it; whatever comes
// later has one above both.
func (t *target) seenLocked(s *value.State) Seen {
	if s.Exists {
		return Seen{Position: s.Version, Exists: true}
	}
	return t.nobodyLocked(s.Version)
}

// nobodyLocked returns what a watcher sees of an object that does not exist, and had changed last
// under a version, 0 if it is not known.
func (t *target) nobodyLocked(version uint64) Seen {
	//guard:watch-floor t.permit.Epoch<<SeqBits -> 0
	floor := max(t.sh.lastToken, t.permit.Epoch<<SeqBits)
	return Seen{Position: max(floor, version), Unknown: t.permit.LostEpoch() != 0}
}

// address is that of an object that is watched, whether or not it is there.
type address struct{ key, name string }

// maxWatched bounds the objects of a shard that are awaited. Beyond it, waiters look
// again when their time is over.
const maxWatched = 1 << 16

// awaited is an object that somebody awaits. It is forgotten when it changes.
type awaited struct {
	changed chan struct{} // closed then
	version uint64        // that watchers were told of what is held; 0 = none
	came    bool          // somebody has looked since the last round of the sweep
}

// watchedLocked returns what is closed when an object changes.
func (sh *shard) watchedLocked(of address) <-chan struct{} {
	w, ok := sh.watched[of]
	if !ok {
		w = awaited{changed: make(chan struct{})}
		if len(sh.watched) < maxWatched {
			sh.keepWatchedLocked(of, w)
		}
	}
	return w.changed
}

func (sh *shard) keepWatchedLocked(of address, w awaited) {
	if sh.watched == nil {
		sh.watched = map[address]awaited{}
	}
	sh.watched[of] = w
}

var errWatched = &failure.Error{Reason: failure.Overloaded, RetryAfter: time.Second,
	Message: "as many objects are watched as their owner allows",
	Hint:    "watch fewer objects, or inspect them from time to time"}

// heldVersionLocked returns a version for what is held of the target, and what is closed when that
// changes. The version is the next token, and is used up only if somebody looks, and what is held
// has changed since somebody last did. So it costs nothing where nobody watches. It is not
// recorded: another owner has a later epoch, and with it greater ones. The first look of a caller that
// may not come again needs no room.
func (t *target) heldVersionLocked(first bool) (uint64, <-chan struct{}, error) {
	sh, of := t.sh, address{t.ref.Key, t.ref.Name}
	w, ok := sh.watched[of]
	//guard:held-version-of-the-epoch ok && w.version>>SeqBits >= t.permit.Epoch -> w.version != 0
	if ok && w.version>>SeqBits >= t.permit.Epoch {
		w.came = true
		sh.watched[of] = w
		return w.version, w.changed, nil
	}
	if !ok {
		w.changed = make(chan struct{})
	}
	//guard:held-versions-bounded !ok && len(sh.watched) >= maxWatched -> false
	full := !ok && len(sh.watched) >= maxWatched
	if full && !first {
		return 0, nil, errWatched
	}
	version, err := sh.nextTokenLocked(sh.store.cfg.Rule, t.permit)
	if err != nil {
		return 0, nil, err
	}
	sh.tokenUsedLocked(version)
	if w.version, w.came = version, true; !full {
		sh.keepWatchedLocked(of, w)
	}
	return version, w.changed, nil
}

// watchedChangedLocked tells the calls that await an object.
func (sh *shard) watchedChangedLocked(e *entry) {
	if len(sh.watched) == 0 {
		return
	}
	text := e.text()
	of := address{view(text[:e.keyLen()]), view(text[e.keyLen():])}
	if w, ok := sh.watched[of]; ok {
		close(w.changed)
		delete(sh.watched, of)
	}
}

// endAwaitsLocked has all that await an object of the shard look again, forgets those that do not
// come, and what nobody awaits any more.
func (sh *shard) endAwaitsLocked() {
	for of, w := range sh.watched {
		close(w.changed)
		if w.version != 0 && w.came { // what is held goes on under the version that watchers have
			sh.watched[of] = awaited{changed: make(chan struct{}), version: w.version}
		} else {
			delete(sh.watched, of)
		}
	}
	for at, sums := range sh.sums {
		if sh.dropLeftLocked(sums); len(sums) == 0 {
			delete(sh.sums, at)
		}
	}
	for barrier, of := range sh.gates {
		if of.n == 0 {
			delete(sh.gates, barrier)
		}
	}
}
