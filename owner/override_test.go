package owner

import (
	"fmt"
	"math"
	"testing"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
)

func over(n uint64, period int64) limit.Override { return limit.Override{Limit: n, Period: period} }

// An override beats what callers state, from the next check on, until its time, to the nanosecond.
func TestOverride(t *testing.T) {
	f := follower{t: t, to: must(New(Config{Rule: &testRule{epoch: 1}, Shards: 1}, 0))}
	s := must(New(Config{Rule: &testRule{epoch: 1}, Shards: 1, Sink: &f}, 0))
	ref := Ref{Key: "k"}
	three := perSecond(3)
	if a := must(s.Check(0, ref, noID, three)); a.Capacity != 3 || a.Override != 0 {
		t.Fatalf("%+v", a)
	}
	if a := must(s.SetOverride(0, ref, noID, over(10, second), 2*second)); a.Existed || a.Override.Limit != 10 || a.Left != 2*second {
		t.Fatalf("%+v", a)
	}
	for i := uint64(8); i > 0; i-- { // one was spent before
		if a := must(s.Check(0, ref, noID, three)); !a.Allowed || a.Capacity != 10 || a.Remaining != i || a.Override != 10 {
			t.Fatalf("%d: %+v", i, a)
		}
	}
	five := three
	five.Cost = 5 // more than its caller's limit can ever have
	if a := must(s.Check(second, ref, noID, five)); !a.Allowed || a.Remaining != 5 {
		t.Errorf("%+v", a)
	}
	many := three
	many.Cost = 11
	if a := must(s.Check(second, ref, noID, many)); a.Allowed || a.RetryAfter != math.MaxInt64 || a.Remaining != 5 || a.Capacity != 10 {
		t.Errorf("more than there can be: %+v", a)
	}
	if a := must(s.GetOverride(2*second-1, ref)); !a.Existed || a.Left != 1 {
		t.Errorf("%+v", a)
	}
	if a := must(s.Check(2*second-1, ref, noID, peekAt(three))); a.Capacity != 10 || a.Override != 10 {
		t.Errorf("%+v", a)
	}
	if a := must(s.Check(2*second, ref, noID, peekAt(three))); a.Capacity != 3 || a.Override != 0 {
		t.Errorf("when its time is over: %+v", a)
	}
	if a := must(f.to.Check(0, ref, noID, peekAt(three))); a.Capacity != 3 || a.Override != 0 {
		t.Errorf("a copy after that: %+v", a)
	}
	if _, err := s.Check(2*second, ref, noID, five); reason(err) != failure.Invalid {
		t.Errorf("%v", err)
	}
	must(s.SetOverride(2*second, ref, noID, over(10, second), 0))
	if a := must(s.SetOverride(2*second, ref, noID, over(1, second), 0)); !a.Existed || a.Left != 0 {
		t.Errorf("%+v", a)
	}
	if a := must(s.Check(9e6*second, ref, noID, many)); a.Allowed || a.RetryAfter != math.MaxInt64 || a.Override != 1 {
		t.Errorf("one without an end: %+v", a)
	}
	if a := must(s.ResetLimit(9e6*second, ref, noID)); a.Spent != 0 {
		t.Errorf("%+v", a)
	}
	if a := must(f.to.GetOverride(9e6*second, ref)); a.Override.Limit != 1 {
		t.Errorf("after a reset: %+v", a)
	}
	if a := must(s.ClearOverride(9e6*second, ref, noID)); !a.Existed || a.Override != (limit.Override{}) {
		t.Errorf("%+v", a)
	}
	if a := must(s.ClearOverride(9e6*second, ref, noID)); a.Existed {
		t.Errorf("%+v", a)
	}
	if held(s) != 0 || held(f.to) != 0 {
		t.Errorf("%d and %d objects are left", held(s), held(f.to))
	}
}

// A check of more than an override holds is told to come when that has ended, however long it is used
// up: its caller's numbers decide then.
func TestOverriddenComeAgain(t *testing.T) {
	s := newStore(t, nil)
	must(s.SetOverride(0, door, noID, over(1, hour), second))
	must(s.Check(0, door, noID, perSecond(3)))
	op := perSecond(3)
	op.Cost = 2
	if a := must(s.Check(0, door, noID, op)); a.Allowed || a.RetryAfter != second {
		t.Errorf("%+v", a)
	}
	if a := must(s.Check(second, door, noID, op)); !a.Allowed {
		t.Errorf("then: %+v", a)
	}
}

