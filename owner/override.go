package owner

import (
	"math"
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/owner/wire"
)

// An override stands in a slab of the shard, and the entry of its limit says where: so a check of
// a limit that has none looks at nothing more than that, and is as large as ever. In a record it
// stands before the state, behind a byte that is no algorithm.

// OverrideLevel is the level of the cluster from which on limits are overridden.
const OverrideLevel = 8

// overrideMark begins the state of a limit that has an override, in a record.
const overrideMark = 0xff

// readOverride reads an override, if a state begins with one.
func readOverride(r *wire.Reader) (o limit.Override, ok bool) {
	if len(r.B) == 0 || r.B[0] != overrideMark {
		return o, false
	}
	r.Byte()
	o.ReadFrom(r)
	return o, true
}

// Override returns the override of a limit; ok is false if it has none.
func (r *Record) Override() (o limit.Override, ok bool) {
	if r.Kind != KindLimit || r.State.Absent() {
		return o, false
	}
	if e := r.State.e; e != nil {
		if e.rest == 0 {
			return o, false
		}
		return *r.State.sh.overs.At(e.rest), true
	}
	from := r.State.reader()
	if o, ok = readOverride(&from); from.Bad {
		return limit.Override{}, false
	}
	return o, ok
}

// SetOverride gives a record of a limit an override, and returns it. now is not before the times
// of its state.
func (r *Record) SetOverride(o limit.Override, now int64) *Record {
	s, marks := r.Limit()
	w := wire.Writer{Now: now}
	w.Byte(overrideMark)
	if o.AppendTo(&w); s != (limit.State{}) {
		s.AppendTo(&w, marks)
	}
	r.Kind, r.State = KindLimit, ReadState(w.B, now)
	return r
}

// setOverrideLocked gives a limit an override, or takes it away.
func (sh *shard) setOverrideLocked(e *entry, o *limit.Override) {
	switch {
	case o != nil:
		if e.rest == 0 {
			e.rest = sh.overs.Add()
		}
		*sh.overs.At(e.rest) = *o
	case e.rest != 0:
		sh.overs.Free(e.rest)
		e.rest = 0
	}
}

// repaceLocked has what is spent of a limit come back by another rate from a moment on.
func (t *target) repaceLocked(to limit.Rate, at int64) {
	c := t.e.limit()
	if *c == (limitCell{}) {
		return
	}
	var room [limit.MaxMarks + 1]limit.Mark
	s, marks := t.sh.repacedLocked(c, to, at, t.weight, room[:0])
	t.sh.setLimitLocked(t.e, &s, marks)
}

// repacedLocked returns what repaceLocked makes of a limit. The marks are put into those given.
func (sh *shard) repacedLocked(c *limitCell, to limit.Rate, at int64, weight uint32, marks []limit.Mark) (limit.State, []limit.Mark) {
	wall, _ := sh.store.wallAt(at)
	return c.state().Repace(to, append(marks, sh.marksLocked(c)...), at, wall, weight)
}

// overrideLocked returns the override of the target that is in force, nil if none is. That one has
// ended is a change of its own, so that copies do not bring it back after an answer without it. What is
// spent goes on by what callers state since it has, whenever that is noticed.
func (t *target) overrideLocked() *limit.Override {
	if t.e == nil || t.e.rest == 0 {
		return nil
	}
	o := t.sh.overs.At(t.e.rest)
	//guard:override-ends false
	if o.Over(t.now) {
		//guard:override-end-repaces o.Until -> t.now
		t.repaceLocked(o.Callers, o.Until)
		t.sh.setOverrideLocked(t.e, nil)
		t.sh.advanceLocked()
		t.sh.notifySinkLocked(t.slot, t.hash)
		return nil
	}
	return o
}

// overriddenLocked makes a check what it is under the override that is in force, and returns that,
// nil if none is.
func (t *target) overriddenLocked(op *limit.Op) *limit.Override {
	over := t.overrideLocked()
	if over != nil {
		t.limit, t.over, t.callers = over.Limit, over, op.Params
		over.Apply(op)
	}
	return over
}

// hitLocked remembers what a caller states of a limit that is overridden: what is spent goes on by that
// when the override ends.
func (t *target) hitLocked() {
	//guard:override-callers
	if rate := t.callers.Rate(); t.over.Callers != rate {
		t.over.Callers = rate
		t.sh.advanceLocked()
		t.sh.notifySinkLocked(t.slot, t.hash)
	}
}

