package limit

import (
	"math"
	"math/big"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestPart(t *testing.T) {
	tests := []struct {
		name   string
		op     Op
		weight uint32
		want   Params
		bad    bool
	}{
		{name: "a quarter", op: bucket(20, 60*second, 0, 1), weight: FullWeight / 4, want: Params{Limit: 20, Period: 240 * second, Burst: 5}},
		{name: "of a burst", op: bucket(20, 60*second, 103, 1), weight: FullWeight / 4, want: Params{Limit: 20, Period: 240 * second, Burst: 25}},
		{name: "period rounded up", op: bucket(20, second, 0, 1), weight: 21845, want: Params{Limit: 20, Period: 3_000_045_778, Burst: 6}},
		{name: "all of it", op: bucket(20, second, 0, 20), weight: FullWeight, want: Params{Limit: 20, Period: second, Burst: 20}},
		{name: "the largest", op: bucket(MaxLimit, MaxPeriod, 0, MaxLimit), weight: FullWeight, want: Params{Limit: MaxLimit, Period: MaxPeriod, Burst: MaxLimit}},
		{name: "a refund above the capacity", op: refund(bucket(20, second, 0, 0), 19), weight: FullWeight / 4, want: Params{Limit: 20, Period: 4 * second, Burst: 5}},
		{name: "the cost fits", op: bucket(20, second, 0, 5), weight: FullWeight / 4, want: Params{Limit: 20, Period: 4 * second, Burst: 5}},
		{name: "the cost is too high", op: bucket(20, second, 0, 6), weight: FullWeight / 4, bad: true},
		{name: "no room for a token", op: bucket(3, second, 0, 1), weight: FullWeight / 4, bad: true},
		{name: "no room, and a refund", op: refund(bucket(3, second, 0, 0), 1), weight: FullWeight / 4, bad: true},
		{name: "too slow", op: bucket(20, MaxPeriod/4+1, 0, 1), weight: FullWeight / 4, bad: true},
		{name: "just fast enough", op: bucket(20, MaxPeriod/4, 0, 1), weight: FullWeight / 4, want: Params{Limit: 20, Period: MaxPeriod, Burst: 5}},
		{name: "far too slow", op: bucket(MaxLimit, MaxPeriod, 0, 1), weight: 1, bad: true},
		{name: "a window", op: window(20, second, 1), weight: FullWeight / 4, bad: true},
		{name: "no weight", op: bucket(20, second, 0, 1), weight: 0, bad: true},
		{name: "more than all", op: bucket(20, second, 0, 1), weight: FullWeight + 1, bad: true},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			got, ok := tc.op.Part(tc.weight)
			if ok == tc.bad || ok && got.Params != tc.want {
				t.Fatalf("%+v %v, want %+v %v", got.Params, ok, tc.want, !tc.bad)
			}
			if !ok {
				return
			}
			if err := got.Validate(); err != nil || got.Cost != tc.op.Cost || got.Refund != tc.op.Refund {
				t.Errorf("%+v: %v", got, err)
			}
		})
	}
}

// The period of a whole limit is found again from that of any part.
func TestPeriodsOfParts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, period := weights.Draw(t, "weight"), periods.Draw(t, "period")
		of, ok := stretched(period, w)
		exact := new(big.Int).Mul(big.NewInt(period), big.NewInt(FullWeight))
		if want := ceil(new(big.Rat).SetFrac(exact, big.NewInt(int64(w)))); ok != (want.Cmp(big.NewInt(MaxPeriod)) <= 0) || ok && want.Int64() != of {
			t.Fatalf("%d of weight %d: %d %v, want %s", period, w, of, ok, want)
		}
		if ok && unstretched(of, w) != period {
			t.Fatalf("%d of weight %d is %d, and that is of %d", period, w, of, unstretched(of, w))
		}
		some := periods.Draw(t, "any period")
		if back, ok := stretched(unstretched(some, w), w); ok && back < some {
			t.Fatalf("%d of weight %d is of %d, which has a part of %d", some, w, unstretched(some, w), back)
		}
	})
}

