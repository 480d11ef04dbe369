package owner

import (
	"fmt"
	"slices"
	"testing"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/reqid"
)

var door = Ref{Key: "door", Name: "lock"}

func asks(holder string, ttl, wait int64) AcquireLock {
	return AcquireLock{Holder: holder, TTL: ttl, Wait: wait}
}

func acquire(t *testing.T, s *Store, now int64, id reqid.ID, op AcquireLock) (GrantAnswer, *Wait[GrantAnswer]) {
	t.Helper()
	a, w, err := s.Acquire(now, door, id, op)
	if err != nil {
		t.Fatal(err)
	}
	return a, w
}

func answered(t *testing.T, w *Wait[GrantAnswer]) (GrantAnswer, error) {
	t.Helper()
	if !w.finished() {
		t.Fatal("still waiting")
	}
	return w.Answer()
}

func TestQueueIsServedInOrder(t *testing.T) {
	s := newStore(t, nil)
	first, _ := acquire(t, s, 0, noID, asks("0", 10*second, 0))
	var waits []*Wait[GrantAnswer]
	for i := range 5 {
		_, w := acquire(t, s, int64(i), noID, asks(fmt.Sprint(i+1), 10*second, 100*second))
		waits = append(waits, w)
	}
	if a, _ := acquire(t, s, 5, noID, asks("x", second, 0)); a.Acquired || a.Place != 6 || a.Holder.Name != "0" {
		t.Errorf("one that does not wait: %+v", a)
	}
	token := first.Token
	for i, w := range waits {
		if w.finished() {
			t.Fatalf("%d was served early", i)
		}
		now := int64(i+1) * second
		if r := must(s.Release(now, door, noID, token)); !r.Released {
			t.Fatalf("release %d: %+v", i, r)
		}
		a, err := answered(t, w)
		if err != nil || !a.Acquired || a.Token <= token || a.TTL != 10*second || a.Waited != now-int64(i) {
			t.Fatalf("%d: %+v %v", i, a, err)
		}
		token = a.Token
	}
	if st := s.Stats(); st.Waiting != 0 {
		t.Errorf("%d still wait", st.Waiting)
	}
}

func TestWakeServesAndDismisses(t *testing.T) {
	s := newStore(t, nil)
	acquire(t, s, 0, noID, asks("a", 10*second, 0))
	_, patient := acquire(t, s, 0, noID, asks("b", second, 60*second))
	_, hasty := acquire(t, s, 0, id(1), asks("c", second, 3*second))
	wakes := []int64{}
	for at, ok := s.NextWake(); ok; at, ok = s.NextWake() {
		wakes = append(wakes, at/second)
		s.Wake(at)
		if hasty.finished() != (at >= 3*second) || patient.finished() != (at >= 10*second) {
			t.Fatalf("at %d: hasty %v, patient %v", at, hasty.finished(), patient.finished())
		}
	}
	if want := []int64{3, 10}; !slices.Equal(wakes, want) {
		t.Errorf("woke at %v, want %v", wakes, want)
	}
	if a, err := answered(t, hasty); err != nil || a.Acquired || a.Place != 2 || a.Holder.Name != "a" {
		t.Errorf("hasty: %+v %v", a, err)
	}
	if a, err := answered(t, patient); err != nil || !a.Acquired || a.Waited != 10*second {
		t.Errorf("patient: %+v %v", a, err)
	}
	// The refusal is remembered under the id.
	if a, w := acquire(t, s, 11*second, retry(1, 0), asks("c", second, 3*second)); w != nil || !a.Replayed || a.Acquired {
		t.Errorf("retry: %+v", a)
	}
}

func TestWakeChangedSignalsOnlyEarlierWakes(t *testing.T) {
	s := newStore(t, nil)
	acquire(t, s, 0, noID, asks("a", 10*second, 0))
	signalled := func() bool {
		select {
		case <-s.WakeChanged():
			return true
		default:
			return false
		}
	}
	for _, step := range []struct {
		wait int64
		want bool
	}{{60 * second, true}, {50 * second, false}, {5 * second, true}, {7 * second, false}} {
		acquire(t, s, 0, noID, asks("w", second, step.wait))
		if got := signalled(); got != step.want {
			t.Errorf("waiting for %d s: signalled %v", step.wait/second, got)
		}
	}
}

