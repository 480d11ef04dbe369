package owner

import (
	"bytes"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/owner/value"
)

// Hold is a grant of another object of the same key, such as a lock, on which an operation
// depends. The zero Hold is none.
type Hold struct {
	Name  string // of the object
	Token uint64 // of the grant
}

// given reports whether an operation names a hold.
func (h Hold) given() bool { return h != Hold{} }

// SetRegister is an operation that sets a register.
type SetRegister struct {
	value.Set
	Hold Hold
}

// DeleteRegister is an operation that deletes one.
type DeleteRegister struct {
	value.Delete
	Hold Hold
}

// RegisterChange is the outcome of a change of a register. In a replay, the result is that of
// the first answer. Current is the register now; its value is not to be changed.
type RegisterChange struct {
	value.Result
	Current value.State
	Meta
}

// RegisterAnswer is a register as it is. Its value is not to be changed.
type RegisterAnswer struct {
	value.State
	Meta
}

// GetRegister reads a register.
func (s *Store) GetRegister(now int64, ref Ref) (RegisterAnswer, error) {
	t := target{ref: ref, kind: KindRegister, now: now}
	if err := t.enter(s); err != nil {
		return RegisterAnswer{}, err
	}
	defer t.leave()
	return RegisterAnswer{t.registerLocked(), Meta{Permit: t.permit}}, nil
}

// registerLocked returns the state of the target.
func (t *target) registerLocked() value.State {
	if t.e == nil {
		return value.State{}
	}
	return registers{}.stateOf(t.sh, t.e)
}

// SetRegister sets a register. Its versions are of the sequence of fencing tokens: they begin
// with the epoch of the serving rule, and rise over owners, deletions and losses.
//
// While the row is in grace, whether a name is free is not known: an operation by which the
// register must not exist is Recovering if it does not.
func (s *Store) SetRegister(now int64, ref Ref, id reqid.ID, op SetRegister) (RegisterChange, error) {
	if err := op.Validate(); err != nil {
		return RegisterChange{}, err
	}
	op.Value = bytes.Clone(op.Value)
	c := registerChange{print: printOfSetRegister(&id, &op), hold: op.Hold, free: op.Versioned && op.Version == 0, size: cap(op.Value)}
	return s.changeRegister(now, ref, &id, &c, func(was value.State, over bool, version uint64, now int64) (value.State, value.Result, bool) {
		op.Over = over
		return was.Set(op.Set, version, now)
	})
}

// DeleteRegister makes a register one that does not exist. Its fence stays, and with it the room
// that it takes, unless the operation forgets it. What is remembered of request ids on it stays
// for its time.
func (s *Store) DeleteRegister(now int64, ref Ref, id reqid.ID, op DeleteRegister) (RegisterChange, error) {
	if err := op.Validate(); err != nil {
		return RegisterChange{}, err
	}
	c := registerChange{print: printOfDeleteRegister(&id, &op), hold: op.Hold}
	return s.changeRegister(now, ref, &id, &c, func(was value.State, over bool, version uint64, now int64) (value.State, value.Result, bool) {
		op.Over = over
		return was.Delete(op.Delete, version, now)
	})
}

// registerChange is a change of a register on its way through the store. It points to nothing:
// what it did would be allocated.
type registerChange struct {
	print uint32
	hold  Hold
	free  bool // the register must not exist
	size  int  // bytes that the next value refers to

	version uint64 // under which it happens
	next    value.State
	changed bool // next is not what the register was
	value.Result
}

func (s *Store) changeRegister(now int64, ref Ref, id *reqid.ID, c *registerChange,
	do func(was value.State, over bool, version uint64, now int64) (value.State, value.Result, bool)) (RegisterChange, error) {
	t := target{ref: ref, kind: KindRegister, now: now}
	if err := t.enter(s); err != nil {
		return RegisterChange{}, err
	}
	defer t.leave()
	replay, out, age, err := t.judgeLocked(id, c.print)
	if err != nil {
		return RegisterChange{}, err
	}
	was := t.registerLocked()
	if replay {
		res := value.Result{Applied: out.Code == done, Version: uint64(out.A)}
		if out.Code >= refusedFor {
			res.Refusal = value.Refusal(out.Code - refusedFor)
		}
		return RegisterChange{res, was, Meta{t.permit, true, age}}, nil
	}
	//guard:register-name-unknown
	if t.permit.Lost != 0 && c.free && !was.Exists {
		return RegisterChange{}, t.recovering(nameRecovering)
	}
	over := false
	if c.hold.given() {
		held, err := t.holdsLocked(c.hold)
		if err != nil {
			return RegisterChange{}, err
		}
		//guard:register-hold !held -> !held && false
		over = !held
	}
	if c.version, err = t.sh.nextTokenLocked(s.cfg.Rule, t.permit); err != nil {
		return RegisterChange{}, err
	}
	c.next, c.Result, c.changed = do(was, over, c.version, t.now)
	if err := t.storeRegisterLocked(id, c, c.size-cap(was.Value)); err != nil {
		return RegisterChange{}, err
	}
	return RegisterChange{c.Result, c.next, Meta{Permit: t.permit}}, nil
}

