package limit

import "math/bits"

// FullWeight is the weight that all parts of a limit have together, at most.
//
// # Parts
//
// A token bucket may be divided into parts that decide by themselves. A part of
// weight w is a bucket of w/FullWeight of the capacity that fills up at w/FullWeight of the
// rate. Its state says under which weight it counts (State.Weight), for weights
// change: Reweigh takes a state from one to another. What a part has available is
// taken to be
//
//	capacity·w/FullWeight − what is spent
//
// as a fraction, of which its operations see the whole tokens. Dividing, changing
// weights and uniting never make the sum of it rise: lower weights take tokens away
// that do not fit any more, and higher ones give room without tokens. So if the
// weights by which the parts act never add up to more than FullWeight, then what they
// admit together in any time t stays within burst + limit·t/period, as if they had
// never been divided.
//
// Weights that are lowered must have got to the states (Reweigh or Lower) before
// others are raised: a state that has slept through both would count as if it had
// had its old weight all the time.
const FullWeight = 1 << 16

// weightBits is the logarithm of FullWeight.
const weightBits = 16

// Part returns the operation as a part of that weight decides it. ok is false if it
// cannot: the limit is no token bucket, the part would never have room for the cost
// or for a token, or it would fill up so slowly that its period were above
// MaxPeriod. op must have passed Validate; part passes it, then.
func (op Op) Part(weight uint32) (part Op, ok bool) {
	if op.Algorithm != TokenBucket || weight == 0 || weight > FullWeight {
		return op, false
	}
	capacity := op.Capacity() * uint64(weight) >> weightBits
	period, ok := stretched(op.Period, weight)
	if !ok || capacity == 0 || op.Cost > capacity && !op.Overdraft {
		return op, false
	}
	op.Burst, op.Period = capacity, period
	return op, true
}

// stretched returns the period of a part of a limit of that period, rounded up. ok is
// false if it is too long.
func stretched(period int64, weight uint32) (of int64, ok bool) {
	hi, lo := uint64(period)>>(64-weightBits), uint64(period)<<weightBits
	if hi >= uint64(weight) {
		return 0, false // 2^64 ns or more
	}
	q, rest := bits.Div64(hi, lo, uint64(weight))
	if rest != 0 {
		q++
	}
	return int64(q), q-1 < MaxPeriod // q is at least MinPeriod, or 0 after 2^64−1
}

// unstretched returns the period of a limit that has a part of that weight and period: the one
// that stretched made it of, or else the next longer one.
func unstretched(period int64, weight uint32) int64 {
	hi, lo := bits.Mul64(uint64(period), uint64(weight)) // below 2^72
	p := int64(hi<<(64-weightBits) | lo>>weightBits)
	if p = max(p, MinPeriod); p < period {
		if of, ok := stretched(p, weight); ok && of < period {
			p++
		}
	}
	return p
}

// weight returns that under which the state counts.
func (s State) weight() uint32 {
	if s.Weight == 0 {
		return FullWeight
	}
	return s.Weight
}

// asOf returns the state as of now: a bucket, of which something is spent or which
// says nothing but its weight.
func (s State) asOf(now int64) State {
	if s.Spent != 0 {
		now = max(now, s.At)
	}
	l := s.level(now)
	if l.spent == 0 {
		return State{Weight: s.Weight}
	}
	if s.Algorithm == CalendarWindow {
		s.Limit, s.Period = 1, MaxPeriod // nothing says when it ends: as slowly as can be
	}
	return State{TokenBucket, s.Weight, now, l.spent, l.carry, s.Limit, s.Period}
}

// paced returns the state of a bucket with the rate of another weight. A rate for which
// no period is long enough has a lower limit; one of less than a token in MaxPeriod
// is taken for that.
func (s State) paced(weight uint32) State {
	if s.Spent == 0 || weight == s.weight() {
		return s
	}
	was := s.Period
	p := unstretched(s.Period, s.weight())
	var ok bool
	if s.Period, ok = stretched(p, weight); !ok {
		// limit · MaxPeriod·weight / (p·FullWeight), below limit
		hi, lo := bits.Mul64(s.Limit*uint64(weight), MaxPeriod)
		q, _ := bits.Div64(hi>>weightBits, hi<<(64-weightBits)|lo>>weightBits, uint64(p))
		s.Limit, s.Period = max(q, 1), MaxPeriod
	}
	hi, lo := bits.Mul64(s.Carry, uint64(s.Period))
	s.Carry, _ = bits.Div64(hi, lo, uint64(was)) // Carry < was: fits, and is < s.Period
	return s
}

// with returns the state with another weight on it; nothing else changes. FullWeight is that
// of a whole limit.
func (s State) with(weight uint32) State {
	if s.Weight = weight; weight == FullWeight {
		s.Weight = 0
	}
	if s.Spent == 0 {
		return State{Weight: s.Weight}
	}
	return s
}

