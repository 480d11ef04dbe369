package limit

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/keystead/keystead/internal/failure"
	"pgregory.net/rapid"
)

func leaky(limit uint64, period int64, burst, cost uint64, most int64) Op {
	return Op{Params: Params{LeakyBucket, limit, period, burst}, Cost: cost, MaxDelay: most}
}

// TestLeakyTranscripts runs testdata/leaky:
//
//	ask <limit>/<period> [burst=] [cost=1] [max=] [refund=] [peek] [as=token] [at=]
//
// Without max=, a request waits as long as it takes. The answer comes first, then the state.
func TestLeakyTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/leaky", func(t *testing.T, path string) {
		var s State
		var now int64
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			op := leaky(0, 0, 0, 1, math.MaxInt64)
			for _, a := range d.CmdArgs {
				switch a.Key {
				case "burst":
					op.Burst = number(t, d, a)
				case "cost":
					op.Cost = number(t, d, a)
				case "refund":
					op.Refund, op.Cost, op.MaxDelay = number(t, d, a), 0, 0
				case "max":
					op.MaxDelay = int64(timeOf(t, d, a))
				case "at":
					now = int64(timeOf(t, d, a))
				case "peek":
					op.Peek = true
				case "as":
					op.Algorithm, op.MaxDelay = TokenBucket, 0
				default:
					var n uint64
					var period string
					if k, err := fmt.Sscanf(a.String(), "%d/%s", &n, &period); k != 2 {
						d.Fatalf(t, "%s: %v", a, err)
					}
					p, err := time.ParseDuration(period)
					if err != nil {
						d.Fatalf(t, "%v", err)
					}
					op.Limit, op.Period = n, int64(p)
				}
			}
			if err := op.Validate(); err != nil {
				return err.Error() + "\n"
			}
			next, res, changed := Apply(s, op, now)
			if err := next.Valid(); err != nil || !changed && next != s {
				d.Fatalf(t, "%+v: %v", next, err)
			}
			s = next
			answer := fmt.Sprintf("refused: again in %s", time.Duration(res.RetryAfter))
			if res.Allowed {
				answer = fmt.Sprintf("in %s, at %s", time.Duration(res.Delay), time.Duration(now+res.Delay))
			}
			return fmt.Sprintf("%s\n%d of %d places, empty in %s\n", answer, res.Remaining, res.Capacity, time.Duration(res.ResetAfter))
		})
	})
}

func number(t *testing.T, d *datadriven.TestData, a datadriven.CmdArg) uint64 {
	n, err := strconv.ParseUint(a.Vals[0], 10, 64)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return n
}

func timeOf(t *testing.T, d *datadriven.TestData, a datadriven.CmdArg) time.Duration {
	n, err := time.ParseDuration(a.Vals[0])
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return n
}

var queues = rapid.Custom(func(t *rapid.T) Params {
	p := buckets.Draw(t, "params")
	p.Algorithm = LeakyBucket
	return p
})

// A leaky bucket admits what a token bucket does, and each request waits until the token
// bucket would have been full before it.
func TestLeakyAdmitsAsTokenBucket(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := queues.Draw(t, "params")
		var s, b State
		now := rapid.Int64Range(-1e15, 1e15).Draw(t, "start")
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now += pause(t, p)
			op := anOp(t, p)
			op.MaxDelay = math.MaxInt64
			as := op
			as.Algorithm, as.MaxDelay = TokenBucket, 0
			empty := peekAll(as)
			_, before, _ := Apply(b, empty, now)
			next, got, changed := Apply(s, op, now)
			nextB, want, changedB := Apply(b, as, now)
			if want.Allowed {
				want.Delay = before.ResetAfter
			}
			if before.ResetAfter == math.MaxInt64 { // the turn may be later than can be told
				return
			}
			s, b = next, nextB
			if got != want || changed != changedB {
				t.Fatalf("%+v at %d:\n got %+v\nwant %+v", op, now, got, want)
			}
			if s.Spent != b.Spent || s.Carry != b.Carry || s.At != b.At {
				t.Fatalf("%+v at %d: state %+v, token bucket %+v", op, now, s, b)
			}
		}
	})
}

func peekAll(op Op) Op {
	op.Cost, op.Peek = 1, true
	return op
}

