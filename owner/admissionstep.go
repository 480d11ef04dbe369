package owner

import (
	"hash/maphash"
	"math"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/admission"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
)

// demandStep is a limit or a counter in the hands of an operation on an admission of the same key: what
// it will be, if all of the step can be done.
type demandStep struct {
	t       target
	demand  admission.Demand // as it is decided, or was
	params  limit.Params     // that are in force: those that are demanded, or of an override
	over    *limit.Override  // that is in force; nil = none. Valid until the step is stored
	limit   limit.State
	marks   []limit.Mark
	count   counter.State
	changed bool
	idle    bool   // a counter keeps its idle TTL
	lost    bool   // what is spent of a limit is not of holds
	wanted  uint64 // Cost, as it is when the override has ended
	room    [limit.MaxMarks + 1]limit.Mark
}

// ErrDemandSplit is the error of an operation on an admission of which a limit or a counter is split.
var ErrDemandSplit = &failure.Error{Reason: failure.Unavailable, Field: "demands", RetryAfter: retrySoon,
	Message: "what is demanded is split among nodes, for checks beside admissions have made it hot; nothing happened",
	Hint:    "try again: it is put together again. Check what is demanded by admissions only, or keep it whole (hot.whole)"}

// MaxBeside is how many objects one step changes beside the one that its record is of.
const MaxBeside = admission.MaxDemands

// kindOf returns the kind of object that has what is demanded.
func kindOf(r admission.Resource) Kind {
	if r == admission.Limit {
		return KindLimit
	}
	return KindCounter
}