// Requests that set, clear or are refused under an override act once.
func TestOverridesAreReplayed(t *testing.T) {
	s := newStore(t, nil)
	ref := Ref{Key: "k"}
	must(s.SetOverride(0, ref, id(1), over(2, second), second))
	must(s.SetOverride(0, ref, id(2), over(5, second), 0))
	if a := must(s.SetOverride(9, ref, retry(1, 0), over(2, second), second)); !a.Replayed || a.Existed || a.Override.Limit != 5 {
		t.Errorf("%+v", a)
	}
	if _, err := s.SetOverride(9, ref, retry(1, 0), over(3, second), second); reason(err) != failure.RequestIDReused {
		t.Errorf("%v", err)
	}
	many := perSecond(3)
	many.Cost = 6
	if a := must(s.Check(9, ref, id(3), many)); a.Allowed || a.Replayed {
		t.Errorf("%+v", a)
	}
	must(s.SetOverride(9, ref, noID, over(9, second), 0))
	if a := must(s.Check(9, ref, retry(3, 0), many)); a.Allowed || !a.Replayed {
		t.Errorf("refused before: %+v", a)
	}
	if a := must(s.ClearOverride(9, ref, id(4))); !a.Existed {
		t.Errorf("%+v", a)
	}
	must(s.SetOverride(9, ref, noID, over(7, second), 0))
	if a := must(s.ClearOverride(9, ref, retry(4, 0))); !a.Existed || !a.Replayed || a.Override.Limit != 7 {
		t.Errorf("%+v", a)
	}
}

// A retry of a check that was allowed only by an override gets its first answer when that has ended.
func TestOverriddenAreReplayed(t *testing.T) {
	s, _ := withPolicies(t, 3)
	ref := Ref{Key: "k"}
	many := perSecond(3)
	many.Cost = 5
	must(s.SetOverride(0, ref, noID, over(9, 4*second), second))
	if a := must(s.Check(0, ref, id(1), many)); !a.Allowed {
		t.Fatalf("%+v", a)
	}
	if a := must(s.Check(0, ref, id(2), many)); a.Allowed {
		t.Fatalf("%+v", a)
	}
	if a, _, err := s.CheckPolicy(0, ref, id(3), "p", many); err != nil || a.Allowed {
		t.Fatalf("%+v %v", a, err)
	}
	for n, allowed := range map[uint64]bool{1: true, 2: false} {
		if a := must(s.Check(second, ref, retry(n, 0), many)); a.Allowed != allowed || !a.Replayed || a.Capacity != 3 || a.Override != 0 || allowed != (a.RetryAfter == 0) {
			t.Errorf("%d: %+v", n, a)
		}
	}
	if a, _, err := s.CheckPolicy(second, ref, retry(3, 0), "p", many); err != nil || a.Allowed || !a.Replayed || a.Capacity != 3 {
		t.Errorf("%+v %v", a, err)
	}
	other := many
	other.Cost++
	if _, err := s.Check(second, ref, retry(1, 0), other); reason(err) != failure.RequestIDReused {
		t.Errorf("%v", err)
	}
	for _, i := range []reqid.ID{id(4), noID} {
		if _, err := s.Check(second, ref, i, many); reason(err) != failure.Invalid {
			t.Errorf("%v", err)
		}
	}
}

// What others spend in advance is refused while an override is in force, and spends nothing.
func TestOverrideRefusesChunks(t *testing.T) {
	s := newStore(t, nil)
	ref := Ref{Key: "k"}
	chunk := perSecond(100)
	chunk.Cost, chunk.Chunk = 5, true
	if a := must(s.Check(0, ref, id(1), chunk)); !a.Allowed {
		t.Fatalf("%+v", a)
	}
	must(s.SetOverride(0, ref, noID, over(50, second), 0))
	if a := must(s.Check(0, ref, id(2), chunk)); a.Allowed || a.Override != 50 || a.Remaining != 45 {
		t.Errorf("%+v", a)
	}
}

