package owner

import (
	"errors"
	"unsafe"

	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/lock"
	"github.com/keystead/keystead/owner/reqid"
)

// Bounds of what a record may say.
const (
	// maxVersion leaves room above the version of a copy for changes of its own.
	maxVersion = 1 << 62
	// maxMoment bounds times, in ns and in either direction, so that no sum or
	// difference of two overflows.
	maxMoment = 1 << 61
	// copyRoom is what copies may take beyond MaxObjects and MaxBytes, as a part of
	// these: a standby must not fall out because its owner is as full as it may be.
	copyRoom = 4
)

// Validate reports what in a record that came from elsewhere cannot be, as an
// *Error of reason Invalid. now is the moment by which its times were made.
func (r *Record) Validate(now int64) error {
	_, err := r.validate(now)
	return err
}

// validate returns the state of the lock, if it is one that is not absent, as the
// store can take it: with a copy of the queue, from which those are gone who cannot
// come back.
func (r *Record) validate(now int64) (*lock.State, error) {
	if err := (Ref{Key: view(r.Key), Name: view(r.Name)}).validAddress(); err != nil {
		return nil, err
	}
	bad := func(what string) (*lock.State, error) { return nil, invalid("record", "%s", what) }
	switch {
	case !r.Kind.known():
		return bad("the kind is unknown")
	case r.Version > maxVersion:
		return bad("the version is out of range")
	case r.At > now || r.At < -maxMoment || now > maxMoment:
		return bad("a time is out of range")
	case r.Whole && r.More, (r.Whole || r.More) != (r.IDs != nil):
		return bad("it is neither a change nor a whole")
	case r.ByPlace && (r.Kind != KindLock || r.IDs != nil), !r.ByPlace && len(r.Moves) != 0:
		return bad("it is neither a change of places nor a queue")
	case r.IDs != nil && len(r.Done) != 0, r.More && !r.stateless():
		return bad("it is more than it may be")
	case r.Kind != KindLimit && (r.Limit != limit.State{} || len(r.Marks) != 0), r.Kind != KindCounter && r.Counter != counter.State{}, r.Kind != KindLock && r.Lock != nil:
		return bad("it has the state of another kind")
	case r.Limit.At > now || r.Limit.At < -maxMoment || r.Counter.At > now || r.Counter.At < -maxMoment:
		return bad("a time is out of range")
	case r.Counter.Version > maxVersion:
		return bad("the counter's version is out of range")
	}
	if err := errors.Join(r.Limit.Valid(), r.Limit.ValidMarks(r.Marks)); err != nil {
		return bad(err.Error())
	}
	if err := r.Counter.Valid(); err != nil {
		return bad(err.Error())
	}
	for i := range r.Done {
		if d := &r.Done[i]; !validID(&d.ID) || !d.ID.Given() || !validOutcome(d.Outcome) {
			return bad("a request id is out of range")
		}
	}
	if r.IDs != nil {
		if err := r.IDs.Valid(now); err != nil {
			return bad(err.Error())
		}
		for i := range r.IDs.Ops {
			if !validOutcome(r.IDs.Ops[i].Outcome) {
				return bad("an outcome is out of range")
			}
		}
	}
	return r.validLock(now)
}

// validID says whether an id can be one; the zero ID is none.
func validID(id *reqid.ID) bool { return id.Settled <= id.Sequence }

func validOutcome(o reqid.Outcome) bool { return o.Code <= refusedFor+uint8(counter.Overflow) }

// stateless says whether the object is absent.
func (r *Record) stateless() bool {
	return r.Limit.Spent == 0 && r.Limit.Weight == 0 && r.Counter.Version == 0 && (r.Lock == nil || !r.ByPlace && r.Lock.Token == 0 && r.Lock.Queue.Len() == 0)
}

// clear takes the state out of a record.
func (r *Record) clear() {
	r.Limit, r.Marks, r.Counter, r.Lock = limit.State{}, nil, counter.State{}, nil
}

// validLock returns the lock's state as a copy has it: all places are away, and
// have a request id.
func (r *Record) validLock(now int64) (*lock.State, error) {
	if r.ByPlace {
		return r.validMoves(now)
	}
	if r.Lock == nil {
		return nil, nil
	}
	if r.Lock.At > now {
		return nil, invalid("record", "a time is out of range")
	}
	s := r.Lock.Clone()
	s.Queue.Grace = 0
	for i := range s.Queue.Places {
		p := &s.Queue.Places[i]
		if !validID(&p.Caller.ID) {
			return nil, invalid("record", "the request id of place %d is out of range", i+1)
		}
		//guard:queue-away true -> false
		p.Ticket, p.Away = uint64(i), true
	}
	if err := s.Valid(); err != nil {
		return nil, invalid("record", "%v", err)
	}
	return &s, nil
}

