package owner

import (
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/once"
	"github.com/keystead/keystead/owner/reqid"
)

// Turn is the answer to a Begin: the turn, whose turn it is, or the result. In a replay it is the
// turn that the first attempt got, with a Left of 0 if that is over.
type Turn struct {
	once.Outcome
	once.State       // as it is now; its texts are not to be changed
	Left       int64 // ns of the lease, or until the result is forgotten
	Meta
}

// TurnAnswer reports whether a token is that of the turn; of a conclusion, whether it was.
type TurnAnswer struct {
	OK        bool
	Reclaimed bool  // it was lost, and given back: Left is what its holder had left
	Left      int64 // ns of the lease, or until the result is forgotten
	once.State
	Meta
}

// TurnClaim is what a holder shows beside its token, in case that its turn was lost: see Renew
// and Complete. The zero TurnClaim is none.
type TurnClaim struct {
	Print  []byte
	Holder []byte
	Left   int64 // ns that the holder still counts on
}

const (
	beginRecovering = "what is kept of the key was lost, and whose turn it is with it, or the result: nobody begins until the longest lease of before is over; nothing happened"
	unknownTurn     = "what is kept of the key was lost, and this turn with it, whether or not it was the token's; nothing happened"
)

var errOther = &failure.Error{Reason: failure.OtherFingerprint, Field: "fingerprint",
	Message: "is another one than that of the work that the key stands for; nothing happened",
	Hint:    "repeat the very same request under its key, or draw a new key for another one"}

// turnLocked returns what is known of the target, with what is over by now made over.
func (t *target) turnLocked() once.State {
	if t.e == nil {
		return once.State{}
	}
	s := onces{}.stateOf(t.sh, t.e)
	if s.Phase != once.Absent && s.Forgotten(t.now) {
		t.sh.lapseLocked(t.slot, t.hash) // for the answer shows that it is over
		s = once.State{}
	}
	return s
}

// missesTurnLocked reports whether the row is in grace, and the token may be that of a turn of
// before the loss, of which nothing is known here.
func (t *target) missesTurnLocked(token uint64) bool {
	if t.permit.Lost == 0 || !beforeLoss(token, t.permit.Lost) {
		return false
	}
	return t.e == nil || t.e.once().token < token
}

// leftOf returns what is left of the time of a state.
func leftOf(s *once.State, now int64) int64 {
	if s.Phase == once.Absent {
		return 0
	}
	return max(s.Until-now, 0)
}

// BeginOnce begins the turn of doing the work of a key, unless it is another's, or the work is
// done. Only a turn is remembered under the request id: what else is answered is so now.
//
// While the row is in grace, nobody begins: a turn of before the loss may be under way.
func (s *Store) BeginOnce(now int64, ref Ref, id reqid.ID, op once.Begin) (Turn, error) {
	if err := op.Validate(); err != nil {
		return Turn{}, err
	}
	t := target{ref: ref, kind: KindOnce, now: now}
	if err := t.enter(s); err != nil {
		return Turn{}, err
	}
	defer t.leave()
	if err := s.checkTTL(op.TTL); err != nil {
		return Turn{}, err
	}
	print := printOfBegin(&id, &op)
	replay, out, age, err := t.judgeLocked(&id, print)
	if err != nil {
		return Turn{}, err
	}
	was := t.turnLocked()
	if replay {
		a := Turn{Outcome: once.First, State: was, Meta: Meta{t.permit, true, age}}
		if was.InForce(uint64(out.A), t.now) {
			a.Left = leftOf(&was, t.now)
		}
		a.Token = uint64(out.A)
		return a, nil
	}
	//guard:once-grace
	if t.permit.Lost != 0 && was.Phase != once.Finished {
		return Turn{}, t.recovering(beginRecovering)
	}
	token, err := t.sh.nextTokenLocked(s.cfg.Rule, t.permit)
	if err != nil {
		return Turn{}, err
	}
	next, o := was.Begin(op, token, t.now)
	switch o {
	case once.Other:
		return Turn{}, errOther
	case once.First:
		if err := t.storeTurnLocked(&id, &was, &next, reqid.Outcome{Print: print, Code: done, A: int64(token)}, false); err != nil {
			return Turn{}, err
		}
		t.sh.tokenUsedLocked(token)
	}
	return Turn{Outcome: o, State: next, Left: leftOf(&next, t.now), Meta: Meta{Permit: t.permit}}, nil
}

