package owner

import (
	"testing"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/limit"
)

// overdrawn is a check of what was used already.
func overdrawn(op limit.Op, n uint64) limit.Op {
	op.Cost, op.Overdraft = n, true
	return op
}

// TestOverdraftActsOnce: under one request id what was used is owed once, at the owner and at its copy, and
// a check of as much is another operation.
func TestOverdraftActsOnce(t *testing.T) {
	f := follower{t: t, to: must(New(Config{Rule: &testRule{epoch: 1}, Shards: 1}, 0))}
	s := must(New(Config{Rule: &testRule{epoch: 1}, Shards: 1, Sink: &f}, 0))
	ref, three := Ref{Key: "k"}, perSecond(3)
	op := overdrawn(three, 7)
	if a := must(s.Check(0, ref, id(1), op)); !a.Allowed || a.Debt != 4 || a.Remaining != 0 || a.Capacity != 3 {
		t.Fatalf("%+v", a)
	}
	for _, at := range []*Store{s, f.to} {
		if a := must(at.Check(0, ref, retry(1, 0), op)); !a.Allowed || !a.Replayed || a.Debt != 4 || a.RetryAfter == 0 {
			t.Errorf("again: %+v", a)
		}
		other := op
		other.Cost = 8
		if _, err := at.Check(0, ref, retry(1, 0), other); reason(err) != failure.RequestIDReused {
			t.Errorf("another overdraft under its id: %v", err)
		}
		plain := three
		plain.Cost = 3
		if a := must(at.Check(0, ref, noID, peekAt(plain))); a.Allowed || a.Debt != 4 {
			t.Errorf("a check: %+v", a)
		}
	}
	small := overdrawn(three, 2)
	must(s.Check(0, ref, id(2), small))
	check := three
	check.Cost = 2
	if _, err := s.Check(0, ref, retry(2, 0), check); reason(err) != failure.RequestIDReused {
		t.Errorf("a check under the id of an overdraft: %v", err)
	}
	if a := must(s.ResetLimit(0, ref, noID)); a.Spent != 9 {
		t.Errorf("%+v", a)
	}
}

// TestOverdraftUnderAnOverride: the override says how much there is, and refuses no overdraft.
func TestOverdraftUnderAnOverride(t *testing.T) {
	s := newStore(t, nil)
	ref, three := Ref{Key: "k"}, perSecond(3)
	must(s.SetOverride(0, ref, noID, over(10, second), 0))
	if a := must(s.Check(0, ref, id(1), overdrawn(three, 25))); !a.Allowed || a.Debt != 15 || a.Capacity != 10 || a.Override != 10 {
		t.Errorf("%+v", a)
	}
	if _, err := s.Check(0, ref, noID, overdrawn(three, limit.MaxLimit+1)); reason(err) != failure.Invalid {
		t.Errorf("more than can be remembered: %v", err)
	}
	if a := must(s.Check(second, ref, noID, three)); a.Allowed || a.Debt != 5 {
		t.Errorf("%+v", a)
	}
}

// TestOverdraftOfAnyWindow: marks and periods have debt too, and it does not outlive them.
func TestOverdraftOfAnyWindow(t *testing.T) {
	for _, algorithm := range []limit.Algorithm{limit.FixedWindow, limit.SlidingWindow} {
		s := newStore(t, nil)
		ref := Ref{Key: "k"}
		op := limit.Op{Params: limit.Params{Algorithm: algorithm, Limit: 3, Period: second}, Cost: 1}
		for i := range int64(30) {
			must(s.Check(i, ref, noID, overdrawn(op, 2)))
		}
		if a := must(s.Check(40, ref, noID, op)); a.Allowed || a.Debt != 57 {
			t.Errorf("%d: %+v", algorithm, a)
		}
		if a := must(s.Check(3*second, ref, noID, op)); !a.Allowed || a.Debt != 0 {
			t.Errorf("%d: %+v", algorithm, a)
		}
	}
}

// TestOverdraftNeedsItsLevel: before all members know overdrafts, none is done.
func TestOverdraftNeedsItsLevel(t *testing.T) {
	rule := &levelRule{level: OverdraftLevel - 1}
	rule.epoch = 1
	s := newStore(t, func(c *Config) { c.Rule = rule })
	if _, err := s.Check(0, Ref{Key: "k"}, noID, overdrawn(perSecond(3), 1)); reason(err) != failure.Unavailable {
		t.Errorf("%v", err)
	}
	if held(s) != 0 {
		t.Error("something was kept")
	}
}
