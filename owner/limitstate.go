package owner

import (
	"errors"
	"slices"
	"unsafe"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/owner/wire"
)

// limits is the kind of rate limits.
type limits struct{}

var limitMachine = machine{name: "limit", cell: unsafe.Sizeof(limitCell{}), states: limits{}, parts: limits{}, old: limits{}}

func (limits) absent(sh *shard, e *entry, now int64) bool {
	c := e.limit()
	if e.rest != 0 && !sh.overs.At(e.rest).Over(now) {
		return false
	}
	if c.algorithm() == limit.CalendarWindow {
		s := c.state()
		wall, ok := sh.store.wallAt(now)
		return ok && s.Passed(wall)
	}
	if e.rest != 0 {
		var room [limit.MaxMarks + 1]limit.Mark
		o := sh.overs.At(e.rest)
		//guard:override-swept-as-of-its-end o.Callers -> limit.Rate{}
		s, _ := sh.repacedLocked(c, o.Callers, o.Until, 0, room[:0])
		return s.Absent(now)
	}
	return c.weight() == 0 && (c.spent == 0 || c.state().Absent(now))
}

func (limits) spent(_ *shard, e *entry) bool {
	c := e.limit()
	return c.spent != 0 || c.algorithm() == limit.CalendarWindow || e.rest != 0
}

func (limits) fades() bool { return true }

func (limits) clear(sh *shard, e *entry) {
	sh.setLimitLocked(e, &limit.State{}, nil)
	sh.setOverrideLocked(e, nil)
}

func (limits) record(sh *shard, e *entry, r *Record, _ bool) {
	if *e.limit() != (limitCell{}) || e.rest != 0 {
		r.State = State{sh: sh, e: e}
	}
}

// Limit returns the state of a limit; the zero State if it is absent, cannot be read, or
// is another kind's. The marks may be the store's.
func (r *Record) Limit() (s limit.State, marks []limit.Mark) {
	if r.Kind != KindLimit || r.State.Absent() {
		return s, nil
	}
	if e := r.State.e; e != nil {
		return e.limit().state(), r.State.sh.marksLocked(e.limit())
	}
	from := r.State.reader()
	if _, ok := readOverride(&from); ok && from.Ends() {
		return s, nil
	}
	if marks = s.ReadFrom(&from, nil); !from.Ends() {
		return limit.State{}, nil
	}
	return s, marks
}

// LimitAt returns the state of a limit and its override as they are at a moment: one that is over by then is
// none, and the state goes on by what callers state.
func (r *Record) LimitAt(now int64) (s limit.State, marks []limit.Mark, o *limit.Override) {
	s, marks = r.Limit()
	over, ok := r.Override()
	switch {
	case !ok:
		return s, marks, nil
	case over.Over(now):
		s, marks = s.Repace(over.Callers, slices.Clone(marks), over.Until, 0, 0)
		return s, marks, nil
	}
	return s, marks, &over
}

// SetLimit makes the record that of a limit, and returns it.
func (r *Record) SetLimit(s limit.State, marks []limit.Mark) *Record {
	r.Kind, r.State = KindLimit, State{}
	if s != (limit.State{}) {
		w := wire.Writer{Now: s.At}
		s.AppendTo(&w, marks)
		r.State = ReadState(w.B, w.Now)
	}
	return r
}

func (limits) write(r *Record, to []byte, now int64) []byte {
	s, marks := r.Limit()
	w := wire.Writer{B: to, Now: now}
	if o, ok := r.Override(); ok {
		w.Byte(overrideMark)
		if o.AppendTo(&w); s == (limit.State{}) {
			return w.B
		}
	}
	s.AppendTo(&w, marks)
	return w.B
}

func (limits) judge(r *Record, now int64) (judged any, absent bool, err error) {
	if err := r.memberless(); err != nil || r.State.Absent() {
		return nil, true, err
	}
	var s limit.State
	var room [limit.MaxMarks]limit.Mark
	from := r.State.reader()
	if o, ok := readOverride(&from); ok {
		if from.Bad {
			return nil, false, errState
		}
		if err := o.Validate(); err != nil {
			return nil, false, invalid("record", "the override: %v", err)
		}
		if from.Ends() {
			return nil, false, nil
		}
	}
	marks := s.ReadFrom(&from, room[:0])
	switch {
	case !from.Ends():
		return nil, false, errState
	case s.Algorithm != limit.CalendarWindow && (s.At > now || s.At < -maxMoment):
		return nil, false, errTime
	}
	if err := errors.Join(s.Valid(), s.ValidMarks(marks)); err != nil {
		return nil, false, invalid("record", "%v", err)
	}
	return nil, false, nil
}

