package owner

import (
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/across"
	"github.com/keystead/keystead/owner/admission"
	"github.com/keystead/keystead/owner/reqid"
)

// Demand is a demand as a caller states it.
type Demand struct {
	admission.Demand
	// Clamp is the share of the capacity, in percent, that an estimate may reserve: a greater cost reserves
	// that, until the hold is settled. 0 = a cost above the capacity is an error. Not of slots.
	Clamp uint32

	never error // of a cost above the capacity, unless an override is in force
}

// Admit asks whether all of its demands pass, and charges them.
type Admit struct {
	Demands []Demand // 1 to admission.MaxDemands
	Hold    int64    // ns until they are settled, at most; 0 = they are spent
	Charge  bool     // what is not settled by then stays charged; else it is given back
	Peek    bool     // change nothing
	// Policies is the version of the policies that the demands are of: it has to be the one in force.
	// 0 = the caller states them.
	Policies uint64
	// Asked stands for what was asked for, where the demands are those of a policy, or not all of them: a
	// retry under its id is one, whatever they are by then.
	Asked uint64
	// Elsewhere is what became of demands of the request that were decided before this, and not here.
	Elsewhere Elsewhere
	// Tag names the hold in place of the id of the request, which is not given then: see MaxTagged. The zero
	// Tag is none. A retry makes another hold.
	Tag reqid.Client
}

// Elsewhere is what became of demands that are decided beside an Admit.
type Elsewhere uint8

const (
	ElsewherePassed  Elsewhere = iota // or there are none
	ElsewhereRefused                  // so all of the Admit is refused, and nothing charged
	ElsewhereOpen                     // they were not decided: only a repeated request is answered
)

// ErrElsewhere is the error of an Admit whose demands elsewhere were not decided, and that repeats none. The answer
// beside it has the Meta.
var ErrElsewhere = &failure.Error{Reason: failure.Unavailable, RetryAfter: retrySoon,
	Message: "what is demanded of another key was not decided; nothing happened", Hint: "try again"}

// AdmitAnswer is the outcome of an Admit. In a replay, Admitted is that of the first answer; the rest is as it is
// now, and a hold whose Left is 0 is over.
type AdmitAnswer struct {
	Admitted   bool
	Hold       admission.ID // zero if there is none
	Left       int64        // ns until its time is over
	RetryAfter int64        // ns until all demands could pass, if not admitted; 0 = nobody knows
	Demands    []DemandAnswer
	Meta
}

// SettleAnswer is how a hold was settled.
type SettleAnswer struct {
	Phase admission.Phase // of the hold, before; Unknown: nothing happened
	Costs []CostAnswer
	Meta
}

// Cost is what something has really cost, by the name of what was demanded.
type Cost struct {
	Name string
	Cost uint64
}

// CostAnswer is how a demand was settled.
type CostAnswer struct {
	Name    string
	Charged uint64 // what it has cost in the end
	Back    uint64 // what was given back of what was reserved
	Taken   uint64 // what was taken beyond it, as debt if it was not there
	Debt    uint64 // that is charged beyond the capacity now
}

// AdmittedAnswer is a hold as it is.
type AdmittedAnswer struct {
	admission.Hold
	Left    int64 // ns until its time is over; 0 if it is
	Age     int64
	Demands []admission.Demand

	Keys      []string // all of them, of a hold of several
	Undecided bool     // it is not known yet whether all of them hold
}

// InspectAnswer is the holds of an admission.
type InspectAnswer struct {
	Holds []AdmittedAnswer
	Total int // those that are not shown included
	Meta
}

const slotsRecovering = "what is kept of the key was lost, and slots may still be in use: none is given until the longest lease of before is over; nothing happened"

var (
	errHolds = &failure.Error{Reason: failure.StoreFull, Field: "hold_ns", RetryAfter: retrySoon,
		Message: "the admission has as many holds as it may; nothing happened",
		Hint:    "settle holds sooner, hold for a shorter time, or use another name for the admission"}
	errHoldTag = &failure.Error{Reason: failure.Invalid, Field: "hold_tag",
		Message: "does not go with a request_id or an idempotency_key: one of them names the hold",
		Hint:    "leave one out; with a hold_tag, a retry makes another hold"}
	errHoldID = &failure.Error{Reason: failure.Invalid, Field: "request_id",
		Message: "is missing: a hold is known by the request that made it",
		Hint:    "send a request_id, an idempotency_key or a hold_tag, or leave hold_ns at 0"}
)

