package client

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestSharedLock(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		l := w.client(Config{}, "n1").Lock("")
		a := must(l.Acquire(soon(t), "k", HeldBy("a"), Shared()))(t)
		b := must(l.TryAcquire(soon(t), "k", HeldBy("b"), Shared(), Delay(5*time.Second)))(t)
		if !a.Shared() || !b.Held() || b.Token() <= a.Token() {
			t.Errorf("tokens %d, %d", a.Token(), b.Token())
		}
		_, err := l.TryAcquire(soon(t), "k")
		var e *Error
		if !errors.Is(err, ErrLockHeld) || !errors.As(err, &e) || e.Holder == nil || e.Holder.ID != "a" || !e.Holder.Shared {
			t.Errorf("a writer among readers: %v", err)
		}
		time.Sleep(time.Hour)
		got := make(chan *HeldLock, 1)
		go func() { got <- must(l.Acquire(context.Background(), "k", HeldBy("w")))(t) }()
		synctest.Wait()
		if _, err := l.TryAcquire(soon(t), "k", Shared()); !errors.Is(err, ErrLockHeld) {
			t.Errorf("a reader that would pass the writer: %v", err)
		}
		if v := must(l.Inspect(soon(t), "k"))(t); v.Holding != 2 || len(v.Holders) != 2 || v.Holders[1].ID != "b" || v.Waiting != 1 || v.Waiters[0].Shared {
			t.Errorf("%+v", v)
		}
		if err := a.Release(soon(t)); err != nil {
			t.Error(err)
		}
		if ok := must(l.Revoke(soon(t), "k", b.Token()))(t); !ok {
			t.Error("not revoked")
		}
		writer := <-got
		<-b.Context().Done()
		if held := must(b.Verify(soon(t)))(t); held || b.Held() || !errors.Is(context.Cause(b.Context()), ErrLockLost) {
			t.Errorf("revoked, and held %v: %v", held, context.Cause(b.Context()))
		}
		if writer.Shared() {
			t.Error("the writer shares the lock")
		}
		if err := writer.Downgrade(soon(t)); err != nil || !writer.Shared() || !writer.Held() {
			t.Errorf("downgraded: %v", err)
		}
		if err := writer.Update(soon(t), []byte("m")); err != nil {
			t.Error(err)
		}
		c := must(l.TryAcquire(soon(t), "k", Shared()))(t)
		if v := must(l.Inspect(soon(t), "k"))(t); v.Holding != 2 || !v.Holder.Shared || string(v.Holder.Metadata) != "m" {
			t.Errorf("%+v", v)
		}
		if ok := must(l.Revoke(soon(t), "k", c.Token()))(t); !ok {
			t.Error("not revoked")
		}
		if err := c.Downgrade(soon(t)); !errors.Is(err, ErrLockLost) || c.Held() {
			t.Errorf("what is over: %v, held %v", err, c.Held())
		}
	})
}

// TestSharedLocksOutliveTheirOwner: what the owner has lost is taken back by all that shared it,
// and by one that was downgraded as shared.
func TestSharedLocksOutliveTheirOwner(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		c, n1 := w.client(direct, "n1"), w.nodes["n1"]
		l := c.Lock("")
		a := must(l.Acquire(soon(t), "k", TTL(10*time.Second), HeldBy("a")))(t)
		if err := a.Downgrade(soon(t)); err != nil {
			t.Fatal(err)
		}
		b := must(l.Acquire(soon(t), "k", TTL(10*time.Second), HeldBy("b"), Shared()))(t)
		time.Sleep(2 * time.Second)
		n1.lose()
		if v := must(l.Inspect(soon(t), "k"))(t); v.Holding != 0 || v.LostEpoch == 0 {
			t.Errorf("%+v", v)
		}
		time.Sleep(1500 * time.Millisecond) // renewals are due
		synctest.Wait()
		v := must(l.Inspect(soon(t), "k"))(t)
		if v.Holding != 2 || v.Holders[0].Token != a.Token() || v.Holders[1].Token != b.Token() || !v.Holders[0].Shared {
			t.Errorf("%+v", v)
		}
		time.Sleep(time.Hour)
		if !a.Held() || !b.Held() {
			t.Errorf("%v, %v", context.Cause(a.Context()), context.Cause(b.Context()))
		}
	})
}

// TestLockUnderASession: a session keeps locks alive as it keeps permits, alone and shared.
func TestLockUnderASession(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		c := w.client(Config{}, "n1")
		s := must(c.Session(soon(t)))(t)
		a := must(s.Lock("").Acquire(soon(t), "k", Shared()))(t)
		b := must(s.Lock("").Acquire(soon(t), "alone"))(t)
		time.Sleep(time.Hour)
		if !a.Held() || !b.Held() || !a.Shared() || b.Shared() {
			t.Errorf("%v, %v", context.Cause(a.Context()), context.Cause(b.Context()))
		}
		if err := s.Close(soon(t)); err != nil {
			t.Error(err)
		}
		for _, key := range []string{"k", "alone"} {
			if v := must(c.Lock("").Inspect(soon(t), key))(t); v.Holding != 0 {
				t.Errorf("%s: %+v", key, v)
			}
		}
	})
}
