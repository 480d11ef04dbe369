package owner

import (
	"cmp"

	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
)

// Meta is what every answer carries.
type Meta struct {
	Permit   Permit
	Replayed bool  // this repeats the first answer to the request id
	Age      int64 // ns since that took effect
}

// LeakyLevel is the level of the cluster from which on there are limits that are leaky
// buckets.
const LeakyLevel = 8

// OverdraftLevel is the level of the cluster from which on limits are overdrawn: an owner of before
// would take such a check for another one, and refuse it.
const OverdraftLevel = 8

// CheckAnswer is a limit's decision. In a replay, Allowed is that of the first
// answer, Delay is what is left of that of the first one, and the rest is as it is now.
type CheckAnswer struct {
	limit.Result
	// Slack is by how much the capacity is above that of the part that decided, in
	// tokens; 0 if it was the whole. Everything but Capacity is the part's own.
	Slack uint64
	// Override is the limit of the override that was in force, in the place of the caller's; 0 if
	// none was.
	Override uint64
	Meta
}

// Check decides a rate limit, or gives tokens back to it (limit.Op.Refund). Where a
// limit that is absent stands for one that was lost, and is taken to have been used
// up, a refund gives nothing back.
func (s *Store) Check(now int64, ref Ref, id reqid.ID, op limit.Op) (a CheckAnswer, err error) {
	never, err := op.Fits()
	if err != nil {
		return CheckAnswer{}, err
	}
	//guard:calendar-level-of-the-store op.Algorithm >= limit.CalendarWindow -> op.Algorithm == limit.LeakyBucket
	if op.Algorithm >= limit.CalendarWindow {
		if err := s.uses(LeakyLevel); err != nil {
			return CheckAnswer{}, err
		}
	}
	if op.Overdraft {
		if err := s.uses(OverdraftLevel); err != nil {
			return CheckAnswer{}, err
		}
	}
	t := target{ref: ref, kind: KindLimit, now: now}
	if err := t.enter(s); err != nil {
		return CheckAnswer{}, err
	}
	defer t.leave()
	err = t.checkedLocked(&id, &op, "", never, &a)
	return a, err
}

// checkedLocked decides a check, of a limit that the caller says, or that a policy has. never is
// its error unless an override applies, or did at the first attempt; see limit.Op.Fits. The answer
// is written where it goes, once: it is large.
func (t *target) checkedLocked(id *reqid.ID, op *limit.Op, policy string, never error, a *CheckAnswer) (err error) {
	print := printOfCheck(id, op, policy) // of what was asked for, whichever part decides it
	var over *limit.Override
	if never != nil || t.e != nil && t.e.rest != 0 {
		if over = t.overriddenLocked(op); over == nil && never != nil {
			replay, _, _, err := t.judgeLocked(id, print)
			if err != nil || !replay { //guard:override-replay true
				return cmp.Or(err, never)
			}
		}
	}
	var state limit.State
	if t.e != nil {
		state = t.e.limit().state()
	}
	lost := state.Spent == 0 && state.Algorithm != limit.CalendarWindow
	if op.Dated(&state) {
		if err := t.dateLocked(&state, op); err != nil {
			return err
		}
	}
	if over != nil && over.Refuses(op) || over == nil && never != nil {
		*a, err = t.neverLocked(id, state, *op, over, print)
		return err
	}
	made := false // the state is another one than is stored, and is to be
	if t.ref.Role != Whole || state.Weight != 0 {
		if made, err = t.weighLocked(&state, op); err != nil {
			if op.Peek && op.Algorithm == limit.TokenBucket {
				*a, err = t.glanceLocked(&state, *op), nil
			}
			return err
		}
	} else if made = lost && t.startsEmpty(); made {
		state = t.emptied(op)
	}
	if op.Peek {
		_, _, a.Result, _ = t.decideLocked(&state, op)
		t.answerLocked(a)
		return nil
	}
	replay, out, age, err := t.judgeLocked(id, print)
	switch {
	case err != nil:
		return err
	case replay:
		look := peekAt(*op)
		_, _, res, _ := t.decideLocked(&state, &look)
		if *a = t.replayed(res, &out, age); op.Overdraft {
			a.RetryAfter = res.RetryAfter // of a check of 1
		}
		return nil
	}
	return t.chargeLocked(id, &state, op, made, print, a)
}

// chargeLocked goes on with a check that has not been done under its request id yet. made is as in
// checkLocked.
func (t *target) chargeLocked(id *reqid.ID, state *limit.State, op *limit.Op, made bool, print uint32, a *CheckAnswer) (err error) {
	if t.over != nil {
		t.hitLocked()
	}
	if !plain(state, op) {
		*a, err = t.checkLocked(id, state, op, made, print)
		return err
	}
	return t.plainLocked(id, state, op, made, print, a)
}

