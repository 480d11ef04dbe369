package limit

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestSettledHasNoMore: whatever is reserved, charged and settled, and when, a limit never has
// more than one that was charged what each reservation cost in the end, when it was made.
func TestSettledHasNoMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Params{Algorithm: rapid.SampledFrom([]Algorithm{TokenBucket, SlidingWindow}).Draw(t, "algorithm"), Limit: rapid.Uint64Range(1, 40).Draw(t, "limit"), Period: 1000 * rapid.Int64Range(1, 30).Draw(t, "period")}
		type reservation struct {
			Reserved
			cost uint64
		}
		type event struct {
			at     int64
			tokens uint64
		}
		var held []reservation
		var real State
		var marks []Mark
		var charged []event // what all that is settled, and all else, has cost, when it was made
		now := int64(0)
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			now += 250 * rapid.Int64Range(0, 60).Draw(t, "later")
			switch {
			case len(held) > 0 && rapid.Bool().Draw(t, "settle"):
				i := rapid.IntRange(0, len(held)-1).Draw(t, "which")
				h := held[i]
				held = slices.Delete(held, i, i+1)
				if h.cost > h.Tokens {
					real, marks = real.Take(p, h.cost-h.Tokens, marks, now, 0)
				} else {
					real, marks, _ = real.Back(h.Reserved, h.Tokens-h.cost, marks, now, 0)
				}
				for k := range charged {
					if charged[k].at == h.Made {
						charged[k].tokens += h.cost
						charged[k].tokens -= h.Tokens
						break
					}
				}
			default:
				op := Op{Params: p, Cost: rapid.Uint64Range(1, p.Limit).Draw(t, "cost")}
				next, after, res, changed := Slide(real, slices.Clone(marks), op, now)
				if !op.Slides(&real) {
					next, res, changed = Apply(real, op, now)
					after = nil
				}
				if !res.Allowed {
					continue
				}
				if changed {
					real, marks = next, slices.Clone(after)
				}
				charged = append(charged, event{now, op.Cost})
				if rapid.Bool().Draw(t, "held") {
					held = append(held, reservation{Reserved{p, op.Cost, now, 0, 0}, rapid.Uint64Range(0, 2*p.Limit).Draw(t, "real")})
				}
				now++ // so that a reservation is known by its moment
			}
			if err := real.Valid(); err != nil {
				t.Fatal(err)
			}
			if err := real.ValidMarks(marks); err != nil {
				t.Fatal(err)
			}
			var ideal State
			var idealMarks []Mark
			if p.Algorithm == SlidingWindow { // an exact log, which forgets no sooner
				var used uint64
				for _, e := range charged {
					if now-e.at < p.Period {
						used += e.tokens
					}
				}
				if got := real.Used(marks, now); got < used {
					t.Fatalf("%d spent, and %d were", got, used)
				}
				continue
			}
			for _, e := range charged {
				ideal, idealMarks = ideal.Take(p, e.tokens, idealMarks, e.at, 0)
			}
			if got, want := real.Used(marks, now), ideal.Used(idealMarks, now); got < want {
				t.Fatalf("%d spent, and %d would be: %+v, %+v", got, want, real, ideal)
			}
		}
	})
}

