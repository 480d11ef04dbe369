package limit

import (
	"errors"
	"slices"
)

// MaxMarks is how many marks a sliding window has at most. More make what it takes
// for spent too long a smaller part of the period, 2/(MaxMarks-1), and the state
// larger by 16 bytes each.
const MaxMarks = 17

// Mark is what a sliding window remembers of hits: so many tokens were spent, the
// last of them at that moment.
type Mark struct {
	At     int64  // ns
	Tokens uint64 // Invariant: at least 1
}

// Slides reports whether an operation on a state is one for Slide.
func (op *Op) Slides(s *State) bool {
	return op.Algorithm == SlidingWindow || s.Algorithm == SlidingWindow
}

// Slide is Apply where s or op is of a sliding window. Such a state has marks, the
// oldest first: the moments at which its tokens were spent. Together they are
// s.Spent tokens, and the last one is at s.At; a state of one mark comes without
// marks, for it says the same itself.
//
// marks is room to work in, changed in any case, with room for one mark more, or it
// is allocated. after are those of next if changed, a part of marks, and mean
// nothing otherwise.
//
// # Guarantee
//
// With parameters that stay, a hit counts for one period at least, and for less
// than nine eighths of one. So the window admits at most limit in any time shorter
// than a period, and refuses nothing that an exact log over nine eighths of the
// period would allow. As long as at most MaxMarks moments of hits count at a time,
// which is always so if limit is at most MaxMarks, it is an exact log.
//
// This is why: each hit is at first a mark of its own, and a mark counts until one
// period after its moment. When there are too many, two neighbours become one, at
// the moment of the later one, so that nothing ends too early. The hits of mark i
// came after mark i-1; when it is put into mark i+1, none of these counts longer
// than it should by more than the time between the marks i-1 and i+1. Over all i,
// from the second mark to the last but one, these times add up to less than two
// periods, since all marks lie within one. There are MaxMarks-1 such i when there
// is one mark too many, so the least of the times is below 2/(MaxMarks-1) of the
// period, and that is the pair that is put together.
//
// A refund takes from the oldest marks. If each refund is of tokens that still
// count, then what was spent and not given back is at most limit in any time
// shorter than a period: for whatever the refund was of, at least as much is left
// in all newer marks together as was spent there and not given back.
func Slide(s State, marks []Mark, op Op, now int64) (next State, after []Mark, res Result, changed bool) {
	if s.Spent != 0 {
		now = max(now, s.At)
	}
	w := s.counting(marks, now)
	same := s.Algorithm == op.Algorithm && s.Limit == op.Limit && s.Period == op.Period
	if op.Algorithm != SlidingWindow {
		if next, res, changed = Apply(s.ending(sum(w), now), op, now); !changed {
			next = s
		}
		return next, nil, res, changed
	}
	if s.Period != op.Period {
		w = w.gone(op.Period, now)
	}
	spent := sum(w)
	res.Capacity = op.Limit
	switch {
	case op.Refund != 0:
		if spent == 0 {
			res.Allowed, res.Remaining = true, op.Limit
			return s, nil, res, false
		}
		w = w.refund(op.Refund)
		spent -= min(op.Refund, spent)
		res.Allowed = true
	case spent+op.Cost > op.Limit && !op.Overdraft:
		res.RetryAfter = w.backIn(spent+op.Cost-op.Limit, op.Period, now)
		if same {
			op.Peek = true
		}
	default:
		res.Allowed = true
		if n := min(op.Cost, MaxLimit-spent); !op.Peek && n > 0 {
			w = w.spend(n, now)
			spent += n
		}
		if op.Overdraft && spent >= op.Limit {
			res.RetryAfter = w.backIn(spent-op.Limit+1, op.Period, now)
		}
	}
	res.Remaining, res.Debt = op.Limit-min(op.Limit, spent), spent-min(op.Limit, spent)
	res.ResetAfter = w.backIn(spent, op.Period, now)
	if op.Peek {
		return s, nil, res, false
	}
	if len(w) == 0 {
		return State{}, nil, res, true
	}
	next = State{Algorithm: SlidingWindow, At: w[len(w)-1].At, Spent: spent, Limit: op.Limit, Period: op.Period}
	if len(w) == 1 {
		w = w[:0]
	}
	return next, w, res, true
}

// Used returns how many tokens are spent and have not come back at a moment. marks are
// those of a sliding window.
func (s State) Used(marks []Mark, now int64) uint64 {
	if s.Spent == 0 {
		return 0
	}
	if now = max(now, s.At); s.Algorithm != SlidingWindow {
		return s.level(now).spent
	}
	var room [MaxMarks]Mark
	return sum(s.counting(append(room[:0], marks...), now))
}

