package limit

import (
	"errors"
	"math"
	"testing"

	"github.com/keystead/keystead/internal/failure"
)

const second = int64(1e9)

func bucket(limit uint64, period int64, burst, cost uint64) Op {
	return Op{Params: Params{TokenBucket, limit, period, burst}, Cost: cost}
}

func window(limit uint64, period int64, cost uint64) Op {
	return Op{Params: Params{FixedWindow, limit, period, 0}, Cost: cost}
}

func peek(op Op) Op { op.Peek = true; return op }

func TestApply(t *testing.T) {
	type step struct {
		at   int64
		op   Op
		want Result
	}
	minute := 60 * second
	tests := []struct {
		name  string
		steps []step
	}{
		{name: "twenty a minute: one token every three seconds", steps: []step{
			{op: bucket(20, minute, 0, 20), want: Result{Allowed: true, Capacity: 20, ResetAfter: minute}},
			{at: 1, op: bucket(20, minute, 0, 1), want: Result{Capacity: 20, RetryAfter: 3*second - 1, ResetAfter: minute - 1}},
			{at: 3*second - 1, op: bucket(20, minute, 0, 1), want: Result{Capacity: 20, RetryAfter: 1, ResetAfter: 57*second + 1}},
			{at: 3 * second, op: bucket(20, minute, 0, 1), want: Result{Allowed: true, Capacity: 20, ResetAfter: minute}},
		}},
		{name: "seven a minute is full after sixty seconds exactly", steps: []step{
			{op: bucket(7, minute, 0, 7), want: Result{Allowed: true, Capacity: 7, ResetAfter: minute}},
			{at: 8_571_428_571, op: bucket(7, minute, 0, 1), want: Result{Capacity: 7, RetryAfter: 1, ResetAfter: 51_428_571_429}},
			{at: 8_571_428_572, op: peek(bucket(7, minute, 0, 1)), want: Result{Allowed: true, Capacity: 7, Remaining: 1, ResetAfter: 51_428_571_428}},
			{at: minute - 1, op: peek(bucket(7, minute, 0, 7)), want: Result{Capacity: 7, Remaining: 6, RetryAfter: 1, ResetAfter: 1}},
			{at: minute, op: peek(bucket(7, minute, 0, 7)), want: Result{Allowed: true, Capacity: 7, Remaining: 7}},
		}},
		{name: "burst apart from rate", steps: []step{
			{op: bucket(1, second, 5, 5), want: Result{Allowed: true, Capacity: 5, ResetAfter: 5 * second}},
			{at: 2 * second, op: bucket(1, second, 5, 3), want: Result{Capacity: 5, Remaining: 2, RetryAfter: second, ResetAfter: 3 * second}},
			{at: 2 * second, op: bucket(1, second, 5, 2), want: Result{Allowed: true, Capacity: 5, ResetAfter: 5 * second}},
		}},
		{name: "a peek spends nothing", steps: []step{
			{op: peek(bucket(2, second, 0, 2)), want: Result{Allowed: true, Capacity: 2, Remaining: 2}},
			{op: bucket(2, second, 0, 2), want: Result{Allowed: true, Capacity: 2, ResetAfter: second}},
			{op: peek(bucket(2, second, 0, 1)), want: Result{Capacity: 2, RetryAfter: second / 2, ResetAfter: second}},
		}},
		{name: "a raised limit gives nothing back", steps: []step{
			{op: bucket(10, second, 0, 10), want: Result{Allowed: true, Capacity: 10, ResetAfter: second}},
			{op: bucket(15, second, 0, 5), want: Result{Allowed: true, Capacity: 15, ResetAfter: second}},
			{op: bucket(15, second, 0, 1), want: Result{Capacity: 15, RetryAfter: 66_666_667, ResetAfter: second}},
		}},
		{name: "a lowered limit keeps what was spent above it", steps: []step{
			{op: bucket(10, second, 0, 10), want: Result{Allowed: true, Capacity: 10, ResetAfter: second}},
			{op: bucket(5, second, 0, 1), want: Result{Capacity: 5, Debt: 5, RetryAfter: 1_200_000_000, ResetAfter: 2 * second}},
			// Five a second from then on: after one second five of ten are back.
			{at: second, op: bucket(5, second, 0, 1), want: Result{Capacity: 5, RetryAfter: 200_000_000, ResetAfter: second}},
		}},
		{name: "what came back under the old rate stays back", steps: []step{
			{op: bucket(10, second, 0, 10), want: Result{Allowed: true, Capacity: 10, ResetAfter: second}},
			{at: second / 2, op: bucket(1, minute, 10, 5), want: Result{Allowed: true, Capacity: 10, ResetAfter: 600 * second}},
		}},
		{name: "a peek with other parameters changes nothing", steps: []step{
			{op: bucket(10, second, 0, 10), want: Result{Allowed: true, Capacity: 10, ResetAfter: second}},
			{at: second / 2, op: peek(bucket(1, minute, 10, 1)), want: Result{Allowed: true, Capacity: 10, Remaining: 5, ResetAfter: 300 * second}},
			{at: second, op: bucket(10, second, 0, 10), want: Result{Allowed: true, Capacity: 10, ResetAfter: second}},
		}},
		{name: "a window opens with its first hit", steps: []step{
			{at: 5 * second, op: window(3, 10*second, 2), want: Result{Allowed: true, Capacity: 3, Remaining: 1, ResetAfter: 10 * second}},
			{at: 14 * second, op: window(3, 10*second, 2), want: Result{Capacity: 3, Remaining: 1, RetryAfter: second, ResetAfter: second}},
			{at: 15*second - 1, op: window(3, 10*second, 1), want: Result{Allowed: true, Capacity: 3, ResetAfter: 1}},
			{at: 15 * second, op: window(3, 10*second, 3), want: Result{Allowed: true, Capacity: 3, ResetAfter: 10 * second}},
		}},
		{name: "a longer period keeps the window open", steps: []step{
			{op: window(3, 10*second, 3), want: Result{Allowed: true, Capacity: 3, ResetAfter: 10 * second}},
			{at: 9 * second, op: window(3, 20*second, 1), want: Result{Capacity: 3, RetryAfter: 11 * second, ResetAfter: 11 * second}},
			{at: 15 * second, op: window(3, 20*second, 1), want: Result{Capacity: 3, RetryAfter: 5 * second, ResetAfter: 5 * second}},
		}},
		{name: "a shorter period gives nothing back early", steps: []step{
			{op: window(3, 10*second, 2), want: Result{Allowed: true, Capacity: 3, Remaining: 1, ResetAfter: 10 * second}},
			{at: 9 * second, op: window(3, 2*second, 2), want: Result{Capacity: 3, Remaining: 1, RetryAfter: 2 * second, ResetAfter: 2 * second}},
			{at: 11 * second, op: window(3, 2*second, 2), want: Result{Allowed: true, Capacity: 3, Remaining: 1, ResetAfter: 2 * second}},
		}},
		{name: "a bucket that becomes a window", steps: []step{
			{op: bucket(10, 10*second, 0, 8), want: Result{Allowed: true, Capacity: 10, Remaining: 2, ResetAfter: 8 * second}},
			{at: 3 * second, op: window(10, 10*second, 5), want: Result{Allowed: true, Capacity: 10, ResetAfter: 10 * second}},
		}},
		{name: "a window that becomes a bucket", steps: []step{
			{op: window(10, 10*second, 8), want: Result{Allowed: true, Capacity: 10, Remaining: 2, ResetAfter: 10 * second}},
			{at: 3 * second, op: bucket(10, 10*second, 0, 3), want: Result{Capacity: 10, Remaining: 2, RetryAfter: second, ResetAfter: 8 * second}},
		}},
		{name: "a clock that goes back stands still", steps: []step{
			{at: 10 * second, op: bucket(1, second, 2, 1), want: Result{Allowed: true, Capacity: 2, Remaining: 1, ResetAfter: second}},
			{at: 5 * second, op: bucket(1, second, 2, 2), want: Result{Capacity: 2, Remaining: 1, RetryAfter: second, ResetAfter: second}},
			{at: 10 * second, op: window(2, second, 2), want: Result{Capacity: 2, Remaining: 1, RetryAfter: second, ResetAfter: second}},
		}},
		{name: "the largest of everything", steps: []step{
			{at: math.MinInt64 / 2, op: bucket(1, MaxPeriod, MaxLimit, MaxLimit), want: Result{Allowed: true, Capacity: MaxLimit, ResetAfter: math.MaxInt64}},
			{at: math.MaxInt64 / 2, op: bucket(1, MaxPeriod, MaxLimit, MaxLimit), want: Result{Capacity: MaxLimit, Remaining: 291, RetryAfter: math.MaxInt64, ResetAfter: math.MaxInt64}},
			{at: math.MaxInt64 / 2, op: bucket(MaxLimit, MinPeriod, 0, 291), want: Result{Allowed: true, Capacity: MaxLimit, ResetAfter: MinPeriod}},
		}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			var s State
			for i, st := range tc.steps {
				if err := st.op.Validate(); err != nil {
					t.Fatalf("step %d: %v", i, err)
				}
				next, got, changed := Apply(s, st.op, st.at)
				if got != st.want {
					t.Fatalf("step %d:\n got %+v\nwant %+v", i, got, st.want)
				}
				if err := next.Valid(); err != nil {
					t.Fatalf("step %d: %v", i, err)
				}
				if !changed && next != s {
					t.Fatalf("step %d: changed to %+v and says no", i, next)
				}
				s = next
			}
		})
	}
}

