package limit

import (
	"math"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/internal/failure"
)

func overdraft(op Op, n uint64) Op {
	op.Cost, op.Overdraft = n, true
	return op
}

// TestOverdraft: what was used is spent whether or not it is there, and what is owed comes back first.
func TestOverdraft(t *testing.T) {
	bucket := func(cost uint64) Op { return Op{Params: Params{Limit: 10, Period: 10 * second, Burst: 5}, Cost: cost} }
	fixed := func(cost uint64) Op {
		return Op{Params: Params{Algorithm: FixedWindow, Limit: 5, Period: 10 * second}, Cost: cost}
	}
	day, err := NewCalendar(Day, 0, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	const hours24 = int64(24 * time.Hour)
	dated := func(cost uint64) Op {
		return Op{Params: Params{Algorithm: CalendarWindow, Limit: 5, Period: int64(day), Burst: 8}, Cost: cost}
	}
	type step struct {
		at   int64
		op   Op
		want Result
	}
	for name, steps := range map[string][]step{
		"a bucket pays all of it": {
			{0, overdraft(bucket(0), 3), Result{Allowed: true, Capacity: 5, Remaining: 2, ResetAfter: 3 * second}},
			{0, overdraft(bucket(0), 2), Result{Allowed: true, Capacity: 5, RetryAfter: second, ResetAfter: 5 * second}},
			{0, overdraft(bucket(0), 7), Result{Allowed: true, Capacity: 5, Debt: 7, RetryAfter: 8 * second, ResetAfter: 12 * second}},
			{2 * second, bucket(2), Result{Capacity: 5, Debt: 5, RetryAfter: 7 * second, ResetAfter: 10 * second}},
			{9*second - 1, peek(bucket(2)), Result{Capacity: 5, Remaining: 1, RetryAfter: 1, ResetAfter: 3*second + 1}},
			{9 * second, bucket(2), Result{Allowed: true, Capacity: 5, ResetAfter: 5 * second}},
		},
		"a refund pays": {
			{0, overdraft(bucket(0), 9), Result{Allowed: true, Capacity: 5, Debt: 4, RetryAfter: 5 * second, ResetAfter: 9 * second}},
			{0, refund(bucket(0), 3), Result{Allowed: true, Capacity: 5, Debt: 1, ResetAfter: 6 * second}},
			{0, refund(bucket(0), 3), Result{Allowed: true, Capacity: 5, Remaining: 2, ResetAfter: 3 * second}},
		},
		"no more than MaxLimit is remembered": {
			{0, overdraft(bucket(0), MaxLimit), Result{Allowed: true, Capacity: 5, Debt: MaxLimit - 5, RetryAfter: math.MaxInt64, ResetAfter: math.MaxInt64}},
			{0, overdraft(bucket(0), MaxLimit), Result{Allowed: true, Capacity: 5, Debt: MaxLimit - 5, RetryAfter: math.MaxInt64, ResetAfter: math.MaxInt64}},
		},
		"a window ends with its debt": {
			{0, overdraft(fixed(0), 12), Result{Allowed: true, Capacity: 5, Debt: 7, RetryAfter: 10 * second, ResetAfter: 10 * second}},
			{9 * second, fixed(1), Result{Capacity: 5, Debt: 7, RetryAfter: second, ResetAfter: second}},
			{10 * second, fixed(5), Result{Allowed: true, Capacity: 5, ResetAfter: 10 * second}},
		},
		"a sliding window lets go of each as it was spent": {
			{0, overdraft(sliding(5, 10*second, 0), 4), Result{Allowed: true, Capacity: 5, Remaining: 1, ResetAfter: 10 * second}},
			{second, overdraft(sliding(5, 10*second, 0), 6), Result{Allowed: true, Capacity: 5, Debt: 5, RetryAfter: 10 * second, ResetAfter: 10 * second}},
			{10 * second, sliding(5, 10*second, 1), Result{Capacity: 5, Debt: 1, RetryAfter: second, ResetAfter: second}},
			{11 * second, sliding(5, 10*second, 1), Result{Allowed: true, Capacity: 5, Remaining: 4, ResetAfter: 10 * second}},
			{11 * second, overdraft(sliding(5, 10*second, 0), MaxLimit), Result{Allowed: true, Capacity: 5, Debt: MaxLimit - 5, RetryAfter: 10 * second, ResetAfter: 10 * second}},
			{12 * second, overdraft(sliding(5, 10*second, 0), 3), Result{Allowed: true, Capacity: 5, Debt: MaxLimit - 5, RetryAfter: 9 * second, ResetAfter: 9 * second}},
		},
		"a day carries nothing over that is owed": {
			{0, overdraft(dated(0), 2), Result{Allowed: true, Capacity: 5, Remaining: 3, ResetAfter: hours24, Ends: hours24}},
			{hours24, overdraft(dated(0), 20), Result{Allowed: true, Capacity: 8, Debt: 12, RetryAfter: hours24, ResetAfter: hours24, Ends: 2 * hours24}},
			{hours24, dated(1), Result{Capacity: 8, Debt: 12, RetryAfter: hours24, ResetAfter: hours24, Ends: 2 * hours24}},
			{2 * hours24, dated(6), Result{Capacity: 5, Remaining: 5, RetryAfter: hours24, Ends: 3 * hours24}},
			{2 * hours24, overdraft(dated(0), MaxLimit), Result{Allowed: true, Capacity: 5, Debt: MaxLimit - 5, RetryAfter: hours24, ResetAfter: hours24, Ends: 3 * hours24}},
			{2 * hours24, overdraft(dated(0), MaxLimit), Result{Allowed: true, Capacity: 5, Debt: MaxLimit - 5, RetryAfter: hours24, ResetAfter: hours24, Ends: 3 * hours24}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var s State
			var marks []Mark
			for i, st := range steps {
				if err := st.op.Validate(); err != nil && st.op.Cost <= st.op.Capacity() {
					t.Fatal(err)
				}
				var got Result
				var next State
				var changed bool
				var after []Mark
				switch {
				case st.op.Algorithm == CalendarWindow:
					next, got, changed = Date(s, marks, st.op, st.at, st.at)
				case st.op.Slides(&s):
					next, after, got, changed = Slide(s, append([]Mark(nil), marks...), st.op, st.at)
				default:
					next, got, changed = Apply(s, st.op, st.at)
				}
				if got != st.want {
					t.Fatalf("step %d:\n got %+v\nwant %+v", i, got, st.want)
				}
				if changed {
					s, marks = next, after
				}
				if err := s.Valid(); err != nil {
					t.Fatal(err)
				}
				if err := s.ValidMarks(marks); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// TestDebtIsPaidFirst: when a check is admitted, all that was spent until then, overdrafts included, is
// within the burst and what has come back.
func TestDebtIsPaidFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := rapid.OneOf(buckets, slidings).Draw(t, "params")
		type hit struct {
			at   int64
			cost uint64
		}
		var hits []hit
		var s State
		var marks []Mark
		var now int64
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now += pause(t, p)
			op := anOverdraft(t, p)
			op.Cost = min(op.Cost, MaxLimit/50) // no more is spent than is remembered
			var res Result
			if p.Algorithm == SlidingWindow {
				next, after, r, changed := Slide(s, append([]Mark(nil), marks...), op, now)
				if res = r; changed {
					s, marks = next, after
				}
			} else {
				s, res, _ = Apply(s, op, now)
			}
			if !res.Allowed || op.Peek {
				continue
			}
			if hits = append(hits, hit{now, op.Cost}); op.Overdraft {
				continue
			}
			spent := new(big.Rat)
			for i := len(hits) - 1; i >= 0; i-- {
				if p.Algorithm == SlidingWindow && now-hits[i].at >= p.Period {
					break
				}
				spent = add(spent, whole(hits[i].cost))
				bound := whole(p.Capacity())
				if p.Algorithm == TokenBucket {
					bound = add(bound, mul(between(hits[i].at, now), rat(p.Limit, uint64(p.Period))))
				}
				if spent.Cmp(bound) > 0 {
					t.Fatalf("%+v: a check of %d is admitted at %d, and %s were spent since %d", p, op.Cost, now, spent.FloatString(3), hits[i].at)
				}
			}
		}
	})
}

// TestOverdraftOfAPart: a part owes by itself, and debt is neither lost nor forgiven when weights change.
func TestOverdraftOfAPart(t *testing.T) {
	op := overdraft(Op{Params: Params{Limit: 100, Period: 100 * second}}, 1000)
	part, ok := op.Part(FullWeight / 4)
	if !ok || part.Capacity() != 25 {
		t.Fatal(part, ok)
	}
	s, res, _ := Apply(State{}, part, 0)
	if want := (Result{Allowed: true, Capacity: 25, Debt: 975, RetryAfter: 976 * 4 * second, ResetAfter: 4000 * second}); res != want {
		t.Errorf("%+v, want %+v", res, want)
	}
	s.Weight = FullWeight / 4
	if less := s.Reweigh(FullWeight/8, 100, 0); less.Spent < 1000-13 {
		t.Errorf("with half the weight %d are spent", less.Spent)
	}
	others := State{Weight: FullWeight / 4 * 3}
	whole := Unite([]State{s, others}, 0)
	if whole.Spent != 1000 || whole.Weight != 0 {
		t.Errorf("united: %+v", whole)
	}
	var sum uint64
	for _, d := range whole.Divide([]uint32{FullWeight / 2, FullWeight / 2}, 0) {
		sum += d.Spent
	}
	if sum != 1000 {
		t.Errorf("divided: %d are spent", sum)
	}
	if _, ok := (Op{Params: op.Params, Cost: 26}).Part(FullWeight / 4); ok {
		t.Error("a check of more than a part has")
	}
}

func TestOverdraftValidate(t *testing.T) {
	p := Params{Limit: 10, Period: second}
	for _, tc := range []struct {
		op    Op
		field string
	}{
		{Op{Params: p, Cost: 11, Overdraft: true}, ""},
		{Op{Params: p, Cost: MaxLimit, Overdraft: true}, ""},
		{Op{Params: p, Cost: MaxLimit + 1, Overdraft: true}, "cost"},
		{Op{Params: p, Overdraft: true}, "cost"},
		{Op{Params: p, Cost: 1, Overdraft: true, Peek: true}, "overdraft"},
		{Op{Params: p, Cost: 1, Overdraft: true, Chunk: true}, "overdraft"},
		{Op{Params: p, Refund: 1, Overdraft: true}, "refund"},
		{Op{Params: Params{Algorithm: LeakyBucket, Limit: 10, Period: second}, Cost: 1, Overdraft: true}, "overdraft"},
		{Op{Params: Params{Algorithm: FixedWindow, Limit: 10, Period: second}, Cost: 99, Overdraft: true}, ""},
	} {
		never, err := tc.op.Fits()
		e, _ := err.(*failure.Error)
		if never != nil || (e == nil) != (tc.field == "") || e != nil && e.Field != tc.field {
			t.Errorf("%+v: %v, %v", tc.op, never, err)
		}
	}
}
