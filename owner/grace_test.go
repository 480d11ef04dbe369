package owner

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/limit"
)

// In the tests, rows were lost in epoch 100, came here at 1000 s, and have changed
// since; locks last a minute at most.
const (
	lostIn  = uint64(100)
	cameAt  = 1000 * second
	longest = 60 * second
)

// lost is a store of rows in grace.
func lost(t testing.TB, change func(*Config)) (*Store, *testRule) {
	t.Helper()
	rule := &testRule{epoch: lostIn + 5, lost: lostIn, lostAt: cameAt, terms: Terms{LockTTL: longest, Grace: longest + second}}
	return newStore(t, func(c *Config) {
		c.Rule = rule
		if change != nil {
			change(c)
		}
	}), rule
}

// granted is a token of before the loss.
func granted(epochs, seq uint64) uint64 { return (lostIn-epochs)<<SeqBits | seq }

func claim(holder string, left int64) Claim { return Claim{Holder: holder, Left: left} }

func TestNothingIsGrantedInGrace(t *testing.T) {
	s, rule := lost(t, nil)
	now := cameAt + second
	for name, op := range map[string]AcquireLock{"at once": asks("a", second, 0), "in the queue": asks("a", second, 9*second)} {
		_, w, err := s.Acquire(now, door, id(1), op)
		if reason(err) != failure.Recovering || w != nil {
			t.Errorf("%s: %v, %v", name, w, err)
		} else if left := err.(*failure.Error).RetryAfter; int64(left) != longest {
			t.Errorf("%s: it is to be tried again in %s", name, left)
		}
	}
	_, err := s.Renew(now, door, granted(3, 1), second)
	if reason(err) != failure.Recovering {
		t.Errorf("renew: %v", err)
	}
	if _, err := s.Release(now, door, id(2), granted(3, 1)); reason(err) != failure.Recovering {
		t.Errorf("release: %v", err)
	}
	if n := held(s); n != 0 {
		t.Errorf("%d objects", n)
	}
	if a := must(s.Inspect(now, door, 1)); a.Holding.Token != 0 || a.Permit.Lost != lostIn {
		t.Errorf("inspect: %+v", a)
	}
	// The loss is over for none before its time, by whatever the clock of a call says.
	if _, _, err := s.Acquire(0, door, noID, asks("a", second, 0)); reason(err) != failure.Recovering {
		t.Errorf("a clock that was read early: %v", err)
	}
	rule.lost, rule.lostAt, rule.epoch = 0, 0, lostIn+6
	a, _ := acquire(t, s, now, id(1), asks("a", second, 0))
	if !a.Acquired || a.Token>>SeqBits != lostIn+6 || a.Permit.Lost != 0 {
		t.Errorf("afterwards: %+v", a)
	}
	rule.lost, rule.lostAt = lostIn+7, cameAt // and what is remembered is told
	if a, _ := acquire(t, s, now, retry(1, 1), asks("a", second, 0)); !a.Acquired || !a.Replayed {
		t.Errorf("a retry: %+v", a)
	}
}

