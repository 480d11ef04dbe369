// Package limit decides rate limits: a token bucket, exact to the nanosecond, a
// fixed window, a sliding window, a window of the calendar, and a leaky bucket as a queue,
// as exact. It is a pure state machine: state, operation and time in, state and decision out.
//
// # Guarantee
//
// A token bucket admits at most burst + limit·t/period tokens in any time t, and
// refuses nothing that this bound allows. It is the generic cell rate algorithm
// (GCRA: ITU-T I.371; ATM Forum Traffic Management 4.0; described for rate limits
// at brandur.org/rate-limiting and done so in github.com/throttled/throttled)
// without its rounding. They keep a theoretical arrival time and add an emission
// interval of period/limit to it, which is rarely a whole number of nanoseconds.
// Here tokens are counted instead, and the part of a token that has come back is
// kept as a fraction of which the period is the denominator: nothing is rounded,
// and a bucket of 7 a minute is full again after 60 s and not a nanosecond sooner
// or later. What a decision is does not depend on how often anybody looked before.
//
// A fixed window admits at most limit in a window, which opens with its first
// hit. At the edge between two windows it admits up to twice the limit in a
// short time: that is what fixed windows do.
//
// A sliding window admits at most limit in any time shorter than a period. What it
// remembers is bounded, so it may take tokens for spent a little longer than a
// period, by less than an eighth of it; see Slide.
//
// A window of the calendar admits at most limit in a period such as a day or a month of a time
// zone, and what was carried over into it; see Date, which takes the time of day beside the
// moment. The others need none.
//
// A leaky bucket spaces what it admits: it says of each request when that may run, cost ·
// period/limit after the one before it, and never sooner than that. It has places for burst
// tokens, those of the request that runs included, and so it admits what a token bucket of the
// same rate and burst would, later. See Op.MaxDelay.
//
// A refund takes back what was spent, as far as it still counts: a bucket is never
// fuller than its burst, a window never has more than its limit. It cannot know
// what its tokens were spent for. When they have come back by themselves, it takes
// back what others have spent since, if anybody has.
//
// An overdraft spends what was used already, whether or not it is there. What is beyond the
// capacity is debt: it comes back before anything else is admitted, so an overdraft never
// admits more than the same tokens in checks would have. Of what is spent, MaxLimit is
// remembered at most.
//
// Changed parameters apply from the next hit, admitted or not, and give back
// nothing: what was spent stays spent, even above the new capacity, and from then
// on comes back at the new rate. A fraction of a token is rounded down to the
// new period.
//
// RetryAfter and ResetAfter are the least whole nanoseconds that suffice, unless
// they exceed MaxInt64 (292 years). Apply allocates nothing, and panics for no
// valid State and Op.
//
// # Picture
//
//	spent ┤█ hits                  a bucket: the level sinks by limit per period,
//	      │ ██▄▄                   level = Spent − Carry/Period
//	      │     ██▄▄
//	      │         ██▄▄
//	    0 ┼─────────────██▶ now    nothing spent: the zero State, absent
//
// A check that is refused, and a peek, store nothing: what came back since At is
// worked out anew each time.
//
// # Non-guarantee
//
// Time that goes back is taken to stand still.
package limit

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"time"

	"github.com/keystead/keystead/internal/failure"
)

// Algorithm says how a limit refills.
type Algorithm uint8

const (
	TokenBucket    Algorithm = iota // evenly, Limit tokens per Period
	FixedWindow                     // all at once, when the window ends
	SlidingWindow                   // each a period after it was spent
	CalendarWindow                  // all at once, when a period of the calendar ends; see Date
	LeakyBucket                     // evenly, Limit tokens per Period, and each request waits for those before it
)

// Known reports whether there is such an algorithm.
func (a Algorithm) Known() bool { return a <= LeakyBucket }

// drains reports whether what is spent comes back evenly.
func (a Algorithm) drains() bool { return a == TokenBucket || a == LeakyBucket }

