package owner

import (
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
)

// named are policies whose versions are their limits.
type named struct {
	version atomic.Uint64
	none    atomic.Bool
	broken  error
	asked   atomic.Int64
}

func (n *named) Limit(name string) (limit.Named, uint64, bool, error) {
	n.asked.Add(1)
	v := n.version.Load()
	return limit.Named{Params: limit.Params{Limit: v, Period: second}}, v, name == "p" && !n.none.Load(), n.broken
}

func withPolicies(t testing.TB, version uint64) (*Store, *named) {
	n := &named{}
	n.version.Store(version)
	return newStore(t, func(c *Config) {
		c.Rule, c.Policies = &testRule{epoch: 100, since: math.MinInt64}, n
	}), n
}

var spends = limit.Op{Cost: 1}

// A check of a policy is one of the limit that it has when it is decided; what was spent
// stays spent when the policy changes.
func TestCheckPolicy(t *testing.T) {
	s, n := withPolicies(t, 3)
	ref := Ref{Key: "k", Name: "p"}
	check := func(op limit.Op) (CheckAnswer, Resolved, error) { return s.CheckPolicy(0, ref, noID, "p", op) }
	for left := range uint64(3) {
		if a, by, err := check(spends); err != nil || !a.Allowed || a.Remaining != 2-left || by.Version != 3 || by.Limit != 3 {
			t.Fatalf("%+v %+v %v", a, by, err)
		}
	}
	if a, _, err := check(spends); err != nil || a.Allowed || a.Capacity != 3 {
		t.Errorf("%+v %v", a, err)
	}
	n.version.Store(5)
	if a, by, err := check(spends); err != nil || !a.Allowed || a.Remaining != 1 || by.Version != 5 {
		t.Errorf("%+v %+v %v", a, by, err)
	}
	if a, _, err := check(limit.Op{Cost: 5, Peek: true}); err != nil || a.Allowed || a.Remaining != 1 {
		t.Errorf("a peek: %+v %v", a, err)
	}
	if a, _, err := check(limit.Op{Refund: 3}); err != nil || a.Remaining != 4 {
		t.Errorf("a refund: %+v %v", a, err)
	}
	if _, by, err := check(limit.Op{Cost: 6}); reason(err) != failure.Invalid || by.Version != 5 {
		t.Errorf("more than there can be: %+v %v", by, err)
	}
	if _, by, err := s.CheckPolicy(0, ref, noID, "q", spends); reason(err) != failure.PolicyUnknown || by.Version != 5 {
		t.Errorf("%+v %v", by, err)
	}
	n.broken = &failure.Error{Reason: failure.Unavailable}
	if _, _, err := check(spends); reason(err) != failure.Unavailable {
		t.Error(err)
	}
	if _, _, err := newStore(t, nil).CheckPolicy(0, ref, noID, "p", spends); reason(err) != failure.PolicyUnknown {
		t.Error(err)
	}
}

// A retry gets the first answer, whatever has become of its policy since; and one id is that
// of one policy.
func TestCheckPolicyAgain(t *testing.T) {
	s, n := withPolicies(t, 2)
	ref := Ref{Key: "k", Name: "p"}
	key := reqid.KeyID("order-7")
	for _, id := range []reqid.ID{id(1), key} {
		if a, _, err := s.CheckPolicy(0, ref, id, "p", spends); err != nil || !a.Allowed || a.Replayed {
			t.Fatalf("%+v %v", a, err)
		}
	}
	for _, change := range []func(){func() {}, func() { n.version.Store(1) }, func() { n.none.Store(true) }} {
		change()
		for _, id := range []reqid.ID{id(1), key} {
			if a, _, err := s.CheckPolicy(0, ref, id, "p", spends); err != nil || !a.Allowed || !a.Replayed {
				t.Errorf("%+v %v", a, err)
			}
		}
	}
	if _, _, err := s.CheckPolicy(0, ref, id(2), "p", spends); reason(err) != failure.PolicyUnknown {
		t.Error(err)
	}
	if _, _, err := s.CheckPolicy(0, ref, id(1), "other", spends); reason(err) != failure.RequestIDReused {
		t.Error(err)
	}
	n.none.Store(false)
	if _, err := s.Check(0, ref, key, perSecond(2)); reason(err) != failure.RequestIDReused {
		t.Error(err)
	}
}

// queued are policies of a leaky bucket.
type queued struct{ maxDelay int64 }

