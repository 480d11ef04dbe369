package limit

import (
	"math"
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/wire"
)

// Override is what applies to a limit in the place of what callers state. The algorithm stays
// theirs: what has a burst gets that of the override, and what has none does not.
type Override struct {
	Limit  uint64 // tokens, as in Params
	Period int64  // ns
	Burst  uint64 // 0 = Limit
	Until  int64  // the moment at which it ends; math.MaxInt64 = it does not end by itself
	// Callers is by what the state goes on from Until: what its callers have stated last.
	// Invariant: not zero if anything is spent.
	Callers Rate
}

// Rate is how fast what is spent of a whole limit comes back. The zero Rate is that of a limit of which
// nobody has stated any.
type Rate struct {
	Limit  uint64
	Period int64 // ns; 0 of a calendar window, which keeps its own
}

// Rate returns that of the parameters.
func (p *Params) Rate() Rate {
	if p.Algorithm == CalendarWindow {
		return Rate{Limit: p.Limit}
	}
	return Rate{p.Limit, p.Period}
}

// Rate returns that of the limit of which the state is one, or a part; the zero Rate if nothing is spent.
func (s *State) Rate() Rate {
	switch {
	case s.Algorithm == CalendarWindow:
		return Rate{Limit: s.Limit}
	case s.Spent == 0:
		return Rate{}
	}
	return Rate{s.Limit, unstretched(s.Period, s.weight())}
}

// valid reports whether it may be that of callers.
func (r Rate) valid() bool {
	return r == Rate{} || r.Limit != 0 && (r.Period == 0 || r.Period >= MinPeriod)
}

// Rate returns that of the override.
func (o *Override) Rate() Rate { return Rate{o.Limit, o.Period} }

// Repace has what is spent come back by another rate from a moment on, as if a check of that rate had been
// refused then. weight is that of the part by the serving rule, and 0 of a whole limit; wall is the time of
// day of that moment, as for Date. As with Slide, marks are changed.
//
// A queue stays as it is: what was told of it, its end, does not depend on the rate.
func (s State) Repace(to Rate, marks []Mark, at, wall int64, weight uint32) (next State, after []Mark) {
	switch {
	case s.Algorithm == CalendarWindow:
		if to.Limit != 0 && wall < s.At {
			s.Limit = to.Limit
		}
		return s, marks
	case s.Spent == 0 || to.Limit == 0 || to.Period == 0 || s.Algorithm == LeakyBucket || s.Rate() == to:
		return s, marks
	}
	at = max(at, s.At)
	p := Params{Algorithm: s.Algorithm, Limit: to.Limit, Period: to.Period}
	if s.Algorithm == SlidingWindow {
		return windowOf(s.counting(marks, at).gone(p.Period, at), p)
	}
	was := s
	if weight != 0 && weight < s.weight() { // nobody says since when: see Reweigh
		was = s.paced(weight)
	}
	l := was.level(at)
	if l.spent == 0 {
		return State{Weight: s.Weight}, nil
	}
	l = l.under(p, s.Algorithm, was.Period, at)
	next = State{s.Algorithm, 0, l.at, l.spent, l.carry, p.Limit, p.Period}
	if s.Weight != 0 {
		next = next.paced(s.Weight).with(s.Weight)
	}
	return next, nil
}

// Forever is the Until of an override that does not end by itself.
const Forever = math.MaxInt64

// MaxOverride is how long an override may last that ends by itself, in ns: ten years.
const MaxOverride = 10 * MaxPeriod

// Validate reports a parameter that is out of range, as a *failure.Error.
func (o *Override) Validate() error {
	bad := func(field, format string, args ...any) error { return failure.Invalidf(field, format, args...) }
	switch {
	case o.Limit == 0:
		return bad("limit", "is missing; it must be at least 1")
	case o.Limit > MaxLimit:
		return bad("limit", "is %d; at most %d is allowed", o.Limit, uint64(MaxLimit))
	case o.Period < MinPeriod || o.Period > MaxPeriod:
		return bad("period_ns", "is %s; choose 1us to 366d", time.Duration(o.Period))
	case o.Burst > MaxLimit:
		return bad("burst", "is %d; at most %d is allowed", o.Burst, uint64(MaxLimit))
	case !o.Callers.valid():
		return bad("callers", "is no rate")
	}
	return nil
}

// Over reports whether the override has ended.
func (o *Override) Over(now int64) bool { return o.Until != Forever && now >= o.Until }

// Left returns how long it lasts from now on, in ns; 0 if it does not end by itself.
func (o *Override) Left(now int64) int64 {
	if o.Until == Forever {
		return 0
	}
	return max(o.Until-now, 1)
}

// Apply makes an operation what it is under the override. A cost may be above the capacity then:
// it waits for the end of the override.
func (o *Override) Apply(op *Op) {
	carries := op.carries()
	op.Limit = o.Limit
	switch {
	case op.Algorithm.drains():
		op.Period, op.Burst = o.Period, o.Burst
	case op.Algorithm == CalendarWindow: // its period is that of the calendar, and what is carried over the caller's
		//guard:calendar-override-carries carries -> 0*carries
		op.Burst = min(o.Limit+carries, MaxLimit)
	default:
		op.Period = o.Period
	}
}

// Refuses reports whether an operation to which the override was applied is refused whatever is
// left: a chunk, or more than there can be.
func (o *Override) Refuses(op *Op) bool {
	//guard:overdraft-override !op.Overdraft -> true
	return op.Refund == 0 && (op.Chunk || op.Cost > op.Capacity() && !op.Overdraft)
}

// AppendTo writes the override: the time until it ends and one ns more, or the time since then, below 0.
func (o *Override) AppendTo(w *wire.Writer) {
	w.Uint(o.Limit)
	w.Uint(uint64(o.Period))
	w.Uint(o.Burst)
	switch {
	case o.Until == Forever:
		w.Int(0)
	case o.Until >= w.Now:
		w.Int(o.Until - w.Now + 1)
	default:
		//guard:override-ended-before -int64(wire.Age(w.Now, o.Until)) -> 1
		w.Int(-int64(wire.Age(w.Now, o.Until)))
	}
	w.Uint(o.Callers.Limit)
	w.Uint(uint64(o.Callers.Period))
}

// ReadFrom reads what AppendTo wrote. It is not judged: see Validate.
func (o *Override) ReadFrom(r *wire.Reader) {
	*o = Override{Limit: r.Uint(MaxLimit), Period: int64(r.Uint(MaxPeriod)), Burst: r.Uint(MaxLimit), Until: Forever}
	switch left := r.Int(); {
	case left > MaxOverride+1 || left < -wire.MaxAge:
		r.Fail()
	case left > 0:
		o.Until = r.Now + left - 1
	case left < 0:
		o.Until = r.Now + left
	}
	o.Callers = Rate{r.Uint(MaxLimit), int64(r.Uint(MaxPeriod))}
}
