package owner

import (
	"unsafe"

	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/reqid"
)

// Bounds of what a record may say.
const (
	// maxMoment bounds times, in ns and in either direction, so that no sum or
	// difference of two overflows.
	maxMoment = 1 << 61
	// copyRoom is what copies may take beyond MaxObjects and MaxBytes, as a part of
	// these: a standby must not fall out because its owner is as full as it may be.
	copyRoom = 4
)

var (
	errState = invalid("record", "the state of the object is not one that its kind writes")
	errTime  = invalid("record", "a time is out of range")

	errVersion = invalid("record", "the version is out of range")
)

// Validate reports what in a record that came from elsewhere cannot be, as an
// *failure.Error of reason Invalid. now is the reference for its durations.
func (r *Record) Validate(now int64) error {
	if r.stands() {
		r = r.Clone()
	}
	_, _, err := r.validate(now)
	return err
}

// validate returns beside the error what the kind makes of the state, for install, and
// whether the object is absent.
func (r *Record) validate(now int64) (judged any, absent bool, err error) {
	if err := (Ref{Key: view(r.Key), Name: view(r.Name)}).validAddress(); err != nil {
		return nil, false, err
	}
	bad := func(what string) (any, bool, error) { return nil, false, invalid("record", "%s", what) }
	switch {
	case !r.Kind.Known():
		return bad("the kind is unknown")
	case r.Version > maxVersion:
		return nil, false, errVersion
	case r.At > now || r.At < -maxMoment || now > maxMoment:
		return nil, false, errTime
	case r.Whole && r.More, (r.Whole || r.More) != (r.IDs != nil):
		return bad("it is neither a change nor a whole")
	case r.Partial && r.Whole:
		return bad("it is neither partial nor a whole")
	case len(r.Members) > 0 && r.State.Absent():
		return bad("it has members of an object that is absent")
	case r.IDs != nil && len(r.Done) != 0, r.More && r.Partial == r.State.Absent(), r.More && r.Partial && machines[r.Kind].waits == nil:
		return bad("it is more than it may be")
	}
	if err := r.validDone(now); err != nil {
		return nil, false, err
	}
	if len(r.Beside) > 0 {
		if err := r.validBeside(now); err != nil {
			return nil, false, err
		}
	}
	return machines[r.Kind].states.judge(r, now)
}

// validDone reports what of the request ids cannot be.
func (r *Record) validDone(now int64) error {
	for i := range r.Done {
		if d := &r.Done[i]; !validID(&d.ID) || !d.ID.Given() || !validOutcome(d.Outcome) {
			return invalid("record", "a request id is out of range")
		}
	}
	if r.IDs == nil {
		return nil
	}
	if err := r.IDs.Valid(now); err != nil {
		return invalid("record", "%s", err.Error())
	}
	for i := range r.IDs.Ops {
		if !validOutcome(r.IDs.Ops[i].Outcome) {
			return invalid("record", "an outcome is out of range")
		}
	}
	return nil
}

// validateIDs is validate of a record that tells of request ids alone.
func (r *Record) validateIDs(now int64) error {
	if err := (Ref{Key: view(r.Key), Name: view(r.Name)}).validAddress(); err != nil {
		return err
	}
	switch {
	case !r.Kind.Known():
		return invalid("record", "the kind is unknown")
	case r.At > now || r.At < -maxMoment || now > maxMoment:
		return errTime
	case r.IDs != nil && len(r.Done) != 0:
		return invalid("record", "it is more than it may be")
	}
	return r.validDone(now)
}

// memberless returns the error of a record of a kind that has no members, nil if it has
// none.
func (r *Record) memberless() error {
	if r.Partial || len(r.Members) > 0 {
		return invalid("record", "an object of kind %s has no members", r.Kind)
	}
	return nil
}

// validID reports whether an id can be one; the zero ID is none.
func validID(id *reqid.ID) bool { return id.Settled <= id.Sequence }

func validOutcome(o reqid.Outcome) bool { return o.Code <= refusedFor+uint8(counter.Overflow) }