func TestWhoLeavesIsNotServed(t *testing.T) {
	s := newStore(t, nil)
	first, _ := acquire(t, s, 0, noID, asks("a", 10*second, 0))
	_, b := acquire(t, s, 0, noID, asks("b", second, 60*second))
	_, c := acquire(t, s, 0, noID, asks("c", second, 60*second))
	b.GiveUp(second)
	if _, err := answered(t, b); reason(err) != failure.GaveUp {
		t.Errorf("b: %v", err)
	}
	must(s.Release(2*second, door, noID, first.Token))
	if a, err := answered(t, c); err != nil || !a.Acquired {
		t.Errorf("c: %+v %v", a, err)
	}
	b.GiveUp(2 * second) // again
	if st := s.Stats(); st.Waiting != 0 {
		t.Errorf("%d still wait", st.Waiting)
	}
}

// The caller left at the instant of the grant: the lock goes on to the next one,
// and a replay says that the grant is over.
func TestGrantToWhoHasLeftIsGivenBack(t *testing.T) {
	s := newStore(t, nil)
	first, _ := acquire(t, s, 0, noID, asks("a", 10*second, 0))
	_, b := acquire(t, s, 0, id(1), asks("b", 10*second, 60*second))
	_, c := acquire(t, s, 0, noID, asks("c", 10*second, 60*second))
	must(s.Release(second, door, noID, first.Token))
	b.GiveUp(second)
	if a, err := answered(t, c); err != nil || !a.Acquired {
		t.Fatalf("c: %+v %v", a, err)
	}
	a, w := acquire(t, s, second, id(1), asks("b", 10*second, 60*second))
	if w != nil || !a.Replayed || !a.Acquired || a.TTL != 0 || a.Holder.Name != "c" {
		t.Errorf("retry of b: %+v", a)
	}
}

func TestRetryTakesThePlaceOfTheFirstAttempt(t *testing.T) {
	s := newStore(t, nil)
	first, _ := acquire(t, s, 0, noID, asks("a", 10*second, 0))
	_, b := acquire(t, s, 0, id(1), asks("b", second, 2*second))
	_, c := acquire(t, s, 0, noID, asks("c", second, 60*second))
	_, again := acquire(t, s, second, retry(1, second), asks("b", second, 60*second))
	if _, err := answered(t, b); reason(err) != failure.Superseded {
		t.Errorf("the first attempt: %v", err)
	}
	b.GiveUp(second) // its connection is noticed to be gone only now
	s.Wake(3 * second)
	must(s.Release(4*second, door, noID, first.Token))
	if a, err := answered(t, again); err != nil || !a.Acquired || a.Waited != 4*second {
		t.Errorf("the retry: %+v %v", a, err)
	}
	if c.finished() {
		t.Error("c came before b")
	}
}

func TestWaitersAreBounded(t *testing.T) {
	s := newStore(t, func(c *Config) { c.MaxWaiters, c.MaxWaitersPerLock = 3, 2 })
	acquire(t, s, 0, noID, asks("a", 10*second, 0))
	acquire(t, s, 0, noID, asks("b", second, second))
	acquire(t, s, 0, noID, asks("c", second, second))
	_, _, err := s.Acquire(0, door, noID, asks("d", second, second))
	if reason(err) != failure.TooManyWaiters {
		t.Errorf("a third waiter of the lock: %v", err)
	}
	other := Ref{Key: "window", Name: "lock"}
	for i, want := range []failure.Reason{0, 0, failure.TooManyWaiters} {
		if _, _, err := s.Acquire(0, other, noID, asks("e", 10*second, second)); reason(err) != want {
			t.Errorf("attempt %d at the other lock: %v", i, err)
		}
	}
	if a, _, err := s.Acquire(0, Ref{Key: "roof", Name: "lock"}, noID, asks("f", second, second)); err != nil || !a.Acquired {
		t.Errorf("a free lock needs no room in a queue: %+v %v", a, err)
	}
}