func (limits) grows(r *Record) bool {
	if len(r.State.bytes) == 0 {
		return false
	}
	first := r.State.bytes[0]
	return limit.Algorithm(first) == limit.SlidingWindow || first == overrideMark
}

func (limits) install(t target, r *Record, _ any) {
	var s limit.State
	var room [limit.MaxMarks]limit.Mark
	var marks []limit.Mark
	var o *limit.Override
	if !r.State.Absent() {
		from := r.State.reader()
		if read, ok := readOverride(&from); ok {
			o = &read
		}
		if len(from.B) > 0 {
			marks = s.ReadFrom(&from, room[:0])
		}
	}
	t.sh.setLimitLocked(t.e, &s, marks)
	t.sh.setOverrideLocked(t.e, o)
}

// Version 2 has sliding windows, and version 3 buckets that have a weight, for a program that knows an
// earlier one would take them for what ends at once, and for whole ones.
func (limits) version(r *Record) byte {
	var s limit.State
	if e := r.State.e; e != nil {
		s.Weight, s.Algorithm = e.limit().weight(), e.limit().algorithm()
	} else {
		s, _ = r.Limit()
	}
	_, over := r.Override()
	switch {
	case over, s.Algorithm == limit.LeakyBucket, s.Algorithm == limit.CalendarWindow:
		return 0 // none: there are such from OverrideLevel and LeakyLevel on
	case s.Weight != 0:
		return 3
	case s.Algorithm == limit.SlidingWindow:
		return 2
	}
	return 1
}

// A weight is written where its version says so, and the rest is as ever.
func (limits) read(r *Record, from wire.Reader, version byte) wire.Reader {
	before := from.B
	var s limit.State
	var room [limit.MaxMarks]limit.Mark
	s.ReadWhole(&from, room[:0])
	if version == 3 {
		s.ReadWeight(&from)
	}
	r.State = ReadState(before[:len(before)-len(from.B)], from.Now)
	return from
}

// refresh ends an override whose time is over, and applies a weight that is lower than that under which a part counts. It is a
// change: before others are told of it, it waits for the copies.
func (limits) refresh(t *target) {
	t.overrideLocked()
	//guard:split-look-lowers
	if t.ref.Role == Sample {
		t.lowerLocked()
	}
}

func (limits) room(t *target, id *reqid.ID, r *Record) *failure.Error {
	_, marks := r.Limit()
	return t.roomForLocked(id, marks, true)
}

func (limits) put(t *target, r *Record) {
	s, marks := r.Limit()
	t.sh.setLimitLocked(t.e, &s, marks)
	if o, ok := r.Override(); ok {
		t.sh.setOverrideLocked(t.e, &o)
	} else {
		t.sh.setOverrideLocked(t.e, nil)
	}
}

func (e *entry) limit() *limitCell { return (*limitCell)(e.state()) }

// limitCell is limit.State without its padding: 40 bytes. The zero cell is the
// zero state.
type limitCell struct {
	at                 int64
	spent, carry, rate uint64 // carry: of a sliding window, where its marks are; see sliding.go. rate: the weight from weightShift on
	period             uint64 // the algorithm in the top byte
}

const (
	algorithmShift = 56 // limit.MaxPeriod is below 2^55
	weightShift    = 40 // limit.MaxLimit is below 2^40
)

func packLimit(s limit.State) limitCell {
	return limitCell{s.At, s.Spent, s.Carry, s.Limit | uint64(s.Weight)<<weightShift, uint64(s.Period) | uint64(s.Algorithm)<<algorithmShift}
}

// algorithm returns that of the state.
func (c *limitCell) algorithm() limit.Algorithm { return limit.Algorithm(c.period >> algorithmShift) }

// weight returns that of the state.
func (c *limitCell) weight() uint32 { return uint32(c.rate >> weightShift) }

// weigh gives the state, which has none, a weight.
func (c *limitCell) weigh(weight uint32) { c.rate |= uint64(weight) << weightShift }

func (c *limitCell) state() limit.State {
	s := limit.State{
		Algorithm: limit.Algorithm(c.period >> algorithmShift), Weight: c.weight(), At: c.at,
		Spent: c.spent, Carry: c.carry, Limit: c.rate & (1<<weightShift - 1), Period: int64(c.period & (1<<algorithmShift - 1)),
	}
	if s.Algorithm == limit.SlidingWindow {
		s.Carry = 0
	}
	return s
}

// markCellLocked returns the room for marks of a sliding window, nil if it has none.
func (sh *shard) markCellLocked(c *limitCell) []limit.Mark {
	slot, room := c.markCell()
	if slot == 0 {
		return nil
	}
	return unsafe.Slice((*limit.Mark)(sh.marks.At(slot)), room)
}
