package chunk

import (
	"math"
	"time"
)

const (
	// Lease is how long a chunk may be spent, from when it was asked for. It is far
	// longer than a call to the owner takes, and short enough that what a dead node
	// held has come back before anybody misses it.
	Lease = time.Second

	// Rest is how long a refusal is remembered at least: a bucket that refills faster
	// than the owner can be asked costs it a hundred rounds a second from each node,
	// whatever is asked here. Nothing is lost by it: what comes back meanwhile is taken
	// then.
	Rest = 10 * time.Millisecond

	// A quarter of the burst is kept back, and the nodes of a table hold half of that:
	// the other half is for nodes that go by a table of before or after a change.
	slackShare = 4
	capShare   = 2 * slackShare
	// minBurst is the least burst of which something is kept back: below it no node of
	// two may hold a token.
	minBurst = 2 * capShare

	// useShare is the part of what was spent in a Lease that a chunk is: the larger,
	// the less is lost when callers go away; the smaller, the more calls.
	useShare = 8
)

// Slack returns how many tokens of a burst are kept back for what other nodes may hold.
func Slack(burst uint64) uint64 {
	if burst < minBurst {
		return 0
	}
	return burst / slackShare
}

// Cap returns how many tokens of a burst one of so many nodes may hold.
func Cap(burst uint64, nodes int) uint64 {
	if burst < minBurst {
		return 0
	}
	return burst / (capShare * uint64(max(nodes, 1)))
}

// Report is what the owner says of a bucket in each answer.
type Report struct {
	Remaining  uint64 // tokens, of what is not kept back
	RetryAfter int64  // ns until as much could be had; 0 if it was
	ResetAfter int64  // ns until all of it has come back
	Epoch      uint64 // under which the owner answered
	Lost       uint64 // epoch of a declared loss whose grace period runs; 0 = none
	Owner      string // its node id
}

// cell is what a node holds of one bucket, as a state machine: time comes in as
// an argument, in nanoseconds.
type cell struct {
	left  uint64 // tokens of the chunk
	until int64  // when what is left is lost
	taken uint64 // tokens out of it that may still be given back
	terms uint64 // how often forget was called: what was taken before that is not given back
	// Invariant: left + taken <= what the node may hold.

	denied uint64 // this cost and greater ones are refused; 0 = none is
	again  int64  // until then, without asking the owner
	due    int64  // when the first of them can be had, as far as is known
	// Invariant: denied == 0 or again <= due.

	report     Report
	reportedAt int64

	window int64     // number of the Lease that now[] counts, since 0
	used   [2]uint64 // tokens spent in it, and in the one before
}

// spend takes a cost from the chunk, if it can.
func (c *cell) spend(now int64, cost uint64) bool {
	c.lapse(now)
	if c.left < cost {
		return false
	}
	c.left -= cost
	c.count(now, cost)
	return true
}

// count counts tokens as spent.
func (c *cell) count(now int64, cost uint64) {
	c.roll(now)
	c.used[0] += min(cost, math.MaxUint64-c.used[0])
}

// take takes a cost out of the chunk, if it can: keep or give follows.
func (c *cell) take(now int64, cost uint64) (Taken, bool) {
	c.lapse(now)
	if c.left < cost {
		return Taken{}, false
	}
	c.left -= cost
	c.taken += cost
	return Taken{cost: cost, until: c.until, terms: c.terms}, true
}

// keep has what was taken be spent, as of when it was taken.
func (c *cell) keep(now int64, x *Taken) {
	if x.terms == c.terms {
		c.taken -= x.cost
	}
	c.count(now, x.cost)
}

// give puts what was taken back. It ends when it would have ended if it had stayed.
func (c *cell) give(now int64, x *Taken) {
	//guard:chunk-given-parameters
	if x.terms != c.terms {
		return
	}
	c.taken -= x.cost
	c.lapse(now)
	//guard:chunk-given-late
	if now >= x.until {
		return
	}
	//guard:chunk-given-lease c.left == 0 || x.until < c.until -> c.left == 0
	if c.left == 0 || x.until < c.until {
		c.until = x.until
	}
	c.left += x.cost
}

