package owner

import (
	"math"
	"slices"

	"github.com/keystead/keystead/owner/reqid"
)

// Read emits all that there is of one object, to carry it elsewhere: a Record that
// is Whole, and those that are More if it has many request ids. ref is in one of the
// roles Carry, Reap and Sample. An object that is not there is one Whole record without
// a state. It is called under the lock of the object's shard: no change comes in
// between. now, as emit gets it, is the reference for the durations of the record; what
// the record points to is valid until emit returns.
// Request ids from before Permit.Since count as evicted in it. A Sample gets the first
// record only: it is for the state, and comes often.
//
// A Sample of a part of a limit also sees to it that a weight that was lowered has got
// to the state, even if no operation has come since: see limit.State.Lower. That is a
// change: before others are told of it, so that they raise theirs, it waits for the copies
// as with any answer.
//
// What was emitted counts only if Confirm says so about the permit of the answer.
// Errors are *Error: NotOwner and others as the serving rule has them, KindMismatch,
// and Invalid for an address.
func (s *Store) Read(now int64, ref Ref, kind Kind, emit func(r *Record, now int64)) (Meta, error) {
	t := target{ref: ref, kind: kind, now: now, roles: rolesOf(Carry, Reap, Sample), quiet: true}
	if !kind.Parts() {
		return Meta{}, errKind
	}
	if err := t.enter(s); err != nil {
		return Meta{}, err
	}
	defer t.leave()
	machines[kind].parts.refresh(&t)
	meta := Meta{Permit: t.permit}
	// Where the record goes, the row is another one: what is unknown here is to be
	// unknown there.
	known := func(r *Record, now int64) bool {
		since := t.sh.ids.Since(t.permit.Since)
		//guard:split-ids-lost t.now -> math.MinInt64
		r.IDs.Evicted = max(r.IDs.Evicted, min(since, t.now))
		//guard:key-carried-mark
		if at := min(t.sh.ids.KeysSince(t.permit.Since), t.now); r.Whole && at >= t.now-t.sh.ids.Window() && t.keysUsed() {
			r.IDs.AddMark(at)
		}
		emit(r, now)
		return ref.Role != Sample
	}
	if t.slot == 0 {
		known(t.nothingLocked(), t.now)
		return meta, nil
	}
	t.sh.exportOneLocked(t.slot, t.hash, known)
	return meta, nil
}

// lowerLocked applies a weight of a limit's part that is lower than the one under
// which the state counts.
func (t *target) lowerLocked() {
	if t.e == nil || t.weight == 0 {
		return
	}
	state := t.e.limit().state()
	if state.Weight <= t.weight {
		return
	}
	*t.e.limit() = packLimit(state.Lower(t.weight, t.now))
	t.sh.advanceLocked()
	t.sh.notifySinkLocked(t.slot, t.hash)
}

// nothingLocked returns the record of an object that is not there.
func (t *target) nothingLocked() *Record {
	r := &t.sh.record
	t.sh.kept = reqid.Kept{Evicted: math.MinInt64, Clients: t.sh.kept.Clients[:0], Ops: t.sh.kept.Ops[:0]}
	*r = Record{Hash: t.hash, Key: []byte(t.ref.Key), Name: []byte(t.ref.Name), Kind: t.kind, Version: t.sh.version,
		At: t.now, Members: r.Members[:0], Whole: true, IDs: &t.sh.kept}
	return r
}

// Put makes an object what records say, in the place of all that there was of it,
// request ids included: the counterpart of Read. ref is in one of the roles Plant and
// Join. The first record is Whole, those that follow are More; all are of one kind, a
// limit or a counter. Addresses and versions that they have do not count: the object
// is that of ref, and what it has now is a change here, of which the Sink is told by
// records that are Whole and More, too. A counter that has a value or a version gets
// the version of this change, as does one that was here before a Join. Putting the
// same twice is the same as once, but for versions. Nothing of the records is kept.
//
// now is the reference for the records' durations. Errors are *Error: Invalid
// for what cannot be, StoreFull, KindMismatch, and as the serving rule has them.
// Nothing has changed then.
func (s *Store) Put(now int64, ref Ref, records []*Record) (Meta, error) {
	all, err := ref.records(now, records)
	if err != nil {
		return Meta{}, err
	}
	first := &all[0]
	t := target{ref: ref, kind: first.Kind, now: now, roles: rolesOf(Plant, Join), quiet: true}
	if err := t.enter(s); err != nil {
		return Meta{}, err
	}
	defer t.leave()
	machines[t.kind].parts.refresh(&t)
	var some reqid.ID // one that needs room if there are any
	if slices.ContainsFunc(all, func(r Record) bool { return len(r.IDs.Clients) > 0 }) {
		some.Sequence = 1
	}
	// What was there before it was divided must not be kept away by what came since: it
	// takes the room that copies have, and one object that knows no more of its ids than that
	// they are forgotten always fits.
	if ref.Role == Join {
		//guard:split-bare-fits
		if len(all) > 1 || !first.IDs.Bare() {
			err = t.copyRoomLocked(first)
		}
	} else if full := machines[t.kind].parts.room(&t, &some, first); full != nil {
		err = full
	}
	if err != nil {
		return Meta{}, err
	}
	meta := Meta{Permit: t.permit}
	if t.slot == 0 && first.State.Absent() && !some.Given() {
		return meta, nil
	}
	t.putLocked(all)
	return meta, nil
}

// putLocked replaces the state and the ids of the target, and tells the sink.
func (t *target) putLocked(all []Record) {
	sh, first := t.sh, &all[0]
	if t.slot == 0 {
		t.createLocked()
	}
	//guard:split-put-replaces
	if t.e.ids != 0 {
		sh.ids.Drop(t.e.ids)
		t.e.ids = 0
	}
	sh.advanceLocked()
	machines[t.kind].parts.put(t, first)
	for i := range all {
		t.e.ids = sh.ids.Load(t.e.ids, t.slot, all[i].IDs, t.now, true)
	}
	sh.noteIDsLocked(t.e)
	if sh.track.on {
		sh.trackLocked(t.slot, t.e, t.hash)
	}
	sh.accountLocked()
	//guard:split-put-told
	if sink := sh.store.cfg.Sink; sink != nil {
		sh.exportOneLocked(t.slot, t.hash, func(r *Record, _ int64) bool {
			sink.Changed(r)
			return true
		})
	}
}

// records returns those of a Put as they are taken in: with the address of the object,
// and each as Install would take it.
func (r Ref) records(now int64, records []*Record) ([]Record, error) {
	if len(records) == 0 {
		return nil, invalid("records", "are missing")
	}
	all := make([]Record, len(records))
	for i, from := range records {
		to := &all[i]
		*to = *from
		to.Key, to.Name = []byte(r.Key), []byte(r.Name)
		switch {
		case !to.Kind.Parts(), to.Kind != all[0].Kind:
			return nil, errKind
		case to.Whole != (i == 0), to.More != (i > 0):
			return nil, invalid("records", "are not a whole one and then what is more")
		}
		if err := to.Validate(now); err != nil {
			return nil, err
		}
	}
	return all, nil
}
