package history

import (
	"fmt"
	"math"
)

// WindowParams are a sliding window: at most Limit tokens count, each for one Period.
type WindowParams struct {
	// Limit is at most MaxWindow: so few are an exact log at the owner.
	Limit  uint64
	Period int64 // ns
	// Delay is by how much, in ns and in all, tokens may count for longer than a period:
	// see BucketParams.
	Delay int64
}

const (
	// MaxWindow is the greatest limit of a window that is checked.
	MaxWindow = 17
	// windowHits is how many hits are told apart. Those that are older may still count
	// where a check is denied, and never where one is allowed.
	windowHits = 40
)

// hit is a check that spent tokens, or may have.
type hit struct {
	from, to int64 // ns: it was decided between them; to is Never until somebody was told something
	tokens   uint64
	sure     bool // its caller was told
}

// windowState is what is known of a window.
//
// Invariant: hits are in order of to, then of from and tokens; those from n on are zero.
type windowState struct {
	hits [windowHits]hit
	n    int
	gone int64 // the latest to of those that were dropped for want of room
	some bool  // there are such
}

// window is the arithmetic of a window.
type window struct{ WindowParams }

// Window returns the model of a sliding window of at most MaxWindow tokens. Its inputs are
// BucketInput or BucketReset, its outputs BucketOutput; refunds are not known to it.
//
// As with Bucket nobody knows at which moment of its call a check was decided. A check
// that took effect at t, call <= t <= return, is allowed if and only if its cost and the
// tokens of all hits after t − Period are at most Limit. So an answer is impossible if
// the hits that count whatever the moments were are too many for a check that was
// allowed, or those that may count are too few for one that was denied. What it tells of
// the tokens that are left is held to the same.
//
// Relaxation: moments are chosen for each pair of operations by itself, and what an
// answer tells narrows nothing but by that.
func Window(p WindowParams) Model {
	if p.Limit > MaxWindow || p.Period <= 0 || p.Delay < 0 || p.Period > math.MaxInt64/4 || p.Delay > math.MaxInt64/4 {
		panic(fmt.Sprintf("history: no window that can be checked: %+v", p))
	}
	w := window{p}
	m := newModel(windowState{}, func(s windowState, at step, out any) []windowState {
		next, possible := w.step(s, at, out)
		if !possible {
			return nil
		}
		return []windowState{next}
	}, windowState{gone: ever, some: true})
	m.delay = p.Delay
	return m
}

func (w window) step(s windowState, at step, out any) (next windowState, possible bool) {
	if _, ok := at.in.(BucketReset); ok {
		return windowState{}, true
	}
	in, check := at.in.(BucketInput)
	cost := in.Cost
	o, told := out.(BucketOutput)
	if o.Parts > 0 {
		return s, false // windows are never split
	}
	if !told {
		if check && !in.Peek {
			s.add(hit{from: at.call, to: Never, tokens: cost})
		}
		return s, true
	}
	s.before(at.ret)
	least, most := w.counting(&s, at)
	switch {
	case !check:
		return s, w.consistent(o, least, most)
	case o.Allowed:
		if least+cost > w.Limit || o.RetryAfter != 0 {
			return s, false
		}
		if in.Peek {
			return s, o.Bare || w.consistent(o, least, most)
		}
		s.add(hit{from: at.call, to: at.ret, tokens: cost, sure: true})
		// The last token of all that has to come back is one of its own.
		return s, o.Bare || w.consistent(o, least+cost, most+cost) && o.ResetAfter == w.Period
	case most+cost <= w.Limit:
		return s, false
	}
	return s, o.Bare || w.consistent(o, least, most) && o.RetryAfter > 0 && o.RetryAfter <= w.Period
}

// consistent reports whether an answer is one about so many tokens that count.
func (w window) consistent(o BucketOutput, least, most uint64) bool {
	if o.Remaining > w.Limit {
		return false
	}
	spent := w.Limit - o.Remaining
	return spent >= least && spent <= most && (spent == 0) == (o.ResetAfter == 0) && o.ResetAfter >= 0 && o.ResetAfter <= w.Period
}

// counting returns how many tokens count at least, and at most, at the moment of a step.
func (w window) counting(s *windowState, at step) (least, most uint64) {
	for _, h := range s.hits[:s.n] {
		if h.sure && at.ret < h.from+at.drift.least(w.Period) {
			least += h.tokens
		}
		if h.to == Never || at.call < h.to+at.drift.most(w.Period)+w.Delay {
			most += h.tokens
		}
	}
	if s.some && at.call < s.gone+at.drift.most(w.Period)+w.Delay {
		most += w.Limit
	}
	return min(least, w.Limit), min(most, w.Limit)
}

// before uses that all hits came before an operation that was decided by then.
func (s *windowState) before(ret int64) {
	hits := s.hits[:s.n]
	for i := range hits {
		hits[i].to = min(hits[i].to, max(hits[i].from, ret))
	}
	s.order()
}

// add takes a hit in.
func (s *windowState) add(h hit) {
	if s.n == windowHits {
		s.gone, s.some = max(s.gone, s.hits[0].to), true
		copy(s.hits[:], s.hits[1:])
		s.n--
	}
	s.hits[s.n] = h
	s.n++
	s.order()
}

// order restores the order of the hits: few are out of it.
func (s *windowState) order() {
	for i := 1; i < s.n; i++ {
		for j := i; j > 0 && s.hits[j].less(s.hits[j-1]); j-- {
			s.hits[j], s.hits[j-1] = s.hits[j-1], s.hits[j]
		}
	}
}

func (h hit) less(o hit) bool {
	switch {
	case h.to != o.to:
		return h.to < o.to
	case h.from != o.from:
		return h.from < o.from
	case h.tokens != o.tokens:
		return h.tokens < o.tokens
	}
	return !h.sure && o.sure
}
