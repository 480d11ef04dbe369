package fallback

import (
	"time"

	"github.com/keystead/keystead/owner/limit"
)

// askAgain is the most that a caller who is refused is told to wait: by then the owner may
// be back, or another node have taken over.
const askAgain = time.Second

// Known is what an owner said of a limit.
type Known struct {
	At        int64  // ns; when it was asked
	Remaining uint64 // tokens that were left
	Capacity  uint64 // most that can be
	Epoch     uint64 // of the owner
}

// Answer is a decision without the owner.
type Answer struct {
	Allowed    bool
	Capacity   uint64
	Remaining  uint64 // that may be admitted here still
	RetryAfter int64  // ns; 0 if allowed
	ResetAfter int64  // ns, until nothing that was admitted here counts
	Epoch      uint64 // of the answer that it goes by; 0 of a cap
}

// Why says why there is no decision.
type Why uint8

// The reasons.
const (
	Decided Why = iota
	Unknown     // the owner said nothing, or too long ago
	Full        // the Table has no room
)

// cell is what a Table knows of one limit of one key.
type cell struct {
	spent  limit.State // a sliding window of what was admitted here
	marks  []limit.Mark
	period int64 // for which that counts, ns
	known  Known
	heard  bool // known is set
}

// counts reports whether something that was admitted here counts.
func (c *cell) counts(now int64) bool {
	return c.spent.Spent != 0 && now-c.spent.At < c.period
}

// learn notes an answer of the owner's.
func (c *cell) learn(k Known) {
	//guard:fallback-later-answer
	if c.heard && k.At < c.known.At { // one that was asked later has come already
		return
	}
	c.known, c.heard = k, true
}

// decide decides a check, if it can.
func (c *cell) decide(r *Rule, cost uint64, peek bool, now int64) (a Answer, why Why) {
	bound, period := r.Cap, int64(r.Period)
	a.Capacity = r.Cap
	if r.Source == LastKnown {
		//guard:fallback-known-for
		if !c.heard || now-c.known.At >= int64(r.KnownFor) {
			return a, Unknown
		}
		bound, period = c.known.Remaining, int64(r.KnownFor)
		a.Capacity, a.Epoch = c.known.Capacity, c.known.Epoch
	}
	//guard:fallback-longest-period
	if c.counts(now) {
		period = max(period, c.period)
	}
	used := c.spent.Used(c.marks, now)
	if cost > bound {
		a.Remaining, a.RetryAfter, a.ResetAfter = bound-min(used, bound), int64(askAgain), c.spent.BackIn(c.marks, now)
		return a, Decided
	}
	denied := used > bound-cost
	op := limit.Op{Params: limit.Params{Algorithm: limit.SlidingWindow, Limit: bound, Period: period}, Cost: cost, Peek: peek || denied}
	room := c.marks
	if op.Peek { // it works in them
		room = append(make([]limit.Mark, 0, limit.MaxMarks+1), c.marks...)
	}
	next, marks, res, changed := limit.Slide(c.spent, room, op, now)
	if changed {
		c.spent, c.marks, c.period = next, marks, period
	}
	a.Allowed, a.Remaining, a.ResetAfter = res.Allowed, res.Remaining, res.ResetAfter
	a.RetryAfter = min(res.RetryAfter, int64(askAgain))
	return a, Decided
}