// Reweigh returns the state under another weight, of a limit of which the whole has that
// capacity. A lower weight takes from what is spent as much as the capacity falls
// by, so that only tokens go that do not fit any more; a higher one adds as much as
// the capacity rises by: room without tokens. What has come back until now has come
// back at the lower of the two rates, since nobody says when the weight changed.
// Fractions of a token are rounded to more that is spent. A window turns into a
// bucket of the same limit.
//
// The capacity ought to be the same each time. If callers state different ones, then
// what a lower weight takes away by one, a higher one gives back by another.
//
// s must be Valid, and `to` be from 1 to FullWeight, which makes it the state of a whole
// limit. If nothing is spent, the result is the zero State but for the weight. If
// nothing was, s does not say how fast tokens come back; those that a higher weight
// adds do so as slowly as can be, until the next operation says how fast.
func (s State) Reweigh(to uint32, capacity uint64, now int64) State {
	from := s.weight()
	if to <= from {
		s = s.slowed(to, now)
		//guard:split-lower from-to -> from
		s.Spent -= min(capacity*uint64(from-to)>>weightBits, s.Spent)
		return s.with(to)
	}
	//guard:split-slow s.asOf(now).paced(to) -> s.paced(to).asOf(now)
	s = s.asOf(now).paced(to)
	more := (capacity*uint64(to-from) + FullWeight - 1) >> weightBits
	if s.Spent == 0 {
		s.At, s.Limit, s.Period = now, 1, MaxPeriod
	}
	//guard:split-raise
	s.Spent = min(s.Spent+more, MaxLimit)
	return s.with(to)
}

// Lower is Reweigh to a weight that is not higher, without the capacity: as many
// tokens go as the capacity falls by, whether or not they still fit. It is for parts
// that no operation comes to: they have spent little.
func (s State) Lower(to uint32, now int64) State {
	if to >= s.weight() {
		return s
	}
	return s.slowed(to, now).with(to)
}

// slowed returns the state as of now, and as if it had had the rate of a weight that is
// not higher since it was changed last.
func (s State) slowed(to uint32, now int64) State {
	if s.Algorithm != TokenBucket {
		return s.asOf(now).paced(to)
	}
	return s.paced(to).asOf(now)
}

// Divide returns the states of the parts of a whole limit, by their weights, which add up
// to at most FullWeight: each has its share of what is spent, rounded up. If the state
// has a weight itself, as one that was united of fewer parts than there were, so
// that it is less than a whole limit, then each part is of a lower weight by as much,
// or the zero State if there is none so low.
func (s State) Divide(weights []uint32, now int64) []State {
	of := uint64(s.weight())
	s = s.asOf(now)
	parts := make([]State, len(weights))
	for i, w := range weights {
		to := uint32(uint64(w) * of >> weightBits)
		if to == 0 {
			continue
		}
		part := s.paced(to)
		part.Weight, part.Carry = to, 0
		//guard:split-divide-up FullWeight -> 1
		part.Spent = (s.Spent*uint64(w) + FullWeight - 1) >> weightBits
		if part.Spent == 0 {
			part = State{Weight: to}
		}
		parts[i] = part
	}
	return parts
}

// Unite returns the state of the limit that the parts are of: all that is spent in them,
// under the sum of their weights. A zero State among them is a part that was lost:
// its weight is missing in the sum, which is the same as if all of it had been
// spent. If the sum is FullWeight, or more since a lower weight has not got to its part
// yet, the result is the state of a whole limit.
//
// Until the next operation tokens come back no faster than in the parts together.
func Unite(parts []State, now int64) State {
	var slow State // of the parts, the one that belongs to the slowest whole limit
	weight := uint64(0)
	settled := make([]State, 0, len(parts))
	for _, p := range parts {
		if p.Weight == 0 {
			continue
		}
		weight += uint64(p.Weight)
		if p.Spent != 0 {
			now = max(now, p.At)
		}
		if p = p.asOf(now); p.Spent == 0 {
			continue
		}
		settled = append(settled, p)
		p = State{Limit: p.Limit, Period: unstretched(p.Period, p.Weight)}
		if slow.Limit == 0 || p.slower(slow) {
			slow = p
		}
	}
	//guard:split-unite-weight 1 -> FullWeight
	to := uint32(min(max(weight, 1), FullWeight))
	if len(settled) == 0 {
		return State{}.with(to)
	}
	u := State{At: now, Spent: 1, Limit: slow.Limit, Period: slow.Period}.paced(to)
	u.Spent = 0
	for _, p := range settled {
		u.Spent += p.Spent
		hi, lo := bits.Mul64(p.Carry, uint64(u.Period))
		carry, _ := bits.Div64(hi, lo, uint64(p.Period))
		if u.Carry += carry; u.Carry >= uint64(u.Period) { // a token in fractions; Spent is above their number
			u.Carry -= uint64(u.Period)
			u.Spent--
		}
	}
	u.Spent = min(u.Spent, MaxLimit)
	return u.with(to)
}

// slower reports whether fewer tokens come back in a time than in another limit.
func (s State) slower(than State) bool {
	hi, lo := bits.Mul64(s.Limit, uint64(than.Period))
	hi2, lo2 := bits.Mul64(than.Limit, uint64(s.Period))
	return hi < hi2 || hi == hi2 && lo < lo2
}
