package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/owner"
)

// inSession runs a test with nodes that know sessions.
func inSession(t *testing.T, nodes []string, f func(t *testing.T, w *town, c *Client)) {
	bubble(t, func(t *testing.T) {
		w := build(t, nodes, nil)
		w.agree()
		f(t, w, w.client(Config{}, nodes[0]))
	})
}

// keysOf are n keys that a node owns.
func (w *town) keysOf(id string, n int) (keys []string) {
	for i := 0; len(keys) < n; i++ {
		key := fmt.Sprintf("key-%d", i)
		if m, _, _ := w.now().Owner(owner.Hash(key)); m.Node == id {
			keys = append(keys, key)
		}
	}
	return keys
}

func (w *town) heldAt(t *testing.T, c *Client, key string) int {
	t.Helper()
	return must(c.Semaphore("", 0).Inspect(soon(t), key))(t).Held
}

// TestSessionKeepsAll: what is held at several nodes is kept alive together, with one message to
// each and none by key, and is given back when the session is closed.
func TestSessionKeepsAll(t *testing.T) {
	inSession(t, []string{"n1", "n2"}, func(t *testing.T, w *town, _ *Client) {
		var renewals, streams atomic.Int64
		c := w.client(Config{DialOptions: []grpc.DialOption{
			grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, q, r any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				if strings.HasSuffix(method, "/Renew") {
					renewals.Add(1)
				}
				return invoke(ctx, method, q, r, conn, opts...)
			}),
			grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
				if strings.HasSuffix(method, "/StreamKeepAlive") {
					streams.Add(1)
				}
				return open(ctx, desc, conn, method, opts...)
			}),
		}}, "n1")
		s := must(c.Session(context.Background(), HeldBy("me")))(t)
		sem := s.Semaphore("", 1)
		var all []*HeldPermits
		keys := append(w.keysOf("n1", 3), w.keysOf("n2", 2)...)
		for _, key := range keys {
			all = append(all, must(sem.Acquire(soon(t), key, 1))(t))
		}
		first := must(sem.Acquire(soon(t), "more", 1))(t)
		if err := first.Release(soon(t)); err != nil || s.Held() != len(keys) {
			t.Errorf("%v, %d held", err, s.Held())
		}
		time.Sleep(time.Hour)
		for i, h := range all {
			if !h.Held() || w.heldAt(t, c, keys[i]) != 1 {
				t.Fatalf("%s is not held after an hour: %v", keys[i], context.Cause(h.Context()))
			}
		}
		if s.Err() != nil || renewals.Load() != 0 || streams.Load() != 2 {
			t.Errorf("%v; %d renewals by key, %d streams", s.Err(), renewals.Load(), streams.Load())
		}
		if v := must(sem.Inspect(soon(t), keys[0]))(t); v.Holders[0].ID != "me" || v.Holders[0].TTL > DefaultSessionTTL || v.Holders[0].TTL < DefaultSessionTTL/2 {
			t.Errorf("%+v", v)
		}
		if err := s.Close(soon(t)); err != nil {
			t.Error(err)
		}
		for i, h := range all {
			if h.Held() || !errors.Is(context.Cause(h.Context()), ErrReleased) || w.heldAt(t, c, keys[i]) != 0 {
				t.Errorf("%s: %v", keys[i], context.Cause(h.Context()))
			}
		}
		<-s.Done()
		if !errors.Is(s.Err(), ErrReleased) {
			t.Error(s.Err())
		}
		if _, err := sem.Acquire(soon(t), "late", 1); !errors.Is(err, ErrReleased) {
			t.Errorf("after Close: %v", err)
		}
		if err := s.Close(soon(t)); err != nil {
			t.Errorf("again: %v", err)
		}
	})
}

// TestSessionIsLost: when one of its grants is lost, Done closes, all others end, and are
// released.
func TestSessionIsLost(t *testing.T) {
	inSession(t, []string{"n1", "n2"}, func(t *testing.T, w *town, c *Client) {
		s := must(c.Session(context.Background()))(t)
		a := must(s.Semaphore("", 1).Acquire(soon(t), w.keyOf("n1"), 1))(t)
		b := must(s.Semaphore("", 1).Acquire(soon(t), w.keyOf("n2"), 1))(t)
		if ok := must(c.Semaphore("", 1).Revoke(soon(t), w.keyOf("n1"), a.Token()))(t); !ok {
			t.Fatal("not revoked")
		}
		<-s.Done()
		if !errors.Is(s.Err(), ErrLockLost) || a.Held() || b.Held() || !errors.Is(context.Cause(b.Context()), ErrLockLost) {
			t.Errorf("%v; %v, %v", s.Err(), a.Held(), context.Cause(b.Context()))
		}
		time.Sleep(time.Second)
		if n := w.heldAt(t, c, w.keyOf("n2")); n != 0 {
			t.Errorf("%d permits are held after the session", n)
		}
		next := must(c.Session(context.Background()))(t)
		if next.wire.Generation <= s.wire.Generation {
			t.Errorf("generation %d after %d", next.wire.Generation, s.wire.Generation)
		}
		must(next.Semaphore("", 1).Acquire(soon(t), w.keyOf("n2"), 1))(t)
	})
}