// bursts reports whether there may be more at once than Limit.
func (a Algorithm) bursts() bool { return a.drains() || a == CalendarWindow }

// Bounds of parameters. They keep every product below 2^128 and every sum of
// tokens below 2^63.
const (
	MaxLimit  = 1_000_000_000_000            // tokens
	MinPeriod = 1_000                        // ns
	MaxPeriod = 366 * 24 * 3_600_000_000_000 // ns, 366 days
)

// Params are a limit as its caller states it.
type Params struct {
	Algorithm Algorithm
	Limit     uint64 // tokens that come back per Period, or that a window holds
	Period    int64  // ns; of a calendar window, its Calendar
	Burst     uint64 // most tokens at once, or in the queue; of a calendar window, with those carried over; 0 = Limit. None of other windows
}

// Capacity returns the most that can be available at once.
func (p Params) Capacity() uint64 {
	if p.Burst != 0 && p.Algorithm.bursts() {
		return p.Burst
	}
	return p.Limit
}

// Named is a limit that somebody else states than its callers.
type Named struct {
	Params
	MaxDelay int64 // no turn is later than that, in ns, however long a check is ready to wait; 0 = any
}

// Op is a check, or a refund.
type Op struct {
	Params
	Cost   uint64 // tokens to spend, 1 or more; 0 for a refund
	Refund uint64 // tokens to give back, at most up to full; 0 for a check
	Peek   bool   // decide as if these parameters applied, but change nothing
	// MaxDelay is how long the request is ready to wait for its turn, in ns: with 0 it is
	// admitted only if it may run now. Leaky bucket only.
	MaxDelay int64
	// Overdraft has the cost spent whether or not it is there; see the package. None of leaky
	// buckets: their turns have been told.
	Overdraft bool
	// Chunk says that others than its caller will spend the cost, by what they know of the limit:
	// it is refused where an Override applies.
	Chunk bool
}

// Validate reports a parameter that is out of range, as a *failure.Error. Apply
// takes what passes.
func (op Op) Validate() error { return op.valid() }

// valid is Validate. It is on the path of each check, and copies nothing.
func (op *Op) valid() error {
	bad := func(field, format string, args ...any) error {
		return failure.Invalidf(field, format, args...)
	}
	switch {
	case !op.Algorithm.Known():
		return bad("algorithm", "is unknown")
	case op.Limit == 0:
		return bad("limit", "is missing; it must be at least 1")
	case op.Limit > MaxLimit:
		return bad("limit", "is %d; at most %d is allowed", op.Limit, uint64(MaxLimit))
	case op.Algorithm == CalendarWindow && !Calendar(op.Period).valid():
		return bad("calendar", "is none")
	case op.Algorithm != CalendarWindow && (op.Period < MinPeriod || op.Period > MaxPeriod):
		return bad("period_ns", "is %s; choose 1us to 366d", time.Duration(op.Period))
	case op.Burst > MaxLimit:
		return bad("burst", "is %d; at most %d is allowed", op.Burst, uint64(MaxLimit))
	case op.Burst != 0 && !op.Algorithm.bursts():
		return bad("burst", "goes with token buckets and leaky buckets only; a window holds its limit")
	case op.Burst != 0 && op.Burst < op.Limit && op.Algorithm == CalendarWindow:
		return bad("burst", "is %d, less than the limit", op.Burst)
	case op.MaxDelay < 0:
		return bad("max_delay_ns", "is negative")
	case op.MaxDelay != 0 && op.Algorithm != LeakyBucket:
		return bad("max_delay_ns", "goes with leaky buckets only; the others never delay")
	case op.Overdraft && op.Algorithm == LeakyBucket:
		return bad("overdraft", "does not go with leaky buckets: the turns of others have been told")
	case op.Overdraft && op.Peek:
		return bad("overdraft", "does not go with peek: it always spends")
	case op.Overdraft && op.Chunk:
		return bad("overdraft", "does not go with anywhere: only the owner knows what is owed")
	case op.Refund != 0:
		return op.validRefund(bad)
	case op.Cost == 0:
		return bad("cost", "must be at least 1")
	case op.Overdraft && op.Cost > MaxLimit:
		return bad("cost", "is %d; at most %d is allowed", op.Cost, uint64(MaxLimit))
	case op.Cost > op.Capacity() && !op.Overdraft:
		return bad(costField, "is %d, but at most %d can ever be available: it would never be allowed", op.Cost, op.Capacity())
	}
	return nil
}