// room returns how much of what the node may hold is not taken.
func (c *cell) room(most uint64) uint64 {
	//guard:chunk-taken-held min(most, c.taken) -> 0
	return most - min(most, c.taken)
}

// lapse loses what is left when its time is over.
func (c *cell) lapse(now int64) {
	//guard:chunk-lease
	if now >= c.until {
		c.left = 0
	}
}

// roll moves the windows in which use is counted up to now.
func (c *cell) roll(now int64) {
	switch w := now / int64(Lease); w - c.window {
	case 0:
	case 1:
		c.window, c.used = w, [2]uint64{0, c.used[0]}
	default:
		c.window, c.used = w, [2]uint64{}
	}
}

// refuses reports whether a cost is known to be refused, and how long it takes still until
// denied can be had.
func (c *cell) refuses(now int64, cost uint64) (left int64, ok bool) {
	if c.denied == 0 || cost < c.denied || now >= c.again {
		return 0, false
	}
	return c.due - now, true
}

// wants returns what to ask the owner for so that a cost can be spent, the least and the
// best number of tokens. waiting is what all callers that wait ask for, the cost included;
// most is how much the node may hold: there is room for the cost. The chunk has less than that.
func (c *cell) wants(now int64, cost, waiting, most uint64) (least, best uint64) {
	c.lapse(now)
	c.roll(now)
	whole := max(cost, min(c.room(most), max(waiting, max(c.used[0], c.used[1])/useShare)))
	return cost - c.left, whole - c.left
}

// took puts tokens in that were asked for at sent.
func (c *cell) took(now, sent int64, tokens uint64, t Report) {
	c.lapse(now)
	if c.left == 0 {
		c.until = sent + int64(Lease)
	} // or else all of it ends when the older part does
	c.left += tokens
	c.denied, c.report, c.reportedAt = 0, t, now
	c.lapse(now) // the answer may have been too long on its way
}

// deny remembers that a cost was refused, of which the owner was asked at sent. Callers
// are told a moment that is not too early, and so count from the answer.
func (c *cell) deny(now, sent int64, cost uint64, t Report) {
	rest := max(int64(Rest), t.RetryAfter)
	c.denied, c.again, c.due = cost, sent+min(rest, int64(Lease)), addTime(now, rest)
	c.report, c.reportedAt = t, sent
}

// forget loses all that is known of the bucket, but for how much it is used.
func (c *cell) forget() {
	c.left, c.until, c.denied, c.again, c.due = 0, 0, 0, 0, 0
	c.taken, c.terms = 0, c.terms+1
	c.report, c.reportedAt = Report{}, 0
}

// addTime returns a moment, or a duration, with so many ns added; at most math.MaxInt64.
func addTime(t, by int64) int64 {
	if t > math.MaxInt64-by {
		return math.MaxInt64
	}
	return t + by
}

// idle says that nothing would be lost if the cell were forgotten.
func (c *cell) idle(now int64) bool {
	return (c.left == 0 || now >= c.until) && c.taken == 0 && now >= c.again && now/int64(Lease) > c.window+1
}

// answer returns what to tell of the bucket now.
func (c *cell) answer(now int64, allowed bool, retry int64) Answer {
	a := Answer{Allowed: allowed, Report: c.report}
	a.Remaining += c.left
	a.RetryAfter = retry
	a.ResetAfter = max(0, a.ResetAfter-(now-c.reportedAt))
	return a
}

// Answer is a decision.
type Answer struct {
	Allowed bool
	Report  // Remaining is with what this node holds

	taken Taken // out of the chunk, if allowed, and that was asked
}

// Taken is tokens that a node has taken out of its chunk. They are spent, unless they are given back.
type Taken struct {
	shard *shard
	entry *entry
	cost  uint64
	until int64
	terms uint64
}