var weights = rapid.OneOf(rapid.Uint32Range(1, FullWeight), rapid.SampledFrom([]uint32{1, 2, FullWeight / 3, FullWeight / 2, FullWeight - 1, FullWeight}))

// states are Valid ones of any kind.
var states = rapid.Custom(func(t *rapid.T) State {
	s := State{At: rapid.Int64Range(0, 1e12).Draw(t, "at"), Limit: tokens.Draw(t, "limit"), Period: periods.Draw(t, "period"), Spent: tokens.Draw(t, "spent")}
	switch s.Algorithm = Algorithm(rapid.IntRange(0, 3).Draw(t, "algorithm")); s.Algorithm {
	case 3:
		return State{Weight: rapid.Uint32Range(0, FullWeight).Draw(t, "weight")}
	case TokenBucket:
		s.Weight = rapid.Uint32Range(0, FullWeight).Draw(t, "weight")
		s.Carry = rapid.Uint64Range(0, uint64(s.Period)-1).Draw(t, "carry")
	}
	return s
})

// Whatever state comes, what is made of it is valid, and has no more tokens
// available, in fractions of the capacity of the whole limit, than it had.
func TestWeightsGiveNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, capacity := states.Draw(t, "state"), tokens.Draw(t, "capacity")
		now := s.At + rapid.Int64Range(-1e9, 1e12).Draw(t, "later")
		before := available(t, s, capacity, now)
		valid := func(s State, what string) State {
			if err := s.Valid(); err != nil {
				t.Fatalf("%s: %+v: %v", what, s, err)
			}
			return s
		}
		no := func(more *big.Rat, what string, got any) {
			if more.Cmp(before) > 0 {
				t.Fatalf("%s: %s available in %+v, %s before", what, more.FloatString(6), got, before.FloatString(6))
			}
		}
		to := weights.Draw(t, "to")
		got := valid(s.Reweigh(to, capacity, now), "reweighed")
		if got.weight() != to || got.Weight == FullWeight || got.Spent == 0 && got != (State{Weight: got.Weight}) {
			t.Fatalf("reweighed to %d: %+v", to, got)
		}
		if got.Spent != MaxLimit {
			no(available(t, got, capacity, now), "reweighed", got)
		}
		got = valid(s.Lower(to, now), "lowered")
		if got.weight() > to && to < s.weight() || to >= s.weight() && got != s {
			t.Fatalf("lowered to %d: %+v", to, got)
		}
		no(available(t, got, capacity, now), "lowered", got)
		if before.Sign() < 0 {
			return // the share of what is missing may be lost with the weights that are missing
		}
		ws := shares(t)
		parts, sum := s.Divide(ws, now), new(big.Rat)
		for i, p := range parts {
			if valid(p, "part") != (State{}) {
				if p.Weight == 0 || p.Weight > ws[i] {
					t.Fatalf("weight %d of %d: %+v", i, ws[i], p)
				}
				sum = add(sum, available(t, p, capacity, now))
			}
		}
		no(sum, "divided", parts)
		if u := valid(Unite(parts, now), "united"); slices.ContainsFunc(parts, func(p State) bool { return p.Weight != 0 }) {
			no(available(t, u, capacity, now), "united", u)
		}
	})
}

// available returns what of the whole capacity is there: exactly, and below 0 if more is
// spent than fits.
func available(t failer, s State, capacity uint64, now int64) *big.Rat {
	t.Helper()
	if s.Spent != 0 {
		now = max(now, s.At)
	}
	l := s.level(now)
	has := new(big.Rat).SetFrac(new(big.Int).Mul(new(big.Int).SetUint64(capacity), big.NewInt(int64(s.weight()))), big.NewInt(FullWeight))
	has = sub(has, whole(l.spent))
	if l.spent != 0 && s.Algorithm == TokenBucket {
		has = add(has, rat(l.carry, uint64(s.Period)))
	}
	return has
}

// shares are weights of parts, together at most FullWeight.
func shares(t *rapid.T) (ws []uint32) {
	left := uint32(FullWeight)
	for n := rapid.IntRange(1, 5).Draw(t, "parts"); n > 0; n-- {
		w := rapid.OneOf(rapid.Uint32Range(1, max(left/2, 1)), rapid.SampledFrom([]uint32{max(left/uint32(n), 1)})).Draw(t, "weight")
		if w > left {
			break
		}
		ws, left = append(ws, w), left-w
	}
	return ws
}

