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
// it waits for the end of the override, see Wait.
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

// Wait returns when a check of more than there can be may be tried again: when the override has
// ended.
func (o *Override) Wait(now int64) int64 {
	if o.Until == Forever {
		return math.MaxInt64
	}
	return o.Left(now)
}

// AppendTo writes the override.
func (o *Override) AppendTo(w *wire.Writer) {
	w.Uint(o.Limit)
	w.Uint(uint64(o.Period))
	w.Uint(o.Burst)
	switch {
	case o.Until == Forever:
		w.Uint(0)
	default:
		w.Uint(uint64(max(o.Until-w.Now, 0)) + 1)
	}
}

// ReadFrom reads what AppendTo wrote. It is not judged: see Validate.
func (o *Override) ReadFrom(r *wire.Reader) {
	*o = Override{Limit: r.Uint(MaxLimit), Period: int64(r.Uint(MaxPeriod)), Burst: r.Uint(MaxLimit), Until: Forever}
	if left := r.Uint(MaxOverride + 1); left != 0 {
		o.Until = r.Now + int64(left) - 1
	}
}