// Install makes an object what a record from elsewhere says: a copy. It is the
// counterpart of the Sink and of Export, and tells the Sink nothing. accept is asked
// under the lock of the object's shard whether the record is still to be taken in;
// if it says no, nothing happens and the error is ErrNotAccepted. now is the moment
// by which the record's times were made. Nothing of the record is kept.
//
// A copy decides nothing: nobody who waits in its queue is granted it before Own.
// Who waits here for what is now a copy is answered with NotOwner.
//
// Errors are *Error: Invalid for what cannot be, and StoreFull if the store has no
// room, a quarter more than for its own objects. Nothing has changed then.
func (s *Store) Install(now int64, r *Record, accept func(hash uint64) bool) error {
	state, err := r.validate(now)
	if err != nil {
		return err
	}
	t := target{copied: true, kind: r.Kind, ref: Ref{Key: view(r.Key), Name: view(r.Name)}} // ref is not kept
	t.hash, t.tag = Hash(t.ref.Key), s.addressTag(t.ref)
	sh := s.shard(t.hash)
	t.sh = sh
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.now = max(sh.now, now)
	t.now = sh.now
	//guard:install-asks
	if !accept(t.hash) {
		return ErrNotAccepted
	}
	if t.slot = sh.findLocked(t.tag, t.ref); t.slot != 0 {
		t.e = sh.entryLocked(t.slot)
	}
	empty := r.stateless() && len(r.Done) == 0 && (r.IDs == nil || len(r.IDs.Clients) == 0)
	if err := t.copyRoomLocked(r); err != nil && !empty {
		return err
	}
	sh.version = max(sh.version, r.Version, r.Counter.Version)
	if t.e != nil && (t.e.kind != r.Kind || empty && (r.Whole || t.e.ids == 0 && !r.More)) {
		sh.discardLocked(t.slot)
		t.slot, t.e = 0, nil
	}
	if t.e == nil && empty {
		sh.accountLocked()
		return nil
	}
	if t.e != nil && r.Whole && t.e.ids != 0 {
		sh.ids.Drop(t.e.ids)
		t.e.ids = 0
	}
	if r.ByPlace && t.overfullLocked(r) {
		return invalid("record", "more places than a queue may have")
	}
	t.installLocked(r, state)
	if r.ByPlace && t.e.lock == 0 && t.e.ids == 0 {
		sh.forgetLocked(t.slot)
	}
	sh.accountLocked()
	return nil
}

// copyRoomLocked says whether a copy may take the room that it needs.
func (t *target) copyRoomLocked(r *Record) error {
	s := t.sh.store
	if t.slot == 0 && s.all() >= s.cfg.MaxObjects+s.cfg.MaxObjects/copyRoom {
		return errObjects
	}
	grows := t.slot == 0 || len(r.Done) > 0 || r.IDs != nil || r.Lock != nil && !r.ByPlace && r.Lock.Queue.Len() > 0 || len(r.Moves) > 0 || len(r.Marks) > 0
	if grows && s.bytes.Load() >= s.cfg.MaxBytes+s.cfg.MaxBytes/copyRoom {
		return errMemory
	}
	return nil
}

// installLocked gives the object its state and its ids.
func (t *target) installLocked(r *Record, state *lock.State) {
	sh := t.sh
	if t.slot == 0 {
		t.createLocked()
	}
	if !r.More {
		switch t.kind {
		case KindLimit:
			sh.setLimitLocked(t.e, &r.Limit, r.Marks)
		case KindCounter:
			*t.e.counter() = r.Counter
		case KindLock:
			if r.ByPlace && state != nil {
				t.installMovesLocked(r, state)
			} else {
				t.installLockLocked(r, state)
			}
		}
	}
	for i := range r.Done {
		//guard:install-ids
		if d := &r.Done[i]; !sh.ids.Knows(t.e.ids, &d.ID) {
			t.e.ids = sh.ids.Note(t.e.ids, t.slot, &d.ID, d.Outcome, r.At)
		}
	}
	//guard:install-kept-ids
	if r.IDs != nil {
		t.e.ids = sh.ids.Load(t.e.ids, t.slot, r.IDs, t.now)
	}
}

// installLockLocked puts the state of a lock in the place of the one that is here,
// with all who wait.
func (t *target) installLockLocked(r *Record, state *lock.State) {
	sh := t.sh
	if t.e.lock != 0 {
		sh.dropQueueLocked(t.slot)
	}
	if state == nil || state.Token == 0 && state.Queue.Len() == 0 {
		locks{}.clear(sh, t.e)
		return
	}
	//guard:token-floor
	sh.lastToken = max(sh.lastToken, state.LastToken)
	all := state.Queue.Places
	kept := all[:0]
	ref := Ref{Key: string(r.Key), Name: string(r.Name)}
	for _, place := range all {
		id := &place.Caller.ID
		if !id.Given() || sh.waiterLocked(t.slot, id) != nil {
			continue
		}
		place.Ticket = sh.store.tickets.Add(1)
		sh.addAwayLocked(t.slot, place.Ticket, ref, id, textOf(&place))
		//guard:queue-order append(kept, place) -> append([]lock.Waiter{place}, kept...)
		kept = append(kept, place)
	}
	clear(all[len(kept):])
	state.Queue.Places = kept
	if state.Token == 0 && len(kept) == 0 {
		locks{}.clear(sh, t.e)
		return
	}
	*t.lockLocked() = *state
	sh.countTextLocked(t.e)
	if len(kept) > 0 {
		sh.copyLocked(t.slot)
	}
}

// view is a string of bytes that do not change while it is used.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
