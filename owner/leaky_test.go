package owner

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/limit"
)

// spaced is a leaky bucket of ten a second with so many places.
func spaced(places uint64) limit.Op {
	return limit.Op{Params: limit.Params{Algorithm: limit.LeakyBucket, Limit: 10, Period: second, Burst: places}, Cost: 1, MaxDelay: math.MaxInt64}
}

// A retry is told what is left of the first delay, although others have come since and it may be
// ready to wait for less; one that was refused stays so.
func TestTurnsAreReplayed(t *testing.T) {
	f := follower{t: t, to: must(New(Config{Rule: &testRule{epoch: 1}, Shards: 1}, 0))}
	s := must(New(Config{Rule: &testRule{epoch: 1}, Shards: 1, Sink: &f}, 0))
	ref := Ref{Key: "k"}
	ask := func(s *Store, now int64, n uint64, op limit.Op) CheckAnswer {
		t.Helper()
		return must(s.Check(now, ref, retry(n, 0), op))
	}
	op := spaced(5)
	for n := uint64(1); n <= 3; n++ {
		if a := ask(s, 0, n, op); !a.Allowed || a.Delay != int64(n-1)*second/10 || a.Replayed {
			t.Fatalf("%d: %+v", n, a)
		}
	}
	hasty := op
	hasty.MaxDelay = second / 10
	if a := ask(s, 0, 4, hasty); a.Allowed || a.Delay != 0 || a.RetryAfter != second/5 {
		t.Fatalf("not in time: %+v", a)
	}
	for _, at := range []*Store{s, f.to} {
		for _, now := range []int64{0, second / 8, second / 5, second / 4} {
			if a := ask(at, now, 3, hasty); !a.Allowed || a.Delay != max(0, second/5-now) || !a.Replayed || a.RetryAfter != 0 {
				t.Errorf("at %d: %+v", now, a)
			}
		}
		if a := ask(at, second/4, 4, op); a.Allowed || a.Delay != 0 || !a.Replayed {
			t.Errorf("refused before: %+v", a)
		}
		if a := must(at.Check(second/4, ref, noID, peekAt(op))); !a.Allowed || a.Delay != second/20 {
			t.Errorf("a peek: %+v", a)
		}
	}
}

// In the grace of a loss, with LostEmpty, all places count as taken when the row came.
func TestTurnsAreLost(t *testing.T) {
	s, _ := lost(t, func(c *Config) { c.LostLimits = LostEmpty })
	ref := Ref{Key: "k"}
	if a := must(s.Check(cameAt, ref, noID, spaced(5))); a.Allowed || a.RetryAfter != second/10 {
		t.Errorf("at once: %+v", a)
	}
	if a := must(s.Check(cameAt+second/10, ref, noID, spaced(5))); !a.Allowed || a.Delay != 4*second/10 {
		t.Errorf("later: %+v", a)
	}
	s, _ = lost(t, nil)
	if a := must(s.Check(cameAt, ref, noID, spaced(5))); !a.Allowed || a.Delay != 0 {
		t.Errorf("with LostFull: %+v", a)
	}
}

// A Reset empties the queue, and tells how many tokens had a turn.
func TestTurnsAreReset(t *testing.T) {
	s := newStore(t, nil)
	ref := Ref{Key: "k"}
	for range 4 {
		must(s.Check(0, ref, noID, spaced(5)))
	}
	if a := must(s.ResetLimit(second/20, ref, noID)); a.Spent != 4 {
		t.Errorf("%+v", a)
	}
	if a := must(s.Check(second/20, ref, noID, spaced(5))); !a.Allowed || a.Delay != 0 {
		t.Errorf("%+v", a)
	}
}

// Before all members know leaky buckets there are none.
func TestTurnsNeedTheirLevel(t *testing.T) {
	rule := &levelRule{level: LeakyLevel - 1}
	s := newStore(t, func(c *Config) { c.Rule = rule })
	if _, err := s.Check(0, Ref{Key: "k"}, noID, spaced(5)); reason(err) != failure.Unavailable {
		t.Errorf("%v", err)
	}
	if n := held(s); n != 0 {
		t.Errorf("%d objects", n)
	}
	rule.level = LeakyLevel
	must(s.Check(0, Ref{Key: "k"}, noID, spaced(5)))
}

// Whatever algorithms a limit has, leaky buckets among them, a store answers as the core does, and
// a copy that follows it as it does.
func TestTurnsAgainstCore(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 2))
		f := follower{t: t, to: must(New(Config{Rule: &testRule{epoch: 1}, Shards: 1}, 0))}
		s := must(New(Config{Rule: &testRule{epoch: 1}, Shards: 1, Sink: &f}, 0))
		models := map[Ref]*slid{}
		now := int64(0)
		for range 200 {
			now += []int64{0, 1, second / 40, second / 7, second / 3, 2 * second}[rng.IntN(6)]
			ref := Ref{Key: fmt.Sprint("key ", rng.IntN(3))}
			op := spaced([]uint64{3, 9}[rng.IntN(2)])
			op.Limit, op.Cost = []uint64{3, 10, 17}[rng.IntN(3)], 1+rng.Uint64N(2)
			switch op.MaxDelay = rng.Int64N(second); rng.IntN(8) {
			case 0:
				op.Algorithm, op.MaxDelay, op.Burst = limit.Algorithm(rng.IntN(3)), 0, 0
			case 1:
				op = refund(op, 1+rng.Uint64N(9))
				op.MaxDelay = 0
			default:
				op.Peek = rng.IntN(4) == 0
			}
			if models[ref] == nil {
				models[ref] = &slid{}
			}
			want := models[ref].apply(op, now)
			if got := must(s.Check(now, ref, noID, op)); got.Result != want {
				t.Fatalf("seed %d: %+v at %d: %+v, want %+v", seed, op, now, got.Result, want)
			}
			look := peekAt(op)
			if a, b := must(s.Check(now, ref, noID, look)), must(f.to.Check(now, ref, noID, look)); a.Result != b.Result {
				t.Fatalf("seed %d: at %d: %+v, the copy %+v", seed, now, a.Result, b.Result)
			}
			if rng.IntN(10) == 0 {
				sweepAll(s, now)
			}
		}
		for _, x := range []*Store{s, f.to} {
			if sweepAll(x, now+20*second); held(x) != 0 {
				t.Fatalf("%d objects are left", held(x))
			}
		}
	}
}