// validate reports what cannot be asked for.
func (op *Admit) validate(ref *Ref) error {
	switch {
	case len(op.Demands) == 0:
		return invalid("demands", "are missing; say 1 to %d", admission.MaxDemands)
	case len(op.Demands) > admission.MaxDemands:
		return invalid("demands", "are %d; at most %d are allowed", len(op.Demands), admission.MaxDemands)
	case op.Hold != 0 && (op.Hold < admission.MinHold || op.Hold > admission.MaxHold):
		return invalid("hold_ns", "is %s; choose 10ms to 24h, or 0 to spend at once", time.Duration(op.Hold))
	case op.tagged() && op.Hold == 0 && !op.Peek:
		return invalid("hold_tag", "goes with a hold: say hold_ns")
	}
	for i := range op.Demands {
		if err := op.validDemand(ref, i); err != nil {
			return err
		}
	}
	return nil
}

// named reports what keeps the hold from having one name.
func (op *Admit) named(id *reqid.ID) error {
	switch {
	case op.tagged() && id.Given():
		return errHoldTag
	case op.Hold != 0 && !op.Peek && !id.Given() && !op.tagged():
		return errHoldID
	}
	return nil
}

// Judge reports what an owner would refuse of a request under an id, if no limit is overridden.
func (op *Admit) Judge(ref Ref, id reqid.ID) error {
	if err := op.validate(&ref); err != nil {
		return err
	}
	if err := op.named(&id); err != nil {
		return err
	}
	for i := range op.Demands {
		if d := &op.Demands[i]; d.Clamp == 0 && d.never != nil {
			return inDemand(i, d.never)
		}
	}
	return nil
}

func (op *Admit) validDemand(ref *Ref, i int) error {
	d := &op.Demands[i]
	never, err := d.Fits()
	d.never = never
	switch {
	case err != nil:
	case d.Clamp > 100:
		err = invalid("clamp_percent", "is %d; choose 1 to 100, or 0 for none", d.Clamp)
	case d.Clamp != 0 && d.Of == admission.Slots:
		err = invalid("clamp_percent", "does not go with slots: nothing corrects how many run")
	case d.Clamp != 0 && op.Hold == 0 && !op.Peek:
		err = invalid("clamp_percent", "goes with a hold, which is settled with the real cost: what is spent at once would not be charged in full")
	case len(d.Name) > MaxName:
		err = invalid("name", "has %d bytes; at most %d are allowed", len(d.Name), MaxName)
	case !validText(d.Name):
		err = invalid("name", "is not valid UTF-8")
	case d.Name == ref.Name:
		err = invalid("name", "is that of the admission itself; choose another one")
	case d.Of == admission.Slots && op.Hold == 0 && !op.Peek:
		err = invalid("slots", "go with a hold, whose end gives them back")
	}
	for j := range i {
		if op.Demands[j].Name == d.Name && err == nil {
			err = invalid("name", "is that of an earlier demand, too")
		}
	}
	if err != nil {
		return inDemand(i, err)
	}
	return nil
}

// Admit charges all demands, or none. With a hold, what is charged is reserved, until Settle says what it has cost, or
// the time of the hold is over. All is of one key, and one step.
//
// The hold is known by the id of the request. What is answered about the demands is put into `to`, if it has
// room.
func (s *Store) Admit(now int64, ref Ref, id reqid.ID, op Admit, to []DemandAnswer) (AdmitAnswer, error) {
	if err := op.validate(&ref); err != nil {
		return AdmitAnswer{}, err
	}
	if err := op.named(&id); err != nil {
		return AdmitAnswer{}, err
	}
	t := target{ref: ref, kind: KindAdmission, now: now}
	if err := t.enter(s); err != nil {
		return AdmitAnswer{}, err
	}
	defer t.leaveSteps()
	err := s.checkHold(op.Hold)
	if err == nil && op.Policies != 0 {
		err = s.checkPolicies(op.Policies)
	}
	if err != nil {
		return AdmitAnswer{}, err
	}
	a := AdmitAnswer{Demands: to[:0], Meta: Meta{Permit: t.permit}}
	print := printOfAdmit(&id, &op)
	replay := false
	var out reqid.Outcome
	if !op.Peek {
		if replay, out, a.Age, err = t.judgeLocked(&id, print); err != nil {
			return AdmitAnswer{}, err
		}
		t.passLocked()
	}
	if replay {
		t.replayedLocked(&a, &id, &op, out)
		return a, nil
	}
	if op.Elsewhere == ElsewhereOpen {
		return a, ErrElsewhere
	}
	if a.Admitted, err = t.decideDemandsLocked(&op, &a); err != nil {
		return AdmitAnswer{}, err
	}
	//guard:admission-elsewhere
	if op.Elsewhere == ElsewhereRefused {
		a.Admitted = false
	}
	if op.Peek {
		return a, nil
	}
	as, ok := t.holdID(&id, &op)
	//guard:admission-tag-bound
	if a.Admitted && !ok {
		a.refuseAll()
	}
	if err := t.admitLocked(&a, &id, &op, as, reqid.Outcome{Print: print, Code: decision(a.Admitted)}); err != nil {
		return AdmitAnswer{}, err
	}
	return a, nil
}

