package limit

import "math/bits"

// A reservation is spent when it is made, by a check. When its real cost is known, it is
// settled: what was not used is given back (Back), and what was used beyond it is taken
// (Take).
//
// # Guarantee
//
// With parameters that stay, a bucket and a sliding window never have more after reservations
// were settled than if each had cost from the beginning what it did in the end. A bucket gives
// back less by what has refilled it since the reservation beyond the real cost, at most: had it
// been full without the reservation, that would have been wasted. A sliding window gives back
// what still counts, the oldest hits first, so that it may have less for a period.
//
// Of a fixed window, exactly what was used is spent as long as the window of the reservation
// goes on; later nothing comes back, and where it is unsure which window that is: see Into.
// Debt goes to the window that is open, or opens one. A window of the calendar is the same, with
// the end of the period to know it by: what was not used is not carried over when it comes late.
//
// Of a leaky bucket nothing comes back: turns behind that of the reservation may have been told.
// Debt moves the turns that come.
//
// If the parameters change once, from those of the reservation to those of the state, a bucket
// and a sliding window still never have more.
//
// This is why, for a bucket of rate r and a reservation of R tokens that cost A and was held
// for a time t: the level with A is at most R−A below the one with R, and gets nearer to it
// only while it is 0. It was at least A at first, so it wastes at most rt−A by then, and
// min(R−A, R−rt) may be given back.

// Take spends tokens whether or not they are there. What is spent beyond the capacity is debt:
// nothing is admitted until time has paid it. p is for a state that says nothing itself. As
// with Slide, marks are changed, or allocated without room for one more. wall is as for Date, and
// means something where p or s is of a calendar window.
func (s State) Take(p Params, n uint64, marks []Mark, now, wall int64) (next State, after []Mark) {
	if n = min(n, MaxLimit); n == 0 {
		return s, marks
	}
	if s.Algorithm == CalendarWindow {
		if wall < s.At || p.Algorithm == CalendarWindow {
			return s.takeDated(p, n, now, wall), nil
		}
		s = State{}
	}
	if s.Spent != 0 {
		now = max(now, s.At)
	}
	if p = s.params(p, now); p.Algorithm == CalendarWindow {
		return State{}.takeDated(p, n, now, wall), nil
	}
	if p.Algorithm == SlidingWindow {
		w := s.counting(marks, now)
		if n = min(n, MaxLimit-sum(w)); n > 0 {
			w = w.spend(n, now)
		}
		return windowOf(w, p)
	}
	l := s.level(now)
	if l.spent == 0 {
		l.at = now
	}
	return State{p.Algorithm, 0, l.at, min(l.spent+n, MaxLimit), l.carry, p.Limit, p.Period}, nil
}

// takeDated is Take of a calendar window: into the period that is on, or into the next one, which
// begins.
func (s State) takeDated(p Params, n uint64, now, wall int64) State {
	if s.Algorithm != CalendarWindow ||
		wall >= s.At { //guard:settle-dated-debt
		was := s
		s = State{Algorithm: CalendarWindow, Limit: p.Limit, Period: p.Period}
		s.begin(&was, nil, was.Algorithm == CalendarWindow && was.Period == p.Period, now, wall)
		s.Carry = min(s.Carry, p.carries())
	}
	s.Spent = min(s.Spent+n, MaxLimit)
	return s
}

// params returns the parameters under which what is spent comes back; those given, if nothing is.
func (s State) params(p Params, now int64) Params {
	if s.Absent(now) {
		return p
	}
	return Params{Algorithm: s.Algorithm, Limit: s.Limit, Period: s.Period}
}

// windowOf returns the sliding window that has the marks.
func windowOf(w markLog, p Params) (State, []Mark) {
	if len(w) == 0 {
		return State{}, nil
	}
	s := State{Algorithm: SlidingWindow, At: w[len(w)-1].At, Spent: sum(w), Limit: p.Limit, Period: p.Period}
	if len(w) == 1 {
		return s, nil
	}
	return s, w
}

// Reserved is a reservation that is settled.
type Reserved struct {
	Params        // under which it was made
	Tokens uint64 // that were spent
	Made   int64
	Into   Into  // of a fixed window
	Ends   int64 // of a calendar window: the end of the period into which it was spent, ns since 1970
}

// Into is how far into its window a fixed window was, in 1/65536 of the period. With it a reservation says
// when its window opened. At a node that was told of both by another one, the times of a reservation and of
// a window are late by how long the news of each was on its way: the one may seem to be made before or after
// it was, beside the other. How far into it that was does not change.
type Into uint16

