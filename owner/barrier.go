package owner

import (
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/gather"
	"github.com/keystead/keystead/owner/reqid"
)

// PhaseAnswer is a barrier as it is, and what became of one of its phases.
type PhaseAnswer struct {
	Verdict gather.Verdict // of the phase that was asked about
	Cause   gather.Cause   // why it was broken
	Who     string         // … and which party was lost
	Phase   uint64         // that is under way; 0 = none
	Arrived int            // for that, …
	Parties int            // … of so many
	Phaser  bool           // they are those that are registered
	Passes  uint64         // phases that were passed
	Meta
}

// ArriveAnswer is the outcome of an Arrive. In a replay, Outcome, At and Last are those of the
// first answer, and the rest is as it is now.
type ArriveAnswer struct {
	Outcome gather.Outcome // Done, Over or NotThere
	At      uint64         // the phase for which the party has arrived, with Done
	Last    bool           // it was the last: the phase was passed by it
	PhaseAnswer
}

// PartyAnswer is the outcome of an operation on a party.
type PartyAnswer struct {
	OK bool // it was registered, its lease prolonged, or it was there and is not any more
	PhaseAnswer
}

var errParties = &failure.Error{Reason: failure.TooManyWaiters, RetryAfter: retrySoon,
	Message: "as many parties are registered as may be; nothing happened",
	Hint:    "have each of them stand for many, or use several phasers"}

var errOtherParent = &failure.Error{Reason: failure.CapacityMismatch,
	Message: "the phaser has another parent, or none, as its first party has said; nothing happened",
	Hint:    "have all parties say the same parent, or none; use another name for another tree"}

var errSent = &failure.Error{Reason: failure.CapacityMismatch,
	Message: "all parties have arrived, and the phaser has arrived at its parent, whose phase it is now; nothing happened",
	Hint:    "break the phase of the parent"}

func partiesDiffer(s *gather.State, op *gather.Arrive) *failure.Error {
	e := capacityDiffers(s.Need, op.Need)
	e.Message = "the parties of this barrier are those that are registered; nothing happened"
	if e.Hint = "say no number of parties, or use another name"; s.Need != 0 {
		e = capacityDiffers(s.Need, op.Need)
		e.Hint = "have all parties say the same number; it can be another one when a phase is over"
	}
	return e
}

const arriveRecovering = "what is kept of the key was lost, and with it which parties were registered: none arrives until the longest lease of before is over; nothing happened"

// barrierLocked returns the state of the target, a barrier, made if there is none.
func (t *target) barrierLocked() *gather.State {
	if t.slot == 0 {
		t.createLocked()
	}
	if t.e.rest == 0 {
		t.e.rest = t.sh.gathers.Add()
	}
	return t.sh.gathers.At(t.e.rest)
}

// hasBarrier reports whether the target has a state.
func (t *target) hasBarrier() bool { return t.e != nil && t.e.rest != 0 }

// phaseLocked returns the target as it is, and what became of a phase.
func (t *target) phaseLocked(phase uint64) PhaseAnswer {
	a := PhaseAnswer{Meta: Meta{Permit: t.permit}}
	if !t.hasBarrier() {
		return a
	}
	s := t.sh.gathers.At(t.e.rest)
	a.Verdict, a.Phase, a.Arrived, a.Parties, a.Phaser, a.Passes = s.Judge(phase), s.Phase, s.Arrived, s.Quorum(), s.Need == 0, s.Passes
	if a.Verdict == gather.Broken {
		a.Cause, a.Who = s.Cause, s.Who
	}
	return a
}

// enterBarrier lets an operation on a barrier in. If it succeeds, the shard is locked until
// leave.
func (s *Store) enterBarrier(now int64, ref Ref) (t target, err error) {
	t = target{ref: ref, kind: KindBarrier, now: now}
	if err = t.enter(s); err != nil {
		return t, err
	}
	if err = t.settleLocked(); err != nil {
		t.leave()
	}
	return t, err
}

