package limit

import (
	"fmt"

	"github.com/keystead/keystead/owner/wire"
	"github.com/keystead/keystead/owner/zone"
)

// A window by the calendar: at most Limit in a period that begins and ends by the calendar,
// wherever the first hit is. Params.Period is its Calendar, and Params.Burst, if it is not 0, is
// Limit and what may be carried over. The state has, of a period,
//
//	At      its end, in ns since 1970
//	Spent   in it, which may be 0
//	Carry   tokens that were carried into it
//	Limit   that was stated last, and
//	Period  its Calendar

// Dated reports whether an operation on a state is one for Date.
func (op *Op) Dated(s *State) bool {
	return op.Algorithm == CalendarWindow || s.Algorithm == CalendarWindow
}

// carries returns the most that is carried over.
func (p *Params) carries() uint64 { return max(p.Burst, p.Limit) - p.Limit }

// Date is Apply where op is of a calendar window. wall is the time that all go by, in ns
// since 1970, from 0 to MaxWall; the marks are those of a sliding window that the limit was
// until now. They are only read.
//
// # Guarantee
//
// As long as the calendar stays, the end of the period of a state never falls. So a clock
// that is set back gives nothing twice: the period goes on until the clock is at its end
// again. At most Limit, and what was carried over, is admitted in a period.
//
// A limit that is changed counts at once: what was spent in the period stays spent, and what
// is left is the new limit less that. Another calendar takes what was spent into its period.
//
// What is left at the end of a period is carried into the next one, up to so many tokens as
// op says, and no further. Of a period in which nobody spent anything nothing is carried over.
//
// The calendar is asked when a period is over, and for another calendar. All other operations
// compare a number.
func Date(s State, marks []Mark, op Op, now, wall int64) (next State, res Result, changed bool) {
	next = State{Algorithm: CalendarWindow, Limit: op.Limit, Period: op.Period}
	dated := s.Algorithm == CalendarWindow
	same := dated && s.Period == op.Period
	switch {
	case same &&
		wall < s.At: //guard:calendar-on
		next.At, next.Spent, next.Carry = s.At, s.Spent, s.Carry
	default:
		next.begin(&s, marks, same, now, wall)
	}
	next.Carry = min(next.Carry, op.carries())
	capacity, spent := op.Limit+next.Carry, next.Spent
	res.Capacity, res.Ends = capacity, next.At
	left := next.At - wall
	switch {
	case op.Refund != 0:
		next.Spent -= min(op.Refund, spent)
		res.Allowed, changed = true, spent != 0
	case spent+op.Cost > capacity && !op.Overdraft:
		res.RetryAfter = next.again(&op, wall)
		changed = spent != 0 && !op.Peek && (!same || s.Limit != op.Limit)
	default:
		res.Allowed, changed = true, !op.Peek
		if changed {
			next.Spent = min(spent+op.Cost, MaxLimit)
		}
		if op.Overdraft && next.Spent >= capacity {
			res.RetryAfter = left
		}
	}
	res.Debt = next.Spent - min(capacity, next.Spent)
	if res.Remaining = capacity - min(capacity, next.Spent); next.Spent != 0 {
		res.ResetAfter = left
	}
	if !changed {
		return s, res, false
	}
	return next, res, true
}

// again returns when a check that was refused can be allowed: when the next period begins, or,
// if it needs more to be carried over than this one can leave, the period after that.
func (s *State) again(op *Op, wall int64) int64 {
	left := op.Limit + s.Carry - min(op.Limit+s.Carry, s.Spent)
	//guard:calendar-again true
	if op.Cost <= op.Limit+min(op.carries(), left) {
		return s.At - wall
	}
	_, end := Calendar(s.Period).Period(min(s.At, MaxWall))
	return end - wall
}

// begin makes the state that of the period which a moment is in, after another state.
func (s *State) begin(was *State, marks []Mark, same bool, now, wall int64) {
	start, end := Calendar(s.Period).Period(wall)
	s.At = end
	switch {
	case was.Algorithm != CalendarWindow:
		s.Spent = was.Used(marks, now)
	case wall < was.At: // another calendar
		s.Spent, s.Carry = was.Spent, was.Carry
	case same &&
		start <= was.At: //guard:calendar-carry
		s.Carry = was.Limit + was.Carry - min(was.Limit+was.Carry, was.Spent)
	}
}

// Undated returns the state of a calendar window as one that an operation of another
// algorithm goes on from: what was spent in a period that is not over is spent now.
func (s State) Undated(op *Op, now, wall int64) State {
	if s.Algorithm != CalendarWindow {
		return s
	}
	if s.Spent == 0 || wall >= s.At {
		return State{}
	}
	as := State{Algorithm: FixedWindow, At: now, Spent: s.Spent, Limit: s.Limit, Period: MaxPeriod}
	if op.Algorithm == FixedWindow {
		as.Algorithm = TokenBucket // so that it is another algorithm in any case
	}
	return as
}

