package limit

import (
	"testing"

	"pgregory.net/rapid"
)

func TestRefund(t *testing.T) {
	spent := State{TokenBucket, 0, 0, 10, 0, 10, 10 * second}
	inWindow := State{FixedWindow, 0, 0, 10, 0, 10, 10 * second}
	tests := []struct {
		name  string
		state State
		op    Op
		now   int64
		want  Result
		next  State // the same state: nothing is to be stored
	}{
		{name: "nobody ever hit", op: refund(bucket(10, 10*second, 0, 0), 3), now: second,
			want: Result{Allowed: true, Capacity: 10, Remaining: 10}},
		{name: "full again", state: spent, op: refund(bucket(10, 10*second, 0, 0), 3), now: 10 * second,
			want: Result{Allowed: true, Capacity: 10, Remaining: 10}, next: spent},
		{name: "some of a bucket", state: spent, op: refund(bucket(10, 10*second, 0, 0), 3), now: 2500 * second / 1000,
			want: Result{Allowed: true, Capacity: 10, Remaining: 5, ResetAfter: 4500 * second / 1000},
			next: State{TokenBucket, 0, 2500 * second / 1000, 5, uint64(5 * second), 10, 10 * second}},
		{name: "never above the burst", state: spent, op: refund(bucket(10, 10*second, 0, 0), 9), now: 2500 * second / 1000,
			want: Result{Allowed: true, Capacity: 10, Remaining: 10}},
		{name: "below a lowered burst", state: spent, op: refund(bucket(10, 10*second, 4, 0), 5), now: second,
			want: Result{Allowed: true, Capacity: 4, ResetAfter: 4 * second},
			next: State{TokenBucket, 0, second, 4, 0, 10, 10 * second}},
		{name: "with another rate", state: spent, op: refund(bucket(5, 10*second, 10, 0), 5), now: second,
			want: Result{Allowed: true, Capacity: 10, Remaining: 6, ResetAfter: 8 * second},
			next: State{TokenBucket, 0, second, 4, 0, 5, 10 * second}},
		{name: "some of a window", state: inWindow, op: refund(window(10, 10*second, 0), 3), now: 9 * second,
			want: Result{Allowed: true, Capacity: 10, Remaining: 3, ResetAfter: second},
			next: State{FixedWindow, 0, 0, 7, 0, 10, 10 * second}},
		{name: "all of a window", state: inWindow, op: refund(window(10, 10*second, 0), 11), now: 9 * second,
			want: Result{Allowed: true, Capacity: 10, Remaining: 10}},
		{name: "a window that is over", state: inWindow, op: refund(window(10, 10*second, 0), 3), now: 10 * second,
			want: Result{Allowed: true, Capacity: 10, Remaining: 10}, next: inWindow},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			if err := tc.op.Validate(); err != nil {
				t.Fatal(err)
			}
			next, got, changed := Apply(tc.state, tc.op, tc.now)
			if got != tc.want || next != tc.next || changed != (next != tc.state) {
				t.Errorf("got %+v %+v, changed %v\nwant %+v %+v", got, next, changed, tc.want, tc.next)
			}
			checkAgainstModel(t, tc.state, tc.op, tc.now)
		})
	}
}

// With refunds among the checks, too, the state, the answer and its times are those
// of the model.
func TestRefundsAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		choices := rapid.SliceOfN(rapid.OneOf(buckets, windows), 1, 3).Draw(t, "choices")
		var s State
		now := rapid.Int64Range(-1e15, 1e15).Draw(t, "start")
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			op := anything(t, choices)
			if by := pause(t, op.Params); rapid.IntRange(0, 7).Draw(t, "back") == 0 {
				now -= by
			} else {
				now += by
			}
			s, _ = checkAgainstModel(t, s, op, now)
		}
	})
}

// What is spent and given back at once was never spent, with any algorithm.
func TestRefundUndoesACheck(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := rapid.OneOf(buckets, windows, slidings).Draw(t, "params")
		var x slid
		var now int64
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			now += pause(t, p)
			op := anOp(t, p)
			if op.Peek || rapid.Bool().Draw(t, "stays") {
				x.apply(t, op, now)
				continue
			}
			look := op
			look.Peek = true
			before := x.apply(t, look, now)
			if x.apply(t, op, now).Allowed {
				res := x.apply(t, Op{Params: p, Refund: op.Cost}, now)
				if after := x.apply(t, look, now); res.Remaining != before.Remaining || after.Remaining != before.Remaining || !after.Allowed {
					t.Fatalf("before %+v, after %+v", before, after)
				}
			}
		}
	})
}