// settleLocked lets time pass for a barrier: what an answer shows to be over must be over.
func (t *target) settleLocked() error {
	if !t.hasBarrier() {
		return nil
	}
	s := t.sh.gathers.At(t.e.rest)
	if s.Absent(t.now) {
		t.sh.lapseLocked(t.slot, t.hash)
		return nil
	}
	if at, ok := s.NextWake(); !ok || at > t.now {
		return nil
	}
	next, err := t.nextPhaseLocked()
	if err != nil {
		return err
	}
	s.Expire(t.now, next, &t.sh.gatherFx)
	t.gatheredLocked(&reqid.ID{}, reqid.Outcome{})
	return nil
}

// nextPhaseLocked returns the number of the next phase in this shard, which has one after it in
// the same epoch: an operation may begin two.
func (t *target) nextPhaseLocked() (uint64, error) {
	rule := t.sh.store.cfg.Rule
	next, err := t.sh.nextTokenLocked(rule, t.permit)
	if err == nil && next&(1<<SeqBits-1) == 1<<SeqBits-1 {
		t.sh.tokenUsedLocked(next)
		next, err = t.sh.nextTokenLocked(rule, t.permit)
	}
	return next, err
}

// gatheredLocked concludes a step of a barrier: it records what changed, answers the waiters
// for a phase that has ended, and schedules the next wake.
func (t *target) gatheredLocked(id *reqid.ID, out reqid.Outcome) {
	sh, fx := t.sh, &t.sh.gatherFx
	s := sh.gathers.At(t.e.rest)
	if fx.Lapsed > 0 {
		sh.store.lapsed.Add(int64(fx.Lapsed))
	}
	if fx.Changed {
		if s.Phase > sh.lastToken {
			sh.tokenUsedLocked(s.Phase)
		}
		sh.advanceLocked()
		barriers{}.account(sh, t.e)
		if sh.store.partial != nil {
			sh.parties = append(sh.parties, fx.Parties...)
		}
	}
	if id.Given() {
		t.noteLocked(id, out)
	}
	if fx.Changed || len(sh.done) > 0 {
		sh.notifySinkLocked(t.slot, t.hash)
	}
	sh.childLocked(s, t.e.rest, t.slot)
	//guard:phase-tells
	if fx.Ended != 0 {
		sh.endPhaseLocked(t.e.rest, t.phaseLocked(fx.Ended), false)
	}
	t.scheduleLocked()
}

// Arrive has a party arrive at a barrier, and does not wait. Sent again by the same party, for
// the same phase, it counts once, with or without a request id.
func (s *Store) Arrive(now int64, ref Ref, id reqid.ID, op gather.Arrive) (ArriveAnswer, error) {
	if err := op.Validate(); err != nil {
		return ArriveAnswer{}, err
	}
	t, err := s.enterBarrier(now, ref)
	if err != nil {
		return ArriveAnswer{}, err
	}
	defer t.leave()
	print := printOfArrive(&id, &op)
	replay, out, age, err := t.judgeLocked(&id, print)
	if err != nil {
		return ArriveAnswer{}, err
	}
	if replay {
		a := ArriveAnswer{At: uint64(out.A), PhaseAnswer: t.phaseLocked(uint64(out.A))}
		if a.Last = out.Code == done && out.B != 0; out.Code != done {
			a.Outcome, a.At = gather.Outcome(out.B), 0
		}
		a.Replayed, a.Age = true, age
		return a, nil
	}
	//guard:phaser-recovers
	if t.permit.Lost != 0 && op.Need == 0 && !t.countsLocked() {
		return ArriveAnswer{}, t.recovering(arriveRecovering)
	}
	if err := t.partyRoomLocked(&id, op.Party); err != nil {
		return ArriveAnswer{}, err
	}
	return t.arriveLocked(&id, print, op)
}

// countsLocked reports whether the parties of the target are a number.
func (t *target) countsLocked() bool { return t.hasBarrier() && t.sh.gathers.At(t.e.rest).Need != 0 }

// partyBytes is what a party takes, beside its id.
const partyBytes = 128