func TestTokensRise(t *testing.T) {
	t.Run("over locks that are forgotten", func(t *testing.T) {
		s := newStore(t, nil)
		var last uint64
		for i := range 100 {
			now := int64(i) * second
			a, _ := acquire(t, s, now, noID, asks("a", second/2, 0))
			if a.Token <= last || a.Token>>SeqBits != 100 {
				t.Fatalf("token %d after %d", a.Token, last)
			}
			last = a.Token
			if i%2 == 0 {
				must(s.Release(now, door, noID, a.Token))
			}
			sweepAll(s, now+second/2)
			if held(s) != 0 {
				t.Fatal("the lock was not forgotten")
			}
		}
	})
	t.Run("over the end of the sequence", func(t *testing.T) {
		rule := &testRule{epoch: 100}
		s := newStore(t, func(c *Config) { c.Rule = rule })
		sh := s.shard(Hash(door.Key))
		sh.lastToken = 100<<SeqBits | (1<<SeqBits - 2)
		var tokens []uint64
		for i := range 3 {
			a, _ := acquire(t, s, int64(i), noID, asks("a", second, 0))
			must(s.Release(int64(i), door, noID, a.Token))
			tokens = append(tokens, a.Token)
		}
		want := []uint64{100<<SeqBits | (1<<SeqBits - 1), 101<<SeqBits | 1, 101<<SeqBits | 2}
		if !slices.Equal(tokens, want) || rule.exhausted != 1 {
			t.Errorf("tokens %x, want %x; the epoch was raised %d times", tokens, want, rule.exhausted)
		}
	})
	t.Run("when the epoch rises", func(t *testing.T) {
		rule := &testRule{epoch: 100}
		s := newStore(t, func(c *Config) { c.Rule = rule })
		a, _ := acquire(t, s, 0, noID, asks("a", second, 0))
		must(s.Release(0, door, noID, a.Token))
		rule.epoch = 102
		if b, _ := acquire(t, s, 0, noID, asks("a", second, 0)); b.Token != 102<<SeqBits|1 {
			t.Errorf("token %x after %x", b.Token, a.Token)
		}
	})
}

func TestInspect(t *testing.T) {
	s := newStore(t, nil)
	if a := must(s.Inspect(0, door, 10)); a.Holding.Token != 0 || a.Waiting != 0 {
		t.Errorf("a lock that never was: %+v", a)
	}
	op := asks("a", 10*second, 0)
	op.Metadata = []byte("meta")
	got, _ := acquire(t, s, 0, noID, op)
	acquire(t, s, second, noID, asks("b", second, 60*second))
	acquire(t, s, 2*second, noID, asks("c", second, 60*second))
	a := must(s.Inspect(3*second, door, 1))
	if h := a.Holding; h.Name != "a" || h.Token != got.Token || h.Age != 3*second || h.Left != 7*second || string(h.Metadata) != "meta" {
		t.Errorf("holder: %+v", h)
	}
	if a.Waiting != 2 || len(a.First) != 1 || a.First[0].Name != "b" || a.First[0].Waited != 2*second {
		t.Errorf("queue: %+v", a.View)
	}
	if a := must(s.Inspect(10*second, door, 10)); a.Holding.Name != "b" || a.Waiting != 1 {
		t.Errorf("after the TTL: %+v", a.View)
	}
	if r := must(s.Renew(10*second, door, got.Token, second)); r.Renewed || r.Holder.Name != "b" {
		t.Errorf("a late renewal: %+v", r)
	}
}

func TestLockTTLIsBounded(t *testing.T) {
	s := newStore(t, func(c *Config) { c.MaxLockTTL = 60 * second })
	if _, _, err := s.Acquire(0, door, noID, asks("a", 61*second, 0)); reason(err) != failure.Invalid {
		t.Errorf("acquire: %v", err)
	}
	a, _ := acquire(t, s, 0, noID, asks("a", 60*second, 0))
	if _, err := s.Renew(0, door, a.Token, 61*second); reason(err) != failure.Invalid {
		t.Errorf("renew: %v", err)
	}
	if _, err := s.Renew(0, door, a.Token, 1); reason(err) != failure.Invalid {
		t.Errorf("renew for a nanosecond: %v", err)
	}
}
