package owner

import (
	"math"

	"github.com/keystead/keystead/owner/across"
	"github.com/keystead/keystead/owner/admission"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/owner/wire"
)

// reservations are what an object has of admissions: holds that are of its key alone, and votes on those that are of
// other keys, too. An id is one of the two.
type reservations struct {
	admission.State
	votes  *across.State // nil = none
	pruned int64         // when it was looked at what could be forgotten
}

const (
	// maxAdmitted is the most members that an object has.
	maxAdmitted = admission.MaxHolds + across.MaxHeld + across.MaxDenied
	// voteMark is the first byte of a vote. That of a hold is less.
	voteMark = 1 << 7

	_ = uint(MaxMember - (1 + across.MaxVote))
)

func (s *reservations) absent() bool { return s.Absent() && (s.votes == nil || s.votes.Len() == 0) }

func (s *reservations) bytes() int {
	n := s.Bytes()
	if s.votes != nil {
		n += s.votes.Bytes()
	}
	return min(n, math.MaxUint32)
}

func (s *reservations) vote(id across.ID) *across.Vote {
	if s.votes == nil {
		return nil
	}
	return s.votes.Find(id)
}

func (s *reservations) eachVote(show func(v *across.Vote) bool) {
	if s.votes != nil {
		s.votes.Each(show)
	}
}

func (s *reservations) forget(id across.ID) {
	if s.votes != nil {
		s.votes.Forget(id)
	}
}

func (s *reservations) makeVotes(window int64) {
	if s.votes == nil {
		s.votes = across.NewState(across.Config{Window: window})
	}
	s.votes.Window = window
}

func appendVote(w *wire.Writer, v *across.Vote, at int64) {
	w.Byte(voteMark)
	w.Now = at
	across.AppendVote(w, v)
}

func isVote(state []byte) bool { return len(state) > 0 && state[0] == voteMark }

// readVote reads what appendVote wrote, of which the owner's own has to be demands.
func readVote(m *Member, at int64) (v across.Vote, ok bool) {
	v, ok = across.ReadVote(&wire.Reader{B: m.State[1:], Now: at}, across.ID(m.ID))
	if ok && v.Phase.Holds() {
		var room [admission.MaxDemands]admission.Demand
		var demands []admission.Demand
		demands, ok = admission.ReadDemands(v.Own, room[:0])
		ok = ok && len(demands) == demandsOf(&v.Terms, v.Self)
	}
	return v, ok
}

// demandsOf returns how many demands are of a participant.
func demandsOf(t *across.Terms, self uint8) (n int) {
	for _, of := range t.Of {
		if of == self {
			n++
		}
	}
	return n
}

// voteLocked returns what the target remembers of an admission across owners, or nil.
func (t *target) voteLocked(id across.ID) *across.Vote {
	if !t.hasAdmission() {
		return nil
	}
	return t.sh.admissions.At(t.e.rest).vote(id)
}

// votesLocked returns the votes of the target, which has a cell then.
func (t *target) votesLocked() *across.State {
	if t.slot == 0 {
		t.createLocked()
	}
	if t.e.rest == 0 {
		t.e.rest = t.sh.admissions.Add()
	}
	s := t.sh.admissions.At(t.e.rest)
	s.makeVotes(t.sh.ids.Window())
	s.votes.Lost, s.votes.Since = t.permit.Loss, t.permit.LossAt
	return s.votes
}

// toldVoteLocked closes a step on a vote.
func (t *target) toldVoteLocked(id across.ID, changed bool) {
	if !changed { // an object that was made for it goes again
		if t.hasAdmission() {
			admissions{}.account(t.sh, t.e)
		}
		t.forgetBareLocked()
		return
	}
	t.sh.ended = append(t.sh.ended, admission.ID(id))
}

// stepLocked does a step on a vote, with what it changes of what is charged. If it fails, nothing has changed.
func (t *target) stepLocked(v *across.Vote, do func(votes *across.State) (e across.Effect, changed bool)) (changed bool, err error) {
	defer t.endStepsLocked()
	votes, was := t.votesLocked(), *v
	e, changed := do(votes)
	if e.To != across.Unknown {
		if err := t.effectLocked(&e); err != nil {
			//guard:across-restore
			votes.Restore(was)
			return false, err
		}
	}
	if changed {
		t.storeStepsLocked()
		t.cancelledLocked(&was, e.To)
		t.toldVoteLocked(was.ID, true)
		t.toldAdmissionLocked(&noRequest, noOutcome)
	}
	return changed, nil
}

// cancelledLocked has the id of an admission say that it was refused after all, so that the vote may be forgotten.
func (t *target) cancelledLocked(was *across.Vote, to across.Phase) {
	if to != across.Cancelled {
		return
	}
	//guard:across-cancelled-id
	if out, ok := t.outcomeLocked(was.ID); ok {
		out.Code = refused
		t.sh.done = append(t.sh.done, Done{reqid.ID{Client: was.ID.Client, Sequence: was.ID.Sequence}, *out})
	}
}

// chargedAs says what of a hold is charged that is in a phase.
func chargedAs(p across.Phase) admission.Phase {
	switch p {
	case across.Charged:
		return admission.Charged
	case across.Released:
		return admission.Released
	}
	return admission.Held
}

// effectLocked prepares the steps that correct what was charged for a vote.
func (t *target) effectLocked(e *across.Effect) error {
	var room [admission.MaxDemands]admission.Demand
	demands, _ := admission.ReadDemands(e.Own, room[:0])
	next := 0
	for i, of := range e.Of {
		if of != e.Self || next == len(demands) {
			continue
		}
		d := &demands[next]
		next++
		take, back := uint64(0), d.Cost
		switch {
		case e.To == across.Settled:
			cost := e.Costs[i]
			if cost == across.Reserved {
				cost = d.Cost
			}
			take, back = d.Settle(chargedAs(e.From), min(cost, admission.MaxCost))
		//guard:across-charges false
		case e.To == across.Charged && d.Of != admission.Slots:
			continue
		}
		x, err := t.heldLocked(d)
		if err != nil {
			return inDemand(i, err)
		}
		if x != nil {
			x.take(take)
			x.back(e.Made, back)
		}
	}
	return t.stepsRoomLocked()
}

// passVotesLocked lets time pass for the votes of the target, some at a time.
func (t *target) passVotesLocked() {
	for range maxLapsed {
		if !t.hasAdmission() {
			return
		}
		votes := t.sh.admissions.At(t.e.rest).votes
		if votes == nil {
			return
		}
		at, ok := votes.Next()
		if !ok || at > t.now {
			return
		}
		first := votes.First()
		id := first.ID
		_, err := t.stepLocked(first, func(votes *across.State) (across.Effect, bool) { return votes.Expire(id, t.now) })
		if err != nil {
			votes.Postpone(id, t.now+endAgain)
			continue
		}
		if !t.hasAdmission() {
			return
		}
		if questions, words := votes.Due(id, t.now); len(questions)+len(words) > 0 {
			t.sh.store.asks.add(Ask{Ref: Ref{Key: string([]byte(t.ref.Key)), Name: string([]byte(t.ref.Name)), Hash: t.hash}, Questions: questions, Words: words, Permit: t.permit})
		}
	}
}

// VoteAcross shows what is remembered of an admission of several keys, if there is something.
func (s *Store) VoteAcross(now int64, ref Ref, id across.ID, show func(v *across.Vote)) {
	t, err := s.enterAdmission(now, ref)
	if err != nil {
		return
	}
	defer t.leave()
	if v := t.voteLocked(id); v != nil {
		show(v)
	}
}