// SpentAt returns what of a calendar window is spent at a moment, in ns since 1970, and how
// long it is until that comes back.
func (s *State) SpentAt(wall int64) (spent uint64, back int64) {
	if s.Spent == 0 || wall >= s.At {
		return 0, 0
	}
	return s.Spent, s.At - wall
}

// leastKept is for how long at least a period that is over is remembered, in ns: clocks of
// nodes differ.
const leastKept = 60 * oneSecond

// least is a length that no period falls short of, in ns.
var least = [...]int64{Aligned: 0, Day: 18 * 3600 * oneSecond, Week: 6 * daySeconds * oneSecond, Month: 27 * daySeconds * oneSecond, Year: 364 * daySeconds * oneSecond}

// Passed reports whether a calendar window equals one that never was, in ns since 1970: the
// period after its own is over, too. Until then it is remembered, for the sake of what is
// carried over, and of clocks that are set back.
func (s *State) Passed(wall int64) bool {
	//guard:calendar-kept s.At+leastKept -> s.At
	if wall < s.At+leastKept || s.At > MaxWall ||
		wall < s.At+least[Calendar(s.Period).Unit()] { // most that are asked about are of a month, say, and need no calendar
		return false
	}
	_, end := Calendar(s.Period).Period(s.At)
	//guard:calendar-next end -> min(end, s.At)
	return wall >= end
}

// EmptiedAt is Emptied of a calendar window, in ns since 1970, for what was lost at a moment: of the
// period of then, or of the one that began soon after, for clocks of nodes differ.
func (p Params) EmptiedAt(lost, wall int64) State {
	_, end := Calendar(p.Period).Period(min(max(lost, 0)+leastKept, wall))
	return State{Algorithm: CalendarWindow, At: end, Spent: p.Limit, Limit: p.Limit, Period: p.Period}
}

// validDated is Valid of a calendar window.
func (s *State) validDated() error {
	switch {
	case s.Weight != 0 || s.At <= 0 || s.At > MaxWall+2*MaxPeriod || s.At%oneSecond != 0:
		return fmt.Errorf("limit: a period that ends at %d is out of range", s.At)
	case s.Spent > MaxLimit || s.Limit == 0 || s.Limit > MaxLimit || s.Carry > MaxLimit:
		return fmt.Errorf("limit: %d and %d of %d spent is out of range", s.Spent, s.Carry, s.Limit)
	case !Calendar(s.Period).valid():
		return fmt.Errorf("limit: calendar %d is unknown", s.Period)
	}
	return nil
}

// appendDated writes a calendar window behind its algorithm. The end is the same for all nodes,
// whatever their clocks show, and the zone has its name.
func (s *State) appendDated(w *wire.Writer) {
	w.Uint(uint64(s.At / oneSecond))
	w.Uint(s.Spent)
	w.Uint(s.Carry)
	w.Uint(s.Limit)
	Calendar(s.Period).AppendTo(w)
}

// AppendTo writes the calendar, with the name of its zone.
func (c Calendar) AppendTo(w *wire.Writer) {
	w.Byte(byte(c.Unit()))
	if c.Unit() == Aligned {
		w.Uint(uint64(c.Length() / oneSecond))
		return
	}
	month, day := c.First()
	w.Byte(byte(month))
	w.Byte(byte(day))
	w.Text(c.Zone().Name())
}

// maxZone is the longest name of a zone, in bytes.
const maxZone = 64

// readDated reads what appendDated wrote.
func (s *State) readDated(r *wire.Reader) {
	*s = State{Algorithm: CalendarWindow, At: ReadEnd(r), Spent: r.Uint(MaxLimit), Carry: r.Uint(MaxLimit), Limit: r.Uint(MaxLimit)}
	s.Period = int64(ReadCalendar(r))
}

// ReadEnd reads the end of a period, which was written in seconds.
func ReadEnd(r *wire.Reader) (at int64) {
	return int64(r.Uint(uint64((MaxWall+2*MaxPeriod)/oneSecond))) * oneSecond
}

// ReadCalendar reads what Calendar.AppendTo wrote. The zone of a later version may be unknown here, and
// is UTC then: the period that is on ends when it should, and the next check says the calendar again.
func ReadCalendar(r *wire.Reader) Calendar {
	var c Calendar
	var err error
	if unit := Unit(r.Byte()); unit == Aligned {
		c, err = NewAligned(int64(r.Uint(MaxPeriod/uint64(oneSecond))) * oneSecond)
	} else {
		month, day := int(r.Byte()), int(r.Byte())
		in, _ := zone.Find(string(r.Bytes(maxZone)))
		c, err = NewCalendar(unit, in, month, day)
	}
	if err != nil {
		r.Fail()
	}
	return c
}
