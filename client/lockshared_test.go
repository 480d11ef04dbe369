package client

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
	semaphorepb "github.com/keystead/keystead/proto/keystead/semaphore/v1"
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

// TestDowngradeThatWasNotDone: a lock whose Downgrade was refused is held alone, and claimed so.
func TestDowngradeThatWasNotDone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil) // whose level knows no shared locks
		c, n1 := w.client(direct, "n1"), w.nodes["n1"]
		a := must(c.Lock("").Acquire(soon(t), "k", TTL(10*time.Second), HeldBy("a")))(t)
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		for what, ctx := range map[string]context.Context{"a context that has ended": ended, "a level without": ctx2(t, time.Second)} {
			if err := a.Downgrade(ctx); err == nil || errors.Is(err, ErrOutcomeUnknown) || a.Shared() {
				t.Errorf("%s: %v, shared %v", what, err, a.Shared())
			}
		}
		n1.lose()
		time.Sleep(time.Hour)
		if v := must(c.Lock("").Inspect(soon(t), "k"))(t); !a.Held() || v.Holder == nil || v.Holder.Shared {
			t.Errorf("%+v; %v", v, context.Cause(a.Context()))
		}
	})
}

// TestKeyOfADowngradedLock: another process that goes on with a grant learns that it is shared by now.
func TestKeyOfADowngradedLock(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		time.Sleep(10 * time.Minute) // a node knows no keys of before it was there
		c := w.client(Config{}, "n1")
		a := must(c.Lock("").Acquire(soon(t), "k", IdempotencyKey("run-7")))(t)
		p := must(c.Semaphore("", 5).Acquire(soon(t), "k", 5, IdempotencyKey("run-7")))(t)
		if err := errors.Join(a.Downgrade(soon(t)), p.Downgrade(soon(t), 2)); err != nil {
			t.Fatal(err)
		}
		if again := must(c.Lock("").Acquire(soon(t), "k", IdempotencyKey("run-7")))(t); again.Token() != a.Token() || !again.Shared() {
			t.Errorf("token %d, shared %v", again.Token(), again.Shared())
		}
		if again := must(c.Semaphore("", 5).Acquire(soon(t), "k", 5, IdempotencyKey("run-7")))(t); again.Token() != p.Token() || again.Permits() != 2 {
			t.Errorf("token %d, %d permits", again.Token(), again.Permits())
		}
	})
}

// ofBefore has requests reach a node without what nodes of before level 7 do not know.
func ofBefore(ctx context.Context, method string, q, r any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	switch q := q.(type) {
	case *lockpb.AcquireRequest:
		q.Shared, q.DelayNs, q.Session, q.TicketTtlNs = false, 0, nil, 0
	case *lockpb.BatchAcquireRequest:
		for _, q := range q.Acquires {
			q.Shared, q.DelayNs, q.TicketTtlNs = false, 0, 0
		}
	case *semaphorepb.AcquireRequest:
		q.Session, q.TicketTtlNs = nil, 0
	}
	return invoke(ctx, method, q, r, conn, opts...)
}

// TestOwnerOfBefore: a grant of a node that does not know what was asked for is given back.
func TestOwnerOfBefore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		time.Sleep(10 * time.Minute) // a node knows no keys of before it was there
		c := w.client(Config{DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(ofBefore)}}, "n1")
		s := must(c.Session(context.Background()))(t)
		for what, acquire := range map[string]func(key string) error{
			"shared":               func(key string) error { _, err := c.Lock("").Acquire(soon(t), key, Shared()); return err },
			"a delay":              func(key string) error { _, err := c.Lock("").TryAcquire(soon(t), key, Delay(time.Second)); return err },
			"a session":            func(key string) error { _, err := s.Lock("").Acquire(soon(t), key); return err },
			"permits in a session": func(key string) error { _, err := s.Semaphore("", 1).Acquire(soon(t), key, 1); return err },
		} {
			if err := acquire(what); !errors.Is(err, ErrUnavailable) {
				t.Errorf("%s: %v", what, err)
			}
			if v := must(c.Lock("").Inspect(soon(t), what))(t); v.Holding != 0 || w.heldAt(t, c, what) != 0 {
				t.Errorf("%s: it is held", what)
			}
		}
		if _, err := c.Lock("").Acquire(soon(t), "k", Shared(), IdempotencyKey("run-7")); !errors.Is(err, ErrUnavailable) {
			t.Errorf("under a key: %v", err)
		}
		must(c.Lock("").Acquire(soon(t), "plain"))(t)
		must(c.Semaphore("", 1).Acquire(soon(t), "plain", 1, Delay(time.Second)))(t)
	})
}