// TestSettledInItsWindow: of a fixed window, exactly what its reservations have cost is spent, those that
// are not settled by what they reserved, and debt of earlier ones.
func TestSettledInItsWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Params{Algorithm: FixedWindow, Limit: rapid.Uint64Range(1, 40).Draw(t, "limit"), Period: 1000 * rapid.Int64Range(1, 30).Draw(t, "period")}
		var held []Reserved
		var real State
		now, start, used := int64(0), int64(0), uint64(0) // of the window that is open
		spend := func(n uint64) {
			if used == 0 {
				start = now
			}
			used += n
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now += 250 * rapid.Int64Range(0, 60).Draw(t, "later")
			if used > 0 && now-start >= p.Period {
				used = 0
			}
			if len(held) > 0 && rapid.Bool().Draw(t, "settle") {
				i := rapid.IntRange(0, len(held)-1).Draw(t, "which")
				h, cost := held[i], rapid.Uint64Range(0, 2*p.Limit).Draw(t, "cost")
				held = slices.Delete(held, i, i+1)
				if cost > h.Tokens {
					real, _ = real.Take(p, cost-h.Tokens, nil, now, 0)
					spend(cost - h.Tokens)
				} else if real, _, _ = real.Back(h, h.Tokens-cost, nil, now, 0); used > 0 && h.Made >= start {
					used -= h.Tokens - cost
				}
			} else {
				op := Op{Params: p, Cost: rapid.Uint64Range(1, p.Limit).Draw(t, "cost")}
				next, res, _ := Apply(real, op, now)
				if real = next; res.Allowed != (used+op.Cost <= p.Limit) {
					t.Fatalf("%+v with %d spent", res, used)
				}
				if res.Allowed {
					spend(op.Cost)
					held = append(held, Reserved{p, op.Cost, now, real.Into(p, now), 0})
				}
			}
			if got := real.Used(nil, now); got != used || real.Valid() != nil {
				t.Fatalf("%d spent, not %d: %+v", got, used, real)
			}
			now++
		}
	})
}

// TestBackOfABucketThatRefilled: what time has given back is not given back again.
func TestBackOfABucketThatRefilled(t *testing.T) {
	p := Params{Limit: 60, Period: 60 * second}
	r := Reserved{p, 40, 0, 0, 0}
	for _, c := range []struct {
		after int64
		given uint64
	}{{0, 40}, {10 * second, 30}, {40 * second, 0}, {100 * second, 0}} {
		s, _, _ := Apply(State{}, Op{Params: p, Cost: 40}, 0)
		s, _, _ = Apply(s, Op{Params: p, Cost: 10}, c.after)
		if _, _, given := s.Back(r, 40, nil, c.after, 0); given != c.given {
			t.Errorf("after %ds: %d given back, want %d", c.after/second, given, c.given)
		}
	}
}

// TestSettledInALaterWindow: nothing comes back, and debt goes to the window that is open.
func TestSettledInALaterWindow(t *testing.T) {
	p := Params{Algorithm: FixedWindow, Limit: 10, Period: second}
	s, _, _ := Apply(State{}, Op{Params: p, Cost: 8}, 0)
	r := Reserved{p, 8, 0, s.Into(p, 0), 0}
	if same, _, given := s.Back(r, 5, nil, second-1, 0); given != 5 || same.Spent != 3 {
		t.Errorf("in its window: %d given back, %+v", given, same)
	}
	s, _, _ = Apply(s, Op{Params: p, Cost: 6}, second)
	if later, _, given := s.Back(r, 5, nil, second+1, 0); given != 0 || later != s {
		t.Errorf("in a later window: %d given back", given)
	}
	s, _ = s.Take(p, 7, nil, second+1, 0)
	if s.Spent != 13 || s.At != second || s.Debt(Params{Limit: 10}, nil, second+1, 0) != 3 {
		t.Errorf("debt: %+v", s)
	}
	if _, res, _ := Apply(s, Op{Params: p, Cost: 1}, 2*second-1); res.Allowed || res.RetryAfter != 1 {
		t.Errorf("in debt: %+v", res)
	}
	if s, _ = (State{}).Take(p, 4, nil, 5, 0); s.Spent != 4 || s.At != 5 || s.Limit != 10 {
		t.Errorf("of nothing: %+v", s)
	}
}