// TestTrap35HighestTokenWins: a former holder re-claims first, then the true one.
// Both keep their tokens, so that what the lock protects knows who is late.
func TestTrap35HighestTokenWins(t *testing.T) {
	s, rule := lost(t, nil)
	now := cameAt + second
	old, last := granted(3, 5), granted(3, 9)
	r := must(s.Reclaim(now, door, old, 10*second, Claim{Holder: "old", Metadata: []byte("m"), Left: 8 * second}))
	if !r.Renewed || !r.Reclaimed || r.TTL != 8*second || r.Permit.Lost != lostIn {
		t.Errorf("the former holder: %+v", r)
	}
	if a := must(s.Inspect(now, door, 0)); a.Holding.Token != old || a.Holding.Name != "old" || string(a.Holding.Metadata) != "m" {
		t.Errorf("it is held so: %+v", a)
	}
	if r := must(s.Reclaim(now, door, last, 10*second, claim("last", 4*second))); !r.Reclaimed || r.TTL != 4*second {
		t.Errorf("the true holder: %+v", r)
	}
	for name, r := range map[string]RenewAnswer{
		"with a claim": must(s.Reclaim(now, door, old, 10*second, claim("old", 7*second))),
		"without":      must(s.Renew(now, door, old, 10*second)),
	} {
		if r.Renewed || r.Reclaimed || r.Holder.Token != last {
			t.Errorf("the former holder again, %s: %+v", name, r)
		}
	}
	if r := must(s.Release(now, door, noID, old)); r.Released {
		t.Errorf("it gives back what it has not: %+v", r)
	}
	if r := must(s.Reclaim(now+second, door, last, 10*second, claim("last", second))); !r.Renewed || r.Reclaimed || r.TTL != 10*second {
		t.Errorf("the next renewal: %+v", r)
	}
	if _, _, err := s.Acquire(now+second, door, noID, asks("x", second, 0)); reason(err) != failure.Recovering {
		t.Errorf("acquire: %v", err)
	}
	if r := must(s.Release(now+2*second, door, noID, last)); !r.Released {
		t.Errorf("release: %+v", r)
	}
	// What was seen is remembered till the end of the grace, and no longer.
	sweepAll(s, now+3*second)
	if r := must(s.Reclaim(now+3*second, door, old, 10*second, claim("old", 7*second))); r.Renewed {
		t.Errorf("after the true holder has given it back: %+v", r)
	}
	rule.lost, rule.epoch = 0, lostIn+6
	a, _ := acquire(t, s, now+4*second, noID, asks("x", second, 0))
	if !a.Acquired || a.Token <= last {
		t.Errorf("the next grant: %+v", a)
	}
	must(s.Release(now+4*second, door, noID, a.Token))
	sweepAll(s, now+5*second)
	if n := held(s); n != 0 {
		t.Errorf("%d objects are kept", n)
	}
	if r := must(s.Reclaim(now+6*second, door, old, 10*second, claim("old", 7*second))); r.Renewed {
		t.Errorf("after the grace: %+v", r)
	}
}