// storeTurnLocked keeps what a step has led to. concludes says that the step is one that is better
// done beyond the node's share than not at all.
func (t *target) storeTurnLocked(id *reqid.ID, was, next *once.State, out reqid.Outcome, concludes bool) error {
	t.frees = next.Phase == once.Absent
	if err := t.roomLocked(id); err != nil {
		if !concludes {
			return err
		}
		*id = reqid.ID{} // a repetition is told by its token
	}
	more := textOfOnce(next) - textOfOnce(was)
	//guard:once-claims-bounded
	if concludes && t.slot == 0 { // a claim for which roomLocked may have found no room
		more += t.size()
	}
	if err := t.growOnceLocked(more, concludes); err != nil {
		return err
	}
	if t.slot == 0 {
		t.createLocked()
	}
	onces{}.set(t.sh, t.e, next)
	t.sh.advanceLocked()
	t.changedLocked(id, out)
	return nil
}

// noteUnchangedLocked remembers an operation that has changed nothing, if there is room for that: done
// again, it would have the same answer.
func (t *target) noteUnchangedLocked(id *reqid.ID, out reqid.Outcome) {
	if id.Given() && t.roomLocked(id) == nil {
		t.changedLocked(id, out)
	}
}

func textOfOnce(s *once.State) int { return len(s.Print) + len(s.Holder) + len(s.Result) }

// growOnceLocked is growLocked. A result may take what request ids may, beyond the share of a
// node: without room for it, the work would be done again.
func (t *target) growOnceLocked(n int, concludes bool) error {
	s := t.sh.store
	//guard:once-result-room
	if concludes && n > 0 && s.bytes.Load()+int64(n) <= s.cfg.MaxBytes+s.cfg.MaxBytes/idReserve && !s.ownFull(idMost, idParts) {
		return nil
	}
	if err := t.growLocked(n); err != nil {
		return err
	}
	return nil
}

// RenewOnce has the lease of a turn last for so long from now on. With a claim, a turn that was
// lost is the holder's again, while the row is in grace: under its token, for what it counts on.
func (s *Store) RenewOnce(now int64, ref Ref, token uint64, ttl int64, claim TurnClaim) (TurnAnswer, error) {
	if err := once.ValidateTTL(ttl); err != nil {
		return TurnAnswer{}, err
	}
	t, err := s.enterTurn(now, ref, token, ttl, &claim)
	if err != nil {
		return TurnAnswer{}, err
	}
	defer t.leave()
	was := t.turnLocked()
	if t.missesTurnLocked(token) {
		next, err := t.reclaimTurnLocked(&was, token, &claim)
		if err != nil {
			return TurnAnswer{}, err
		}
		held := next.InForce(token, t.now)
		return TurnAnswer{OK: held, Reclaimed: held, State: next, Left: leftOf(&next, t.now), Meta: Meta{Permit: t.permit}}, nil
	}
	next, held := was.Renew(token, ttl, t.now)
	if held {
		if err := t.storeTurnLocked(&reqid.ID{}, &was, &next, reqid.Outcome{}, false); err != nil {
			return TurnAnswer{}, err
		}
	}
	return TurnAnswer{OK: held, State: next, Left: leftOf(&next, t.now), Meta: Meta{Permit: t.permit}}, nil
}

// enterTurn lets an operation in that may show a claim.
func (s *Store) enterTurn(now int64, ref Ref, token uint64, ttl int64, claim *TurnClaim) (t target, err error) {
	if claim.given() {
		op := once.Begin{Print: claim.Print, Holder: claim.Holder, TTL: once.MinTTL}
		if err := op.Validate(); err != nil {
			return t, err
		}
	}
	t = target{ref: ref, kind: KindOnce, now: now}
	if err := t.enter(s); err != nil {
		return t, err
	}
	err = s.checkTTL(ttl)
	if err == nil && claim.given() && t.permit.Lost != 0 && !beforeLoss(token, t.permit.Lost) {
		err = invalid("token", "is %d: nobody ever began under it", token)
	}
	if err != nil {
		t.leave()
	}
	return t, err
}

// given reports whether a holder shows a claim.
func (c *TurnClaim) given() bool { return c.Left > 0 }

// countedOn returns what a holder may still count on.
func (t *target) countedOn(c *TurnClaim) int64 { return min(c.Left, t.sh.store.maxLockTTL()) }

// reclaimTurnLocked gives a turn of which nothing is known here back to its holder.
func (t *target) reclaimTurnLocked(was *once.State, token uint64, claim *TurnClaim) (once.State, error) {
	if !claim.given() {
		return *was, t.recovering(unknownTurn)
	}
	next, reclaimed := was.Reclaim(once.Begin{Print: claim.Print, Holder: claim.Holder}, token, t.countedOn(claim), t.now)
	if !reclaimed {
		return *was, nil
	}
	return next, t.storeTurnLocked(&reqid.ID{}, was, &next, reqid.Outcome{}, true)
}