// TestOneOwnerOutOfReach: nobody answers for one key. Done closes before its lease runs out at
// the owner, and what others keep is free at once.
func TestOneOwnerOutOfReach(t *testing.T) {
	inSession(t, []string{"n1", "n2"}, func(t *testing.T, w *town, c *Client) {
		s := must(c.Session(context.Background()))(t)
		must(s.Semaphore("", 1).Acquire(soon(t), w.keyOf("n1"), 1))(t)
		must(s.Semaphore("", 1).Acquire(soon(t), w.keyOf("n2"), 1))(t)
		granted := time.Now()
		w.nodes["n2"].isolate(true) // for its fellow nodes, too
		<-s.Done()
		if took := time.Since(granted); took > DefaultSessionTTL || took < DefaultSessionTTL/2 || !errors.Is(s.Err(), ErrLockLost) {
			t.Errorf("after %s: %v", took, s.Err())
		}
		time.Sleep(100 * time.Millisecond)
		if n := w.heldAt(t, c, w.keyOf("n1")); n != 0 {
			t.Error("what the other owner keeps is still held")
		}
	})
}

// TestOwnerOutOfTheClientsReach: another node reaches the owner, so what no answer covers is
// renewed by key.
func TestOwnerOutOfTheClientsReach(t *testing.T) {
	inSession(t, []string{"n1", "n2"}, func(t *testing.T, w *town, c *Client) {
		s := must(c.Session(context.Background()))(t)
		a := must(s.Semaphore("", 1).Acquire(soon(t), w.keyOf("n2"), 1))(t)
		s.c.pool.mu.Lock()
		n2 := s.c.pool.nodes["n2:1"]
		s.c.pool.mu.Unlock()
		n2.close()
		time.Sleep(time.Minute)
		if !a.Held() || s.Err() != nil {
			t.Error(s.Err())
		}
	})
}

// TestARowMovesUnderASession: what the next owner has is kept alive there.
func TestARowMovesUnderASession(t *testing.T) {
	inSession(t, []string{"n1", "n2"}, func(t *testing.T, w *town, c *Client) {
		s := must(c.Session(context.Background()))(t)
		key := w.keyOf("n2")
		a := must(s.Semaphore("", 1).Acquire(soon(t), key, 1))(t)
		n1, n2 := w.nodes["n1"], w.nodes["n2"]
		whole := n2.store.Export(w.clock.Now, func(uint64) bool { return true }, func(r *owner.Record, now int64) bool {
			return n1.store.Install(now, r.Clone(), func(uint64) bool { return true }) == nil
		}, func() bool { return true })
		w.ring("n1")
		time.Sleep(time.Minute)
		if !whole || !a.Held() || s.Err() != nil || w.heldAt(t, c, key) != 1 {
			t.Error(whole, s.Err())
		}
	})
}

// TestSessionOutlivesALoss: what the owner has lost is claimed, under the session.
func TestSessionOutlivesALoss(t *testing.T) {
	inSession(t, []string{"n1"}, func(t *testing.T, w *town, c *Client) {
		s := must(c.Session(context.Background()))(t)
		a := must(s.Semaphore("", 1).Acquire(soon(t), "k", 1))(t)
		time.Sleep(2 * time.Second)
		w.nodes["n1"].lose()
		time.Sleep(time.Hour)
		if !a.Held() || s.Err() != nil {
			t.Fatal(s.Err())
		}
		if err := s.Close(soon(t)); err != nil || w.heldAt(t, c, "k") != 0 {
			t.Errorf("what was claimed is no grant of the session: %v", err)
		}
	})
}

// TestUnknownGrantIsReleased: one whose answer was lost, and that nobody waits for any more.
func TestUnknownGrantIsReleased(t *testing.T) {
	inSession(t, []string{"n1"}, func(t *testing.T, w *town, c *Client) {
		s := must(c.Session(context.Background()))(t)
		must(s.Semaphore("", 1).Acquire(soon(t), "a", 1))(t)
		stray := must(s.Semaphore("", 1).Acquire(soon(t), "b", 1))(t)
		s.mu.Lock()
		delete(s.held, stray.l.lease) // as if the answer had never come
		s.calls[object{"semaphore", "b", "semaphore"}] = 1
		s.mu.Unlock()
		time.Sleep(6 * time.Second)
		if w.heldAt(t, c, "b") != 1 {
			t.Fatal("it was released while a call is under way that may hear of it")
		}
		s.mu.Lock()
		delete(s.calls, object{"semaphore", "b", "semaphore"})
		s.mu.Unlock()
		time.Sleep(5 * time.Second)
		if w.heldAt(t, c, "b") != 0 || w.heldAt(t, c, "a") != 1 || s.Err() != nil {
			t.Error("it is still held")
		}
	})
}