// BackIn returns the time until all that is spent has come back, in ns, at most MaxInt64.
// marks are those of a sliding window.
func (s State) BackIn(marks []Mark, now int64) int64 {
	if s.Spent == 0 {
		return 0
	}
	if now = max(now, s.At); s.Algorithm != SlidingWindow {
		l := s.level(now)
		return clamp(l.backIn(l.spent, s.Algorithm, s.Limit, s.Period, now))
	}
	var room [MaxMarks]Mark
	w := s.counting(append(room[:0], marks...), now)
	return w.backIn(sum(w), s.Period, now)
}

// markLog is the marks that count, the oldest first, and no two at one moment.
type markLog []Mark

func sum(w markLog) (n uint64) {
	for _, m := range w {
		n += m.Tokens
	}
	return n
}

// counting puts what of a state counts at a moment into marks: with the moments
// at which it was spent if it is a sliding window, and as of now if not. now is not
// before s.At.
func (s State) counting(marks []Mark, now int64) markLog {
	if s.Algorithm != SlidingWindow {
		marks = marks[:0]
		if n := s.level(now).spent; n != 0 {
			marks = append(marks, Mark{now, n})
		}
		return marks
	}
	if len(marks) == 0 && s.Spent != 0 {
		marks = append(marks, Mark{s.At, s.Spent})
	}
	old := over(marks, s.Period, now)
	return append(marks[:0], marks[old:]...)
}

// ending is a sliding window of which so many tokens count now, and for another
// algorithm that is all that counts.
func (s State) ending(spent uint64, now int64) State {
	if spent == 0 {
		return State{}
	}
	return State{Algorithm: SlidingWindow, At: now, Spent: spent, Limit: s.Limit, Period: s.Period}
}

// over returns how many marks are a period old or older.
func over(w markLog, period, now int64) (n int) {
	for n < len(w) && uint64(now)-uint64(w[n].At) >= uint64(period) {
		n++
	}
	return n
}

// gone has what would be over under another period count from now on instead:
// another period gives back nothing.
func (w markLog) gone(period, now int64) markLog {
	old := over(w, period, now)
	if old == 0 {
		return w
	}
	n := sum(w[:old])
	return append(w[:0], w[old:]...).spend(n, now)
}

// spend marks tokens as spent now, which is not before any mark.
func (w markLog) spend(n uint64, now int64) markLog {
	if last := len(w) - 1; last >= 0 && w[last].At == now {
		w[last].Tokens += n
		return w
	}
	w = append(w, Mark{now, n})
	if len(w) <= MaxMarks {
		return w
	}
	into := 2 // one mark takes in the one before it: the two that lie closest
	for i := 3; i < len(w); i++ {
		if uint64(w[i].At)-uint64(w[i-2].At) < uint64(w[into].At)-uint64(w[into-2].At) {
			into = i
		}
	}
	w[into].Tokens += w[into-1].Tokens
	return slices.Delete(w, into-1, into)
}

// refund takes tokens out of the oldest marks, as many as there are.
func (w markLog) refund(n uint64) markLog {
	empty := 0
	for ; empty < len(w) && n >= w[empty].Tokens; empty++ {
		n -= w[empty].Tokens
	}
	w = append(w[:0], w[empty:]...)
	if len(w) > 0 {
		w[0].Tokens -= n
	}
	return w
}

// backIn returns the time from now until n of the tokens do not count any more, in ns.
func (w markLog) backIn(n uint64, period, now int64) int64 {
	for _, m := range w {
		if n <= m.Tokens {
			return period - int64(uint64(now)-uint64(m.At))
		}
		n -= m.Tokens
	}
	return 0
}

// errMarks says that marks that came from elsewhere are not those of the state.
var errMarks = errors.New("limit: the marks are not those of the window")

// ValidMarks reports why marks that came from elsewhere, with a state that is
// Valid, cannot be of this package.
func (s State) ValidMarks(marks []Mark) error {
	switch {
	case len(marks) == 0:
		return nil
	case s.Algorithm != SlidingWindow || len(marks) == 1 || len(marks) > MaxMarks || marks[len(marks)-1].At != s.At:
		return errMarks
	case marks[0].At > s.At || uint64(s.At)-uint64(marks[0].At) >= uint64(s.Period):
		return errMarks
	}
	var sum uint64
	for i, m := range marks {
		if m.Tokens == 0 || m.Tokens > MaxLimit || i > 0 && m.At <= marks[i-1].At {
			return errMarks
		}
		sum += m.Tokens
	}
	if sum != s.Spent {
		return errMarks
	}
	return nil
}