// endsLocked corrects what is told of an operation under an override that ends before it is allowed again,
// or before all has come back: from then on it is by what its caller states. state and marks are those
// after the operation.
func (t *target) endsLocked(state limit.State, marks []limit.Mark, op *limit.Op, res *limit.Result) {
	left := t.over.Left(t.now)
	if t.over.Until == limit.Forever {
		return
	}
	look := peekAt(*op)
	// Periods of a calendar before the end of the override may leave too little for the next ones.
	if res.RetryAfter > 0 && res.RetryAfter < left && op.Algorithm == limit.CalendarWindow && !op.Overdraft {
		//guard:override-calendar-again false
		if !t.resultAt(state, marks, &look, t.now+res.RetryAfter, t.wall+res.RetryAfter).Allowed {
			res.RetryAfter = left
		}
	}
	if res.RetryAfter < left && res.ResetAfter < left {
		return
	}
	look.Params = t.callers
	never := look.Cost > look.Capacity()
	if never {
		look.Cost = 1
	}
	if t.ref.Role == Share {
		part, ok := look.Part(t.weight)
		if !ok { // the whole decides it then
			res.RetryAfter = min(res.RetryAfter, left)
			return
		}
		look = part
	}
	then := t.resultAt(state, marks, &look, t.over.Until, t.wall+left)
	//guard:override-again false
	if res.RetryAfter >= left {
		//guard:override-never false
		if res.RetryAfter = after(left, then.RetryAfter); never {
			res.RetryAfter = math.MaxInt64
		}
	}
	//guard:override-full-again false
	if res.ResetAfter >= left {
		res.ResetAfter = after(left, then.ResetAfter)
	}
}

// resultAt decides a peek at another moment than that of the target.
func (t *target) resultAt(state limit.State, marks []limit.Mark, look *limit.Op, at, wall int64) (res limit.Result) {
	switch {
	case look.Algorithm == limit.CalendarWindow:
		_, res, _ = limit.Date(state, marks, *look, at, wall)
	case look.Slides(&state):
		var room [limit.MaxMarks + 1]limit.Mark
		_, _, res, _ = limit.Slide(state, append(room[:0], marks...), *look, at)
	default:
		_, res, _ = limit.Apply(state.Undated(look, at, wall), *look, at)
	}
	return res
}

// after adds durations, in ns, at most MaxInt64.
func after(a, b int64) int64 {
	if b > math.MaxInt64-a {
		return math.MaxInt64
	}
	return a + b
}

// marksOf returns the marks of a state that is that of the target.
func (t *target) marksOf(s *limit.State) []limit.Mark {
	if t.e == nil || s.Algorithm != limit.SlidingWindow {
		return nil
	}
	return t.sh.marksLocked(t.e.limit())
}

// neverLocked refuses a check that is not decided under an override: of more than there can be, or
// of a chunk for others. Without an override it is a replay. The figures are those of a check of
// one token.
func (t *target) neverLocked(id *reqid.ID, state limit.State, op limit.Op, over *limit.Override, print uint32) (CheckAnswer, error) {
	look := peekAt(op)
	look.Cost = 1
	if t.ref.Role != Whole || state.Weight != 0 {
		if _, err := t.weighLocked(&state, &look); err != nil {
			return CheckAnswer{}, err
		}
	} else if state.Spent == 0 && state.Algorithm != limit.CalendarWindow && t.startsEmpty() {
		state = t.emptied(&look)
	}
	_, _, res, _ := t.decideLocked(&state, &look)
	res.Allowed, res.Delay, res.Capacity = false, 0, res.Capacity+t.slack
	if op.Cost > op.Capacity() {
		if res.RetryAfter = math.MaxInt64; over != nil {
			t.endsLocked(state, t.marksOf(&state), &op, &res)
		}
	}
	a := CheckAnswer{res, t.slack, t.limit, Meta{Permit: t.permit}}
	if op.Peek {
		return a, nil
	}
	if id.Given() {
		replay, out, age, err := t.judgeLocked(id, print)
		if err != nil {
			return CheckAnswer{}, err
		}
		if replay {
			a.Allowed, a.Delay, a.Meta = out.Code == done, max(out.A-age, 0), Meta{t.permit, true, age}
			if a.Allowed {
				a.RetryAfter = 0
			}
			return a, nil
		}
	}
	if over != nil && op.Cost <= t.callers.Capacity() {
		t.hitLocked()
	}
	if !id.Given() {
		return a, nil
	}
	if err := t.roomLocked(id); err != nil {
		return CheckAnswer{}, err
	}
	t.changedLocked(id, reqid.Outcome{Print: print, Code: refused})
	return a, nil
}

