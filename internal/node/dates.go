package node

import (
	"sync/atomic"
	"time"
)

// dates is the time of day of a standalone node: that of its own clock, which it looks at ten times
// a second at most.
type dates struct {
	clock func() int64     // of the store
	wall  func() time.Time // of the machine

	next  atomic.Int64 // when to look again, by clock
	ahead atomic.Int64 // by how much the wall clock is ahead of the other one, ns
}

// looksAfter is for how long a look at the clock is good, in ns.
const looksAfter = int64(100 * time.Millisecond)

// Wall implements owner.Dates.
func (d *dates) Wall(now int64) (wall int64, ok bool) {
	if d == nil {
		return 0, false
	}
	if next := d.next.Load(); now >= next {
		ahead := d.wall().UnixNano() - d.clock()
		d.ahead.Store(ahead)
		d.next.CompareAndSwap(next, now+looksAfter)
		return now + ahead, true
	}
	return now + d.ahead.Load(), true
}