func TestValidate(t *testing.T) {
	tests := []struct {
		op    Op
		field string
	}{
		{op: bucket(0, second, 0, 1), field: "limit"},
		{op: bucket(MaxLimit+1, second, 0, 1), field: "limit"},
		{op: bucket(1, MinPeriod-1, 0, 1), field: "period_ns"},
		{op: bucket(1, MaxPeriod+1, 0, 1), field: "period_ns"},
		{op: bucket(1, -5, 0, 1), field: "period_ns"},
		{op: bucket(1, second, MaxLimit+1, 1), field: "burst"},
		{op: bucket(1, second, 0, 0), field: "cost"},
		{op: bucket(1, second, 0, 2), field: "cost"},
		{op: bucket(5, second, 2, 3), field: "cost"},
		{op: Op{Params: Params{FixedWindow, 5, second, 2}, Cost: 1}, field: "burst"},
		{op: Op{Params: Params{9, 5, second, 0}, Cost: 1}, field: "algorithm"},
		{op: Op{Params: Params{SlidingWindow, 5, second, 2}, Cost: 1}, field: "burst"},
		{op: Op{Params: Params{SlidingWindow, 5, second, 0}, Cost: 6}, field: "cost"},
		{op: Op{Params: Params{TokenBucket, 5, second, 0}, Cost: 1, Refund: 1}, field: "refund"},
		{op: Op{Params: Params{TokenBucket, 5, second, 0}, Peek: true, Refund: 1}, field: "refund"},
		{op: refund(bucket(5, second, 0, 0), MaxLimit+1), field: "refund"},
		{op: refund(bucket(5, second, 0, 0), MaxLimit)},
		{op: sliding(5, second, 5)},
		{op: bucket(MaxLimit, MaxPeriod, MaxLimit, MaxLimit)},
		{op: window(5, second, 5)},
	}
	for _, tc := range tests {
		err := tc.op.Validate()
		var fe *failure.Error
		if errors.As(err, &fe); (fe == nil) != (tc.field == "") || fe != nil && fe.Field != tc.field {
			t.Errorf("%+v: %v, want field %q", tc.op, err, tc.field)
		}
	}
}