const nameRecovering = "what is kept of the key was lost, and this register with it, if there was one: whether it exists is not known; nothing happened"

// storeRegisterLocked keeps what a change has led to: its value refers to so many bytes more
// than the one before it.
func (t *target) storeRegisterLocked(id *reqid.ID, c *registerChange, more int) error {
	if !c.changed && !id.Given() {
		return nil
	}
	t.frees = c.changed && !c.next.Exists
	if err := t.roomLocked(id); err != nil {
		return err
	}
	if c.changed {
		if err := t.growLocked(more); err != nil {
			return err
		}
		if t.slot == 0 {
			t.createLocked()
		}
		registers{}.set(t.sh, t.e, &c.next)
		t.sh.tokenUsedLocked(c.version)
		t.sh.advanceLocked()
	}
	code := decision(c.Applied)
	if c.Refusal != value.None {
		code = refusedFor + uint8(c.Refusal)
	}
	t.changedLocked(id, reqid.Outcome{Print: c.print, Code: code, A: int64(c.Version)})
	t.forgetBareLocked()
	return nil
}

// growLocked returns the error of an object that may not refer to so many bytes more.
func (t *target) growLocked(n int) *failure.Error {
	s := t.sh.store
	switch {
	case n <= 0:
		return nil
	//guard:value-memory
	case s.bytes.Load()+int64(n) > s.cfg.MaxBytes:
		return errMemory
	//guard:value-share
	case s.ownFull(ownShare, ownParts):
		return errShare
	}
	return nil
}

// ValueSize returns how many bytes the state of an object refers to here: those of a value
// or a result. With each request id that is remembered, also that of a change that is
// refused, the copies get it once more.
func (s *Store) ValueSize(ref Ref) int {
	sh := s.shard(ref.hash())
	tag := s.addressTag(ref)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	slot := sh.findLocked(tag, ref)
	if slot == 0 {
		return 0
	}
	e := sh.entryLocked(slot)
	if slab := machines[e.kind].slab; slab != nil {
		return slab.refers(sh, e)
	}
	return 0
}

// holdsLocked reports whether a token holds an object of the target's key now. From then on it
// does not, if it does not: the end of a lease is a change of its own. While the row is in
// grace, and nothing is known of the grant, the error is Recovering.
func (t *target) holdsLocked(h Hold) (bool, error) {
	ref := Ref{Key: t.ref.Key, Name: h.Name, Hash: t.hash}
	if err := ref.validate(); err != nil {
		return false, inHold(err)
	}
	sh := t.sh
	o := target{sh: sh, ref: ref, hash: t.hash, tag: sh.store.addressTag(ref), permit: t.permit, now: t.now}
	if o.slot = sh.findLocked(o.tag, ref); o.slot == 0 {
		return false, o.unknownLocked(h.Token)
	}
	o.e = sh.entryLocked(o.slot)
	o.kind = o.e.kind
	g := machines[o.kind].grants
	if g == nil {
		return false, failure.Invalidf("hold.name", "%q is a %s of the key, which nobody holds", h.Name, o.kind)
	}
	if sh.isCopyLocked(o.slot) {
		if err := o.ownLocked(OwnGrace); err != nil {
			return false, err
		}
	}
	return g.holds(o, h.Token)
}

// unknownLocked returns the error of a token of which nothing is known, nil if it is certain
// that it holds nothing.
func (t *target) unknownLocked(token uint64) error {
	if t.permit.Lost != 0 && beforeLoss(token, t.permit.Lost) {
		return t.recovering(unknownRecovering)
	}
	return nil
}

// inHold returns the error of an address as one of a hold.
func inHold(err *failure.Error) error {
	in := *err
	in.Field = "hold." + err.Field
	return &in
}