func (q queued) Limit(string) (limit.Named, uint64, bool, error) {
	return limit.Named{Params: limit.Params{Algorithm: limit.LeakyBucket, Limit: 1, Period: second, Burst: 100}, MaxDelay: q.maxDelay}, 7, true, nil
}

// Nobody waits longer for a turn than the policy says, nor than the caller does; and one that does
// not say that it waits does not.
func TestPolicyBoundsTheDelay(t *testing.T) {
	for _, c := range []struct{ policy, caller, allowed int64 }{
		{2 * second, math.MaxInt64, 3}, {2 * second, 1 * second, 2}, {2 * second, 0, 1}, {0, 4 * second, 5},
	} {
		s := newStore(t, func(cfg *Config) {
			cfg.Rule, cfg.Policies = &testRule{epoch: 100, since: math.MinInt64}, queued{c.policy}
		})
		for i := range int64(10) {
			a, _, err := s.CheckPolicy(0, Ref{Key: "k", Name: "p"}, noID, "p", limit.Op{Cost: 1, MaxDelay: c.caller})
			if want := i < c.allowed; err != nil || a.Allowed != want || want && a.Delay != i*second {
				t.Errorf("%+v: %d is %+v, %v", c, i, a, err)
			}
		}
	}
}

// changing is a rule by which the policies change while it decides.
type changing struct {
	testRule
	n *named
}

func (r *changing) Admit(hash uint64, now int64) (Permit, error) {
	r.n.version.Add(1)
	return r.testRule.Admit(hash, now)
}

// Policies that are in force when the rule lets an operation in are those that it goes by:
// an owner before may have gone by them.
func TestPoliciesAreAskedAfterTheRule(t *testing.T) {
	n := &named{}
	n.version.Store(7)
	r := &changing{testRule{epoch: 100}, n}
	s := newStore(t, func(c *Config) { c.Rule, c.Policies = r, n })
	if _, by, err := s.CheckPolicy(0, Ref{Key: "k"}, noID, "p", spends); err != nil || by.Version != 8 {
		t.Errorf("%+v %v", by, err)
	}
	r.admit = errors.New("not here")
	if _, _, err := s.CheckPolicy(0, Ref{Key: "k"}, noID, "p", spends); err != r.admit || n.asked.Load() != 1 {
		t.Errorf("%v, asked %d times", err, n.asked.Load())
	}
}

// However many callers check one key, the versions of the decisions never fall, in their order.
func TestVersionOfAKeyNeverFalls(t *testing.T) {
	s, n := withPolicies(t, 1000)
	var wg sync.WaitGroup
	type seen struct{ left, version uint64 }
	all := make(chan seen, 8*500)
	for range 8 {
		wg.Go(func() {
			for range 500 {
				n.version.Add(1)
				a, by, err := s.CheckPolicy(0, Ref{Key: "k"}, noID, "p", spends)
				if err != nil || !a.Allowed {
					t.Errorf("%+v %v", a, err)
					return
				}
				all <- seen{by.Version - a.Remaining, by.Version} // as many were spent
			}
		})
	}
	wg.Wait()
	close(all)
	versions := make([]uint64, 4001)
	for x := range all {
		versions[x.left] = x.version
	}
	for i := 2; i <= 4000; i++ {
		if versions[i] < versions[i-1] {
			t.Fatalf("check %d went by version %d, and the one before by %d", i, versions[i], versions[i-1])
		}
	}
}

func TestCheckPolicyAllocatesNothing(t *testing.T) {
	s, _ := withPolicies(t, 1_000_000)
	ref := Ref{Key: "k", Name: "p"}
	if n := testing.AllocsPerRun(1000, func() {
		if _, _, err := s.CheckPolicy(0, ref, noID, "p", spends); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkCheckPolicy(b *testing.B) {
	s, _ := withPolicies(b, 1_000_000_000)
	ref := Ref{Key: "k", Name: "p"}
	for _, c := range []struct {
		name string
		do   func(now int64) error
	}{
		{"numbers", func(now int64) error { _, err := s.Check(now, ref, noID, perSecond(1_000_000_000)); return err }},
		{"policy", func(now int64) error { _, _, err := s.CheckPolicy(now, ref, noID, "p", spends); return err }},
	} {
		b.Run(c.name, func(b *testing.B) {
			now := int64(0)
			for b.Loop() {
				now += 100
				if err := c.do(now); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