// A denied hit stores changed parameters, after what came back under the old
// ones; a denied hit without a change, and any peek, store nothing.
func TestDeniedHitStoresChangedParameters(t *testing.T) {
	spent := State{TokenBucket, 0, 0, 10, 0, 10, 10 * second}
	inWindow := State{FixedWindow, 0, 0, 10, 0, 10, 10 * second}
	tests := []struct {
		name  string
		state State
		op    Op
		now   int64
		want  State // the same state: nothing is to be stored
	}{
		{name: "nothing changed", state: spent, op: bucket(10, 10*second, 0, 5), now: 3 * second, want: spent},
		{name: "only the burst changed, which is not stored", state: spent, op: bucket(10, 10*second, 8, 5), now: 3 * second, want: spent},
		{name: "a peek", state: spent, op: peek(bucket(1, second, 0, 1)), now: 3 * second, want: spent},
		{name: "limit", state: spent, op: bucket(5, 10*second, 0, 1), now: 3 * second,
			want: State{TokenBucket, 0, 3 * second, 7, 0, 5, 10 * second}},
		{name: "period: a third of a token, rounded down", state: State{TokenBucket, 0, 0, 9, 0, 1, 3_000}, op: bucket(1, 1_000, 0, 1), now: 1_000,
			want: State{TokenBucket, 0, 1_000, 9, 333, 1, 1_000}},
		{name: "algorithm, to a window", state: spent, op: window(8, second, 2), now: 3 * second,
			want: State{FixedWindow, 0, 3 * second, 7, 0, 8, second}},
		{name: "algorithm, to a bucket", state: inWindow, op: bucket(8, second, 0, 2), now: 3 * second,
			want: State{TokenBucket, 0, 3 * second, 10, 0, 8, second}},
		{name: "window's limit", state: inWindow, op: window(4, 10*second, 2), now: 3 * second,
			want: State{FixedWindow, 0, 0, 10, 0, 4, 10 * second}},
		{name: "window's period, still running", state: inWindow, op: window(10, 4*second, 2), now: 3 * second,
			want: State{FixedWindow, 0, 0, 10, 0, 10, 4 * second}},
		{name: "window's period, which ends now", state: inWindow, op: window(10, 3*second, 2), now: 3 * second,
			want: State{FixedWindow, 0, 3 * second, 10, 0, 10, 3 * second}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			next, res, changed := Apply(tc.state, tc.op, tc.now)
			if res.Allowed || next != tc.want || changed != (tc.want != tc.state) {
				t.Errorf("got %+v %+v, changed %v, want %+v", next, res, changed, tc.want)
			}
		})
	}
}