func TestClaimsThatCannotBe(t *testing.T) {
	s, rule := lost(t, nil)
	now, good := cameAt+second, claim("h", second)
	for name, c := range map[string]struct {
		token uint64
		claim Claim
		field string
	}{
		"no time left":        {granted(1, 1), claim("h", 0), "reclaim.left_ns"},
		"less than none":      {granted(1, 1), claim("h", -1), "reclaim.left_ns"},
		"no holder":           {granted(1, 1), claim("", second), "reclaim.holder"},
		"no token":            {0, good, "token"},
		"no sequence":         {granted(1, 0), good, "token"},
		"of the loss":         {granted(0, 1), good, "token"},
		"of an epoch to come": {(lostIn + 1000) << SeqBits, good, "token"},
		"too large":           {1 << 63, good, "token"},
	} {
		_, err := s.Reclaim(now, door, c.token, second, c.claim)
		if e, ok := err.(*failure.Error); !ok || e.Reason != failure.Invalid || e.Field != c.field {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := s.Reclaim(now, door, granted(1, 1), longest+1, good); reason(err) != failure.Invalid {
		t.Errorf("a TTL that is too long: %v", err)
	}
	if n := held(s); n != 0 {
		t.Errorf("%d objects", n)
	}
	// Who counts on more than any lock lasts, gets what a lock lasts at most.
	if r := must(s.Reclaim(now, door, granted(1, 1), second, claim("h", 1<<62))); !r.Reclaimed || r.TTL != longest {
		t.Errorf("%+v", r)
	}
	// Without a claim, a token that never was is what it always is: not held.
	if r := must(s.Renew(now, Ref{Key: "other", Name: "lock"}, granted(0, 1), second)); r.Renewed {
		t.Errorf("renew: %+v", r)
	}
	if r := must(s.Release(now, Ref{Key: "other", Name: "lock"}, noID, granted(0, 7))); r.Released {
		t.Errorf("release: %+v", r)
	}
	full, _ := lost(t, func(c *Config) { c.MaxObjects = 1 })
	must(full.Check(now, door, noID, perSecond(3)))
	if _, err := full.Reclaim(now, Ref{Key: "other", Name: "lock"}, granted(1, 1), second, good); reason(err) != failure.StoreFull {
		t.Errorf("no room: %v", err)
	}
	// Without a loss a claim changes nothing.
	rule.lost = 0
	if r := must(s.Reclaim(now, Ref{Key: "other", Name: "lock"}, granted(1, 1), second, good)); r.Renewed || r.Reclaimed {
		t.Errorf("without a loss: %+v", r)
	}
}

// TestAgreedTTL: what was agreed on counts, whatever this process was told.
func TestAgreedTTL(t *testing.T) {
	s, rule := lost(t, func(c *Config) { c.MaxLockTTL = 10 * second })
	rule.lost = 0
	if a, _ := acquire(t, s, cameAt, noID, asks("a", longest, 0)); !a.Acquired {
		t.Errorf("%+v", a)
	}
	if _, _, err := s.Acquire(cameAt, door, noID, asks("a", longest+1, 0)); reason(err) != failure.Invalid {
		t.Errorf("too long: %v", err)
	}
	rule.terms = Terms{}
	if _, _, err := s.Acquire(cameAt, door, noID, asks("a", longest, 0)); reason(err) != failure.Invalid {
		t.Errorf("nothing is agreed on: %v", err)
	}
}

// Whoever claims what, in whatever order: at any moment at most one token holds the
// lock, no lower one after a higher one, and grants of after the grace are above.
func TestClaimsInAnyOrder(tb *testing.T) {
	rapid.Check(tb, func(t *rapid.T) {
		s, rule := lost(tb, nil)
		now, top := cameAt, uint64(0)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now += rapid.SampledFrom([]int64{0, 1, second, 5 * second}).Draw(t, "pause")
			token := granted(rapid.Uint64Range(1, 2).Draw(t, "epochs"), rapid.Uint64Range(1, 3).Draw(t, "seq"))
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0, 1, 2:
				r, err := s.Reclaim(now, door, token, 3*second, claim("h", rapid.Int64Range(1, 8*second).Draw(t, "left")))
				if err != nil || r.Renewed && token < top || r.Reclaimed && token <= top || token > top && !r.Reclaimed {
					t.Fatalf("a claim of %d, when %d was seen: %+v, %v", token, top, r, err)
				}
				top = max(top, token)
			case 3:
				if r, err := s.Release(now, door, noID, token); (reason(err) == failure.Recovering) != (token > top) || r.Released && token != top {
					t.Fatalf("a release of %d, when %d was seen: %+v, %v", token, top, r, err)
				}
			case 4:
				sweepAll(s, now)
			case 5:
				if _, w, err := s.Acquire(now, door, noID, asks("x", second, second)); reason(err) != failure.Recovering || w != nil {
					t.Fatalf("acquire: %v", err)
				}
			}
			if a := must(s.Inspect(now, door, 1)); a.Holding.Token != 0 && a.Holding.Token != top || a.Waiting > 0 {
				t.Fatalf("%+v, when %d was seen", a, top)
			}
		}
		rule.lost, rule.epoch = 0, rule.epoch+1
		now += longest
		if a, _, err := s.Acquire(now, door, noID, asks("x", second, 0)); err != nil || a.Token <= top {
			t.Fatalf("%d had been seen: %+v, %v", top, a, err)
		}
	})
}