// split is a limit and its parts as nodes have them: weights are agreed on, get to
// those that act by them some time later, and to the states at the next operation.
type split struct {
	t      *rapid.T
	p      Params
	now    int64
	whole  State
	parts  []State
	agreed []uint32
	known  []uint32 // by the owner of each part
	cut    bool     // not all have said that they have applied the last cut
}

// check is what an owner does.
func (s *split) check(op Op) bool {
	if s.parts == nil {
		if s.whole.Weight != 0 {
			s.whole = s.whole.Reweigh(FullWeight, op.Capacity(), s.now)
		}
		next, res, _ := Apply(s.whole, op, s.now)
		s.whole = next
		return res.Allowed
	}
	i := rapid.IntRange(0, len(s.parts)-1).Draw(s.t, "part")
	part, ok := op.Part(s.known[i])
	if !ok {
		return false
	}
	state := s.parts[i]
	switch state.Weight {
	case s.known[i]:
	case 0:
		state = part.Emptied(s.now)
	default:
		state = state.Reweigh(s.known[i], op.Capacity(), s.now)
	}
	state.Weight = 0
	next, res, _ := Apply(state, part, s.now)
	next.Weight = s.known[i]
	s.parts[i] = next
	return res.Allowed
}

// weigh agrees on other weights: lower ones, or if all have applied these, higher.
func (s *split) weigh() {
	if !s.cut {
		left := uint32(FullWeight)
		for _, w := range s.agreed {
			left -= w
		}
		for i := range s.agreed {
			more := rapid.OneOf(rapid.Uint32Range(0, left), rapid.Just(left)).Draw(s.t, "raised")
			s.agreed[i] += more
			left -= more
		}
		if rapid.Bool().Draw(s.t, "raised only") {
			return
		}
	}
	for i := range s.agreed {
		if s.agreed[i] > 1 && rapid.Bool().Draw(s.t, "cut") {
			s.agreed[i] -= rapid.Uint32Range(0, s.agreed[i]-1).Draw(s.t, "by")
			s.cut = true
		}
	}
}

// learn has the owner of a part act by the present weights.
func (s *split) learn(i int) { s.known[i] = s.agreed[i] }

// weighed has all owners apply what was cut.
func (s *split) weighed() {
	for i := range s.parts {
		s.learn(i)
		if s.parts[i].Weight > s.known[i] {
			s.parts[i] = s.parts[i].Lower(s.known[i], s.now)
		}
	}
	s.cut = false
}

func (s *split) step() (asked bool) {
	switch what := rapid.IntRange(0, 11).Draw(s.t, "what"); {
	case what == 0 && s.parts == nil:
		s.agreed = shares(s.t)
		s.known, s.cut = slices.Clone(s.agreed), false
		s.parts = s.whole.Divide(s.agreed, s.now)
	case what == 0:
		s.whole, s.parts = Unite(s.parts, s.now), nil
	case what == 1 && s.parts != nil:
		s.weigh()
	case what == 2 && s.parts != nil:
		s.weighed()
	case what == 3 && s.parts != nil:
		s.learn(rapid.IntRange(0, len(s.parts)-1).Draw(s.t, "learns"))
	case what == 4 && s.parts != nil && rapid.IntRange(0, 3).Draw(s.t, "lost") == 0:
		s.parts[rapid.IntRange(0, len(s.parts)-1).Draw(s.t, "which")] = State{}
	default:
		return true
	}
	return false
}