// Sums that carry from the low half of 128 bits into the high one.
func TestCarryBetweenHalves(t *testing.T) {
	// 18,446,744 ns at MaxLimit are 2^64 - 73,709,551,616 parts of a token, and
	// the carry takes them over 2^64: 583 tokens.
	refill := State{TokenBucket, 0, 0, 1_000, 100_000_000_000, MaxLimit, MaxPeriod}
	// 584 tokens are 2^64 + 20,737,526,290,448,384 parts: a greater carry borrows
	// from the high half, one that leaves 2^64 - 1 lets rounding up go over 2^64.
	borrow := State{TokenBucket, 0, 0, 586, MaxPeriod - 1, 3, MaxPeriod}
	roundUp := State{TokenBucket, 0, 0, 600, 20_737_526_290_448_385, 3, MaxPeriod}
	tests := []struct {
		name  string
		state State
		op    Op
		now   int64
		want  Result
	}{
		{name: "what came back", state: refill, op: peek(bucket(MaxLimit, MaxPeriod, 1_000, 583)), now: 18_446_744,
			want: Result{Allowed: true, Capacity: 1_000, Remaining: 583, ResetAfter: 13_175_656}},
		{name: "until it came back, borrowing", state: borrow, op: peek(bucket(3, MaxPeriod, 586, 584)), now: 0,
			want: Result{Capacity: 586, RetryAfter: 6_145_286_400_000_000_001, ResetAfter: 6_166_368_000_000_000_001}},
		{name: "until it came back, rounding up over 2^64", state: roundUp, op: peek(bucket(3, MaxPeriod, 600, 584)), now: 0,
			want: Result{Capacity: 600, RetryAfter: 6_148_914_691_236_517_205, ResetAfter: 6_317_567_491_236_517_205}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			if _, got, _ := Apply(tc.state, tc.op, tc.now); got != tc.want {
				t.Errorf("got %+v\nwant %+v", got, tc.want)
			}
			checkAgainstModel(t, tc.state, tc.op, tc.now)
		})
	}
}

