package client

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
)

// heldUp are options of a client whose first Release does not leave before a while has passed.
func heldUp(d time.Duration) []grpc.DialOption {
	var first atomic.Bool
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, q, r any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if strings.HasSuffix(method, "/Release") && !first.Swap(true) {
			<-time.After(d)
		}
		return invoke(ctx, method, q, r, conn, opts...)
	})}
}

// TestReleaseBesideAKeepAlive: what is being released is no grant whose answer was lost.
func TestReleaseBesideAKeepAlive(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		c := w.client(Config{AttemptTimeout: 10 * time.Second, Timeout: 15 * time.Second, DialOptions: heldUp(7 * time.Second)}, "n1")
		s := must(c.Session(context.Background()))(t)
		must(s.Semaphore("", 1).Acquire(soon(t), "a", 1))(t)
		b := must(s.Semaphore("", 1).Acquire(soon(t), "b", 1))(t)
		if err := b.Release(soon(t)); err != nil {
			t.Errorf("a session has released what its holder was releasing: %v", err)
		}
		if n := w.heldAt(t, c, "b"); n != 0 || s.Err() != nil {
			t.Error(n, s.Err())
		}
	})
}

// TestCloseOfWhatNoOwnerFound: where a node may not act, or a key has moved meanwhile, End finds
// nothing. Close does not say that all is free then.
func TestCloseOfWhatNoOwnerFound(t *testing.T) {
	inSession(t, []string{"n1", "n2"}, func(t *testing.T, w *town, c *Client) {
		s := must(c.Session(context.Background()))(t)
		key := w.keyOf("n2")
		must(s.Semaphore("", 1).Acquire(soon(t), key, 1))(t)
		must(s.Semaphore("", 1).Acquire(soon(t), w.keyOf("n1"), 1))(t)
		w.nodes["n2"].denies.Store(true)
		if err := s.Close(ctx2(t, 5*time.Second)); !errors.Is(err, ErrUnavailable) {
			t.Errorf("while the owner of a key may not act: %v", err)
		}
		w.nodes["n2"].denies.Store(false)
		if n := w.heldAt(t, c, key); n != 1 {
			t.Errorf("%d permits", n)
		}
		if err := s.Close(soon(t)); err != nil || w.heldAt(t, c, key) != 0 {
			t.Errorf("again: %v", err)
		}
	})
}