// Whatever is divided, weighed anew, lost and united, and whenever the owners come to
// know of it: in any time at most the burst is admitted, and what the rate brings
// back.
func TestPartsNeverAdmitMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Params{Limit: rapid.Uint64Range(1, 200).Draw(t, "limit"), Period: rapid.SampledFrom([]int64{second, 7_919, 60 * second}).Draw(t, "period"),
			Burst: rapid.Uint64Range(0, 200).Draw(t, "burst")}
		s := &split{t: t, p: p}
		burst, rate := whole(p.Capacity()), rat(p.Limit, uint64(p.Period))
		room := burst
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			step := pause(t, p)
			if rapid.IntRange(0, 2).Draw(t, "at once") != 0 {
				step = 0
			}
			s.now += step
			if room = add(room, mul(between(0, step), rate)); room.Cmp(burst) > 0 {
				room = burst
			}
			if !s.step() {
				continue
			}
			for op := anOp(t, p); s.check(op) && !op.Peek; {
				if room = sub(room, whole(op.Cost)); room.Sign() < 0 {
					t.Fatalf("admitted %s more than %+v does", room.Neg(room).FloatString(6), p)
				}
			}
			for _, part := range append(slices.Clone(s.parts), s.whole) {
				if err := part.Valid(); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// Parts that nobody weighs anew refuse little that the whole limit would admit: after
// a time in which all comes back, all of it is there but for a token a part.
func TestPartsFillUp(t *testing.T) {
	op := bucket(100, 10*second, 0, 1)
	s := op.Emptied(0)
	ws := []uint32{FullWeight / 2, FullWeight / 4, FullWeight / 4}
	parts := s.Divide(ws, 0)
	for i, want := range []int{50, 25, 25} {
		part, ok := op.Part(ws[i])
		if !ok {
			t.Fatal("no part")
		}
		n := 0
		state := parts[i]
		for state.Weight = 0; ; n++ {
			next, res, _ := Apply(state, part, 10*second)
			if state = next; !res.Allowed {
				break
			}
		}
		if n != want {
			t.Errorf("part %d has %d tokens, want %d", i, n, want)
		}
		state.Weight = ws[i]
		parts[i] = state
	}
	if u := Unite(parts, 15*second); u != (State{TokenBucket, 0, 15 * second, 50, 0, 100, 10 * second}) {
		t.Errorf("united after half of the period: %+v", u)
	}
	if u := Unite(parts, 20*second); u != (State{}) {
		t.Errorf("united after the period: %+v", u)
	}
}

// A part that sleeps while its weight is cut and raised again has its tokens of before
// only as far as they fit the lower weight: the others may have been given to another
// part meanwhile.
func TestCutAndRaisedAsleep(t *testing.T) {
	op := bucket(100, 1000*second, 0, 1)
	drain := func(s *State, weight uint32, now int64) (n int) {
		part, _ := op.Part(weight)
		state := s.Reweigh(weight, 100, now)
		for state.Weight = 0; ; n++ {
			next, res, _ := Apply(state, part, now)
			if state = next; !res.Allowed {
				break
			}
		}
		state.Weight = weight
		*s = state
		return n
	}
	parts := State{}.Divide([]uint32{FullWeight / 2, FullWeight / 2}, 0)
	sleeper, other := parts[0], parts[1]
	admitted := drain(&other, FullWeight/2, 0)
	sleeper = sleeper.Lower(FullWeight/4, 0)
	other = other.Reweigh(3*(FullWeight/4), 100, 0)
	const later = 1000*second + 1000 // 75 have come back, in a period that was rounded up
	admitted += drain(&other, 3*(FullWeight/4), later)
	other = other.Reweigh(FullWeight/4, 100, later)
	admitted += drain(&sleeper, 3*(FullWeight/4), later)
	if admitted != 50+75+25 {
		t.Errorf("admitted %d", admitted)
	}
}

func TestReweigh(t *testing.T) {
	half := func(spent uint64) State {
		return State{TokenBucket, FullWeight / 2, 0, spent, 0, 10, 20 * second}
	}
	tests := []struct {
		name  string
		state State
		to    uint32
		now   int64
		want  State
	}{
		{name: "lower: what still fits stays", state: half(40), to: FullWeight / 4, want: State{TokenBucket, FullWeight / 4, 0, 15, 0, 10, 40 * second}},
		{name: "lower: full stays full", state: half(20), to: FullWeight / 4, want: State{Weight: FullWeight / 4}},
		{name: "lower: at the lower rate", state: half(40), to: FullWeight / 4, now: 40 * second, want: State{TokenBucket, FullWeight / 4, 40 * second, 5, 0, 10, 40 * second}},
		{name: "higher: no tokens", state: half(40), to: FullWeight, want: State{TokenBucket, 0, 0, 90, 0, 10, 10 * second}},
		{name: "higher: at the lower rate", state: half(40), to: FullWeight, now: 40 * second, want: State{TokenBucket, 0, 40 * second, 70, 0, 10, 10 * second}},
		{name: "higher: of a full one", state: State{Weight: FullWeight / 2}, to: FullWeight, now: 7, want: State{TokenBucket, 0, 7, 50, 0, 1, MaxPeriod}},
		{name: "higher: rounded up", state: State{TokenBucket, 1, 0, 1, 0, 10, 10 * second * FullWeight}, to: 2, want: State{TokenBucket, 2, 0, 2, 0, 10, 5 * second * FullWeight}},
		{name: "lower: rounded down", state: State{TokenBucket, 2, 0, 1, 0, 10, 5 * second * FullWeight}, to: 1, want: State{TokenBucket, 1, 0, 1, 0, 10, 10 * second * FullWeight}},
		{name: "the same", state: half(40), to: FullWeight / 2, now: 2 * second, want: State{TokenBucket, FullWeight / 2, 2 * second, 39, 0, 10, 20 * second}},
		{name: "a fraction of a token", state: half(40), to: FullWeight, now: 3 * second, want: State{TokenBucket, 0, 3 * second, 89, uint64(5 * second), 10, 10 * second}},
		{name: "time that goes back", state: State{TokenBucket, FullWeight / 2, 9, 40, 0, 10, 20 * second}, to: FullWeight, now: 5, want: State{TokenBucket, 0, 9, 90, 0, 10, 10 * second}},
		{name: "a window", state: State{FixedWindow, 0, 0, 40, 0, 100, 10 * second}, to: FullWeight / 2, now: second, want: State{Weight: FullWeight / 2}},
		{name: "a slow one has a lower limit", state: State{TokenBucket, 0, 0, 90, 0, 100, MaxPeriod}, to: FullWeight / 2, want: State{TokenBucket, FullWeight / 2, 0, 40, 0, 50, MaxPeriod}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.state.Reweigh(tc.to, 100, tc.now); got != tc.want {
				t.Errorf("%+v\nwant %+v", got, tc.want)
			}
		})
	}
}