// No turn comes sooner after the one before than cost · period/limit of that one, whatever the
// rates become; nor later than it has to, but for what is rounded. Nobody waits longer than it is
// ready to, and a refusal tells the first moment that passes.
func TestLeakyTurns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		choices := rapid.SliceOfN(queues, 1, 3).Draw(t, "choices")
		var s State
		now := rapid.Int64Range(-1e15, 1e15).Draw(t, "start")
		end := new(big.Rat).SetInt64(now) // of the last turn
		slack := new(big.Rat)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			p := rapid.SampledFrom(choices).Draw(t, "params")
			now += pause(t, p)
			op := anOp(t, p)
			op.MaxDelay = rapid.OneOf(rapid.Int64Range(0, 4*p.Period), rapid.SampledFrom([]int64{0, math.MaxInt64})).Draw(t, "max delay")
			if s.Spent != 0 && (s.Limit != p.Limit || s.Period != p.Period) {
				slack = add(slack, whole(1))
			}
			next, res, changed := Apply(s, op, now)
			if err := next.Valid(); err != nil || !changed && next != s {
				t.Fatalf("%+v %+v at %d: %+v: %v", s, op, now, next, err)
			}
			at := new(big.Rat).SetInt64(now)
			turn := end
			if add(turn, slack).Cmp(at) < 0 {
				slack = new(big.Rat)
			}
			if turn.Cmp(at) < 0 {
				turn = at
			}
			switch {
			case !res.Allowed:
				if op.Peek && (s.Limit != p.Limit || s.Period != p.Period) {
					break // the wait is that of the other rate
				}
				probe := op
				probe.Peek = true
				if now > math.MaxInt64-res.RetryAfter || res.RetryAfter == math.MaxInt64 {
					break
				}
				_, early, _ := Apply(next, probe, now+res.RetryAfter-1)
				if _, then, _ := Apply(next, probe, now+res.RetryAfter); early.Allowed || !then.Allowed || res.RetryAfter < 1 || res.Delay != 0 {
					t.Fatalf("%+v %+v at %d: refused for %d", s, op, now, res.RetryAfter)
				}
			case res.Delay > op.MaxDelay || res.Delay < 0 || res.RetryAfter != 0:
				t.Fatalf("%+v %+v at %d: %+v", s, op, now, res)
			default:
				told := add(at, whole(uint64(res.Delay)))
				if told.Cmp(turn) < 0 {
					t.Fatalf("%+v %+v at %d: runs at %s, and the one before it until %s", s, op, now, told.FloatString(3), turn.FloatString(3))
				}
				if late := sub(told, turn); late.Cmp(add(slack, whole(1))) >= 0 {
					t.Fatalf("%+v %+v at %d: runs %s after its turn, at most %s", s, op, now, late.FloatString(3), slack.FloatString(3))
				}
				if !op.Peek {
					end = add(turn, mul(whole(op.Cost), rat(uint64(p.Period), p.Limit)))
				}
			}
			if peeked := op; !op.Peek {
				peeked.Peek = true
				if _, seen, _ := Apply(s, peeked, now); seen.Allowed != res.Allowed || seen.Delay != res.Delay || seen.RetryAfter != res.RetryAfter {
					t.Fatalf("%+v %+v at %d: %+v, and a peek before it %+v", s, op, now, res, seen)
				}
			}
			s = next
		}
	})
}

// Between any two turns no more runs than the rate has room for and the first request, as nginx's
// users find when a queue is let out in a burst.
func TestLeakyNeverBursts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := queues.Draw(t, "params")
		var turns []*big.Rat
		var costs []uint64
		var s State
		var now int64
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now += pause(t, p)
			op := anOp(t, p)
			op.Peek, op.MaxDelay = false, math.MaxInt64
			next, res, _ := Apply(s, op, now)
			if s = next; res.Allowed {
				turns, costs = append(turns, between(-now, res.Delay)), append(costs, op.Cost)
			}
		}
		for i := range turns {
			sum := new(big.Rat)
			for j := i; j < len(turns); j++ {
				// A nanosecond for what is rounded.
				if room := mul(add(sub(turns[j], turns[i]), whole(1)), rat(p.Limit, uint64(p.Period))); sum.Cmp(room) > 0 {
					t.Fatalf("%+v: %s tokens from turn %s on run before %s", p, sum, turns[i], turns[j])
				}
				sum = add(sum, whole(costs[j]))
			}
		}
	})
}

// A turn under another rate comes behind the last one that was told, by fractions of a nanosecond, too.
func TestLeakyBehindIsRoundedUp(t *testing.T) {
	s, _, _ := Apply(State{}, leaky(3, 1000, 5, 1, 0), 0)
	if _, res, _ := Apply(s, leaky(2, 1000, 5, 1, 1000), 0); !res.Allowed || res.Delay != 334 { // behind 333⅓ ns
		t.Errorf("%+v", res)
	}
}

