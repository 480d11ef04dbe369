package owner

import (
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/reqid"
)

// AddAnswer is the outcome of an Add. In a replay, the result is that of the
// first answer and Current is the value now.
type AddAnswer struct {
	counter.AddResult
	Current int64
	Meta
}

// CompareAndSetAnswer is the outcome of a CompareAndSet; see AddAnswer.
type CompareAndSetAnswer struct {
	counter.CompareAndSetResult
	Current int64
	Meta
}

// ResetAnswer is the outcome of a Reset; see AddAnswer.
type ResetAnswer struct {
	counter.ResetResult
	Current int64
	Meta
}

// DeleteAnswer is the outcome of a Delete. In a replay, the result is that of the first
// answer and Current is the value now: that of a counter that was made since.
type DeleteAnswer struct {
	counter.DeleteResult
	Current int64
	Meta
}

// GetAnswer is a counter as it is.
type GetAnswer struct {
	Value   int64
	Version uint64
	Meta
}

// counterLocked returns the state of the target, absent if its time is over.
func (t *target) counterLocked() counter.State {
	if t.e == nil {
		return counter.State{}
	}
	return t.e.counter().Live(t.now)
}

// Get reads a counter.
func (s *Store) Get(now int64, ref Ref) (GetAnswer, error) {
	t := target{ref: ref, kind: KindCounter, now: now}
	if ref.Role == Sample {
		t.roles = rolesOf(Sample)
	}
	if err := t.enter(s); err != nil {
		return GetAnswer{}, err
	}
	defer t.leave()
	t.lapseLocked()
	value, version := counter.Get(t.counterLocked(), t.now)
	return GetAnswer{value, version, Meta{Permit: t.permit}}, nil
}

// lapseLocked makes the expiry of a counter a change of its own before an
// answer shows it: a copy that still held the counter would bring it back.
func (t *target) lapseLocked() {
	if t.e == nil || !t.e.counter().Expired(t.now) {
		return
	}
	t.sh.lapseLocked(t.slot, t.hash)
}

// Add adds to a counter within bounds.
func (s *Store) Add(now int64, ref Ref, id reqid.ID, op counter.AddOp) (AddAnswer, error) {
	if err := op.Validate(); err != nil {
		return AddAnswer{}, err
	}
	print := printOfAdd(&id, &op)
	t, replay, out, age, err := s.enterCounter(now, ref, &id, print, partible(op))
	if err != nil {
		return AddAnswer{}, err
	}
	defer t.leave()
	if replay {
		res := counter.AddResult{Applied: out.Code == done, Value: out.A, Version: uint64(out.B)}
		if out.Code >= refusedFor {
			res.Refusal = counter.Refusal(out.Code - refusedFor)
		}
		return AddAnswer{res, t.counterLocked().Value, Meta{t.permit, true, age}}, nil
	}
	next, res, changed := counter.Add(t.counterLocked(), op, t.sh.version+1, t.now)
	if ref.Role == Share && !fitsShare(next, res) {
		return AddAnswer{}, ErrWhole
	}
	code := done
	if !res.Applied {
		code = refusedFor + uint8(res.Refusal)
	}
	err = t.storeCounterLocked(next, changed, &id, reqid.Outcome{Print: print, Code: code, A: res.Value, B: int64(res.Version)})
	if err != nil {
		return AddAnswer{}, err
	}
	return AddAnswer{res, next.Value, Meta{Permit: t.permit}}, nil
}

// CompareAndSet sets a counter whose version is known.
func (s *Store) CompareAndSet(now int64, ref Ref, id reqid.ID, op counter.CompareAndSetOp) (CompareAndSetAnswer, error) {
	if err := op.Validate(); err != nil {
		return CompareAndSetAnswer{}, err
	}
	print := printOfCompareAndSet(&id, &op)
	t, replay, out, age, err := s.enterCounter(now, ref, &id, print, false)
	if err != nil {
		return CompareAndSetAnswer{}, err
	}
	defer t.leave()
	if replay {
		res := counter.CompareAndSetResult{Applied: out.Code == done, Value: out.A, Version: uint64(out.B)}
		return CompareAndSetAnswer{res, t.counterLocked().Value, Meta{t.permit, true, age}}, nil
	}
	next, res, changed := counter.CompareAndSet(t.counterLocked(), op, t.sh.version+1, t.now)
	err = t.storeCounterLocked(next, changed, &id, reqid.Outcome{Print: print, Code: decision(res.Applied), A: res.Value, B: int64(res.Version)})
	if err != nil {
		return CompareAndSetAnswer{}, err
	}
	return CompareAndSetAnswer{res, next.Value, Meta{Permit: t.permit}}, nil
}

