package owner

import (
	"cmp"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/across"
	"github.com/keystead/keystead/owner/admission"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/owner/wire"
)

// HoldAcross asks one participant of an admission of several keys to charge what is demanded of it.
type HoldAcross struct {
	across.Terms
	Demands []Demand // of this participant, in their order
	Self    uint8    // of Keys
	Epoch   uint64   // of the table that the first attempt went by; 0 = this is a retry
}

// AcrossAnswer is what a participant says.
type AcrossAnswer struct {
	across.Answer
	Demands []DemandAnswer // of a Hold that was decided now
	Now     int64          // to which RetryAt belongs
	Left    int64          // ns until the time of the hold is over
	Before  across.Phase   // of a Settle: before it
	Meta
}

var (
	noRequest reqid.ID
	noOutcome reqid.Outcome

	// ErrAcross says that a hold is one of several keys: see SettleAcross and ExtendAcross.
	ErrAcross = invalid("hold_id", "is that of an admission of several keys; nothing happened")

	errAcross = invalid("hold", "is not one of an admission of several keys")
	errVotes  = &failure.Error{Reason: failure.StoreFull, RetryAfter: retrySoon,
		Message: "the admission has refused as many requests lately as it may remember; nothing happened",
		Hint:    "back off when admissions are refused, send `settled` with request ids, or use another name for the admission"}
)

func (op *HoldAcross) validate(ref *Ref, id *reqid.ID) error {
	if !id.Given() || op.Valid() != nil || int(op.Self) >= len(op.Keys) || op.Keys[op.Self] != ref.Key || demandsOf(&op.Terms, op.Self) != len(op.Demands) {
		return errAcross
	}
	next := 0
	for i, of := range op.Of {
		if of == op.Self {
			if op.Names[i] != NameAcross(ref.Key, op.Demands[next].Name) {
				return errAcross
			}
			next++
		}
	}
	as := Admit{Demands: op.Demands, Hold: op.Hold, Charge: op.Charge}
	return as.validate(ref)
}

// NameAcross is what a demand of a key is called in across.Terms.
func NameAcross(key, name string) uint32 {
	return uint32(xxhash.Sum64String(key)*31 + xxhash.Sum64String(name))
}

// HoldAcross charges what is demanded of a key if all of it passes, and votes that it holds; otherwise it votes that it
// refuses. It never waits. Asked again it says the same. An error says that it has not voted.
func (s *Store) HoldAcross(now int64, ref Ref, id reqid.ID, op HoldAcross, to []DemandAnswer) (AcrossAnswer, error) {
	if err := op.validate(&ref, &id); err != nil {
		return AcrossAnswer{}, err
	}
	t, err := s.enterAdmission(now, ref)
	if err != nil {
		return AcrossAnswer{}, err
	}
	defer t.leave()
	defer t.endStepsLocked()
	if err := s.checkHold(op.Hold); err != nil {
		return AcrossAnswer{}, err
	}
	t.passLocked()
	a := AcrossAnswer{Demands: to[:0], Now: t.now, Meta: Meta{Permit: t.permit}}
	h := across.Hold{ID: across.ID{Client: id.Client, Sequence: id.Sequence}, Terms: op.Terms, Self: op.Self, Epoch: op.Epoch, Age: min(id.Age, wire.MaxAge), Own: maxOwn(op.Demands)}
	if t.voteLocked(h.ID) == nil {
		if known, err := t.knownLocked(&a, &id, &op); known || err != nil {
			return a, err
		}
	}
	t.pruneLocked(&h)
	verdict, answer, changed := t.votesLocked().Judge(&h, t.now)
	switch verdict {
	case across.Reused:
		err = reused(&id)
	case across.TooOld:
		err = errTooOld
	case across.Fresh:
		a.Answer, err = t.voteAcrossLocked(&a, &h, &id, &op)
		if err != nil {
			t.toldVoteLocked(h.ID, false)
		} else if a.Phase == across.Held {
			a.Left = op.Hold
		}
		return a, err
	default:
		if a.Answer = answer; answer.Phase == across.Unknown {
			err = errVotes
		}
		t.repeatedLocked(&a, h.ID)
	}
	t.toldVoteLocked(h.ID, changed)
	if changed {
		t.sh.advanceLocked()
		t.toldAdmissionLocked(&noRequest, noOutcome)
	}
	return a, err
}

// repeatedLocked has an answer say that it is that of before.
func (t *target) repeatedLocked(a *AcrossAnswer, id across.ID) {
	v := t.voteLocked(id)
	if v == nil {
		return
	}
	a.Replayed, a.Age = true, max(t.now-v.Made, 0)
	if v.Hold != 0 && (v.Phase == across.Held || v.Phase == across.Admitted) {
		a.Left = max(v.Until-t.now, 0)
	}
}

