package owner

import (
	"slices"

	"github.com/keystead/keystead/owner/across"
	"github.com/keystead/keystead/owner/admission"
	"github.com/keystead/keystead/owner/reqid"
)

// Settle ends a hold with what its demands have really cost: those that costs names, or with release none of them, and
// the others what they have reserved. Of Tagged, it ends one hold. More than was reserved is always taken. What was not used is given back, as far
// as the limit allows: see limit.State.Back. After the time of the hold it corrects what its expiry did.
//
// In a replay the answer is that of the first time, but for what else there is to say of the costs.
func (s *Store) Settle(now int64, ref Ref, id reqid.ID, hold admission.ID, costs []Cost, release bool) (SettleAnswer, error) {
	return s.SettleTo(now, ref, id, hold, costs, release, nil)
}

// SettleTo is Settle that puts what is answered about the costs into `to`, if it has room.
func (s *Store) SettleTo(now int64, ref Ref, id reqid.ID, hold admission.ID, costs []Cost, release bool, to []CostAnswer) (SettleAnswer, error) {
	for i := range costs {
		if costs[i].Cost > admission.MaxCost {
			return SettleAnswer{}, invalid("costs", "%q is %d; at most %d is allowed", costs[i].Name, costs[i].Cost, uint64(admission.MaxCost))
		}
	}
	for i := range costs {
		//guard:settle-cost-once false
		if slices.ContainsFunc(costs[:i], func(c Cost) bool { return c.Name == costs[i].Name }) {
			return SettleAnswer{}, invalid("costs", "say twice what %q has cost", costs[i].Name)
		}
	}
	if release && len(costs) > 0 {
		return SettleAnswer{}, invalid("release", "does not go with costs: nothing was used, or it is said how much")
	}
	t := target{ref: ref, kind: KindAdmission, now: now}
	if err := t.enter(s); err != nil {
		return SettleAnswer{}, err
	}
	defer t.leaveSteps()
	print := printOfSettle(&id, hold, costs, release)
	replay, out, age, err := t.judgeLocked(&id, print)
	if err != nil {
		return SettleAnswer{}, err
	}
	if replay {
		return SettleAnswer{Phase: admission.Phase(out.A), Meta: Meta{t.permit, true, age}}, nil
	}
	a := SettleAnswer{Costs: to[:0], Meta: Meta{Permit: t.permit}}
	if hold.Sequence == anyTagged {
		hold = t.taggedLocked(hold)
	}
	h, n, err := t.dueLocked(hold)
	if err != nil {
		return a, err
	}
	if h.Phase == admission.Unknown && t.voteLocked(across.ID(hold)) != nil {
		return a, ErrAcross
	}
	if h.Phase == admission.Unknown {
		t.noteUnchangedLocked(&id, reqid.Outcome{Print: print, Code: refused})
		return a, nil
	}
	a.Phase = h.Phase
	if err := t.settleHoldLocked(&a, &h, n, costs, release); err != nil {
		return SettleAnswer{}, err
	}
	if err := t.roomLocked(&id); err != nil {
		id = reqid.ID{} // better without than not at all: a repetition finds no hold
	}
	t.storeStepsLocked()
	t.sh.admissions.At(t.e.rest).Drop(n)
	t.sh.ended = append(t.sh.ended, h.ID)
	t.toldAdmissionLocked(&id, reqid.Outcome{Print: print, Code: done, A: int64(a.Phase)})
	t.forgetBareLocked()
	return a, nil
}

// dueLocked returns a hold with its time over if it is.
func (t *target) dueLocked(id admission.ID) (h admission.Hold, n uint32, err error) {
	h, n, ok := t.reservationLocked(id)
	if !ok || h.Until > t.now {
		return h, n, nil
	}
	//guard:settle-after-expiry
	if err = t.expireLocked(n); err == nil {
		h, n, _ = t.reservationLocked(id)
	}
	return h, n, err
}