// partyRoomLocked is roomLocked of an operation that may make a party.
func (t *target) partyRoomLocked(id *reqid.ID, party string) error {
	if err := t.roomLocked(id); err != nil {
		return err
	}
	if t.hasBarrier() && t.sh.gathers.At(t.e.rest).Find(party) != nil {
		return nil
	}
	if err := t.growLocked(partyBytes); err != nil {
		return err
	}
	return nil
}

func (t *target) arriveLocked(id *reqid.ID, print uint32, op gather.Arrive) (ArriveAnswer, error) {
	next, err := t.nextPhaseLocked()
	if err != nil {
		return ArriveAnswer{}, err
	}
	state, fx := t.barrierLocked(), &t.sh.gatherFx
	outcome, phase := state.Arrive(op, t.now, next, fx)
	if outcome == gather.Differs {
		return ArriveAnswer{}, partiesDiffer(state, &op)
	}
	last := fx.Ended != 0
	out := reqid.Outcome{Print: print, Code: done, A: int64(phase)}
	if last {
		out.B = 1
	}
	if outcome != gather.Done {
		out.Code, out.A, out.B = refused, int64(op.Phase), int64(outcome)
	}
	t.gatheredLocked(id, out)
	if outcome != gather.Done {
		phase = 0
	}
	a := ArriveAnswer{Outcome: outcome, At: phase, Last: last}
	if a.PhaseAnswer = t.phaseLocked(uint64(out.A)); outcome != gather.Done {
		t.dropBareLocked()
	}
	return a, nil
}

// dropBareLocked forgets the target if it was made for an operation that did nothing.
func (t *target) dropBareLocked() {
	if t.hasBarrier() && t.sh.gathers.At(t.e.rest).Phase == 0 {
		barriers{}.clear(t.sh, t.e)
	}
	t.forgetBareLocked()
}

func printOfArrive(id *reqid.ID, op *gather.Arrive) uint32 {
	if !id.Given() {
		return 0
	}
	return digestOf(opArrive).with(xxhash.Sum64String(op.Party)).with(uint64(op.Need)).with(op.Phase).with(uint64(op.Within)).with(op.Child).print()
}

// RegisterParty makes a party one of a phaser, or prolongs its lease.
func (s *Store) RegisterParty(now int64, ref Ref, id reqid.ID, op gather.Register) (PartyAnswer, error) {
	if err := validRegister(ref, &op); err != nil {
		return PartyAnswer{}, err
	}
	d := digestOf(opRegisterParty).with(xxhash.Sum64String(op.Party)).flag(op.Breaks).with(op.Child).
		with(xxhash.Sum64String(op.Parent.Key)).with(xxhash.Sum64String(op.Parent.Name)).with(xxhash.Sum64String(op.Parent.Party))
	return s.party(now, ref, &id, d.print(), func(t *target, next uint64) (bool, error) {
		if err := s.checkTTL(op.TTL); err != nil {
			return false, err
		}
		if err := t.partyRoomLocked(&id, op.Party); err != nil {
			return false, err
		}
		state := t.barrierLocked()
		switch out, _ := state.Register(op, t.now, next, &t.sh.gatherFx); out {
		case gather.Differs:
			return false, partiesDiffer(state, &gather.Arrive{})
		case gather.TooMany:
			return false, errParties
		case gather.OtherParent:
			return false, errOtherParent
		case gather.Stale:
			return false, nil
		}
		return true, nil
	})
}

func validParty(party string, ttl int64) error {
	if err := gather.ValidateName(party); err != nil {
		return err
	}
	return gather.ValidateTTL(ttl)
}

func validRegister(ref Ref, op *gather.Register) error {
	if err := validParty(op.Party, op.TTL); err != nil {
		return err
	}
	if op.Child > gather.MaxPhase {
		return invalid("child", "is %d; no phase has such a number", op.Child)
	}
	if op.Parent.Key == ref.Key && op.Parent.Name == ref.Name {
		return invalid("parent", "is this phaser itself")
	}
	return op.Parent.Validate()
}