const (
	intoUnit = 1 << 16
	// Longer windows are far enough apart to be told apart at such a node: their ends are a minute from each
	// other at least, and no news is on its way for so long beside other news.
	minDrifting = 60_000_000_000 // ns
	maxDrift    = 7_000_000_000  // ns
)

// Into returns how far into its window s is, into which something was spent at a moment under p.
func (s State) Into(p Params, now int64) Into {
	passed, period := uint64(max(now-s.At, 0)), uint64(p.Period)
	if p.Algorithm != FixedWindow || s.Algorithm != FixedWindow {
		return 0
	}
	if passed >= period {
		return intoUnit - 1
	}
	hi, lo := bits.Mul64(passed, intoUnit)
	into, _ := bits.Div64(hi, lo, period) // passed < period
	return Into(into)
}

// inWindow reports whether a reservation was surely made in the window that opened at a moment.
func (r *Reserved) inWindow(at int64) bool {
	hi, lo := bits.Mul64(uint64(r.Period), uint64(r.Into))
	apart := r.Made - int64(hi<<48|lo>>16) - at // less than 0: the window opened later
	drift := r.Period/intoUnit + 1
	if r.Period >= minDrifting {
		drift = maxDrift
	}
	return at <= r.Made && -drift <= apart && apart <= drift
}

// Back gives n of the reserved tokens back, or as many as still count. marks and wall are as for
// Take.
func (s State) Back(r Reserved, n uint64, marks []Mark, now, wall int64) (next State, after []Mark, given uint64) {
	if s.Algorithm == CalendarWindow {
		if r.Algorithm == CalendarWindow &&
			s.At == r.Ends && //guard:settle-dated-later
			wall < s.At { //guard:settle-dated-over
			given = min(n, s.Spent)
			s.Spent -= given
		}
		return s, marks, given
	}
	if s.Spent != 0 {
		now = max(now, s.At)
	}
	//guard:settle-algorithm false
	if s.Algorithm != r.Algorithm || s.Absent(now) {
		return s, marks, 0
	}
	passed := uint64(max(now-r.Made, 0))
	switch s.Algorithm {
	case TokenBucket:
		back := max(refilled(r.Limit, uint64(r.Period), passed), refilled(s.Limit, uint64(s.Period), passed))
		//guard:settle-refilled
		n = min(n, r.Tokens-min(r.Tokens, back))
	case FixedWindow:
		//guard:settle-later-window
		if !r.inWindow(s.At) {
			n = 0
		}
	case SlidingWindow:
		//guard:settle-slid-out
		if passed >= uint64(min(r.Period, s.Period)) {
			n = 0
		}
		if n == 0 {
			return s, marks, 0
		}
		w := s.counting(marks, now)
		given = min(n, sum(w))
		next, after = windowOf(w.refund(given), Params{Limit: s.Limit, Period: s.Period})
		return next, after, given
	default:
		//guard:settle-leaky
		n = 0 // of a leaky bucket
	}
	l := s.level(now)
	if given = min(n, l.spent); given == 0 {
		return s, marks, 0
	}
	if l.spent -= given; l.spent == 0 {
		return State{}, nil, given
	}
	return State{s.Algorithm, 0, l.at, l.spent, l.carry, s.Limit, s.Period}, nil, given
}

// refilled returns how many tokens come back in a time, rounded up, at most MaxLimit.
func refilled(limit, period, passed uint64) uint64 {
	hi, lo := bits.Mul64(passed, limit)
	if hi >= period {
		return MaxLimit
	}
	q, rest := bits.Div64(hi, lo, period)
	if rest != 0 && q < MaxLimit {
		q++
	}
	return min(q, MaxLimit)
}

// Debt returns how much is spent beyond the capacity that p has. marks and wall are as for Take.
func (s State) Debt(p Params, marks []Mark, now, wall int64) uint64 {
	capacity := p.Capacity()
	var used uint64
	if s.Algorithm == CalendarWindow {
		used, _ = s.SpentAt(wall)
	} else {
		used = s.Used(marks, now)
	}
	if p.Algorithm == CalendarWindow {
		capacity = p.Limit
		if s.Algorithm == CalendarWindow && wall < s.At {
			capacity += min(s.Carry, p.carries())
		}
	}
	return used - min(used, capacity)
}
