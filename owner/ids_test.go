package owner

import (
	"testing"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/reqid"
)

func TestReplays(t *testing.T) {
	ref := Ref{Key: "k", Name: "n"}
	start := 100 * second
	t.Run("check", func(t *testing.T) {
		s := newStore(t, nil)
		op := perSecond(2)
		op.Cost = 2
		if a := must(s.Check(start, ref, id(1), op)); !a.Allowed || a.Replayed {
			t.Fatalf("first: %+v", a)
		}
		a := must(s.Check(start+second/2, ref, retry(1, second/2), op))
		if !a.Allowed || !a.Replayed || a.Age != second/2 || a.Remaining != 1 || a.RetryAfter != 0 {
			t.Errorf("retry: %+v", a)
		}
		if a := must(s.Check(start+second/2, ref, id(2), op)); a.Allowed {
			t.Errorf("second: %+v", a)
		}
		if a := must(s.Check(start+10*second, ref, retry(2, 9*second), op)); a.Allowed || !a.Replayed {
			t.Errorf("retry of a refusal, with room by now: %+v", a)
		}
		if a := must(s.Check(start+10*second, ref, noID, op)); !a.Allowed {
			t.Errorf("the retry spent: %+v", a)
		}
	})
	t.Run("add", func(t *testing.T) {
		s := newStore(t, nil)
		first := must(s.Add(start, ref, id(1), counter.AddOp{Delta: 5}))
		must(s.Add(start, ref, id(2), counter.AddOp{Delta: 7}))
		a := must(s.Add(start+second, ref, retry(1, second), counter.AddOp{Delta: 5}))
		if !a.Replayed || !a.Applied || a.Value != 5 || a.Version != first.Version || a.Current != 12 {
			t.Errorf("%+v", a)
		}
		over := counter.AddOp{Delta: 5, Max: 13, HasMax: true}
		must(s.Add(start, ref, id(3), over))
		if a := must(s.Add(start, ref, id(3), over)); !a.Replayed || a.Applied || a.Refusal != counter.AboveMax || a.Value != 12 {
			t.Errorf("a refusal: %+v", a)
		}
		if _, err := s.Add(start, ref, id(1), counter.AddOp{Delta: 6}); reason(err) != failure.RequestIDReused {
			t.Errorf("another delta: %v", err)
		}
		if _, err := s.Reset(start, ref, id(1)); reason(err) != failure.RequestIDReused {
			t.Errorf("another operation: %v", err)
		}
		settled := id(5)
		settled.Settled = 6
		if _, err := s.Add(start, ref, settled, counter.AddOp{Delta: 1}); reason(err) != failure.Invalid {
			t.Errorf("settled above its own sequence: %v", err)
		}
	})
	t.Run("set if and reset", func(t *testing.T) {
		s := newStore(t, nil)
		set := must(s.CompareAndSet(start, ref, id(1), counter.CompareAndSetOp{Value: 9}))
		if a := must(s.CompareAndSet(start, ref, id(1), counter.CompareAndSetOp{Value: 9})); !a.Replayed || !a.Applied || a.Version != set.Version {
			t.Errorf("set: %+v", a)
		}
		must(s.Reset(start, ref, id(2)))
		must(s.Add(start, ref, noID, counter.AddOp{Delta: 3}))
		if a := must(s.Reset(start, ref, id(2))); !a.Replayed || a.Previous != 9 || a.Current != 3 {
			t.Errorf("reset: %+v", a)
		}
	})
	t.Run("acquire, whose grant is over by now", func(t *testing.T) {
		s := newStore(t, nil)
		ann, bob := AcquireLock{Holder: "ann", TTL: 2 * second}, AcquireLock{Holder: "bob", TTL: 60 * second}
		first, _, err := s.Acquire(start, ref, id(1), ann)
		if err != nil || !first.Acquired {
			t.Fatal(first, err)
		}
		again, _, err := s.Acquire(start+second, ref, retry(1, second), ann)
		if err != nil || !again.Replayed || again.Token != first.Token || again.TTL != second {
			t.Errorf("retry while it is held: %+v %v", again, err)
		}
		if a, _, err := s.Acquire(start+2*second, ref, noID, bob); err != nil || !a.Acquired {
			t.Fatal(a, err)
		}
		again, _, err = s.Acquire(start+2*second, ref, retry(1, 2*second), ann)
		if err != nil || !again.Acquired || again.TTL != 0 || again.Holder.Name != "bob" {
			t.Errorf("retry when it is another's: %+v %v", again, err)
		}
	})
	t.Run("release", func(t *testing.T) {
		s := newStore(t, nil)
		a, _, err := s.Acquire(start, ref, noID, AcquireLock{Holder: "ann", TTL: second})
		if err != nil {
			t.Fatal(err)
		}
		must(s.Release(start, ref, id(2), a.Token))
		if r := must(s.Release(start, ref, id(2), a.Token)); !r.Released || !r.Replayed {
			t.Errorf("retry: %+v", r)
		}
		if r := must(s.Release(start, ref, noID, a.Token)); r.Released {
			t.Errorf("a second release: %+v", r)
		}
	})
}

// A full bucket equals none and could be forgotten, but not its request ids:
// the retry must not spend again.
func TestFullBucketKeepsItsIDs(t *testing.T) {
	s := newStore(t, func(c *Config) { c.RequestIDs.Window = 600 * second })
	ref, start := Ref{Key: "k", Name: "n"}, 100*second
	must(s.Check(start, ref, id(1), perSecond(1)))
	for now := start; now < start+300*second; now += 10 * second {
		sweepAll(s, now)
	}
	if a := must(s.Check(start+299*second, ref, retry(1, 299*second), perSecond(1))); !a.Replayed || a.Remaining != 1 {
		t.Errorf("%+v", a)
	}
	sweepAll(s, start+701*second)
	if held(s) != 0 {
		t.Error("it is kept after the window")
	}
	if _, err := s.Check(start+701*second, ref, retry(1, 701*second), perSecond(1)); reason(err) != failure.RequestTooOld {
		t.Errorf("a retry after the window: %v", err)
	}
}

func TestIDsOfEvictedClientsAreTooOld(t *testing.T) {
	s := newStore(t, func(c *Config) { c.RequestIDs.ClientsPerObject = 4 })
	ref, start := Ref{Key: "k", Name: "n"}, 100*second
	client := func(n uint64, age int64) reqid.ID {
		return reqid.ID{Client: reqid.Client{Hi: n}, Sequence: 1, Age: age}
	}
	for n := range uint64(10) {
		must(s.Add(start+int64(n), ref, client(n, 0), counter.AddOp{Delta: 1}))
	}
	if _, err := s.Add(start+20*second, ref, client(0, 20*second), counter.AddOp{Delta: 1}); reason(err) != failure.RequestTooOld {
		t.Errorf("evicted: %v", err)
	}
	if a := must(s.Add(start+20*second, ref, client(9, 20*second), counter.AddOp{Delta: 1})); !a.Replayed {
		t.Errorf("remembered: %+v", a)
	}
	if a := must(s.Get(start, ref)); a.Value != 10 {
		t.Errorf("counted %d", a.Value)
	}
}