func TestAbsent(t *testing.T) {
	tests := []struct {
		name  string
		state State
		at    int64
	}{
		{name: "nothing spent", state: State{}, at: math.MinInt64},
		{name: "bucket", state: State{TokenBucket, 0, 100, 3, 400, 2, 1_000}, at: 1_400},
		{name: "bucket, rounded up", state: State{TokenBucket, 0, 100, 3, 1, 7, 1_000}, at: 529},
		{name: "window", state: State{FixedWindow, 0, 100, 3, 0, 3, 1_000}, at: 1_100},
		{name: "just in time", state: State{FixedWindow, 0, math.MaxInt64 - 1_000, 3, 0, 3, 1_000}, at: math.MaxInt64},
		{name: "beyond time", state: State{FixedWindow, 0, math.MaxInt64 - 999, 3, 0, 3, 1_000}, at: math.MaxInt64},
		{name: "far beyond time", state: State{TokenBucket, 0, 0, MaxLimit, 0, 1, MaxPeriod}, at: math.MaxInt64},
		{name: "more than MaxInt64 later", state: State{TokenBucket, 0, -9e18, 1_000, 0, 1, 1e16}, at: 1e18},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			if err := tc.state.Valid(); err != nil {
				t.Fatal(err)
			}
			if at := tc.state.AbsentAt(); at != tc.at {
				t.Errorf("absent at %d, want %d", at, tc.at)
			}
			if !tc.state.Absent(tc.at) && tc.at != math.MaxInt64 {
				t.Error("not absent at that moment")
			}
			if tc.at > math.MinInt64 && tc.state.Absent(tc.at-1) {
				t.Error("absent before")
			}
		})
	}
}

func TestValid(t *testing.T) {
	good := State{TokenBucket, 0, -5, MaxLimit, MaxPeriod - 1, MaxLimit, MaxPeriod}
	tests := []struct {
		name  string
		state State
		bad   bool
	}{
		{name: "zero", state: State{}},
		{name: "largest", state: good},
		{name: "window", state: State{FixedWindow, 0, 0, 1, 0, 1, MinPeriod}},
		{name: "nothing spent, but not zero", state: State{At: 1}, bad: true},
		{name: "algorithm", state: State{3, 0, 0, 1, 0, 1, MinPeriod}, bad: true},
		{name: "spent", state: State{TokenBucket, 0, 0, MaxLimit + 1, 0, 1, MinPeriod}, bad: true},
		{name: "no limit", state: State{TokenBucket, 0, 0, 1, 0, 0, MinPeriod}, bad: true},
		{name: "limit", state: State{TokenBucket, 0, 0, 1, 0, MaxLimit + 1, MinPeriod}, bad: true},
		{name: "short period", state: State{TokenBucket, 0, 0, 1, 0, 1, MinPeriod - 1}, bad: true},
		{name: "long period", state: State{TokenBucket, 0, 0, 1, 0, 1, MaxPeriod + 1}, bad: true},
		{name: "carry of a whole token", state: State{TokenBucket, 0, 0, 1, MinPeriod, 1, MinPeriod}, bad: true},
		{name: "weight, nothing spent", state: State{Weight: FullWeight}},
		{name: "weight", state: State{TokenBucket, 1, 0, 1, 0, 1, MinPeriod}},
		{name: "more than the whole weight", state: State{TokenBucket, FullWeight + 1, 0, 1, 0, 1, MinPeriod}, bad: true},
		{name: "weight and a moment, but nothing spent", state: State{Weight: 1, At: 1}, bad: true},
		{name: "window with a weight", state: State{FixedWindow, 1, 0, 1, 0, 1, MinPeriod}, bad: true},
		{name: "window with a carry", state: State{FixedWindow, 0, 0, 1, 1, 1, MinPeriod}, bad: true},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			if err := tc.state.Valid(); (err != nil) != tc.bad {
				t.Errorf("%v, want an error: %v", err, tc.bad)
			}
		})
	}
}