// A rate at which more tokens leak out by the end of the queue than are counted overtakes nobody: it
// has no place until they are fewer.
func TestLeakyBehindMoreThanIsCounted(t *testing.T) {
	ten, most := leaky(10, second, 50, 50, math.MaxInt64), leaky(MaxLimit, MinPeriod, 0, 1, math.MaxInt64)
	s, res, _ := Apply(State{}, ten, 0)
	if !res.Allowed {
		t.Fatalf("%+v", res)
	}
	back := most
	back.Cost, back.Refund, back.MaxDelay = 0, 100, 0
	for _, op := range []Op{most, back, most} {
		next, res, _ := Apply(s, op, 2*second)
		if s = next; res.Allowed != (op.Refund != 0) || res.Remaining != 0 || res.ResetAfter != 3*second {
			t.Errorf("%+v: %+v", op, res)
		}
		if res.Delay != 0 || res.RetryAfter != 0 && res.RetryAfter != 3*second-999 {
			t.Errorf("%+v: %+v", op, res)
		}
	}
	ten.Cost = 1
	if _, res, _ := Apply(s, ten, 2*second); !res.Allowed || res.Delay != 3*second {
		t.Errorf("another one: %+v", res)
	}
	if _, res, _ := Apply(s, most, 5*second-1000); res.Allowed || res.RetryAfter != 1 {
		t.Errorf("a moment before: %+v", res)
	}
	if _, res, _ := Apply(s, most, 5*second-999); !res.Allowed || res.Delay != 999 {
		t.Errorf("when there is a place: %+v", res)
	}
	most.MaxDelay = 10
	if _, res, _ := Apply(s, most, 2*second); res.Allowed || res.RetryAfter != 3*second-10 {
		t.Errorf("one in haste: %+v", res)
	}
}

// The most that there can be of a queue overflows nothing.
func TestLeakyLargest(t *testing.T) {
	s := State{LeakyBucket, 0, 0, MaxLimit, 0, 1, MaxPeriod}
	for _, p := range []Params{{LeakyBucket, MaxLimit, MinPeriod, 0}, {LeakyBucket, 1, MaxPeriod, MaxLimit}, {LeakyBucket, MaxLimit, MaxPeriod, 0}, {LeakyBucket, 1, MinPeriod, 0}} {
		for _, from := range []State{s, {LeakyBucket, 0, 0, 1, MinPeriod - 1, MaxLimit, MinPeriod}, {LeakyBucket, 0, 0, MaxLimit, MaxPeriod - 1, MaxLimit, MaxPeriod}} {
			next, res, _ := Apply(from, Op{Params: p, Cost: 1, MaxDelay: math.MaxInt64}, 0)
			if err := next.Valid(); err != nil {
				t.Errorf("%+v under %+v: %+v, %+v: %v", from, p, next, res, err)
			}
		}
	}
}

func TestLeakyValidate(t *testing.T) {
	for _, tc := range []struct {
		name, field string
		op          Op
	}{
		{"a wait that is negative", "max_delay_ns", leaky(1, second, 0, 1, -1)},
		{"a wait of another algorithm", "max_delay_ns", Op{Params: Params{TokenBucket, 1, second, 0}, Cost: 1, MaxDelay: 1}},
		{"a wait of a refund", "refund", Op{Params: Params{LeakyBucket, 1, second, 0}, Refund: 1, MaxDelay: 1}},
		{"more than the queue has places", "cost", leaky(5, second, 3, 4, 0)},
		{"an algorithm that there is not", "algorithm", Op{Params: Params{LeakyBucket + 1, 1, second, 0}, Cost: 1}},
	} {
		if err := tc.op.Validate(); fieldOf(err) != tc.field {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	if err := leaky(5, second, 7, 7, math.MaxInt64).Validate(); err != nil {
		t.Error(err)
	}
	if _, ok := leaky(5, second, 7, 1, 0).Part(FullWeight / 2); ok {
		t.Error("a part decides turns")
	}
}

func BenchmarkLeaky(b *testing.B) {
	for _, tc := range []struct {
		name string
		op   Op
	}{{"token", bucket(1000, second, 0, 1)}, {"leaky", leaky(1000, second, 0, 1, second)}} {
		b.Run(tc.name, func(b *testing.B) {
			var s State
			now := int64(0)
			for b.Loop() {
				now += 1_000_000
				s, _, _ = Apply(s, tc.op, now)
			}
		})
	}
}

func fieldOf(err error) string {
	var e *failure.Error
	if errors.As(err, &e) {
		return e.Field
	}
	return ""
}