const costField = "cost"

// Fits judges an operation as Validate does, but for whether it could ever be allowed: under an
// Override it may be. never is the error then.
func (op *Op) Fits() (never, err error) {
	if err = op.valid(); err == nil || op.Cost == 0 {
		return nil, err
	}
	var e *failure.Error
	//guard:overdraft-bounded !op.Overdraft -> true
	if !op.Overdraft && errors.As(err, &e) && e.Field == costField {
		return err, nil
	}
	return nil, err
}

func (op *Op) validRefund(bad func(field, format string, args ...any) error) error {
	switch {
	case op.Refund > MaxLimit:
		return bad("refund", "is %d; at most %d is allowed", op.Refund, uint64(MaxLimit))
	case op.Cost != 0:
		return bad("refund", "does not go with a cost: a check spends, or gives back")
	case op.MaxDelay != 0:
		return bad("refund", "does not go with max_delay_ns: it waits for nothing")
	case op.Peek:
		return bad("refund", "does not go with peek: it always changes what is spent")
	case op.Overdraft:
		return bad("refund", "does not go with overdraft: that spends")
	}
	return nil
}

// State is what was spent and has not come back. The zero State is a limit that
// nobody ever hit. Of a calendar window see Date.
type State struct {
	Algorithm Algorithm
	Weight    uint32 // of a part: that under which Spent counts, 1 to FullWeight; 0 = the state is of a whole limit. See Part
	At        int64  // the moment for which Spent and Carry hold; start of a fixed window; last hit of a sliding one
	Spent     uint64 // Invariant: 0 only in a State that has nothing, or nothing but a Weight; at most MaxLimit
	Carry     uint64 // what came back of the next token, in 1/Period. Invariant: < Period; 0 for windows
	Limit     uint64 // parameters under which it comes back
	Period    int64
}

// Valid reports why a state that came from elsewhere cannot be one of this
// package.
func (s State) Valid() error {
	switch {
	case s.Weight > FullWeight || s.Weight != 0 && s.Algorithm != TokenBucket:
		return fmt.Errorf("limit: weight %d is out of range", s.Weight)
	case s == State{Weight: s.Weight}:
		return nil
	case !s.Algorithm.Known():
		return fmt.Errorf("limit: algorithm %d is unknown", s.Algorithm)
	case s.Algorithm == CalendarWindow:
		return s.validDated()
	case s.Spent == 0 || s.Spent > MaxLimit:
		return fmt.Errorf("limit: %d spent is out of range", s.Spent)
	case s.Limit == 0 || s.Limit > MaxLimit:
		return fmt.Errorf("limit: limit %d is out of range", s.Limit)
	case s.Period < MinPeriod || s.Period > MaxPeriod:
		return fmt.Errorf("limit: period %d is out of range", s.Period)
	case s.Carry >= uint64(s.Period) || s.Carry != 0 && !s.Algorithm.drains():
		return fmt.Errorf("limit: carry %d is out of range", s.Carry)
	}
	return nil
}

// Emptied returns the state of a limit of which everything was spent at a moment: a
// bucket that refills from then on, or a window that opened then. It has no marks.
// p must have passed Op.Validate.
func (p Params) Emptied(at int64) State {
	return State{Algorithm: p.Algorithm, At: at, Spent: p.Capacity(), Limit: p.Limit, Period: p.Period}
}

