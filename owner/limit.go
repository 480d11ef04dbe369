package owner

import (
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
)

// Meta is what every answer carries.
type Meta struct {
	Permit   Permit
	Replayed bool  // this repeats the first answer to the request id
	Age      int64 // ns since that took effect
}

// CheckAnswer is a limit's decision. In a replay, Allowed is that of the first
// answer and the rest is as it is now.
type CheckAnswer struct {
	limit.Result
	// Slack is by how much the capacity is above that of the part that decided, in
	// tokens; 0 if it was the whole. Everything but Capacity is the part's own.
	Slack uint64
	Meta
}

// Check decides a rate limit, or gives tokens back to it (limit.Op.Refund). Where a
// limit that is absent stands for one that was lost, and is taken to have been used
// up, a refund gives nothing back.
func (s *Store) Check(now int64, ref Ref, id reqid.ID, op limit.Op) (CheckAnswer, error) {
	if err := op.Validate(); err != nil {
		return CheckAnswer{}, err
	}
	t := target{ref: ref, kind: KindLimit, now: now}
	if err := t.enter(s); err != nil {
		return CheckAnswer{}, err
	}
	defer t.leave()
	var state limit.State
	if t.e != nil {
		state = t.e.limit().state()
	}
	print := printOfCheck(&id, &op) // of what was asked for, whichever part decides it
	made, err := false, error(nil)  // made: the state is another one than is stored, and is to be
	if ref.Role != Whole || state.Weight != 0 {
		if made, err = t.weighLocked(&state, &op); err != nil {
			if op.Peek && op.Algorithm == limit.TokenBucket {
				return t.glanceLocked(&state, op), nil
			}
			return CheckAnswer{}, err
		}
	} else if made = state.Spent == 0 && t.startsEmpty(); made {
		state = op.Emptied(t.permit.LostAt)
	}
	if op.Peek {
		_, _, res, _ := t.decideLocked(&state, &op)
		res.Capacity += t.slack
		return CheckAnswer{res, t.slack, Meta{Permit: t.permit}}, nil
	}
	replay, out, age, err := t.judgeLocked(&id, print)
	if err != nil {
		return CheckAnswer{}, err
	}
	if replay {
		op = peekAt(op)
		_, _, res, _ := t.decideLocked(&state, &op)
		res.Capacity += t.slack
		if res.Allowed = out.Code == done; res.Allowed {
			res.RetryAfter = 0
		}
		return CheckAnswer{res, t.slack, Meta{t.permit, true, age}}, nil
	}
	if !plain(&state, &op) {
		return t.checkLocked(&id, &state, &op, made, print)
	}
	next, res, changed := limit.Apply(state, op, t.now)
	res.Capacity += t.slack
	made = made && !changed // it is to outlast the grace, if there is room for it
	if !changed && !made && !id.Given() {
		return CheckAnswer{res, t.slack, Meta{Permit: t.permit}}, nil
	}
	if err := t.roomLocked(&id); err != nil {
		if made && !id.Given() {
			return CheckAnswer{res, t.slack, Meta{Permit: t.permit}}, nil
		}
		return CheckAnswer{}, err
	}
	changed = changed || made
	if changed {
		if t.slot == 0 {
			t.createLocked()
		}
		*t.e.limit() = packLimit(next)
		t.e.limit().weigh(t.weight)
		t.sh.advanceLocked()
	}
	t.changedLocked(&id, reqid.Outcome{Print: print, Code: decision(res.Allowed)})
	return CheckAnswer{res, t.slack, Meta{Permit: t.permit}}, nil
}

// glanceLocked reads a part of a token bucket for a cost that it can never decide: what it
// has, and that this is not so much. Reading makes nothing whole.
func (t *target) glanceLocked(state *limit.State, op limit.Op) CheckAnswer {
	capacity := op.Capacity()
	op.Cost = 1
	a := CheckAnswer{limit.Result{Capacity: capacity}, capacity, Meta{Permit: t.permit}}
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
	changed := t.e != nil && *t.e.limit() != (limitCell{})
	if changed {
		c := t.e.limit()
		spent = c.state().Used(t.sh.marksLocked(c), t.now)
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