// RenewParty prolongs the lease of a party. While the row is in grace, and nothing is known of
// the party, OK is false: it registers again.
func (s *Store) RenewParty(now int64, ref Ref, party string, ttl int64) (PartyAnswer, error) {
	if err := validParty(party, ttl); err != nil {
		return PartyAnswer{}, err
	}
	return s.party(now, ref, &reqid.ID{}, 0, func(t *target, _ uint64) (bool, error) {
		if err := s.checkTTL(ttl); err != nil || !t.hasBarrier() {
			return false, err
		}
		return t.sh.gathers.At(t.e.rest).Renew(party, ttl, t.now, &t.sh.gatherFx), nil
	})
}

// LeaveBarrier takes a party away: see gather.State.Leave.
func (s *Store) LeaveBarrier(now int64, ref Ref, id reqid.ID, op gather.Leave) (PartyAnswer, error) {
	if err := gather.ValidateName(op.Party); err != nil {
		return PartyAnswer{}, err
	}
	if max(op.Phase, op.Child) > gather.MaxPhase {
		return PartyAnswer{}, invalid("phase", "is %d; no phase has such a number", max(op.Phase, op.Child))
	}
	d := digestOf(opLeaveBarrier).with(xxhash.Sum64String(op.Party)).with(op.Phase).with(op.Child)
	return s.party(now, ref, &id, d.print(), func(t *target, next uint64) (bool, error) {
		return t.hasBarrier() && t.sh.gathers.At(t.e.rest).Leave(op, t.now, next, &t.sh.gatherFx), nil
	})
}

// BreakBarrier ends the phase that is under way.
func (s *Store) BreakBarrier(now int64, ref Ref, id reqid.ID) (PartyAnswer, error) {
	return s.party(now, ref, &id, digestOf(opBreakBarrier).print(), func(t *target, next uint64) (bool, error) {
		if !t.hasBarrier() {
			return false, nil
		}
		state := t.sh.gathers.At(t.e.rest)
		if state.Sent {
			return false, errSent
		}
		return state.Break(t.now, next, &t.sh.gatherFx) != 0, nil
	})
}

// party does an operation whose outcome is yes or no.
func (s *Store) party(now int64, ref Ref, id *reqid.ID, print uint32, do func(t *target, next uint64) (bool, error)) (PartyAnswer, error) {
	t, err := s.enterBarrier(now, ref)
	if err != nil {
		return PartyAnswer{}, err
	}
	defer t.leave()
	replay, out, age, err := t.judgeLocked(id, print)
	if err != nil {
		return PartyAnswer{}, err
	}
	a := PartyAnswer{OK: out.Code == done}
	if !replay {
		if err := t.roomLocked(id); err != nil && id.Given() {
			return PartyAnswer{}, err
		}
		next, err := t.nextPhaseLocked()
		if err != nil {
			return PartyAnswer{}, err
		}
		t.sh.gatherFx.Reset()
		a.OK, err = do(&t, next)
		if err != nil {
			t.dropBareLocked()
			return PartyAnswer{}, err
		}
		out = reqid.Outcome{Print: print, Code: decision(a.OK)}
		switch {
		case t.hasBarrier():
			t.gatheredLocked(id, out)
		case id.Given():
			t.changedLocked(id, out)
		}
	}
	a.PhaseAnswer = t.phaseLocked(0)
	a.Replayed, a.Age = replay, age
	return a, nil
}

// InspectBarrier returns a barrier, what it owes its parent, and some of its parties.
func (s *Store) InspectBarrier(now int64, ref Ref, most int) (PhaseAnswer, gather.Child, []gather.Party, error) {
	t, err := s.enterBarrier(now, ref)
	if err != nil {
		return PhaseAnswer{}, gather.Child{}, nil, err
	}
	defer t.leave()
	a := t.phaseLocked(0)
	if !t.hasBarrier() {
		return a, gather.Child{}, nil, nil
	}
	state := t.sh.gathers.At(t.e.rest)
	return a, state.Child(), slices.Clone(state.Parties[:min(most, len(state.Parties))]), nil
}