// ErrPolicies says that other policies are in force than those that demands were made by.
var ErrPolicies = &failure.Error{Reason: failure.Unavailable, RetryAfter: retrySoon, Message: "the policies are being changed; nothing happened", Hint: "try again"}

// checkPolicies reports whether a version of the policies is in force. It is called when the shard is
// locked and the rule has let the operation in, so that no key is decided by an earlier version than
// before.
func (s *Store) checkPolicies(version uint64) error {
	if version == 0 {
		return nil
	}
	if s.policies == nil {
		return ErrPolicies
	}
	_, now, _, err := s.policies.Limit("")
	//guard:admission-policies
	if err == nil && now != version {
		return ErrPolicies
	}
	return err
}

// enterAdmission lets an operation on an admission in. If it succeeds, the shard is locked until leave.
func (s *Store) enterAdmission(now int64, ref Ref) (t target, err error) {
	t = target{ref: ref, kind: KindAdmission, now: now}
	return t, t.enter(s)
}

func (s *Store) checkHold(ttl int64) error {
	if most := s.maxLockTTL(); ttl > most {
		return invalid("hold_ns", "is %s; this node allows at most %s", time.Duration(ttl), time.Duration(most))
	}
	return nil
}

// decideDemandsLocked reports whether all demands pass. The steps have them charged then.
func (t *target) decideDemandsLocked(op *Admit, a *AdmitAnswer) (admitted bool, err error) {
	admitted = true
	unknown := false
	for i := range op.Demands {
		d := &op.Demands[i]
		//guard:admission-grace
		if d.Of == admission.Slots && t.permit.Lost != 0 {
			return false, inDemand(i, t.recovering(slotsRecovering))
		}
		a.Demands = append(a.Demands, DemandAnswer{})
		of := &a.Demands[len(a.Demands)-1]
		if err := t.spendLocked(d, false, of); err != nil {
			return false, inDemand(i, err)
		}
		if of.Refused {
			admitted = false
			unknown = unknown || of.RetryAfter == 0
			a.RetryAfter = max(a.RetryAfter, of.RetryAfter)
		}
	}
	if unknown {
		a.RetryAfter = 0
	}
	return admitted, nil
}

// spendLocked decides a demand, or looks at it.
func (t *target) spendLocked(d *Demand, look bool, a *DemandAnswer) error {
	x, err := t.demandLocked(&d.Term)
	if err != nil {
		return err
	}
	if err := x.wants(d); err != nil {
		return err
	}
	return x.spend(look, a)
}

// replayedLocked makes the answer that of a repeated request. It stands, whatever has become of what was demanded
// meanwhile: what cannot be told of that is left out.
func (t *target) replayedLocked(a *AdmitAnswer, id *reqid.ID, op *Admit, out reqid.Outcome) {
	a.Replayed, a.Admitted = true, out.Code == done
	known := true
	for i := range op.Demands {
		d := &op.Demands[i]
		var of DemandAnswer
		if err := t.spendLocked(d, true, &of); err != nil {
			x := demandStep{params: d.Params}
			_ = x.wants(d)
			of = DemandAnswer{Reserved: x.demand.Cost, Capacity: x.capacity()}
		}
		if a.Admitted { // the rest is as it is now
			of.Refused, of.RetryAfter = false, 0
		}
		known = known && (!of.Refused || of.RetryAfter != 0)
		a.RetryAfter = max(a.RetryAfter, of.RetryAfter)
		a.Demands = append(a.Demands, of)
	}
	if !known {
		a.RetryAfter = 0
	}
	if !a.Admitted || op.Hold == 0 {
		return
	}
	a.Hold = admission.ID{Client: id.Client, Sequence: id.Sequence}
	if h, _, ok := t.reservationLocked(a.Hold); ok && h.Phase == admission.Held {
		a.Left = max(h.Until-t.now, 0)
	}
}