// Result is a decision and the state after it.
type Result struct {
	Allowed    bool   // always for a refund
	Capacity   uint64 // most that can be available at once
	Remaining  uint64 // available after this check or refund
	Debt       uint64 // spent beyond the capacity
	RetryAfter int64  // ns until the same check is allowed, at most MaxInt64; 0 if it is. Of an overdraft, a check of 1
	ResetAfter int64  // ns until everything is available, at most MaxInt64
	// Ends is when the period ends, in ns since 1970. Calendar window only.
	Ends int64
	// Delay is when the request may run that is allowed, in ns from now, rounded up. Leaky
	// bucket only; 0 if it is not allowed.
	Delay int64
}

// Apply decides a check or a refund at a moment, in nanoseconds; one before s.At
// counts as s.At. changed reports whether next differs from s in a way that must be
// kept; if not, next is s. s must be Valid and of a whole limit, and op have passed
// Validate: for a part see Op.Part. Where s or op is of a sliding window, it takes
// Slide.
func Apply(s State, op Op, now int64) (next State, res Result, changed bool) {
	changed = s.Apply(&op, now, &res)
	return s, res, changed
}

// Apply is Apply of the state in its place: nothing is copied. res is zero before.
func (s *State) Apply(op *Op, now int64, res *Result) (changed bool) {
	if s.Spent != 0 {
		now = max(now, s.At)
	}
	same := s.Algorithm == op.Algorithm && s.Limit == op.Limit && s.Period == op.Period
	l := s.level(now)
	if l.spent == 0 {
		l.at = now // a window opens
	} else if !same {
		if op.Algorithm == LeakyBucket && s.Algorithm == LeakyBucket {
			next, ok := l.behind(s, &op.Params)
			//guard:leaky-crowd
			if !ok {
				*s, *res, changed = l.crowd(s, op, now)
				return changed
			}
			l = next
		} else {
			l = l.under(op.Params, s.Algorithm, s.Period, now)
		}
	}
	if op.Refund != 0 {
		*s, *res, changed = l.refund(s, op, now)
		return changed
	}
	if op.Algorithm == LeakyBucket {
		*s, *res, changed = l.queue(s, op, same, now)
		return changed
	}
	capacity := op.Capacity()
	res.Capacity = capacity
	after := l.spent + op.Cost
	if after > capacity && !op.Overdraft {
		res.Debt = l.spent - min(capacity, l.spent)
		res.Remaining = capacity - min(capacity, l.spent)
		res.RetryAfter = clamp(l.backIn(after-capacity, op.Algorithm, op.Limit, op.Period, now))
		res.ResetAfter = clamp(l.backIn(l.spent, op.Algorithm, op.Limit, op.Period, now))
		if op.Peek || same {
			return false
		}
	} else {
		res.Allowed = true
		if !op.Peek {
			l.spent = min(after, MaxLimit)
		}
		//guard:overdraft-remaining capacity-min(capacity, l.spent) -> capacity-l.spent
		res.Remaining = capacity - min(capacity, l.spent)
		if l.spent >= capacity && op.Overdraft {
			res.Debt = l.spent - capacity
			res.RetryAfter = clamp(l.backIn(res.Debt+1, op.Algorithm, op.Limit, op.Period, now))
		}
		res.ResetAfter = clamp(l.backIn(l.spent, op.Algorithm, op.Limit, op.Period, now))
		if op.Peek {
			return false
		}
	}
	*s = State{op.Algorithm, 0, l.at, l.spent, l.carry, op.Limit, op.Period}
	return true
}

// refund gives tokens back. Nothing spent is nothing to give back, and nothing to
// keep.
func (l level) refund(s *State, op *Op, now int64) (next State, res Result, changed bool) {
	if changed = l.spent != 0; changed {
		if l.spent -= min(op.Refund, l.spent); l.spent != 0 {
			next = State{op.Algorithm, 0, l.at, l.spent, l.carry, op.Limit, op.Period}
		}
	} else {
		next = *s
	}
	res = Result{Allowed: true, Capacity: op.Capacity()}
	res.Remaining = res.Capacity - min(res.Capacity, l.spent)
	res.Debt = l.spent - min(res.Capacity, l.spent)
	res.ResetAfter = clamp(l.backIn(l.spent, op.Algorithm, op.Limit, op.Period, now))
	return next, res, changed
}