// settleHoldLocked prepares the steps that settle a hold.
func (t *target) settleHoldLocked(a *SettleAnswer, h *admission.Hold, n uint32, costs []Cost, release bool) error {
	demands := t.demandsLocked(n)
	named := 0
	a.Costs = slices.Grow(a.Costs, len(demands))
	for i := range demands {
		d := &demands[i]
		cost := d.Cost
		if release {
			cost = 0
		}
		for j := range costs {
			if costs[j].Name == d.Name {
				cost = costs[j].Cost
				named++
			}
		}
		x, err := t.heldLocked(d)
		if err != nil {
			return inDemand(i, err)
		}
		if x == nil { // nothing of it is charged, and nothing can be
			a.Costs = append(a.Costs, CostAnswer{Name: d.Name})
			continue
		}
		take, back := d.Settle(h.Phase, cost)
		x.take(take)
		of := CostAnswer{Name: d.Name, Charged: cost, Taken: take}
		if of.Back = x.back(h.Made, back); d.Of == admission.Slots {
			of.Charged = 0
		}
		of.Debt = x.debt()
		a.Costs = append(a.Costs, of)
	}
	if named != len(costs) {
		return invalid("costs", "name what the hold does not have; nothing happened")
	}
	return t.stepsRoomLocked()
}

// Extend has a hold that is not over end so long from now, or later: an Extend that comes late, or twice, never
// shortens what another one has promised.
func (s *Store) Extend(now int64, ref Ref, hold admission.ID, ttl int64) (AdmittedAnswer, Meta, error) {
	if ttl < admission.MinHold || ttl > admission.MaxHold {
		return AdmittedAnswer{}, Meta{}, invalid("hold_ns", "is out of range; choose 10ms to 24h")
	}
	t, err := s.enterAdmission(now, ref)
	if err != nil {
		return AdmittedAnswer{}, Meta{}, err
	}
	defer t.leave()
	if err := s.checkHold(ttl); err != nil {
		return AdmittedAnswer{}, Meta{}, err
	}
	h, n, err := t.dueLocked(hold)
	if err != nil {
		return AdmittedAnswer{}, Meta{}, err
	}
	if h.Phase == admission.Unknown && t.voteLocked(across.ID(hold)) != nil {
		return AdmittedAnswer{}, Meta{}, ErrAcross
	}
	//guard:extend-never-shortens t.now+ttl > h.Until -> true
	if h.Phase == admission.Held && t.now+ttl > h.Until {
		h.Until = t.now + ttl
		t.sh.admissions.At(t.e.rest).Prolong(n, h.Until)
		t.sh.advanceLocked()
		t.sh.ended = append(t.sh.ended, h.ID)
		t.toldAdmissionLocked(&reqid.ID{}, reqid.Outcome{})
	}
	return t.admittedLocked(h), Meta{Permit: t.permit}, nil
}

func (t *target) admittedLocked(h admission.Hold) AdmittedAnswer {
	a := AdmittedAnswer{Hold: h}
	if h.Phase == admission.Held {
		a.Left = max(h.Until-t.now, 0)
	}
	if h.Phase != admission.Unknown {
		a.Age = max(t.now-h.Made, 0)
	}
	return a
}

// InspectAdmission returns a hold, or with the zero ID some of all holds.
func (s *Store) InspectAdmission(now int64, ref Ref, hold admission.ID, most int) (InspectAnswer, error) {
	t, err := s.enterAdmission(now, ref)
	if err != nil {
		return InspectAnswer{}, err
	}
	defer t.leave()
	t.passLocked()
	a := InspectAnswer{Meta: Meta{Permit: t.permit}}
	if !t.hasAdmission() {
		return a, nil
	}
	state := t.sh.admissions.At(t.e.rest)
	a.Total = state.Len()
	show := func(n uint32) bool {
		of := t.admittedLocked(state.Hold(n))
		of.Demands = state.Demands(n, nil)
		a.Holds = append(a.Holds, of)
		return len(a.Holds) < most
	}
	vote := func(v *across.Vote) bool {
		if v.Hold != 0 && v.Phase.Holds() && v.Phase != across.Settled {
			a.Total++
			if len(a.Holds) < most {
				a.Holds = append(a.Holds, t.acrossLocked(v))
			}
		}
		return true
	}
	if hold == (admission.ID{}) {
		state.Each(show)
		state.eachVote(vote)
	} else if n, ok := state.Find(hold); ok {
		show(n)
	} else if v := state.vote(across.ID(hold)); v != nil {
		vote(v)
	}
	return a, nil
}

// acrossLocked returns a hold of several keys as it is here.
func (t *target) acrossLocked(v *across.Vote) (of AdmittedAnswer) {
	of.Hold = admission.Hold{ID: admission.ID(v.ID), Made: v.Made, Until: v.Until, Charge: v.Charge, Phase: chargedAs(v.Phase)}
	of = t.admittedLocked(of.Hold)
	of.Keys, of.Undecided = v.Keys, v.Phase == across.Held
	of.Demands, _ = admission.ReadDemands(v.Own, nil)
	return of
}