// A part that was lost counts as one of which all is spent, and one to which a lower
// weight has not got counts no more than it may.
func TestUniteWithoutAll(t *testing.T) {
	quarter := State{TokenBucket, FullWeight / 4, 0, 5, 0, 100, 40 * second}
	if u := Unite([]State{quarter, {}, quarter, {Weight: FullWeight / 4}}, 0); u != (State{TokenBucket, 3 * (FullWeight / 4), 0, 10, 0, 100, 13_333_333_334}) {
		t.Errorf("one is lost: %+v", u)
	} else if u = u.Reweigh(FullWeight, 100, 0); u != (State{TokenBucket, 0, 0, 35, 0, 100, 10 * second}) {
		t.Errorf("one is lost: %+v", u)
	}
	if u := Unite(make([]State, 3), 0); u.Reweigh(FullWeight, 1000, 0).Spent != 1000 {
		t.Errorf("all are lost: %+v", u)
	}
	uncut := State{TokenBucket, FullWeight / 2, 0, 0, 0, 100, 20 * second}
	uncut.Spent = 30
	if u := Unite([]State{uncut, uncut, quarter}, 0); u != (State{TokenBucket, 0, 0, 65, 0, 100, 10 * second}) {
		t.Errorf("more than all: %+v", u)
	}
	slower := State{TokenBucket, FullWeight / 4, 0, 5, 0, 10, 40 * second}
	if u := Unite([]State{quarter, slower, quarter, quarter}, 0); u != (State{TokenBucket, 0, 0, 20, 0, 10, 10 * second}) {
		t.Errorf("one is slower: %+v", u)
	}
	if s := (State{Weight: 5}); s.Absent(math.MaxInt64) || s.AbsentAt() != math.MaxInt64 || s.Valid() != nil {
		t.Errorf("nothing spent, but a weight: %v %v", s.AbsentAt(), s.Valid())
	}
}