// Absent reports whether everything has come back: the state equals one that
// never was, and may be forgotten. One that has a weight never is, and of a calendar window
// Passed says it.
func (s State) Absent(now int64) bool {
	return s.Weight == 0 && s.Algorithm != CalendarWindow && (s.Spent == 0 || s.level(max(now, s.At)).spent == 0)
}

// AbsentAt returns the moment from which the state is absent, at most MaxInt64. The
// zero State always was, and one that has a weight never is.
func (s State) AbsentAt() int64 {
	if s.Weight != 0 || s.Algorithm == CalendarWindow {
		return math.MaxInt64
	}
	if s.Spent == 0 {
		return math.MinInt64
	}
	back := level{s.At, s.Spent, s.Carry}.backIn(s.Spent, s.Algorithm, s.Limit, s.Period, s.At)
	if back > math.MaxInt64-uint64(s.At) { // what is left of time, also from a negative At
		return math.MaxInt64
	}
	return int64(uint64(s.At) + back)
}

// level is what changes in a State: fields of the same names and invariants,
// except that At and Carry mean nothing when nothing is spent. It is apart
// because the compiler keeps a few fields in registers, and not six.
type level struct {
	at           int64
	spent, carry uint64
}

// level returns what is spent at a later moment, under s's own parameters. A window
// keeps its start.
func (s State) level(now int64) level {
	if s.Algorithm == CalendarWindow {
		return level{now, s.Spent, 0} // it is for Date to say that it is over
	}
	passed := uint64(now) - uint64(s.At) // now >= At; right beyond 2^63, too
	period := uint64(s.Period)
	if s.Spent == 0 || !s.Algorithm.drains() && passed >= period {
		return level{}
	}
	if !s.Algorithm.drains() {
		return level{s.At, s.Spent, 0}
	}
	hi, lo := bits.Mul64(passed, s.Limit)
	lo, over := bits.Add64(lo, s.Carry, 0)
	hi += over // at most MaxLimit
	var back, rest uint64
	switch {
	case hi == 0:
		back, rest = lo/period, lo%period
	case hi < period:
		back, rest = bits.Div64(hi, lo, period)
	default:
		return level{} // 2^64 tokens or more came back
	}
	if back >= s.Spent {
		return level{}
	}
	return level{now, s.Spent - back, rest}
}

// under returns the level with other parameters from now on, after one with the
// given algorithm and period. Something is spent.
func (l level) under(p Params, algorithm Algorithm, period, now int64) level {
	switch {
	case p.Algorithm != algorithm:
		l.at, l.carry = now, 0
	case p.Algorithm == FixedWindow:
		if uint64(now)-uint64(l.at) >= uint64(p.Period) {
			l.at = now // the shorter window is over already: open the next one with what was spent
		}
	case p.Period != period:
		hi, lo := bits.Mul64(l.carry, uint64(p.Period))
		l.carry, _ = bits.Div64(hi, lo, uint64(period)) // carry < period: fits, and is < p.Period
	}
	return l
}

// backIn returns the time from now until n of the spent tokens have come back, at
// most MaxUint64. A bucket's level is the present one.
func (l level) backIn(n uint64, algorithm Algorithm, limit uint64, period, now int64) uint64 {
	if n == 0 {
		return 0
	}
	if !algorithm.drains() {
		return uint64(period) - (uint64(now) - uint64(l.at))
	}
	// The least t with carry + t·limit >= n·period, all below 2^96.
	hi, lo := bits.Mul64(n, uint64(period))
	lo, borrow := bits.Sub64(lo, l.carry, 0)
	lo, over := bits.Add64(lo, limit-1, 0)
	hi += over - borrow
	switch {
	case hi == 0:
		return lo / limit
	case hi < limit:
		q, _ := bits.Div64(hi, lo, limit)
		return q
	}
	return math.MaxUint64
}

func clamp(ns uint64) int64 { return int64(min(ns, math.MaxInt64)) }