// knownLocked asks the table of request ids about a Hold that no vote is of: a denial may have been forgotten, or the
// id is of something else.
func (t *target) knownLocked(a *AcrossAnswer, id *reqid.ID, op *HoldAcross) (known bool, err error) {
	if t.elsewiseLocked(across.ID{Client: id.Client, Sequence: id.Sequence}) {
		return false, reused(id)
	}
	replay, out, age, err := t.judgeLocked(id, op.Print)
	switch {
	case err != nil:
		return false, err
	case replay && out.Code == done: // all know that it was charged, so the vote is forgotten
		a.Phase, a.Replayed, a.Age = across.Charged, true, age
		return true, nil
	case replay:
		a.Phase, a.Replayed, a.Age = across.Refused, true, age
		return true, nil
	}
	if err := t.roomLocked(id); err != nil {
		return false, err
	}
	return false, t.denialRoomLocked()
}

// denialRoomLocked returns the error of a denial for which there is no memory. What is asked for is held by others until
// that is said, so it may use what request ids have beyond the bound.
func (t *target) denialRoomLocked() error {
	//guard:across-denial-memory
	if err := t.sh.store.grows(across.DenialSize, true); err != nil {
		return err
	}
	return nil
}

// markRoomLocked makes room for a mark: who is asked is to answer, and a Cancel that overtakes its Hold to stay.
func (t *target) markRoomLocked() error {
	if err := t.roomLocked(&noRequest); err != nil {
		return err
	}
	//guard:across-mark-crowded
	t.pruneLocked(nil)
	return t.denialRoomLocked()
}

// pruneEvery is how long it is at least between two looks at all votes of an object.
const pruneEvery = int64(250_000_000)

// pruneLocked makes room for a Hold, or with nil for a mark: by what became of requests whose clients have said that
// they are finished with them, and of those whose ids say enough.
func (t *target) pruneLocked(h *across.Hold) {
	if !t.hasAdmission() {
		return
	}
	s := t.sh.admissions.At(t.e.rest)
	if s.votes == nil || !s.votes.Crowded() && (h == nil || s.votes.Room(h)) || t.now-s.pruned < pruneEvery {
		return
	}
	s.pruned = t.now
	gone := s.votes.Prune(func(id across.ID) bool {
		of := reqid.ID{Client: id.Client, Sequence: id.Sequence}
		verdict, _, _ := t.sh.ids.Judge(t.e.ids, &of, 0, t.permit.Since, t.now)
		//guard:across-finished verdict == reqid.TooOld -> verdict <= reqid.Unsure
		if verdict == reqid.TooOld {
			return true
		}
		out, ok := t.sh.ids.Find(t.e.ids, &of)
		return ok && (out.Code == done) == s.votes.Find(id).Phase.Holds()
	})
	for _, id := range gone {
		t.sh.ended = append(t.sh.ended, admission.ID(id))
	}
	if len(gone) > 0 {
		t.sh.advanceLocked()
		t.toldAdmissionLocked(&noRequest, noOutcome)
	}
}

// maxOwn returns what demands take as a participant's own, at most.
func maxOwn(demands []Demand) []byte {
	var w wire.Writer
	for i := range demands {
		admission.AppendDemands(&w, []admission.Demand{demands[i].Demand})
		w.B = append(w.B, make([]byte, ownSlack)...)
	}
	return w.B
}

// ownSlack is for what a demand has beside that it was asked for when it is charged: where in its window that was, and
// the rate of an override.
const ownSlack = 3 + 2*wire.MaxNumber

// voteAcrossLocked decides what was never seen.
func (t *target) voteAcrossLocked(a *AcrossAnswer, h *across.Hold, id *reqid.ID, op *HoldAcross) (across.Answer, error) {
	if !across.Fits(&h.Terms, h.Own) {
		return across.Answer{}, invalid("demands", "have keys or names that are too long for one admission; use shorter ones, or fewer")
	}
	decided := AdmitAnswer{Demands: a.Demands}
	as := Admit{Demands: op.Demands, Hold: op.Hold}
	admitted, err := t.decideDemandsLocked(&as, &decided)
	if err != nil {
		return across.Answer{}, err
	}
	a.Demands = decided.Demands
	var no *across.Refusal
	if admitted {
		if err := t.stepsRoomLocked(); err != nil {
			return across.Answer{}, err
		}
		w := wire.Writer{B: h.Own[:0]}
		for i := range op.Demands {
			admission.AppendDemands(&w, []admission.Demand{t.sh.steps[i].reserved()})
		}
		h.Own = w.B
		//guard:across-memory
		if err := t.sh.store.grows(h.Size(), !t.hasAdmission()); err != nil {
			return across.Answer{}, err
		}
		t.storeStepsLocked()
	} else {
		no = t.refusalLocked(h, decided.RetryAfter, op.Demands, decided.Demands)
		t.sh.advanceLocked()
		t.sh.steps = t.sh.steps[:0]
	}
	answer := t.votesLocked().Vote(h, t.now, no)
	t.toldVoteLocked(h.ID, true)
	t.toldAdmissionLocked(id, reqid.Outcome{Print: h.Print, Code: decision(admitted)})
	return answer, nil
}

