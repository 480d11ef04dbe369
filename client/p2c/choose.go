package p2c

import (
	"math"
	"sync/atomic"
)

// Choose returns the index of the backend for a call: of two different ones, named by
// the random bits r, the one with the smaller load that is not down. If both are down,
// it is any other that is up. There must be at least one backend.
func Choose(loads []*Load, now int64, r uint64) int {
	if len(loads) == 1 {
		return 0
	}
	best, other := pair(len(loads), r)
	if less(loads[other], loads[best], now) {
		best = other
	}
	if !loads[best].Down() {
		return best
	}
	// The next one that is up would get the calls of all before it that are down.
	up := uint64(0)
	for _, l := range loads {
		if !l.Down() {
			up++
		}
	}
	if up == 0 {
		return best
	}
	nth := r * mix >> 32 % up
	for i, l := range loads {
		if l.Down() {
			continue
		}
		if nth == 0 {
			return i
		}
		nth--
	}
	return best // they have gone down meanwhile
}

// mix makes other bits of random ones: 2⁶⁴ by the golden ratio, as in Fibonacci
// hashing.
const mix = 0x9e3779b97f4a7c15

// pair is two different numbers below n, which is at least 2 and below 2³².
func pair(n int, r uint64) (i, j int) {
	i = int(r >> 32 * uint64(n) >> 32)
	j = int(r & math.MaxUint32 * uint64(n-1) >> 32)
	if j >= i {
		j++
	}
	return i, j
}

// less reports whether a is to be preferred to b.
func less(a, b *Load, now int64) bool {
	if down := a.Down(); down != b.Down() {
		return !down
	}
	return a.Cost(now) < b.Cost(now)
}

// Overdue returns the index of the backend that has waited longest for a probe, or -1
// if none is due, and when the next one may be. The backend counts as seen from
// now on: of several callers only one gets it.
func Overdue(loads []*Load, now int64) (i int, next int64) {
	i, next = -1, math.MaxInt64
	first := int64(math.MaxInt64)
	for k, l := range loads {
		switch due := l.due(); {
		case due > now:
			next = min(next, due)
		case due < first:
			if i >= 0 {
				next = now // there is another
			}
			i, first = k, due
		default:
			next = now
		}
	}
	if i < 0 {
		return i, next
	}
	l := loads[i]
	if seen := l.seen.Load(); seen+l.patience.Load() > now || !l.seen.CompareAndSwap(seen, now) {
		return -1, now // another goroutine was quicker
	}
	return i, min(next, l.due())
}

// Next is Overdue, or Choose if none is overdue. It inspects every backend; a Chooser
// does so only when a probe may be due.
func Next(loads []*Load, now int64, r uint64) int {
	if i, _ := Overdue(loads, now); i >= 0 {
		return i
	}
	return Choose(loads, now, r)
}

// Chooser is Next for many calls among the same backends.
type Chooser struct {
	loads []*Load
	due   atomic.Int64 // no probe is due before
}

// NewChooser returns a Chooser of these loads, at least one.
func NewChooser(loads []*Load) *Chooser { return &Chooser{loads: loads} }

// Next returns the index of the backend for a call, given random bits.
func (c *Chooser) Next(now int64, r uint64) int {
	// One caller inspects the backends; meanwhile the others choose.
	if due := c.due.Load(); now >= due && c.due.CompareAndSwap(due, math.MaxInt64) {
		i, next := Overdue(c.loads, now)
		c.due.Store(next)
		if i >= 0 {
			return i
		}
	}
	return Choose(c.loads, now, r)
}