// admitLocked does what was decided.
func (t *target) admitLocked(a *AdmitAnswer, id *reqid.ID, op *Admit, as admission.ID, out reqid.Outcome) error {
	if !a.Admitted {
		if id.Given() { // asked again, it has the same answer if there is no room for it
			if t.roomLocked(id) == nil {
				t.changedLocked(id, out)
			}
		}
		return nil
	}
	var demands []admission.Demand
	if op.Hold != 0 {
		//guard:admission-once
		if h, _, ok := t.reservationLocked(as); ok && !(op.tagged() && h.Phase != admission.Held) || t.voteLocked(across.ID(as)) != nil {
			return reused(id) // its request is forgotten, and the hold is still there
		}
		demands = t.sh.demands[:0]
		for i := range op.Demands {
			demands = append(demands, t.sh.steps[i].reserved())
		}
		t.sh.demands = demands
		if !admission.Fits(demands) {
			return invalid("demands", "have names that are too long for one hold; use shorter ones, or fewer")
		}
		if t.hasAdmission() && t.sh.admissions.At(t.e.rest).Room(demands) != nil {
			return errHolds
		}
		//guard:admission-memory
		if err := t.heldRoomLocked(demands); err != nil && !t.hasSpare() {
			return err
		}
	}
	if op.Hold != 0 || id.Given() {
		if err := t.roomLocked(id); err != nil {
			return err
		}
	}
	if err := t.stepsRoomLocked(); err != nil {
		return err
	}
	t.storeStepsLocked()
	if op.Hold != 0 {
		h := admission.Hold{ID: as, Made: t.now, Until: t.now + op.Hold, Phase: admission.Held, Charge: op.Charge}
		t.holdDemandsLocked(h, demands)
		a.Hold, a.Left = h.ID, op.Hold
	}
	t.toldAdmissionLocked(id, out)
	return nil
}

func (t *target) hasAdmission() bool { return t.e != nil && t.e.rest != 0 }

// toldAdmissionLocked closes a step: it tells the sink of all of it in one record.
func (t *target) toldAdmissionLocked(id *reqid.ID, out reqid.Outcome) {
	sh := t.sh
	if t.hasAdmission() {
		s := sh.admissions.At(t.e.rest)
		s.At = t.now
		admissions{}.account(sh, t.e)
	}
	if id.Given() {
		t.noteLocked(id, out)
	}
	if t.slot == 0 {
		sh.accountLocked()
		if sink := sh.store.cfg.Sink; sink != nil {
			r := &sh.record
			*r = Record{Hash: t.hash, Key: []byte(t.ref.Key), Name: []byte(t.ref.Name), Kind: t.kind, Version: sh.version, At: sh.now, Members: r.Members[:0], Beside: sh.beside}
			sink.Changed(r)
		}
		sh.beside = sh.beside[:0]
	} else {
		sh.notifySinkLocked(t.slot, t.hash)
	}
	t.toldStepsLocked()
	t.scheduleLocked()
}

// maxLapsed is how many holds end under one hold of the shard's lock.
const maxLapsed = 64

// endAgain is after how long a hold is tried again that could not be ended.
const endAgain = int64(1_000_000_000)

// passLocked ends the holds of the target whose time is over, some at a time. One that cannot be ended now keeps what
// it has for a while longer, and no other one from ending.
func (t *target) passLocked() {
	for range maxLapsed {
		if !t.hasAdmission() {
			return
		}
		s := t.sh.admissions.At(t.e.rest)
		n, at, ok := s.Next()
		if !ok || at > t.now {
			break
		}
		if t.expireLocked(n) != nil {
			s.Prolong(n, t.now+endAgain)
		}
	}
	t.passVotesLocked()
	t.scheduleLocked()
}

// demandsLocked returns the demands of a hold, until the next one's are asked for.
func (t *target) demandsLocked(n uint32) []admission.Demand {
	t.sh.demands = t.sh.admissions.At(t.e.rest).Demands(n, t.sh.demands[:0])
	return t.sh.demands
}

// expireLocked ends the time of a hold. If it fails, nothing has changed.
func (t *target) expireLocked(n uint32) error {
	defer t.endStepsLocked()
	s := t.sh.admissions.At(t.e.rest)
	h := s.Hold(n)
	if h.Phase == admission.Held {
		demands := t.demandsLocked(n)
		for i := range demands {
			d := &demands[i]
			if h.Charge && d.Of != admission.Slots {
				continue
			}
			x, err := t.heldLocked(d)
			if err != nil {
				return err
			}
			if x != nil {
				//guard:admission-expiry
				x.back(h.Made, d.Cost)
			}
		}
		if err := t.stepsRoomLocked(); err != nil {
			return err
		}
	}
	t.storeStepsLocked()
	s.Expire(n, t.now)
	t.sh.ended = append(t.sh.ended, h.ID)
	t.toldAdmissionLocked(&reqid.ID{}, reqid.Outcome{})
	return nil
}
