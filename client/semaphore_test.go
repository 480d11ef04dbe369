package client

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keystead/keystead/owner"
)

func TestSemaphore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		c := w.client(Config{}, "n1")
		s := c.Semaphore("db", 3)
		a := must(s.Acquire(soon(t), "k", 2, HeldBy("a"), Metadata([]byte("m")), Delay(5*time.Second)))(t)
		if !a.Held() || a.Permits() != 2 || a.Capacity() != 3 || a.Token() == 0 {
			t.Errorf("%+v", a)
		}
		_, err := s.TryAcquire(soon(t), "k", 2)
		var e *Error
		if !errors.Is(err, ErrNoPermits) || !errors.As(err, &e) || e.Place != 1 || e.Op != "semaphore" {
			t.Errorf("tried once: %v", err)
		}
		if _, err := c.Semaphore("db", 4).TryAcquire(soon(t), "k", 1); !errors.Is(err, ErrCapacityMismatch) {
			t.Errorf("another capacity: %v", err)
		}
		for what, bad := range map[string]func() error{
			"more than there are": func() error { _, err := s.Acquire(soon(t), "k", 4); return err },
			"none":                func() error { _, err := s.Acquire(soon(t), "k", 0); return err },
			"to share permits":    func() error { _, err := s.Acquire(soon(t), "k", 1, Shared()); return err },
			"no such capacity":    func() error { return s.SetCapacity(soon(t), "k", MaxCapacity+1) },
		} {
			if err := bad(); !errors.Is(err, ErrInvalid) {
				t.Errorf("%s: %v", what, err)
			}
		}
		time.Sleep(time.Hour)
		if ok := must(s.Verify(soon(t), "k", a.Token()))(t); !ok || !a.Held() {
			t.Error("not held after an hour")
		}
		if err := a.Update(soon(t), []byte("m2")); err != nil {
			t.Error(err)
		}
		got := make(chan *HeldPermits, 1)
		go func() { got <- must(s.Acquire(context.Background(), "k", 3))(t) }()
		time.Sleep(time.Second)
		v := must(s.Inspect(soon(t), "k"))(t)
		if v.Capacity != 3 || v.Set || v.Held != 2 || v.Holding != 1 || v.Waiting != 1 || v.Holders[0].ID != "a" || string(v.Holders[0].Metadata) != "m2" || v.Waiters[0].Permits != 3 {
			t.Errorf("%+v", v)
		}
		if err := a.Downgrade(soon(t), 3); !errors.Is(err, ErrInvalid) {
			t.Errorf("an upgrade: %v", err)
		}
		if err := a.Downgrade(soon(t), 1); err != nil || a.Permits() != 1 {
			t.Errorf("%d permits: %v", a.Permits(), err)
		}
		if err := s.SetCapacity(soon(t), "k", 5); err != nil {
			t.Error(err)
		}
		b := <-got
		if b.Token() <= a.Token() || b.Capacity() != 5 {
			t.Errorf("token %d after %d, capacity %d", b.Token(), a.Token(), b.Capacity())
		}
		if err := b.Release(soon(t)); err != nil {
			t.Error(err)
		}
		if ok := must(s.Revoke(soon(t), "k", a.Token()))(t); !ok {
			t.Error("not revoked")
		}
		<-a.Context().Done()
		if !errors.Is(context.Cause(a.Context()), ErrLockLost) || a.Held() {
			t.Errorf("revoked: %v", context.Cause(a.Context()))
		}
		if err := a.Update(soon(t), nil); !errors.Is(err, ErrLockLost) {
			t.Errorf("an update of what is lost: %v", err)
		}
	})
}

// TestPermitsOutliveTheirOwner: what the owner has lost is taken back under its token, with
// the metadata of the last Update.
func TestPermitsOutliveTheirOwner(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		c, n1 := w.client(direct, "n1"), w.nodes["n1"]
		s := c.Semaphore("", 4)
		a := must(s.Acquire(soon(t), "k", 3, TTL(10*time.Second), HeldBy("me")))(t)
		if err := a.Update(soon(t), []byte("m")); err != nil {
			t.Error(err)
		}
		time.Sleep(2 * time.Second)
		n1.lose()
		if v := must(s.Inspect(soon(t), "k"))(t); v.Holding != 0 || v.LostEpoch == 0 {
			t.Errorf("%+v", v)
		}
		time.Sleep(1500 * time.Millisecond) // a renewal is due
		synctest.Wait()
		v := must(s.Inspect(soon(t), "k"))(t)
		if v.Held != 3 || v.Capacity != 4 || v.Holders[0].Token != a.Token() || v.Holders[0].ID != "me" || string(v.Holders[0].Metadata) != "m" {
			t.Errorf("%+v", v)
		}
		time.Sleep(time.Hour)
		if !a.Held() {
			t.Fatal(context.Cause(a.Context()))
		}
		if err := a.Release(soon(t)); err != nil {
			t.Error(err)
		}
	})
}

// TestDowngradeThatWasNotHeardOf: the answer to a Downgrade is lost with its caller. The permits
// that are left are held, whatever the next one asks for.
func TestDowngradeThatWasNotHeardOf(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		c, n1 := w.client(Config{}, "n1"), w.nodes["n1"]
		a := must(c.Semaphore("", 9).Acquire(soon(t), "k", 9))(t)
		ctx, cancel := context.WithCancel(context.Background())
		n1.on(func(*owner.Record) {
			n1.on(func(*owner.Record) {})
			cancel()
			n1.cut()
		})
		if err := a.Downgrade(ctx, 4); err == nil {
			t.Fatal("it was heard of")
		}
		if err := a.Downgrade(soon(t), 6); !errors.Is(err, ErrInvalid) || errors.Is(err, ErrLockLost) || a.Permits() != 4 {
			t.Errorf("%d permits: %v", a.Permits(), err)
		}
		if err := a.Downgrade(soon(t), 4); err != nil {
			t.Error(err)
		}
		if !a.Held() {
			t.Error(context.Cause(a.Context()))
		}
		if err := a.Release(soon(t)); err != nil {
			t.Error(err)
		}
	})
}

// TestPermitsThatAreOver: who learns from any answer that the permits are not held any more has no
// context that says otherwise.
func TestPermitsThatAreOver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		s := w.client(Config{}, "n1").Semaphore("", 9)
		for what, ask := range map[string]func(h *HeldPermits) error{
			"update":    func(h *HeldPermits) error { return h.Update(soon(t), nil) },
			"downgrade": func(h *HeldPermits) error { return h.Downgrade(soon(t), 1) },
		} {
			a := must(s.Acquire(soon(t), "k", 2))(t)
			if ok := must(s.Revoke(soon(t), "k", a.Token()))(t); !ok || !a.Held() {
				t.Errorf("%s: revoked %v, held %v", what, ok, a.Held())
			}
			if err := ask(a); !errors.Is(err, ErrLockLost) || a.Held() || !errors.Is(context.Cause(a.Context()), ErrLockLost) {
				t.Errorf("%s: %v, held %v: %v", what, err, a.Held(), context.Cause(a.Context()))
			}
		}
	})
}
