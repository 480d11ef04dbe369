package history

import (
	"fmt"
	"math"
)

// BucketParams are a token bucket: Limit tokens come back per Period, at most
// Burst are there.
type BucketParams struct {
	Limit  uint64
	Period int64 // ns
	Burst  uint64
	// Delay is by how much, in ns and in all, tokens may come back later than
	// promised: a copy of the state of an object has the time that is left,
	// and it runs on when it has arrived. A node with an earlier copy may take over
	// again, as long as nothing was spent since. 0 is a bucket that stays where it is.
	Delay int64
}

// BucketInput is a check of a token bucket.
type BucketInput struct {
	Cost uint64
	Peek bool
	// Turn is set for a leaky bucket: it admits what a token bucket does, unless the turn
	// comes later than MaxDelay, in ns.
	Turn     bool
	MaxDelay int64
}

// BucketRefund is a refund of so many tokens to it. Its output is a BucketOutput,
// too.
type BucketRefund struct{ Tokens uint64 }

// BucketReset makes it full. Its output is a BucketOutput that is Bare.
type BucketReset struct{}

// BucketOutput is the answer to it. Only Allowed is of the first answer, in a
// replay.
type BucketOutput struct {
	Allowed    bool
	Remaining  uint64
	RetryAfter int64  // ns
	ResetAfter int64  // ns
	Delay      int64  // ns, if the input was a Turn; not in a replay
	Bare       bool   // only Allowed is known
	Ends       int64  // s since 1970, of a quota: when its period does
	Parts      uint32 // into how many it was split; see Model.Split
	Replay
}

func (o BucketOutput) first() any { return o.Allowed }

func (o BucketOutput) bare() any { return BucketOutput{Allowed: o.Allowed, Bare: true} }

// A replay's figures are those of a peek now, but Allowed is not.
func (o BucketOutput) reads(any) (readIn, readOut any) {
	if o.Bare {
		return nil, nil
	}
	return bucketLevel{}, BucketOutput{Remaining: o.Remaining, ResetAfter: o.ResetAfter, Ends: o.Ends, Parts: o.Parts}
}

// bucketLevel reads how full a bucket is.
type bucketLevel struct{}

// bucketState is what is known of a bucket: the moment at which everything will
// have come back (GCRA's theoretical arrival time) lies between lo and hi.
//
// Invariant: base <= lo <= hi.
type bucketState struct {
	lo, hi int64
	// off says that the moment was put off since tokens were last spent or given back; what is
	// known of it as it was before is that it is not before base.
	off  bool
	base int64
	// later is more than 0 after a check whose answer was lost: it took effect
	// before the next operation, and the moment may be as late as that one plus
	// later.
	later int64
	delay int64 // by how much hi may still move by itself
	split bool  // it may have been split: only lo is known
}

// bucket is the arithmetic of a bucket, in units in which nothing is rounded:
// token · L ns, where L is the limit in lowest terms with the period.
type bucket struct {
	l, token int64 // units of a nanosecond; units in which a token comes back
	burst    int64
	delay    int64 // units
	drift    Drift // of the clock by which the step was decided
}