// TestCloseLetsAcquiresGiveUp: one that waits in a queue ends with its session, and is granted
// nothing afterwards.
func TestCloseLetsAcquiresGiveUp(t *testing.T) {
	inSession(t, []string{"n1"}, func(t *testing.T, w *town, c *Client) {
		other := must(c.Semaphore("", 1).Acquire(soon(t), "k", 1))(t)
		s := must(c.Session(context.Background()))(t)
		ended := make(chan error, 1)
		go func() {
			_, err := s.Semaphore("", 1).Acquire(context.Background(), "k", 1)
			ended <- err
		}()
		synctest.Wait()
		if err := s.Close(soon(t)); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, ErrReleased) {
			t.Error(err)
		}
		if err := other.Release(soon(t)); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if n := w.heldAt(t, c, "k"); n != 0 {
			t.Errorf("%d permits went to a session that is over", n)
		}
	})
}

// TestPausedSession: a process that stood still sees that its time is over.
func TestPausedSession(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		clock := &jumping{base: w.clock}
		c := w.client(Config{}, "n1")
		c.clock = clock
		s := must(c.Session(context.Background()))(t)
		a := must(s.Semaphore("", 1).Acquire(soon(t), "k", 1))(t)
		clock.by.Store(int64(DefaultSessionTTL))
		if !errors.Is(s.Err(), ErrLockLost) || a.Held() {
			t.Error(s.Err())
		}
		<-s.Done()
	})
}

// TestBadSessions are refused, and so is what is the session's to say.
func TestBadSessions(t *testing.T) {
	inSession(t, []string{"n1"}, func(t *testing.T, _ *town, c *Client) {
		for what, opt := range map[string]LockOption{
			"short": TTL(time.Millisecond), "long": TTL(25 * time.Hour), "Margin": Margin(10 * time.Second), "Wait": Wait(1), "Metadata": Metadata([]byte("m")), "key": IdempotencyKey("k"),
			"Shared": Shared(), "Delay": Delay(time.Second),
		} {
			if _, err := c.Session(context.Background(), opt); !errors.Is(err, ErrInvalid) {
				t.Errorf("%s: %v", what, err)
			}
		}
		brief := must(c.Session(context.Background(), TTL(9*time.Second)))(t)
		if _, err := brief.Semaphore("", 1).Acquire(soon(t), "k", 1); !errors.Is(err, ErrInvalid) {
			t.Errorf("an owner takes longer to be replaced: %v", err)
		}
		s := must(c.Session(context.Background(), TTL(10*time.Second), Margin(2*time.Second)))(t)
		for what, opt := range map[string]LockOption{"TTL": TTL(20 * time.Second), "Margin": Margin(time.Second), "key": IdempotencyKey("k")} {
			if _, err := s.Semaphore("", 1).Acquire(soon(t), "k", 1, opt); !errors.Is(err, ErrInvalid) {
				t.Errorf("%s: %v", what, err)
			}
		}
		c.Close()
		<-s.Done()
		if !errors.Is(s.Err(), ErrClosed) {
			t.Error(s.Err())
		}
		if _, err := c.Session(context.Background()); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	})
}

// TestInspectShowsSessions: who looks at a lock or at permits sees which session keeps them alive.
func TestInspectShowsSessions(t *testing.T) {
	inSession(t, []string{"n1"}, func(t *testing.T, _ *town, c *Client) {
		s, other := must(c.Session(soon(t)))(t), must(c.Session(soon(t)))(t)
		must(s.Semaphore("", 1).Acquire(soon(t), "k", 1))(t)
		must(s.Lock("").Acquire(soon(t), "k"))(t)
		must(other.Lock("").Acquire(soon(t), "other"))(t)
		must(c.Lock("").Acquire(soon(t), "none"))(t)
		of := func(key string) string { return must(c.Lock("").Inspect(soon(t), key))(t).Holder.Session }
		permits := must(c.Semaphore("", 0).Inspect(soon(t), "k"))(t).Holders[0].Session
		if of("k") == "" || of("k") != permits || of("other") == permits || of("none") != "" {
			t.Errorf("%q and %q, %q, %q", of("k"), permits, of("other"), of("none"))
		}
	})
}