// TestBackOfAnotherWindow: where news of a reservation and of the window come late by different times, windows are
// told apart by how far into its own one the reservation was made, and nothing comes back if that is unsure.
func TestBackOfAnotherWindow(t *testing.T) {
	const ms = second / 1000
	for _, c := range []struct {
		period, into, late, lateWindow, later int64 // later: when the window opened that is there, after that of the reservation
		given                                 uint64
	}{
		{10 * second, 9990 * ms, 0, 0, 0, 5},
		{10 * second, 9990 * ms, 510 * ms, ms, 10 * second, 0}, // seems to be of the window that is open
		{10 * second, 5 * second, 510 * ms, ms, 0, 0},          // unsure
		{3600 * second, 1800 * second, 510 * ms, ms, 0, 5},
		{3600 * second, 1800 * second, ms, 510 * ms, 0, 5},
		{3600 * second, 0, 510 * ms, ms, 0, 5},
		{3600 * second, 3600*second - 10*ms, 510 * ms, ms, 3600 * second, 0},
		{60 * second, 59990 * ms, 40 * second, ms, 60 * second, 0},
		{MaxPeriod, MaxPeriod / 2, 0, 0, 0, 5},
		{MinPeriod, MinPeriod - 1, 0, 0, 0, 5},
		{MinPeriod, MinPeriod - 1, 0, 0, MinPeriod, 0},
	} {
		p := Params{Algorithm: FixedWindow, Limit: 10, Period: c.period}
		at := State{FixedWindow, 0, 0, 8, 0, 10, c.period}
		r := Reserved{p, 8, c.into + c.late, at.Into(p, c.into), 0}
		at.At = c.later + c.lateWindow
		if _, _, given := at.Back(r, 5, nil, max(r.Made, at.At), 0); given != c.given {
			t.Errorf("%+v: %d given back", c, given)
		}
	}
}

// TestBackOfAnotherAlgorithm: what was spent under another algorithm is no more told apart.
func TestBackOfAnotherAlgorithm(t *testing.T) {
	s := State{Algorithm: FixedWindow, Spent: 5, Limit: 10, Period: second}
	if _, _, given := s.Back(Reserved{Params{Limit: 10, Period: second}, 5, 0, 0, 0}, 5, nil, 1, 0); given != 0 {
		t.Errorf("%d given back", given)
	}
}

// TestBackOfWhatSlidOut: a sliding window has forgotten the reservation, and others have spent since.
func TestBackOfWhatSlidOut(t *testing.T) {
	p := Params{Algorithm: SlidingWindow, Limit: 10, Period: second}
	s, marks := State{}.Take(p, 6, nil, 0, 0)
	s, marks = s.Take(p, 6, marks, second, 0)
	if _, _, given := s.Back(Reserved{p, 6, 0, 0, 0}, 6, marks, second, 0); given != 0 {
		t.Errorf("%d given back", given)
	}
	if s.Debt(Params{Limit: 10}, marks, second, 0) != 0 || s.Spent != 6 {
		t.Errorf("%+v", s)
	}
}