// What cannot be is refused, and changes nothing: also before all members know overrides, and where
// there is no room.
func TestOverrideRefusals(t *testing.T) {
	rule := &levelRule{level: OverrideLevel - 1}
	rule.epoch = 1
	s := newStore(t, func(c *Config) { c.Rule, c.MaxObjects = rule, 2 })
	if _, err := s.SetOverride(0, Ref{Key: "k"}, noID, over(1, second), 0); reason(err) != failure.Unavailable {
		t.Errorf("%v", err)
	}
	if _, err := s.ClearOverride(0, Ref{Key: "k"}, noID); reason(err) != failure.Unavailable {
		t.Errorf("%v", err)
	}
	rule.level = OverrideLevel
	for name, bad := range map[string]struct {
		o     limit.Override
		lasts int64
	}{
		"no limit": {over(0, second), 0}, "too many": {over(limit.MaxLimit+1, second), 0}, "no period": {over(1, 0), 0},
		"too long": {over(1, limit.MaxPeriod+1), 0}, "burst": {limit.Override{Limit: 1, Period: second, Burst: limit.MaxLimit + 1}, 0},
		"negative": {over(1, second), -1}, "for ever": {over(1, second), limit.MaxOverride + 1},
	} {
		if _, err := s.SetOverride(0, Ref{Key: "k"}, noID, bad.o, bad.lasts); reason(err) != failure.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if held(s) != 0 {
		t.Errorf("%d objects", held(s))
	}
	must(s.SetOverride(0, Ref{Key: "a"}, noID, over(1, second), limit.MaxOverride))
	must(s.SetOverride(0, Ref{Key: "b"}, noID, over(1, second), 0))
	if _, err := s.SetOverride(0, Ref{Key: "c"}, noID, over(1, second), 0); reason(err) != failure.StoreFull {
		t.Errorf("%v", err)
	}
	must(s.SetOverride(0, Ref{Key: "a"}, noID, over(2, second), 0))
	if _, err := s.Get(0, Ref{Key: "a"}); reason(err) != failure.KindMismatch {
		t.Errorf("%v", err)
	}
}

// In the grace of a loss, with LostEmpty, a limit that has an override and nothing else was used up,
// by the override.
func TestOverrideInGrace(t *testing.T) {
	s, _ := lost(t, func(c *Config) { c.LostLimits = LostEmpty })
	must(s.SetOverride(cameAt, Ref{Key: "k"}, noID, over(4, 4*second), 0))
	if a := must(s.Check(cameAt+second, Ref{Key: "k"}, noID, perSecond(9))); !a.Allowed || a.Capacity != 4 || a.Remaining != 0 {
		t.Errorf("%+v", a)
	}
}

// A limit that nobody checks is forgotten when its override has ended.
func TestOverridesAreSwept(t *testing.T) {
	s := newStore(t, func(c *Config) { c.Shards = 1 })
	for i := range 100 {
		must(s.SetOverride(0, Ref{Key: fmt.Sprint(i)}, noID, over(1, second), int64(i+1)))
	}
	if sweepAll(s, 50); held(s) != 50 || s.shards[0].overs.Len() != 50 {
		t.Errorf("%d objects, %d overrides", held(s), s.shards[0].overs.Len())
	}
	if sweepAll(s, 100); held(s) != 0 || s.shards[0].overs.Len() != 0 {
		t.Errorf("%d objects, %d overrides", held(s), s.shards[0].overs.Len())
	}
}

// A copy, whose time runs behind, does not bring back an override of which the owner has forgotten
// that it was there.
func TestCopiesHearOfSweptOverrides(t *testing.T) {
	f := follower{t: t, to: must(New(Config{Rule: &testRule{epoch: 1}, Shards: 1}, 0))}
	s := must(New(Config{Rule: &testRule{epoch: 1}, Shards: 1, Sink: &f}, 0))
	ref := Ref{Key: "k"}
	must(s.SetOverride(0, ref, noID, over(1, second), second))
	if sweepAll(s, second); held(s) != 0 {
		t.Fatalf("%d objects", held(s))
	}
	if a := must(s.Check(second, ref, noID, peekAt(perSecond(3)))); a.Override != 0 {
		t.Errorf("%+v", a)
	}
	if a := must(f.to.Check(second-1, ref, noID, peekAt(perSecond(3)))); a.Override != 0 {
		t.Errorf("a copy: %+v", a)
	}
}