// Install makes an object what a record from elsewhere says: a copy. It is the
// counterpart of the Sink and of Export, and tells the Sink nothing. accept is asked
// under the lock of the object's shard whether the record is still to be taken in;
// if it says no, nothing happens and the error is ErrNotAccepted. now is the
// reference for the record's durations. Nothing of the record is kept.
//
// A copy decides nothing: no caller in its queue is granted it before Own.
// Callers that wait here for what is now a copy are answered with NotOwner.
//
// Errors are *Error: Invalid for what cannot be, and StoreFull if the store has no
// room, a quarter more than for its own objects. Nothing has changed then.
func (s *Store) Install(now int64, r *Record, accept func(hash uint64) bool) error {
	if r.stands() {
		r = r.Clone() // it is of another store, and stands there
	}
	judged, absent, err := r.validate(now)
	if err != nil {
		return err
	}
	if !s.told(r.Version) || r.Kind == KindCounter && !s.told(r.Counter().Version) {
		return errVersion
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
	if err := t.besideRoomLocked(r); err != nil {
		return err
	}
	empty := absent && len(r.Done) == 0 && (r.IDs == nil || len(r.IDs.Clients) == 0)
	if err := t.copyRoomLocked(r); err != nil && !empty {
		return err
	}
	//guard:install-version
	sh.version = max(sh.version, r.Version) // also of what is gone by it
	t.besideLocked(r)
	if t.e != nil && (t.e.kind != r.Kind || empty && (r.Whole || t.e.ids == 0 && !r.More)) {
		sh.discardLocked(t.slot)
		t.slot, t.e = 0, nil
	}
	if t.e == nil && empty {
		sh.accountLocked()
		return nil
	}
	if t.e != nil && r.Whole && t.e.ids != 0 {
		sh.voidIDsLocked(t.slot, t.e)
		sh.ids.Drop(t.e.ids)
		t.e.ids = 0
	}
	m := &machines[t.kind]
	if m.waits != nil {
		if err := m.waits.fits(t, r, judged); err != nil {
			return err
		}
	}
	t.installLocked(r, judged)
	if r.Partial && t.e.ids == 0 && !m.states.spent(sh, t.e) && sh.waitingLocked(t.e) == 0 {
		sh.forgetLocked(t.slot)
	}
	sh.accountLocked()
	return nil
}

// copyRoomLocked returns the error of a copy that may not take the room that it needs.
func (t *target) copyRoomLocked(r *Record) error {
	s := t.sh.store
	if t.slot == 0 && s.all() >= s.cfg.MaxObjects+s.cfg.MaxObjects/copyRoom {
		return errObjects
	}
	grows := t.slot == 0 || len(r.Done) > 0 || r.IDs != nil || machines[t.kind].states.grows(r)
	if grows && s.bytes.Load() >= s.cfg.MaxBytes+s.cfg.MaxBytes/copyRoom {
		return errMemory
	}
	return nil
}

// installLocked gives the object its state and its ids.
func (t *target) installLocked(r *Record, judged any) {
	sh := t.sh
	if t.slot == 0 {
		t.createLocked()
	}
	if !r.More || r.Partial {
		whole := !r.Partial || r.State.Absent()
		if whole {
			sh.unlistAllLocked(t.slot)
		}
		machines[t.kind].states.install(*t, r, judged)
		if whole {
			sh.listAllLocked(t.slot)
		}
	}
	if r.IDs != nil {
		sh.noteIDsLocked(t.e)
	}
	t.takeIDsLocked(r)
	if sh.track.on {
		sh.trackLocked(t.slot, t.e, t.hash)
		//guard:disk-ids-of-copies
		sh.noteCopiedLocked(t.e, t.hash, r.Done)
	}
}

// takeIDsLocked gives the object the ids of a record.
func (t *target) takeIDsLocked(r *Record) {
	sh := t.sh
	for i := range r.Done {
		//guard:install-ids
		if d := &r.Done[i]; !sh.ids.Knows(t.e.ids, &d.ID) {
			t.e.ids = sh.ids.Take(t.e.ids, t.slot, &d.ID, d.Outcome, r.At)
		} else if out, ok := sh.ids.Find(t.e.ids, &d.ID); ok {
			*out = d.Outcome // of an admission of several keys: it was cancelled
		}
	}
	//guard:install-kept-ids
	if r.IDs != nil {
		t.e.ids = sh.ids.Load(t.e.ids, t.slot, r.IDs, t.now, false)
	}
}

// view is a string of bytes that do not change while it is used.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
