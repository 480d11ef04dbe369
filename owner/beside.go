package owner

import "github.com/keystead/keystead/owner/reqid"

// validBeside reports what cannot have been changed in the step of a record.
func (r *Record) validBeside(now int64) error {
	if r.Kind != KindAdmission || r.Whole || r.More || len(r.Beside) > MaxBeside {
		return invalid("record", "it tells of more objects than it may")
	}
	for i := range r.Beside {
		b := &r.Beside[i]
		ref := Ref{Key: view(r.Key), Name: view(b.Name)}
		if err := ref.validAddress(); err != nil {
			return err
		}
		if b.Kind != KindLimit && b.Kind != KindCounter || b.Partial || len(b.Members) > 0 || b.IDs != nil || len(b.Done) > 0 || len(b.Beside) > 0 {
			return invalid("record", "it tells of an object that no step of it changes")
		}
		if _, _, err := machines[b.Kind].states.judge(b, now); err != nil {
			return err
		}
	}
	return nil
}

// besideRoomLocked returns the error of a record of whose step something cannot be taken in.
func (t *target) besideRoomLocked(r *Record) error {
	for i := range r.Beside {
		b := t.besideOne(&r.Beside[i])
		if b.kind == KindCounter && !t.sh.store.told(r.Beside[i].Counter().Version) {
			return errVersion
		}
		if err := b.copyRoomLocked(&r.Beside[i]); err != nil && !r.Beside[i].State.Absent() {
			return err
		}
	}
	return nil
}

// besideOne finds another object of the key.
func (t *target) besideOne(r *Record) target {
	b := target{sh: t.sh, copied: true, kind: r.Kind, ref: Ref{Key: t.ref.Key, Name: view(r.Name)}, hash: t.hash, now: t.now}
	b.tag = t.sh.store.addressTag(b.ref)
	if b.slot = t.sh.findLocked(b.tag, b.ref); b.slot != 0 {
		b.e = t.sh.entryLocked(b.slot)
	}
	return b
}

// besideLocked takes in what else the step of a record has changed.
func (t *target) besideLocked(r *Record) {
	for i := range r.Beside {
		of := &r.Beside[i]
		b := t.besideOne(of)
		if b.e != nil && (b.e.kind != of.Kind || of.State.Absent() && b.e.ids == 0) {
			t.sh.discardLocked(b.slot)
			b.slot, b.e = 0, nil
		}
		if b.e == nil && of.State.Absent() {
			continue
		}
		of.At = r.At
		b.installLocked(of, nil)
	}
}

// cloneBeside returns copies of what a step has changed.
func cloneBeside(all []Record) []Record {
	if len(all) == 0 {
		return nil
	}
	c := make([]Record, len(all))
	for i := range all {
		c[i] = *all[i].Clone()
		c[i].IDs = (*reqid.Kept)(nil)
	}
	return c
}

// stands reports whether some of the record is in a store.
func (r *Record) stands() bool {
	for i := range r.Beside {
		if r.Beside[i].State.e != nil {
			return true
		}
	}
	return r.State.e != nil
}