// refusalLocked says why demands do not pass. It is contended if they would but for holds that may be given back.
func (t *target) refusalLocked(h *across.Hold, after int64, demands []Demand, decided []DemandAnswer) *across.Refusal {
	no := &across.Refusal{RetryAt: t.now + after, Contended: true}
	votes := t.votesLocked()
	next := 0
	for i, of := range h.Of {
		if of != h.Self {
			continue
		}
		if d := &decided[next]; d.Refused {
			no.Demands |= across.One(uint8(i))
			no.Contended = no.Contended && d.Remaining+undecided(votes, demands[next].Name) >= d.Reserved+d.Debt
		}
		next++
	}
	return no
}

// maxContenders is how many votes are looked at to say that a refusal is contended.
const maxContenders = 256

// undecided returns how much of what is charged under a name may be given back because another participant denies.
func undecided(votes *across.State, name string) (sum uint64) {
	if votes.Undecided() == 0 {
		return 0
	}
	seen := 0
	votes.Each(func(v *across.Vote) bool {
		if seen++; v.Phase == across.Held {
			var room [admission.MaxDemands]admission.Demand
			demands, _ := admission.ReadDemands(v.Own, room[:0])
			for i := range demands {
				if demands[i].Name == name {
					sum += demands[i].Cost
				}
			}
		}
		return seen < maxContenders
	})
	return sum
}

// elsewiseLocked reports whether an id is that of a hold of this key alone.
func (t *target) elsewiseLocked(id across.ID) bool {
	_, _, ok := t.reservationLocked(admission.ID(id))
	return ok
}

// outcomeLocked returns what the id of an admission says whose vote is forgotten.
func (t *target) outcomeLocked(id across.ID) (out *reqid.Outcome, ok bool) {
	if t.e == nil {
		return nil, false
	}
	return t.sh.ids.Find(t.e.ids, &reqid.ID{Client: id.Client, Sequence: id.Sequence})
}

// markedLocked closes a step that has left a mark. The id of the request says that it was refused, too, if there is room:
// so the mark may be forgotten where there is none for others.
func (t *target) markedLocked(id across.ID, p across.Phase, print uint32) {
	of := reqid.ID{Client: id.Client, Sequence: id.Sequence}
	//guard:across-mark-id p != across.Aborted -> true
	if p != across.Aborted || t.roomLocked(&of) != nil {
		of = noRequest
	}
	t.sh.advanceLocked()
	t.toldAdmissionLocked(&of, reqid.Outcome{Print: print, Code: refused})
}

// AskAcross answers the question of another participant. What was never seen never will be.
func (s *Store) AskAcross(now int64, ref Ref, q across.Question) (AcrossAnswer, error) {
	t, err := s.enterAdmission(now, ref)
	if err != nil {
		return AcrossAnswer{}, err
	}
	defer t.leave()
	t.passLocked()
	a := AcrossAnswer{Now: t.now, Meta: Meta{Permit: t.permit}}
	if t.voteLocked(q.ID) == nil {
		if t.elsewiseLocked(q.ID) {
			a.Phase = across.Aborted // its Hold is refused, as of an id that is used again
			return a, nil
		}
		//guard:across-asked-by-id
		if out, ok := t.outcomeLocked(q.ID); ok {
			//guard:across-asked-print out.Print == q.Print -> true
			if a.Phase = across.Aborted; out.Code == done && out.Print == q.Print {
				a.Phase = across.Charged
			}
			return a, nil
		}
		if err := t.markRoomLocked(); err != nil {
			return a, err
		}
	}
	var changed bool
	a.Answer, changed = t.votesLocked().Asked(&q, t.now)
	t.toldVoteLocked(q.ID, changed)
	if changed {
		t.markedLocked(q.ID, a.Phase, q.Print)
	} else if a.Phase == across.Unknown {
		return a, errVotes
	}
	return a, nil
}