// OverrideAnswer is the override of a limit after an operation on it.
type OverrideAnswer struct {
	Override limit.Override // the zero Override if there is none
	Left     int64          // ns until it ends; 0 if it does not end by itself
	Existed  bool           // there was one before (at the first attempt, for a replay)
	Meta
}

// overridden is the answer of a target.
func (t *target) overridden(m Meta) OverrideAnswer {
	a := OverrideAnswer{Meta: m}
	if t.e != nil && t.e.rest != 0 {
		a.Override = *t.sh.overs.At(t.e.rest)
		a.Left = a.Override.Left(t.now)
	}
	return a
}

// SetOverride overrides what callers state of a limit, from the next check on, for so long, in ns;
// 0 is until it is cleared. What was spent stays spent. It takes the place of one that there is.
func (s *Store) SetOverride(now int64, ref Ref, id reqid.ID, o limit.Override, lasts int64) (OverrideAnswer, error) {
	if err := o.Validate(); err != nil {
		return OverrideAnswer{}, err
	}
	if lasts < 0 || lasts > limit.MaxOverride {
		return OverrideAnswer{}, failure.Invalidf("ends_after_ns", "is %s; choose at most 87840h, ten years, or 0 for as long as it is not cleared", time.Duration(lasts))
	}
	print := digestOf(opSetOverride).with(o.Limit).with(uint64(o.Period)).with(o.Burst).with(uint64(lasts)).print()
	return s.changeOverride(now, ref, id, print, func(t *target) *limit.Override {
		if o.Until = limit.Forever; lasts != 0 {
			o.Until = t.now + lasts
		}
		return &o
	})
}

// ClearOverride ends the override of a limit: the next check is by what its caller states.
func (s *Store) ClearOverride(now int64, ref Ref, id reqid.ID) (OverrideAnswer, error) {
	return s.changeOverride(now, ref, id, fingerprint(opClearOverride, 0), func(*target) *limit.Override { return nil })
}

// changeOverride replaces the override of a limit by what `to` returns; nil takes it away.
func (s *Store) changeOverride(now int64, ref Ref, id reqid.ID, print uint32, to func(t *target) *limit.Override) (OverrideAnswer, error) {
	if err := s.uses(OverrideLevel); err != nil {
		return OverrideAnswer{}, err
	}
	t := target{ref: ref, kind: KindLimit, now: now}
	if err := t.enter(s); err != nil {
		return OverrideAnswer{}, err
	}
	defer t.leave()
	if ref.Role == Share {
		return OverrideAnswer{}, ErrWhole
	}
	existed := t.overrideLocked() != nil
	replay, out, age, err := t.judgeLocked(&id, print)
	if err != nil {
		return OverrideAnswer{}, err
	}
	if replay {
		a := t.overridden(Meta{t.permit, true, age})
		a.Existed = out.A != 0
		return a, nil
	}
	o := to(&t)
	changed := o != nil || existed
	if !changed && !id.Given() {
		return t.overridden(Meta{Permit: t.permit}), nil
	}
	if err := t.roomLocked(&id); err != nil {
		return OverrideAnswer{}, err
	}
	if o != nil && !existed && s.bytes.Load() >= s.cfg.MaxBytes && !t.sh.overs.Room() {
		return OverrideAnswer{}, errMemory
	}
	if changed {
		if t.slot == 0 {
			t.createLocked()
		}
		t.replaceLocked(o)
		t.sh.advanceLocked()
	}
	var had int64
	if existed {
		had = 1
	}
	t.changedLocked(&id, reqid.Outcome{Print: print, Code: done, A: had})
	a := t.overridden(Meta{Permit: t.permit})
	a.Existed = existed
	t.forgetBareLocked()
	return a, nil
}

// replaceLocked gives a limit another override, or none, from now on.
func (t *target) replaceLocked(o *limit.Override) {
	s := t.e.limit().state()
	callers := s.Rate()
	if t.e.rest != 0 {
		callers = t.sh.overs.At(t.e.rest).Callers
	}
	to := callers
	if o != nil {
		o.Callers, to = callers, o.Rate()
	}
	//guard:override-repaces
	t.repaceLocked(to, t.now)
	t.sh.setOverrideLocked(t.e, o)
}

// GetOverride reads the override of a limit.
func (s *Store) GetOverride(now int64, ref Ref) (OverrideAnswer, error) {
	t := target{ref: ref, kind: KindLimit, now: now}
	if err := t.enter(s); err != nil {
		return OverrideAnswer{}, err
	}
	defer t.leave()
	existed := t.overrideLocked() != nil
	a := t.overridden(Meta{Permit: t.permit})
	a.Existed = existed
	return a, nil
}
