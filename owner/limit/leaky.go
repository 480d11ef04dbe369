package limit

import (
	"math"
	"math/bits"
)

// A leaky bucket as a queue is the same arithmetic as a token bucket, read the other way
// round: what is spent are the tokens of requests that run now or have their turn later, and
// the bucket is empty when the last one is through. So a request that comes may run when
// all that is spent has leaked out:
//
//	spent ┤   ▄ cost of the one that comes
//	      │ ██▄▄
//	      │ │   ██▄▄
//	      │ │       ██▄▄
//	    0 ┼─┼───────────██▶
//	       now          its turn, Delay from now
//
// # Guarantee
//
// The turn of a request comes cost·period/limit after that of the one before it, or later, with
// the cost and the rate of that one: whatever the rates become, no turn that was told is
// overtaken. The turns themselves are exact. What is told is rounded up to a nanosecond, so
// that two of them may lie up to a nanosecond closer than that. A request is refused if its
// turn comes later than its MaxDelay, or if there are no places for its tokens.
//
// A Peek tells the turn that a request would get. A refund takes back from the end of the
// queue: turns that were told stay, so as many tokens as are refunded may run beside them.
//
// # Non-guarantee
//
// What becomes of a limit that is checked by another algorithm in between: what was spent stays
// spent, and turns that were told may be overtaken.

// queue decides a request for a turn, of which l is what is spent now.
func (l level) queue(s *State, op *Op, same bool, now int64) (next State, res Result, changed bool) {
	capacity := op.Capacity()
	after, wait := l.spent+op.Cost, l.backIn(l.spent, LeakyBucket, op.Limit, op.Period, now)
	res.Capacity = capacity
	res.Allowed = after <= capacity &&
		wait <= uint64(op.MaxDelay) //guard:leaky-max-delay
	if res.Allowed {
		if res.Delay = int64(wait); !op.Peek {
			l.spent = after
		}
	} else {
		var retry uint64
		if after > capacity {
			retry = l.backIn(after-capacity, LeakyBucket, op.Limit, op.Period, now)
		}
		if most := uint64(op.MaxDelay); wait > most {
			retry = max(retry, wait-most)
		}
		res.RetryAfter = clamp(retry)
	}
	res.Remaining, res.Debt = capacity-min(capacity, l.spent), l.spent-min(capacity, l.spent)
	res.ResetAfter = clamp(l.backIn(l.spent, LeakyBucket, op.Limit, op.Period, now))
	if op.Peek || !res.Allowed && same {
		return *s, res, false
	}
	return State{LeakyBucket, 0, l.at, l.spent, l.carry, op.Limit, op.Period}, res, true
}

// behind returns the level of a queue under another rate from now on: as many tokens as leak
// out of it by the end of the last turn, rounded up, so that the next turn comes behind it. ok is
// false if these are more than MaxLimit.
func (l level) behind(s *State, p *Params) (at level, ok bool) {
	hi, lo := bits.Mul64(l.spent, uint64(s.Period))
	lo, borrow := bits.Sub64(lo, l.carry, 0)
	hi -= borrow // limit · the time to the end of the last turn, below 2^95
	n2, n1 := bits.Mul64(hi, p.Limit)
	h, n0 := bits.Mul64(lo, p.Limit)
	n1, over := bits.Add64(n1, h, 0)
	n2 += over // n2, n1, n0 by limit are 1/period of tokens; below 2^135
	var rest uint64
	n2, n1, n0, rest = div3(n2, n1, n0, s.Limit)
	//guard:leaky-behind false
	if rest != 0 {
		n0, over = bits.Add64(n0, 1, 0)
		n1, over = bits.Add64(n1, 0, over)
		n2 += over
	}
	period := uint64(p.Period)
	n2, n1, n0, rest = div3(n2, n1, n0, period)
	if n2 != 0 || n1 != 0 || n0 > MaxLimit {
		return level{}, false
	}
	if rest != 0 {
		n0, rest = n0+1, period-rest
	}
	return level{l.at, n0, rest}, n0 <= MaxLimit
}

// crowd decides a request for a turn behind more tokens of its rate than can be counted: there is
// no place for it, and the queue keeps its own rate. A refund gives nothing back.
func (l level) crowd(s *State, op *Op, now int64) (next State, res Result, changed bool) {
	res.Capacity = op.Capacity()
	end := l.backIn(l.spent, LeakyBucket, s.Limit, s.Period, now)
	res.ResetAfter = clamp(end)
	if res.Allowed = op.Refund != 0; res.Allowed {
		return *s, res, false
	}
	res.RetryAfter = clamp(max(1, end-min(end, l.room(s, op, end), uint64(op.MaxDelay))))
	return *s, res, false
}

// room returns how long before the end of a queue, in ns, a request finds a place in it.
func (l level) room(s *State, op *Op, end uint64) uint64 {
	hi, lo := bits.Mul64(op.Capacity()-op.Cost, uint64(op.Period))
	if hi >= op.Limit || end == math.MaxUint64 {
		return end
	}
	room, rest := bits.Div64(hi, lo, op.Limit)
	early := end*s.Limit - (l.spent*uint64(s.Period) - l.carry) // by which the queue is empty before it, in 1/s.Limit ns
	hi, lo = bits.Mul64(early, op.Limit)
	hi2, lo2 := bits.Mul64(rest, s.Limit)
	lo, over := bits.Add64(lo, lo2, 0)
	hi += hi2 + over
	if one, ns := bits.Mul64(s.Limit, op.Limit); hi > one || hi == one && lo >= ns {
		room++
	}
	return room
}

// div3 divides a number of three words.
func div3(n2, n1, n0, by uint64) (q2, q1, q0, rest uint64) {
	q2, rest = n2/by, n2%by
	q1, rest = bits.Div64(rest, n1, by)
	q0, rest = bits.Div64(rest, n0, by)
	return q2, q1, q0, rest
}