// TellAcross is told news of an admission by its coordinator or by another participant.
func (s *Store) TellAcross(now int64, ref Ref, w across.Word) (AcrossAnswer, error) {
	t, err := s.enterAdmission(now, ref)
	if err != nil {
		return AcrossAnswer{}, err
	}
	defer t.leave()
	t.passLocked()
	a := AcrossAnswer{Now: t.now, Meta: Meta{Permit: t.permit}}
	if v := t.voteLocked(w.ID); v != nil {
		_, err = t.stepLocked(v, func(votes *across.State) (e across.Effect, changed bool) {
			a.Answer, e, changed = votes.Told(&w, t.now)
			return e, changed
		})
		return a, err
	}
	//guard:across-overtaken false
	if w.Phase == across.Cancelled && !t.elsewiseLocked(w.ID) { // the Hold may come after it
		if err := t.markRoomLocked(); err != nil {
			return a, err
		}
		var changed bool
		a.Answer, _, changed = t.votesLocked().Told(&w, t.now)
		t.toldVoteLocked(w.ID, changed)
		if changed {
			t.markedLocked(w.ID, a.Phase, w.Print)
		}
		return a, nil
	}
	a.Phase = across.Forgotten
	return a, nil
}

// Answered is told what another participant has answered to one of Asks. It never comes to harm when that comes late, again,
// or to a store that did not ask.
func (s *Store) Answered(now int64, ref Ref, id across.ID, from uint8, answer across.Answer) (Meta, error) {
	t, err := s.enterAdmission(now, ref)
	if err != nil {
		return Meta{}, err
	}
	defer t.leave()
	if v := t.voteLocked(id); v != nil {
		_, err = t.stepLocked(v, func(votes *across.State) (across.Effect, bool) {
			return votes.Answered(id, from, answer, t.now)
		})
	}
	t.passLocked()
	return Meta{Permit: t.permit}, err
}

// CostAcross is what a demand of a key has really cost.
type CostAcross struct {
	Key  string // "" = that of the admission
	Name string
	Cost uint64
}

// SettleAcross ends a hold with what its demands have cost: those that costs names, or with release none of them, and the
// others what they have reserved. The other participants are told of it by Asks.
func (s *Store) SettleAcross(now int64, ref Ref, id across.ID, costs []CostAcross, release bool) (AcrossAnswer, error) {
	t, err := s.enterAdmission(now, ref)
	if err != nil {
		return AcrossAnswer{}, err
	}
	defer t.leave()
	t.passLocked()
	a := AcrossAnswer{Now: t.now, Meta: Meta{Permit: t.permit}}
	v := t.voteLocked(id)
	if v == nil {
		a.Phase = across.Forgotten
		return a, nil
	}
	var all []uint64
	if a.Before = v.Phase; v.Phase.Holds() {
		if all, err = costsAcross(&v.Terms, ref.Key, costs, release); err != nil {
			return a, err
		}
	}
	t.repeatedLocked(&a, id)
	a.Replayed = v.Phase == across.Settled && slices.Equal(v.Costs, all)
	_, err = t.stepLocked(v, func(votes *across.State) (e across.Effect, changed bool) {
		a.Answer, e, changed = votes.Settle(id, all, t.now)
		return e, changed
	})
	t.passVotesLocked()
	t.scheduleLocked()
	return a, err
}

// costsAcross returns what all demands have cost, in their order.
func costsAcross(of *across.Terms, key string, costs []CostAcross, release bool) ([]uint64, error) {
	all := make([]uint64, len(of.Of))
	for i := range all {
		if !release {
			all[i] = across.Reserved
		}
	}
	var named across.Set
	for _, c := range costs {
		if c.Cost > admission.MaxCost {
			return nil, invalid("costs", "%q is %d; at most %d is allowed", c.Name, c.Cost, uint64(admission.MaxCost))
		}
		found := across.Set(0)
		for i, name := range of.Names {
			if name == NameAcross(cmp.Or(c.Key, key), c.Name) {
				found |= across.One(uint8(i))
				all[i] = c.Cost
			}
		}
		if found.Len() != 1 || named&found != 0 {
			return nil, invalid("costs", "name what the hold does not have, or name something twice; nothing happened")
		}
		named |= found
	}
	return all, nil
}

// ExtendAcross has the time of a hold end so long from now, or later, at this participant. It returns how much is left, 0 if
// there is no such hold, and all keys of the hold.
func (s *Store) ExtendAcross(now int64, ref Ref, id across.ID, ttl int64) (left int64, keys []string, meta Meta, err error) {
	if ttl < admission.MinHold || ttl > admission.MaxHold {
		return 0, nil, Meta{}, invalid("hold_ns", "is out of range; choose 10ms to 24h")
	}
	t, err := s.enterAdmission(now, ref)
	if err != nil {
		return 0, nil, Meta{}, err
	}
	defer t.leave()
	if err := s.checkHold(ttl); err != nil {
		return 0, nil, Meta{}, err
	}
	t.passLocked()
	if v := t.voteLocked(id); v != nil {
		keys = v.Keys
		if until, ok := t.votesLocked().Extend(id, ttl, t.now); ok {
			left = max(until-t.now, 0)
			t.sh.advanceLocked()
			t.toldVoteLocked(id, true)
			t.toldAdmissionLocked(&noRequest, noOutcome)
		}
	}
	return left, keys, Meta{Permit: t.permit}, nil
}