// Bucket returns the model of a token bucket.
//
// A bucket decides by its clock, and nobody knows which moment within a call
// that was. The model's state is therefore not one arrival time (TAT) but the
// interval in which it must lie, given all answers so far: a check of cost c
// that took effect at t, call <= t <= return, is allowed if and only if
// TAT − (burst − c)·token <= t, and then TAT becomes max(TAT, t) + c·token. An
// answer is impossible if it is so for every t and every TAT of the interval.
// What the answer tells (remaining, reset, retry) narrows the interval, always
// by what is true for some t.
//
// Relaxation: t is chosen for each operation by itself, so that the t of
// concurrent operations need not be in their order. A bucket that is wrong by
// less than the time of a call may pass.
func Bucket(p BucketParams) Model {
	g := gcd(p.Limit, uint64(p.Period))
	b := bucket{l: int64(p.Limit / g), token: p.Period / int64(g), burst: int64(p.Burst)}
	b.delay = b.units(p.Delay)
	if b.token > math.MaxInt64/4/max(b.burst, 1) {
		panic("history: the bucket takes too long to fill")
	}
	empty := bucketState{lo: past, hi: past, base: past, delay: b.delay}
	m := newModel(empty, func(s bucketState, at step, out any) []bucketState {
		if next := b.step(s, at, out); next.lo <= next.hi {
			return []bucketState{next}
		}
		return nil
	}, bucketState{lo: past, hi: ever, base: past, delay: b.delay})
	m.delay = p.Delay
	return m
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// units is a time in units.
func (b bucket) units(ns int64) int64 {
	if ns > math.MaxInt64/4/b.l {
		panic(fmt.Sprintf("history: %d ns is too long for a limit of %d", ns, b.l))
	}
	return ns * b.l
}

// past is a moment at which every bucket is full.
const past = math.MinInt64 / 4

// full returns the state of a bucket that was made full: nobody owes it anything, but that it
// may be split again by then.
func (s bucketState) full() bucketState {
	next := bucketState{lo: past, hi: past, base: past, delay: s.delay}
	if s.split {
		next.split, next.hi = true, ever
	}
	return next
}

var impossible = bucketState{lo: 1, hi: 0}

func (b bucket) step(s bucketState, at step, out any) bucketState {
	from := b.units(at.call)
	in, check := at.in.(BucketInput)
	b.drift = at.drift
	cost := int64(in.Cost) * b.token
	o, told := out.(BucketOutput)
	if at.split {
		s = s.divided()
	}
	if _, ok := at.in.(BucketReset); ok {
		return s.full()
	}
	if r, ok := at.in.(BucketRefund); ok {
		return b.refund(s, r, o, told, from, at.ret)
	}
	if !told {
		if check && !in.Peek && !s.split {
			s.hi, s.later = s.hi+b.drift.most(cost), s.later+b.drift.most(cost) // done or not: lo stays
		}
		return s
	}
	if s.split {
		return b.part(s, at, o)
	}
	to := b.units(at.ret)
	if s.later > 0 {
		s.hi, s.later = max(s.hi, to+s.later), 0
	}
	room := b.burst*b.token - cost // most that may be outstanding before the check
	if in.Turn {
		if room = min(room, b.units(in.MaxDelay)); !b.inTurn(in, o, cost) {
			return impossible
		}
	}
	switch {
	case !check:
		return b.narrow(s, o, from, to)
	case o.Allowed:
		if s = s.most(to + b.drift.most(room)); s.lo > s.hi || o.RetryAfter != 0 {
			return impossible
		}
		if !in.Peek { // the caller had what was put off, or a copy of before
			s.lo, s.hi = max(s.base, from)+b.drift.least(cost), max(s.hi, to)+b.drift.most(cost)
			s.off, s.base = false, s.lo
		}
	default:
		if !o.Bare { // it would be allowed RetryAfter from then
			wait := o.RetryAfter * b.l
			s = s.most(to + b.drift.most(room+wait)).least(from + b.drift.least(room+wait-b.l) + 1)
		}
		s = s.least(from + b.drift.least(room) + 1)
	}
	if o.Bare {
		return s
	}
	return b.narrow(s, o, from, to)
}

// inTurn reports whether an answer to a leaky bucket tells a turn, and tokens that are outstanding,
// that go together: the bucket is empty when the request is through.
func (b bucket) inTurn(in BucketInput, o BucketOutput, cost int64) bool {
	switch {
	case o.Bare:
		return true
	case !o.Allowed:
		return o.Delay == 0
	case in.Peek:
		cost = 0
	}
	through := (o.ResetAfter-o.Delay)*b.l - cost
	return 0 <= o.Delay && o.Delay <= in.MaxDelay && -b.l < through && through < b.l
}

// refund is a step that gives tokens back. A moment in the past is that of a full
// bucket, however long it is past, so nothing is too much. If the answer was lost,
// it was done or not: hi stays, and so does what a lost check may have added.
func (b bucket) refund(s bucketState, r BucketRefund, o BucketOutput, told bool, from, ret int64) bucketState {
	back := int64(min(r.Tokens, uint64(b.burst))) * b.token
	s.lo, s.base = max(s.lo-b.drift.most(back), math.MinInt64/4), max(s.base-b.drift.most(back), math.MinInt64/4)
	if !told {
		return s
	}
	s.off, s.base = false, s.lo
	if s.split {
		if !o.Allowed {
			return impossible
		}
		return s
	}
	to := b.units(ret)
	if s.later > 0 {
		s.hi, s.later = max(s.hi, to+s.later), 0
	}
	if s.hi = max(s.hi-b.drift.least(back), math.MinInt64/4); !o.Allowed || s.lo > s.hi {
		return impossible
	}
	if o.Bare {
		return s
	}
	if o.RetryAfter != 0 {
		return impossible
	}
	return b.narrow(s, o, from, to)
}

// narrow uses what an answer tells of the bucket after it.
func (b bucket) narrow(s bucketState, o BucketOutput, from, to int64) bucketState {
	spent := b.burst - int64(o.Remaining) // tokens that have not come back, whole ones
	switch {
	case spent < 0 || o.ResetAfter < 0 || (spent == 0) != (o.ResetAfter == 0):
		return impossible
	case spent == 0:
		return s.most(to)
	}
	reset := o.ResetAfter * b.l
	least := max(reset-b.l, (spent-1)*b.token) + 1
	most := min(reset, spent*b.token)
	if least > most {
		return impossible // the two figures are of different buckets
	}
	return s.most(to + b.drift.most(most)).least(from + b.drift.least(least))
}

// most uses that the moment is not after this one. If it was put off to a later
// one, that is undone.
func (s bucketState) most(at int64) bucketState {
	if s.off && s.base <= at && at < s.lo && s.lo <= s.hi {
		s.delay += s.lo - at
		s.lo, s.hi, s.off = s.base, at, false
	}
	s.hi = min(s.hi, at)
	return s
}

// least uses that the moment is not before this one. If none of the known ones is
// that late, it was put off, which is possible as far as the delay allows; but a state
// that is impossible stays so.
func (s bucketState) least(at int64) bucketState {
	if by := at - s.hi; by > 0 && by <= s.delay && s.lo <= s.hi {
		s.hi, s.delay, s.off = at, s.delay-by, true
	}
	if s.lo = max(s.lo, at); !s.off {
		s.base = s.lo
	}
	return s
}
