package client

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestLockOutlivesItsOwner: what the owner has lost is taken back under its token,
// and nobody but the owner notices.
func TestLockOutlivesItsOwner(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		c, n1 := w.client(direct, "n1"), w.nodes["n1"]
		l := must(c.Lock("").Acquire(soon(t), "k", TTL(10*time.Second), HeldBy("me"), Metadata([]byte("m"))))(t)
		time.Sleep(2 * time.Second)
		n1.lose()
		if s := must(c.Lock("").Inspect(soon(t), "k"))(t); s.Holder != nil || s.LostEpoch == 0 {
			t.Errorf("%+v", s)
		}
		time.Sleep(1500 * time.Millisecond) // a renewal is due
		synctest.Wait()
		s := must(c.Lock("").Inspect(soon(t), "k"))(t)
		if s.Holder == nil || s.Holder.Token != l.Token() || s.Holder.ID != "me" || string(s.Holder.Metadata) != "m" || s.Holder.TTL < 9*time.Second {
			t.Errorf("it was not taken back, or not prolonged: %+v", s.Holder)
		}
		time.Sleep(time.Hour)
		if !l.Held() {
			t.Fatal(context.Cause(l.Context()))
		}
		if err := l.Release(soon(t)); err != nil {
			t.Error(err)
		}
	})
}

// TestUnlockOfALostLock: it is claimed and given back, or not held to be lost when
// that cannot be known.
func TestUnlockOfALostLock(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		c, n1 := w.client(direct, "n1"), w.nodes["n1"]
		l := must(c.Lock("").Acquire(soon(t), "k", TTL(10*time.Second)))(t)
		n1.lose()
		if err := l.Release(soon(t)); err != nil {
			t.Error(err)
		}
		if s := must(c.Lock("").Inspect(soon(t), "k"))(t); s.Holder != nil {
			t.Errorf("%+v", s.Holder)
		}
		n1.lostAt.Store(0)
		l = must(c.Lock("").Acquire(soon(t), "late", TTL(time.Second)))(t)
		n1.denies.Store(true)
		time.Sleep(2 * time.Second)
		n1.denies.Store(false)
		n1.lose()
		began := time.Now()
		if err := l.Release(soon(t)); !errors.Is(err, ErrRecovering) || time.Since(began) > time.Second {
			t.Errorf("its lease was over: after %s, %v", time.Since(began), err)
		}
	})
}

// TestLockWaitsForTheGrace: a call that has the time gets the lock when the grace
// is over, and one that has not is told so at once.
func TestLockWaitsForTheGrace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		c, n1 := w.client(direct, "n1"), w.nodes["n1"]
		n1.lose()
		began := time.Now()
		_, err := c.Lock("").TryAcquire(soon(t), "k")
		var e *Error
		if !errors.As(err, &e) || e.Reason != ErrRecovering || e.RetryAfter != grace || time.Since(began) > time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		if d := must(c.Limit("n", PerSecond(3)).Check(soon(t), "k"))(t); !d.Allowed || d.LostEpoch == 0 {
			t.Errorf("a limit: %+v", d)
		}
		if v := must(c.Counter("").Add(soon(t), "k", 1))(t); v.LostEpoch == 0 {
			t.Errorf("a counter: %+v", v)
		}
		go func() {
			time.Sleep(grace)
			n1.lostAt.Store(0)
		}()
		l := must(c.Lock("").Acquire(ctx2(t, time.Hour), "k"))(t)
		if took := time.Since(began); took < grace || took > grace+3*time.Second || l.Meta().LostEpoch != 0 {
			t.Errorf("granted after %s: %+v", took, l.Meta())
		}
		_ = l.Release(soon(t))
	})
}