// TestSettledUnderOtherParameters: also if those of the reservations, or of the state, are others from some moment on, a
// bucket never has more than one that was charged what each reservation cost in the end, when it was made.
func TestSettledUnderOtherParameters(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		drawn := func(name string) Params {
			return Params{Limit: rapid.Uint64Range(1, 40).Draw(t, name), Period: 1000 * rapid.Int64Range(1, 30).Draw(t, name+" period"), Burst: rapid.Uint64Range(0, 80).Draw(t, name+" burst")}
		}
		p, next := drawn("limit"), drawn("next limit")
		type event struct {
			Reserved
			real  uint64 // what it has cost
			turns bool   // to the other parameters
			held  bool
		}
		var all []event
		s, turned := State{}, false
		turn := func(s State, at int64) State {
			if at = max(at, s.At); !s.Absent(at) {
				s, _, _ = Apply(s, Op{Params: next, Cost: MaxLimit}, at) // a check that is refused
			}
			return s
		}
		now := int64(0)
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			now += 1 + 250*rapid.Int64Range(0, 60).Draw(t, "later")
			what := rapid.IntRange(0, 5).Draw(t, "what")
			switch {
			case what == 0 && !turned:
				turned, p = true, next
				s = turn(s, now)
				all = append(all, event{Reserved: Reserved{Made: now}, turns: true})
			case what < 3:
				for i := range all {
					if e := &all[i]; e.held {
						e.held = false
						if e.real > e.Tokens {
							s, _ = s.Take(p, e.real-e.Tokens, nil, now, 0)
						} else {
							s, _, _ = s.Back(e.Reserved, e.Tokens-e.real, nil, now, 0)
						}
						break
					}
				}
			default:
				op := Op{Params: p, Cost: rapid.Uint64Range(1, p.Capacity()).Draw(t, "cost")}
				after, res, _ := Apply(s, op, now)
				if s = after; res.Allowed {
					all = append(all, event{Reserved: Reserved{Params: p, Tokens: op.Cost, Made: now}, real: rapid.Uint64Range(0, 2*p.Limit).Draw(t, "real"), held: true})
				}
			}
			var ideal State
			for _, e := range all {
				cost := e.real
				if e.held {
					cost = e.Tokens
				}
				if e.turns {
					ideal = turn(ideal, e.Made)
				} else {
					ideal, _ = ideal.Take(e.Params, cost, nil, e.Made, 0)
				}
			}
			if got, want := s.Used(nil, now), ideal.Used(nil, now); got < want || s.Valid() != nil {
				t.Fatalf("%d spent, and %d would be: %+v, %+v, %+v", got, want, s, ideal, all)
			}
		}
	})
}

// TestSettledInItsPeriod: of a window of the calendar, exactly what its reservations have cost is spent in a period, those
// that are not settled by what they reserved, and debt of earlier ones. What comes late is not carried over.
func TestSettledInItsPeriod(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const period = 10
		clock, err := NewAligned(period * second)
		if err != nil {
			t.Fatal(err)
		}
		p := Params{Algorithm: CalendarWindow, Limit: rapid.Uint64Range(1, 40).Draw(t, "limit"), Period: int64(clock)}
		p.Burst = p.Limit + rapid.Uint64Range(0, 20).Draw(t, "carried at most")
		var held []Reserved
		var s State
		var used, capacity uint64 // of the period that is on
		end := int64(0)
		now := int64(1000 * period * second)
		spend := func(n uint64) {
			if now < end {
				used += n
				return
			}
			left := capacity - min(capacity, used)
			if now-now%(period*second) != end || s == (State{}) {
				left = 0
			}
			used, capacity = n, p.Limit+min(left, p.Burst-p.Limit)
			end = now - now%(period*second) + period*second
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now += rapid.Int64Range(0, 7).Draw(t, "later") * second
			if len(held) > 0 && rapid.Bool().Draw(t, "settle") {
				i := rapid.IntRange(0, len(held)-1).Draw(t, "which")
				h, cost := held[i], rapid.Uint64Range(0, 2*p.Limit).Draw(t, "cost")
				held = slices.Delete(held, i, i+1)
				if cost > h.Tokens {
					spend(cost - h.Tokens)
					s, _ = s.Take(p, cost-h.Tokens, nil, 5, now)
				} else if s, _, _ = s.Back(h, h.Tokens-cost, nil, 5, now); now < end && h.Made >= end-period*second {
					used -= h.Tokens - cost
				}
			} else {
				op := Op{Params: p, Cost: rapid.Uint64Range(1, p.Limit).Draw(t, "cost")}
				next, res, _ := Date(s, nil, op, 5, now)
				if res.Allowed {
					spend(op.Cost)
					held = append(held, Reserved{p, op.Cost, now, 0, next.At})
				} else if now >= end || used+op.Cost <= capacity {
					t.Fatalf("%+v with %d of %d spent", res, used, capacity)
				}
				s = next
			}
			got, _ := s.SpentAt(now)
			want := used
			if now >= end {
				want = 0
			}
			if got != want || s.Valid() != nil || now < end && s.Debt(p, nil, 5, now) != used-min(used, capacity) {
				t.Fatalf("%d spent, not %d: %+v", got, want, s)
			}
			if now < end && s.Limit+s.Carry != capacity {
				t.Fatalf("%d carried, not %d", s.Carry, capacity-p.Limit)
			}
		}
	})
}