// CompleteOnce ends a turn with a result, to be kept for so long. With a claim it does so even if
// the turn was lost, while the row is in grace.
func (s *Store) CompleteOnce(now int64, ref Ref, id reqid.ID, token uint64, result []byte, keep int64, claim TurnClaim) (TurnAnswer, error) {
	if err := once.ValidateResult(result, keep); err != nil {
		return TurnAnswer{}, err
	}
	t, err := s.enterTurn(now, ref, token, 0, &claim)
	if err != nil {
		return TurnAnswer{}, err
	}
	defer t.leave()
	print := printOfComplete(&id, token, result, keep)
	replay, out, age, err := t.judgeLocked(&id, print)
	if err != nil {
		return TurnAnswer{}, err
	}
	was := t.turnLocked()
	if replay {
		return TurnAnswer{OK: out.Code == done, State: was, Left: leftOf(&was, t.now), Meta: Meta{t.permit, true, age}}, nil
	}
	from := was
	if t.missesTurnLocked(token) {
		if !claim.given() {
			return TurnAnswer{}, t.recovering(unknownTurn)
		}
		from, _ = was.Reclaim(once.Begin{Print: claim.Print, Holder: claim.Holder}, token, t.countedOn(&claim), t.now)
	}
	next, c := from.Complete(token, result, keep, t.now)
	if c == once.Completed {
		if err := t.storeTurnLocked(&id, &was, &next, reqid.Outcome{Print: print, Code: done}, true); err != nil {
			return TurnAnswer{}, err
		}
		next = onces{}.stateOf(t.sh, t.e) // whose texts are its own
		t.doneLocked(&next)
	} else {
		t.noteUnchangedLocked(&id, reqid.Outcome{Print: print, Code: decision(c == once.Repeated)})
		next = was
	}
	return TurnAnswer{OK: c != once.NotInForce, State: next, Left: leftOf(&next, t.now), Meta: Meta{Permit: t.permit}}, nil
}

// AbandonOnce ends a turn as if it had never begun: the next caller is first.
func (s *Store) AbandonOnce(now int64, ref Ref, id reqid.ID, token uint64) (TurnAnswer, error) {
	return s.endOnce(now, ref, id, fingerprint(opAbandonOnce, token), func(t *target, was once.State) (once.State, bool, error) {
		if t.missesTurnLocked(token) {
			return was, false, t.recovering(unknownTurn)
		}
		next, ended := was.Abandon(token, t.now)
		return next, ended, nil
	})
}

// ForgetOnce has nothing be known of the work of a key any more: the next caller is first. A turn
// that is under way it ends only if that is asked for.
func (s *Store) ForgetOnce(now int64, ref Ref, id reqid.ID, underWay bool) (TurnAnswer, error) {
	arg := uint64(0)
	if underWay {
		arg = 1
	}
	return s.endOnce(now, ref, id, fingerprint(opForgetOnce, arg), func(t *target, was once.State) (once.State, bool, error) {
		next, _, forgotten := was.Forget(underWay, t.now)
		return next, forgotten, nil
	})
}

// endOnce has the work be one that nobody has begun. The State of the answer is that of before.
func (s *Store) endOnce(now int64, ref Ref, id reqid.ID, print uint32, do func(*target, once.State) (once.State, bool, error)) (TurnAnswer, error) {
	t := target{ref: ref, kind: KindOnce, now: now}
	if err := t.enter(s); err != nil {
		return TurnAnswer{}, err
	}
	defer t.leave()
	replay, out, age, err := t.judgeLocked(&id, print)
	if err != nil {
		return TurnAnswer{}, err
	}
	was := t.turnLocked()
	if replay {
		return TurnAnswer{OK: out.Code == done, State: was, Left: leftOf(&was, t.now), Meta: Meta{t.permit, true, age}}, nil
	}
	next, ended, err := do(&t, was)
	if err != nil {
		return TurnAnswer{}, err
	}
	a := TurnAnswer{OK: ended, State: was, Left: leftOf(&was, t.now), Meta: Meta{Permit: t.permit}}
	if !ended {
		t.noteUnchangedLocked(&id, reqid.Outcome{Print: print, Code: refused})
		return a, nil
	}
	if err := t.storeTurnLocked(&id, &was, &next, reqid.Outcome{Print: print, Code: done}, true); err != nil {
		return TurnAnswer{}, err
	}
	t.stirLocked()
	if t.permit.Lost == 0 { // in grace, the token is remembered: no lower one is given back
		t.forgetBareLocked()
	}
	return a, nil
}

// GetOnce returns what is known of the work of a key.
func (s *Store) GetOnce(now int64, ref Ref) (TurnAnswer, error) {
	t := target{ref: ref, kind: KindOnce, now: now}
	if err := t.enter(s); err != nil {
		return TurnAnswer{}, err
	}
	defer t.leave()
	is := t.turnLocked()
	return TurnAnswer{OK: is.Phase != once.Absent, State: is, Left: leftOf(&is, t.now), Meta: Meta{Permit: t.permit}}, nil
}