// answerLocked completes the answer to a check that was decided now.
func (t *target) answerLocked(a *CheckAnswer) {
	a.Capacity += t.slack
	a.Slack, a.Override, a.Permit = t.slack, t.limit, t.permit
}

// plainLocked goes on with a check that is plain, and has not been done under its request id yet.
// made is as in checkLocked.
func (t *target) plainLocked(id *reqid.ID, state *limit.State, op *limit.Op, made bool, print uint32, a *CheckAnswer) error {
	next, res, changed := t.applyLocked(state, op)
	made = made && !changed // it is to outlast the grace, if there is room for it
	if changed || made || id.Given() {
		err := t.roomLocked(id)
		switch {
		case err == nil:
			if changed || made {
				t.storeLocked(next)
			}
			t.changedLocked(id, reqid.Outcome{Print: print, Code: decision(res.Allowed), A: res.Delay})
		case changed || id.Given():
			return err
		}
	}
	a.Result = res
	t.answerLocked(a)
	return nil
}

// storeLocked puts the state of a limit without marks in the place of the one before.
func (t *target) storeLocked(next limit.State) {
	if t.slot == 0 {
		t.createLocked()
	}
	*t.e.limit() = packLimit(next)
	t.e.limit().weigh(t.weight)
	t.sh.advanceLocked()
}

// replayed is a replay, beside what there is now.
func (t *target) replayed(res limit.Result, out *reqid.Outcome, age int64) CheckAnswer {
	res.Capacity += t.slack
	if res.Allowed = out.Code == done; res.Allowed {
		//guard:leaky-replay out.A-age -> res.Delay
		res.RetryAfter, res.Delay = 0, max(out.A-age, 0)
	} else {
		res.Delay = 0
	}
	return CheckAnswer{res, t.slack, t.limit, Meta{t.permit, true, age}}
}

// glanceLocked reads a part of a token bucket for a cost that it can never decide: what it
// has, and that this is not so much. Reading makes nothing whole.
func (t *target) glanceLocked(state *limit.State, op limit.Op) CheckAnswer {
	capacity := op.Capacity()
	op.Cost = 1
	a := CheckAnswer{limit.Result{Capacity: capacity}, capacity, t.limit, Meta{Permit: t.permit}}
	if _, err := t.weighLocked(state, &op); err == nil { // else it has no room for a token
		_, _, a.Result, _ = t.decideLocked(state, &op)
		a.Allowed, a.Capacity, a.Slack = false, capacity, t.slack
	}
	return a
}

// LimitResetAnswer is the outcome of a ResetLimit.
type LimitResetAnswer struct {
	Spent uint64 // tokens that had been spent and had not come back; 0 if it was full
	Meta
}

const resetRecovering = "what is kept of the key was lost, and the limit is taken to be used up until the grace period is over (--lost-limits=empty); nothing happened"

// ResetLimit makes a limit full: nothing of it is spent. What was remembered of request
// ids on it stays for its time, so that a retry of a check of before spends nothing.
// Without such ids the object is forgotten at once. Where an absent limit stands for one
// that was lost and is taken to be used up, there is no way to say that it is full: the
// error is Recovering.
func (s *Store) ResetLimit(now int64, ref Ref, id reqid.ID) (LimitResetAnswer, error) {
	if err := s.uses(DeleteLevel); err != nil {
		return LimitResetAnswer{}, err
	}
	t := target{ref: ref, kind: KindLimit, now: now}
	if err := t.enter(s); err != nil {
		return LimitResetAnswer{}, err
	}
	defer t.leave()
	if ref.Role == Share {
		return LimitResetAnswer{}, ErrWhole
	}
	print := fingerprint(opResetLimit, 0)
	replay, out, age, err := t.judgeLocked(&id, print)
	switch {
	case err != nil:
		return LimitResetAnswer{}, err
	case replay:
		return LimitResetAnswer{uint64(out.A), Meta{t.permit, true, age}}, nil
	case t.startsEmpty():
		return LimitResetAnswer{}, t.recovering(resetRecovering)
	}
	var spent uint64
	t.overrideLocked()
	changed := t.e != nil && *t.e.limit() != (limitCell{})
	if changed {
		spent = t.usedLocked()
	}
	if !changed && !id.Given() {
		return LimitResetAnswer{0, Meta{Permit: t.permit}}, nil
	}
	if err := t.roomLocked(&id); err != nil {
		return LimitResetAnswer{}, err
	}
	if changed {
		t.sh.setLimitLocked(t.e, &limit.State{}, nil)
		t.sh.advanceLocked()
	}
	t.changedLocked(&id, reqid.Outcome{Print: print, Code: done, A: int64(spent)})
	t.forgetBareLocked()
	return LimitResetAnswer{spent, Meta{Permit: t.permit}}, nil
}

// Codes of a remembered outcome: refused, with the reason from refusedFor on,
// or done.
const (
	refused uint8 = iota
	done
	refusedFor
)

func decision(ok bool) uint8 {
	if ok {
		return done
	}
	return refused
}