// Reset sets a counter back to 0.
func (s *Store) Reset(now int64, ref Ref, id reqid.ID) (ResetAnswer, error) {
	print := fingerprint(opReset, 0)
	t, replay, out, age, err := s.enterCounter(now, ref, &id, print, false)
	if err != nil {
		return ResetAnswer{}, err
	}
	defer t.leave()
	if replay {
		res := counter.ResetResult{Previous: out.A, Version: uint64(out.B)}
		return ResetAnswer{res, t.counterLocked().Value, Meta{t.permit, true, age}}, nil
	}
	next, res, changed := counter.Reset(t.counterLocked(), t.sh.version+1, t.now)
	err = t.storeCounterLocked(next, changed, &id, reqid.Outcome{Print: print, Code: done, A: res.Previous, B: int64(res.Version)})
	if err != nil {
		return ResetAnswer{}, err
	}
	return ResetAnswer{res, next.Value, Meta{Permit: t.permit}}, nil
}

// Delete makes a counter one that does not exist, here and in all copies. Its next version,
// if it is made again, is above all that it had. What is remembered of request ids on the
// object, that of this operation included, stays for its time, and so does the room that
// it takes: a retry deletes nothing that was made since, and one of an Add of before makes
// nothing. Without such ids the object is forgotten at once.
func (s *Store) Delete(now int64, ref Ref, id reqid.ID) (DeleteAnswer, error) {
	if err := s.uses(DeleteLevel); err != nil {
		return DeleteAnswer{}, err
	}
	print := fingerprint(opDelete, 0)
	t, replay, out, age, err := s.enterCounter(now, ref, &id, print, false)
	if err != nil {
		return DeleteAnswer{}, err
	}
	defer t.leave()
	if replay {
		res := counter.DeleteResult{Deleted: out.Code == done, Previous: out.A, Version: uint64(out.B)}
		return DeleteAnswer{res, t.counterLocked().Value, Meta{t.permit, true, age}}, nil
	}
	next, res, changed := counter.Delete(t.counterLocked(), t.sh.version+1, t.now)
	t.frees = res.Deleted
	err = t.storeCounterLocked(next, changed, &id, reqid.Outcome{Print: print, Code: decision(res.Deleted), A: res.Previous, B: int64(res.Version)})
	if err != nil {
		return DeleteAnswer{}, err
	}
	t.forgetBareLocked()
	return DeleteAnswer{res, 0, Meta{Permit: t.permit}}, nil
}

// enterCounter lets an operation that may change a counter in, and reports whether
// it is a replay. partible says that a part can decide it. If it succeeds, the shard
// is locked until leave.
func (s *Store) enterCounter(now int64, ref Ref, id *reqid.ID, print uint32, partible bool) (t target, replay bool, out reqid.Outcome, age int64, err error) {
	t = target{ref: ref, kind: KindCounter, now: now}
	if err = t.enter(s); err != nil {
		return t, false, out, 0, err
	}
	if ref.Role == Share && !partible {
		t.leave()
		return t, false, out, 0, ErrWhole
	}
	t.lapseLocked()
	replay, out, age, err = t.judgeLocked(id, print)
	if err != nil {
		t.leave()
	}
	return t, replay, out, age, err
}

func (t *target) storeCounterLocked(next counter.State, changed bool, id *reqid.ID, out reqid.Outcome) error {
	if !changed && !id.Given() {
		return nil
	}
	if err := t.roomLocked(id); err != nil {
		return err
	}
	if changed {
		if err := t.sh.versionsLeftLocked(); err != nil {
			return err
		}
		if t.slot == 0 {
			t.createLocked()
		}
		*t.e.counter() = next
		t.sh.advanceLocked()
	}
	t.changedLocked(id, out)
	if changed { // and the copies are told of it before its waiters
		t.counterChangedLocked()
	}
	return nil
}