// heldLocked finds what was demanded, to correct what was charged for it. It is nil if another kind of object has the
// name by now: what was charged was forgotten before that.
func (t *target) heldLocked(of *admission.Demand) (*demandStep, error) {
	x, err := t.demandLocked(&of.Term)
	//guard:settle-other-kind
	if err != nil && failure.ReasonOf(err) == failure.KindMismatch {
		t.sh.steps = t.sh.steps[:len(t.sh.steps)-1]
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if x.demand, x.idle = *of, true; of.Of != admission.Limit {
		return x, nil
	}
	op := limit.Op{Params: x.params}
	if op.Dated(&x.limit) {
		charged := x.limit // stays what it is, whatever its algorithm
		if err := x.t.dateLocked(&charged, &op); err != nil {
			return nil, err
		}
	}
	x.lostLocked(&op)
	return x, nil
}

// demandLocked finds what is demanded. The steps are valid until the shard is let go.
func (t *target) demandLocked(of *admission.Term) (*demandStep, error) {
	sh := t.sh
	if sh.steps == nil {
		sh.steps = make([]demandStep, 0, MaxBeside)
	}
	sh.steps = sh.steps[:len(sh.steps)+1]
	x := &sh.steps[len(sh.steps)-1]
	x.marks, x.over, x.changed, x.idle, x.lost = nil, nil, false, false, false
	d := &x.t
	*d = target{}
	d.sh, d.kind, d.hash, d.permit, d.now, d.quiet = sh, kindOf(of.Of), t.hash, t.permit, t.now, true
	d.ref.Key, d.ref.Name, d.ref.Hash = t.ref.Key, of.Name, t.hash
	if t.keyTag == 0 { // nobody has asked for the target: it has not been looked for
		t.keyTag = maphash.String(sh.store.seed, t.ref.Key)
	}
	d.tag = sh.store.tag(t.keyTag, maphash.String(sh.store.seed, of.Name))
	if splits := sh.store.splits; splits != nil && splits.Split(t.hash) {
		if _, err := splits.May(d.ref, d.kind); err != nil {
			return nil, ErrDemandSplit
		}
	}
	if err := d.findLocked(); err != nil {
		return nil, err
	}
	if d.kind == KindCounter {
		d.lapseLocked()
		x.count = d.counterLocked()
		return x, nil
	}
	x.limit, x.params = limit.State{}, of.Params
	if d.e == nil {
		return x, nil
	}
	//guard:admission-override false
	if d.e.rest != 0 {
		if x.over = d.overrideLocked(); x.over != nil {
			op := limit.Op{Params: of.Params}
			x.over.Apply(&op)
			x.params = op.Params
		}
	}
	c := d.e.limit()
	x.limit = c.state()
	if x.limit.Algorithm == limit.SlidingWindow {
		x.marks = x.room[:copy(x.room[:], sh.marksLocked(c))]
	}
	if x.limit.Weight != 0 {
		x.limit = x.limit.Reweigh(limit.FullWeight, x.params.Capacity(), t.now)
	}
	return x, nil
}

// lostLocked has a limit that is absent, and stands for one that was lost, be what that is taken to be.
func (x *demandStep) lostLocked(op *limit.Op) {
	if x.limit.Spent == 0 && x.limit.Algorithm != limit.CalendarWindow && x.t.startsEmpty() {
		x.limit, x.lost = x.t.emptied(op), true
	}
}

// leaveSteps is leave of an operation that has taken steps.
func (t *target) leaveSteps() {
	t.endStepsLocked()
	t.leave()
}

// endStepsLocked lets go of what was found.
func (t *target) endStepsLocked() {
	t.sh.steps, t.sh.beside, t.sh.counted = t.sh.steps[:0], t.sh.beside[:0], false
}

// DemandAnswer is what became of one demand.
type DemandAnswer struct {
	Refused    bool
	Reserved   uint64 // what is, or would be, charged for now
	Capacity   uint64
	Remaining  uint64 // that is left for others
	Debt       uint64 // that is charged beyond the capacity
	RetryAfter int64  // ns until the same demand passes, if it is refused; 0 = nobody knows
	ResetAfter int64  // ns until all of it is available; 0 of a counter
	Overridden bool   // an override was in force, of which Capacity is
}

// wants makes the step that of a demand: what it reserves is judged by what is in force.
func (x *demandStep) wants(of *Demand) error {
	x.demand = of.Demand
	d := &x.demand
	if d.Rate = (admission.Rate{}); x.over != nil && d.Params.Algorithm != limit.CalendarWindow {
		d.Rate = admission.Rate{Limit: x.params.Limit, Period: x.params.Period}
	}
	if x.wanted = d.Cost; of.Clamp != 0 {
		//guard:admission-clamp
		d.Cost = of.Clamped(capacityOf(d, &x.params))
		x.wanted = of.Clamped(capacityOf(d, &d.Params))
	} else if x.over == nil {
		return of.never
	}
	return nil
}

// Clamped returns what is reserved of such a capacity.
func (of *Demand) Clamped(capacity uint64) uint64 {
	return min(of.Cost, max(1, capacity/100*uint64(of.Clamp)+capacity%100*uint64(of.Clamp)/100))
}

// capacity returns the most that there is at some time in any case.
func (x *demandStep) capacity() uint64 { return capacityOf(&x.demand, &x.params) }

func capacityOf(d *admission.Demand, p *limit.Params) uint64 {
	switch {
	case d.Of != admission.Limit:
		return uint64(d.Max)
	case p.Algorithm == limit.CalendarWindow: // not what may be carried over
		return p.Limit
	}
	return p.Capacity()
}

// spend decides whether the demand of the step passes. If so, the step has it charged; if it is only looked at, what
// is left is told as it is.
func (x *demandStep) spend(look bool, a *DemandAnswer) error {
	d := &x.demand
	if d.Of != admission.Limit {
		*a = x.add(look)
		return nil
	}
	t, op := &x.t, limit.Op{Params: x.params, Cost: d.Cost, Peek: look}
	lost := x.limit.Algorithm != limit.CalendarWindow
	if op.Dated(&x.limit) {
		if err := t.dateLocked(&x.limit, &op); err != nil {
			return err
		}
	}
	if lost {
		x.lostLocked(&op)
	}
	never := x.over != nil && x.over.Refuses(&op)
	if never { // what is told is what there is for one token
		op.Cost, op.Peek = 1, true
	}
	var res limit.Result
	next := x.limit
	var marks []limit.Mark
	slides := op.Slides(&x.limit) && op.Algorithm != limit.CalendarWindow
	switch {
	case op.Algorithm == limit.CalendarWindow:
		next, res, _ = limit.Date(x.limit, x.marks, op, t.now, t.wall)
	case slides:
		a.Debt = x.debt() // Slide changes the marks
		next, marks, res, _ = limit.Slide(x.limit, x.marks, op, t.now)
	default:
		next.Apply(&op, t.now, &res)
	}
	if never {
		res.Allowed, res.RetryAfter = false, math.MaxInt64
	}
	if x.over != nil {
		x.ends(&op, next, marks, &res, look)
	}
	a.Refused, a.Overridden = !res.Allowed, x.over != nil
	a.Reserved, a.Capacity, a.Remaining, a.RetryAfter, a.ResetAfter = d.Cost, res.Capacity, res.Remaining, res.RetryAfter, res.ResetAfter
	if !res.Allowed && !slides {
		a.Debt = x.debt()
	} else if res.Allowed && !look {
		x.limit, x.marks, x.changed = next, marks, true
	}
	return nil
}

// ends has what is told know that the override ends.
func (x *demandStep) ends(op *limit.Op, next limit.State, marks []limit.Mark, res *limit.Result, look bool) {
	t := &x.t
	if !res.Allowed || look {
		next, marks = x.limit, t.marksOf(&x.limit)
	}
	again := *op
	again.Cost = x.wanted
	t.over, t.callers = x.over, x.demand.Params
	t.endsLocked(next, marks, &again, res)
}

// reserved returns the demand of a step that has it charged, as a hold remembers it.
func (x *demandStep) reserved() admission.Demand {
	d := x.demand
	if d.Of == admission.Limit {
		d.Into = x.limit.Into(x.params, x.t.now)
		if x.limit.Algorithm == limit.CalendarWindow {
			d.Ends = x.limit.At
		}
	}
	return d
}

func (x *demandStep) add(look bool) DemandAnswer {
	d, have := &x.demand, uint64(max(x.count.Value, 0))
	capacity := uint64(d.Max)
	a := DemandAnswer{Reserved: d.Cost, Capacity: capacity, Remaining: capacity - min(capacity, have), Debt: have - min(have, capacity)}
	if a.Refused = d.Cost > a.Remaining; a.Refused || look {
		return a
	}
	a.Remaining -= d.Cost
	if d.Of == admission.Slots {
		//guard:slots-below-zero
		x.count.Value = max(x.count.Value, 0)
	}
	x.change(int64(d.Cost))
	return a
}

// change adds to a counter.
func (x *demandStep) change(by int64) {
	x.count.Value += by
	x.changed, x.t.sh.counted = true, true
}

// take charges more, whether or not it is there, and back gives back what can be, of what was reserved at a moment.
func (x *demandStep) take(n uint64) {
	if n == 0 {
		return
	}
	if x.demand.Of != admission.Limit {
		room := uint64(admission.MaxCost - min(max(x.count.Value, 0), admission.MaxCost))
		x.change(int64(min(n, room)))
		return
	}
	x.limit, x.marks = x.limit.Take(x.params, n, x.marks, x.t.now, x.t.wall)
	x.changed = true
}

func (x *demandStep) back(made int64, n uint64) (given uint64) {
	if n == 0 {
		return 0
	}
	d := &x.demand
	switch have := x.count.Value; {
	case d.Of == admission.Limit:
	case have == 0 && x.count.Version == 0: // it was deleted
		return 0
	case d.Of == admission.Slots:
		n = min(n, uint64(max(have, 0)))
		fallthrough
	default: // also below 0, where it may have been when the hold was made
		if given = min(n, uint64(have)-1<<63); given != 0 {
			x.change(-int64(given))
		}
		return given
	}
	if x.t.e == nil || x.lost {
		return 0
	}
	x.limit, x.marks, given = x.limit.Back(limit.Reserved{Params: d.Charged(), Tokens: d.Cost, Made: made, Into: d.Into, Ends: d.Ends}, n, x.marks, x.t.now, x.t.wall)
	x.changed = x.changed || given != 0
	return given
}

// debt returns what is charged beyond the capacity.
func (x *demandStep) debt() uint64 {
	if x.demand.Of == admission.Limit {
		return x.limit.Debt(x.params, x.marks, x.t.now, x.t.wall)
	}
	have := uint64(max(x.count.Value, 0))
	return have - min(have, uint64(x.demand.Max))
}

// stepsRoomLocked returns the error of a step for which there is no room.
func (t *target) stepsRoomLocked() error {
	for i := range t.sh.steps {
		x := &t.sh.steps[i]
		if !x.changed {
			continue
		}
		if x.t.kind != KindCounter && x.t.slot != 0 && len(x.marks) == 0 {
			continue // it takes the place that it has
		}
		if x.t.kind == KindCounter {
			if err := t.sh.versionsLeftLocked(); err != nil {
				return err
			}
			x.marks = nil
		}
		if err := x.t.roomForLocked(&reqid.ID{}, x.marks, true); err != nil {
			return err
		}
	}
	return nil
}

// storeStepsLocked does what the steps say, and has the next record tell of it.
func (t *target) storeStepsLocked() {
	sh := t.sh
	sh.advanceLocked()
	for i := range sh.steps {
		x := &sh.steps[i]
		if !x.changed {
			continue
		}
		d := &x.t
		if d.slot == 0 {
			d.createLocked()
		}
		if d.kind == KindCounter {
			c := d.e.counter()
			ttl := c.IdleTTL
			//guard:admission-idle
			if !x.idle {
				ttl = 0 // as of an add that says none: what is held is not forgotten
			}
			*c = counter.State{Value: x.count.Value, Version: sh.version, At: max(t.now, c.At), IdleTTL: ttl}
		} else {
			sh.setLimitLocked(d.e, &x.limit, x.marks)
			//guard:override-admission-callers
			if x.over != nil && (!x.idle || x.over.Callers == limit.Rate{}) {
				x.over.Callers = x.demand.Params.Rate()
			}
		}
		//guard:disk-beside
		if sh.track.on {
			sh.trackLocked(d.slot, d.e, d.hash)
		}
		if sh.store.cfg.Sink == nil {
			continue
		}
		sh.beside = append(sh.beside, Record{Hash: d.hash, Name: d.e.text()[d.e.keyLen():], Kind: d.kind, Version: sh.version, At: sh.now})
		machines[d.kind].states.record(sh, d.e, &sh.beside[len(sh.beside)-1], false)
	}
}

// toldStepsLocked answers the callers that await a counter that a step has changed. The copies have been told
// before.
func (t *target) toldStepsLocked() {
	if !t.sh.counted {
		return
	}
	for i := range t.sh.steps {
		if x := &t.sh.steps[i]; x.changed && x.t.kind == KindCounter {
			x.t.counterChangedLocked()
		}
	}
}