// TestLostLimits: what a limit starts with that was lost.
func TestLostLimits(t *testing.T) {
	bucket := limit.Op{Params: limit.Params{Limit: 10, Period: 10 * second}, Cost: 2}
	window := limit.Op{Params: limit.Params{Algorithm: limit.FixedWindow, Limit: 10, Period: 10 * second}, Cost: 2}
	for name, c := range map[string]struct {
		policy  string
		op      limit.Op
		at      int64 // since the row came
		allowed bool
		left    uint64
	}{
		"full":                       {LostFull, bucket, 0, true, 8},
		"empty":                      {LostEmpty, bucket, 0, false, 0},
		"empty, a little later":      {LostEmpty, bucket, second, false, 1},
		"empty, enough has come":     {LostEmpty, bucket, 3 * second, true, 1},
		"empty, all of it has":       {LostEmpty, bucket, 10 * second, true, 8},
		"a window":                   {LostEmpty, window, 10*second - 1, false, 0},
		"a window, the next":         {LostEmpty, window, 10 * second, true, 8},
		"a window, full":             {LostFull, window, 0, true, 8},
		"before it came, by a clock": {LostEmpty, bucket, -second, false, 0},
	} {
		s, rule := lost(t, func(cfg *Config) { cfg.LostLimits = c.policy })
		op, now := c.op, cameAt+c.at
		op.Peek = true
		if a := must(s.Check(now, door, noID, op)); a.Allowed != c.allowed || held(s) != 0 {
			t.Errorf("%s: a peek: %+v, and %d objects", name, a, held(s))
		}
		op.Peek = false
		a := must(s.Check(now, door, id(1), op))
		if a.Allowed != c.allowed || a.Remaining != c.left || a.Permit.Lost != lostIn {
			t.Errorf("%s: %+v", name, a)
		}
		if a := must(s.Check(now, door, retry(1, 1), op)); a.Allowed != c.allowed || !a.Replayed {
			t.Errorf("%s: a retry: %+v", name, a)
		}
		// Who was denied in the grace is not let in by its end.
		rule.lost, rule.lostAt = 0, 0
		if after := must(s.Check(max(now, cameAt), door, noID, op)); after.Allowed != (c.left >= op.Cost) {
			t.Errorf("%s: when the grace is over: %+v", name, after)
		}
	}
	if _, err := New(Config{Rule: &testRule{}, LostLimits: "half"}, 0); reason(err) != failure.Invalid {
		t.Errorf("a policy that is none: %v", err)
	}
	full, _ := lost(t, func(c *Config) { c.MaxObjects, c.LostLimits = 1, LostEmpty })
	must(full.Check(cameAt, door, noID, bucket))
	if a, err := full.Check(cameAt, Ref{Key: "other", Name: "n"}, noID, bucket); err != nil || a.Allowed {
		t.Errorf("a denial for which there is no room: %+v, %v", a, err)
	}
	if _, err := full.Check(cameAt, Ref{Key: "other", Name: "n"}, id(1), bucket); reason(err) != failure.StoreFull {
		t.Errorf("with a request id: %v", err)
	}
}

// However often the store is swept: limits that start empty are those of the core
// that were emptied when the row came, also when they are met again.
func TestLostLimitsAgainstCore(tb *testing.T) {
	rapid.Check(tb, func(t *rapid.T) {
		s, rule := lost(tb, func(c *Config) { c.LostLimits = LostEmpty })
		models, now := map[Ref]limit.State{}, cameAt
		ops := []limit.Op{perSecond(3), {Params: limit.Params{Limit: 7, Period: 5 * second, Burst: 9}, Cost: 4},
			{Params: limit.Params{Algorithm: limit.FixedWindow, Limit: 3, Period: 4 * second}, Cost: 1}}
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			now += rapid.SampledFrom([]int64{0, 1, second / 3, 2 * second, 20 * second}).Draw(t, "pause")
			n := rapid.IntRange(0, 5).Draw(t, "object")
			ref, op := Ref{Key: fmt.Sprint(n)}, ops[n%3]
			op.Peek = rapid.IntRange(0, 3).Draw(t, "peek") == 0
			state, met := models[ref]
			if !met && rule.lost != 0 {
				state = op.Params.Emptied(cameAt)
			}
			next, want, _ := limit.Apply(state, op, now)
			if !op.Peek {
				models[ref] = next
			}
			if got := must(s.Check(now, ref, noID, op)); got.Result != want {
				t.Fatalf("%+v at %d: %+v, want %+v", op, now-cameAt, got.Result, want)
			}
			if rapid.IntRange(0, 3).Draw(t, "sweep") == 0 {
				sweepAll(s, now)
			}
			if rapid.IntRange(0, 30).Draw(t, "end") == 0 {
				rule.lost, rule.lostAt = 0, 0
			}
		}
	})
}