func FuzzApply(f *testing.F) {
	f.Add(uint8(0), int64(0), uint64(5), uint64(0), uint64(10), second, uint8(0), uint64(10), second, uint64(0), uint64(1), false, int64(5))
	f.Add(uint8(1), int64(-9), uint64(MaxLimit), uint64(0), uint64(1), int64(MaxPeriod), uint8(0), uint64(MaxLimit), int64(MinPeriod), uint64(1), uint64(1), true, int64(math.MaxInt64))
	f.Add(uint8(0), int64(math.MinInt64), uint64(MaxLimit), uint64(MaxPeriod-1), uint64(MaxLimit), int64(MaxPeriod), uint8(1), uint64(1), int64(MinPeriod), uint64(0), uint64(1), false, int64(math.MaxInt64))
	f.Fuzz(func(t *testing.T, alg uint8, at int64, spent, carry, limit uint64, period int64,
		opAlg uint8, opLimit uint64, opPeriod int64, burst, cost uint64, peek bool, now int64) {
		// Fold what is drawn into range: most draws would not be valid otherwise.
		fold := func(v, least, most uint64) uint64 { return least + (v-least)%(most-least+1) }
		s := State{Algorithm: Algorithm(alg % 2), At: at, Spent: spent % (MaxLimit + 1)}
		if s.Spent == 0 {
			s = State{}
		} else {
			s.Limit, s.Period = fold(limit, 1, MaxLimit), int64(fold(uint64(period), MinPeriod, MaxPeriod))
			if s.Algorithm == TokenBucket {
				s.Carry = carry % uint64(s.Period)
			}
		}
		op := Op{Params: Params{Algorithm: Algorithm(opAlg % 2), Limit: fold(opLimit, 1, MaxLimit),
			Period: int64(fold(uint64(opPeriod), MinPeriod, MaxPeriod))}, Peek: peek}
		if op.Algorithm == TokenBucket {
			op.Burst = burst % (MaxLimit + 1)
		}
		op.Cost = fold(cost, 1, op.Capacity())
		if s.Valid() != nil || op.Validate() != nil {
			t.Fatalf("not in range: %+v %+v", s, op)
		}
		checkAgainstModel(t, s, op, now)
	})
}

func TestAllocatesNothing(t *testing.T) {
	var s State
	var now int64
	ops := []Op{
		bucket(7, 60*second, 0, 1), bucket(7, 60*second, 0, 7), peek(bucket(7, 60*second, 0, 1)),
		bucket(9, 30*second, 20, 1), window(3, second, 1), window(2, second/3, 2),
	}
	if n := testing.AllocsPerRun(1000, func() {
		now += second / 3
		op := ops[int(now/(second/3))%len(ops)]
		if op.Validate() != nil || s.Valid() != nil {
			t.Fatal("not valid")
		}
		s, _, _ = Apply(s, op, now)
		_, _ = s.Absent(now), s.AbsentAt()
	}); n != 0 {
		t.Errorf("%v allocations per check", n)
	}
}

func BenchmarkApply(b *testing.B) {
	const minute = 60 * second
	benchmarks := []struct {
		name string
		ops  [2]Op // in turn
		step int64 // ns between them
	}{
		{name: "allowed", ops: [2]Op{bucket(1000, second, 0, 1), bucket(1000, second, 0, 1)}, step: second / 500},
		{name: "denied", ops: [2]Op{bucket(10, minute, 0, 10), bucket(10, minute, 0, 10)}, step: 1},
		{name: "peek", ops: [2]Op{bucket(10, minute, 0, 3), peek(bucket(10, minute, 0, 3))}, step: second},
		{name: "window", ops: [2]Op{window(1000, minute, 1), window(1000, minute, 1)}, step: second / 50},
		{name: "changed", ops: [2]Op{bucket(10, minute, 0, 1), bucket(20, minute+1, 0, 1)}, step: second},
		{name: "huge, 128-bit", ops: [2]Op{bucket(MaxLimit, MaxPeriod, 0, MaxLimit/2), bucket(MaxLimit, MaxPeriod, 0, MaxLimit/3)}, step: second},
	}
	for _, bm := range benchmarks {
		b.Run(bm.name, func(b *testing.B) {
			var s State
			var now int64
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				now += bm.step
				s, _, _ = Apply(s, bm.ops[i&1], now)
			}
		})
	}
}