// TestSettledAfterItsPeriod: what comes late is not carried over, and debt begins the next period.
func TestSettledAfterItsPeriod(t *testing.T) {
	clock, _ := NewAligned(10 * second)
	p := Params{Algorithm: CalendarWindow, Limit: 10, Period: int64(clock), Burst: 15}
	s, res, _ := Date(State{}, nil, Op{Params: p, Cost: 8}, 0, 5*second)
	r := Reserved{p, 8, 0, 0, s.At}
	if !res.Allowed || r.Ends != 10*second {
		t.Fatalf("%+v, %+v", res, s)
	}
	if on, _, given := s.Back(r, 8, nil, 0, 9*second); given != 8 || on.Spent != 0 || on.At != s.At {
		t.Errorf("while it is on: %d given back, %+v", given, on)
	}
	if late, _, given := s.Back(r, 8, nil, 0, 10*second); given != 0 || late != s {
		t.Errorf("when it is over: %d given back", given)
	}
	in, _ := s.Take(p, 3, nil, 0, 12*second)
	if in.At != 20*second || in.Spent != 3 || in.Carry != 2 {
		t.Errorf("debt in the next period: %+v", in)
	}
	if _, _, given := in.Back(r, 2, nil, 0, 12*second); given != 0 {
		t.Errorf("in the next period: %d given back", given)
	}
	if debt := in.Debt(Params{Algorithm: CalendarWindow, Limit: 1, Period: p.Period}, nil, 0, 12*second); debt != 2 {
		t.Errorf("%d beyond the capacity, which has no carry any more", debt)
	}
	first, _ := State{}.Take(p, 20, nil, 0, 5*second)
	if first.At != 10*second || first.Spent != 20 || first.Debt(p, nil, 0, 5*second) != 10 {
		t.Errorf("of nothing: %+v", first)
	}
	bucket := Params{Limit: 10, Period: second}
	if as, _ := s.Take(bucket, 4, nil, 7, 9*second); as.Algorithm != CalendarWindow || as.Spent != 12 {
		t.Errorf("of a bucket, while the period is on: %+v", as)
	}
	if as, _ := s.Take(bucket, 4, nil, 7, 10*second); as != (State{At: 7, Spent: 4, Limit: 10, Period: second}) {
		t.Errorf("of a bucket, when it is over: %+v", as)
	}
	spent := State{At: 0, Spent: 4, Limit: 10, Period: second}
	if as, _ := spent.Take(p, 4, nil, 0, 9*second); as.Algorithm != TokenBucket || as.Spent != 8 {
		t.Errorf("while it is a bucket: %+v", as)
	}
}

// TestBackOfALeakyBucket: nothing comes back, for turns behind it may have been told, and debt moves those that come.
func TestBackOfALeakyBucket(t *testing.T) {
	p := Params{Algorithm: LeakyBucket, Limit: 10, Period: second, Burst: 20}
	s, _, _ := Apply(State{}, Op{Params: p, Cost: 5}, 0)
	if after, _, given := s.Back(Reserved{p, 5, 0, 0, 0}, 5, nil, 1, 0); given != 0 || after != s {
		t.Errorf("%d given back: %+v", given, after)
	}
	s, _ = s.Take(p, 3, nil, 0, 0)
	if _, res, _ := Apply(s, Op{Params: p, Cost: 1, MaxDelay: second}, 0); res.Delay != 800_000_000 {
		t.Errorf("%+v", res)
	}
}
