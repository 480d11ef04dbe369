package client

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keystead/keystead/owner"
)

// When the caller's time is over and another has the lock, that is what the error says,
// with the holder, and with what ended the context.
func TestLockUntilTheContextEnds(t *testing.T) {
	cancelled := func() (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(3*time.Second, cancel)
		return ctx, cancel
	}
	within := func(d time.Duration) func() (context.Context, context.CancelFunc) {
		return func() (context.Context, context.CancelFunc) { return context.WithTimeout(context.Background(), d) }
	}
	for name, tt := range map[string]struct {
		ctx   func() (context.Context, context.CancelFunc)
		after time.Duration
		cause error
	}{
		"deadline":      {within(3 * time.Second), 3 * time.Second, context.DeadlineExceeded},
		"near deadline": {within(20 * time.Millisecond), 20 * time.Millisecond, context.DeadlineExceeded},
		"cancel":        {cancelled, 3 * time.Second, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := build(t, []string{"n1", "n2"}, nil)
				c := w.client(Config{}, "n1")
				key := w.keyOf("n2")
				l := must(c.Lock("").Acquire(soon(t), key, HeldBy("first")))(t)
				ctx, cancel := tt.ctx()
				defer cancel()
				began := time.Now()
				_, err := c.Lock("").Acquire(ctx, key, HeldBy("second"))
				var e *Error
				if !errors.Is(err, ErrLockHeld) || !errors.Is(err, tt.cause) || !errors.As(err, &e) || time.Since(began) != tt.after {
					t.Fatalf("after %v: %v", time.Since(began), err)
				}
				if e.Holder == nil || e.Holder.ID != "first" || e.Key != key || e.Op != "lock" || e.Node != "n2" {
					t.Errorf("%+v", e)
				}
				synctest.Wait()
				if s := must(c.Lock("").Inspect(soon(t), key))(t); s.Waiting != 0 || s.Holder == nil || s.Holder.ID != "first" {
					t.Errorf("afterwards: %+v", s)
				}
				_ = l.Release(soon(t))
			})
		})
	}
}

// A grant that nobody took, because its answer was lost and the caller left, is given
// back, and not kept until its TTL ends. The error says that the outcome is unknown
// unless it was heard at once.
func TestLockGrantedToNobody(t *testing.T) {
	for name, away := range map[string]time.Duration{"heard at once": 0, "heard later": time.Second} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := build(t, []string{"n1"}, nil)
				c, n1 := w.client(Config{}, "n1"), w.nodes["n1"]
				ctx, cancel := context.WithCancel(context.Background())
				n1.on(func(*owner.Record) {
					n1.on(func(*owner.Record) {})
					cancel()
					if away > 0 {
						n1.isolate(true)
						time.AfterFunc(away, func() { n1.isolate(false) })
					} else {
						n1.cut()
					}
				})
				_, err := c.Lock("").Acquire(ctx, "k", TTL(time.Minute))
				want, says := ErrGaveUp, "was given back"
				if away > 0 {
					want, says = ErrOutcomeUnknown, "given back in the background"
				}
				if !errors.Is(err, want) || !strings.Contains(err.Error(), says) {
					t.Errorf("error %v", err)
				}
				time.Sleep(4 * time.Second)
				if s := must(c.Lock("").Inspect(soon(t), "k"))(t); s.Holder != nil {
					t.Errorf("it is held for another %v", s.Holder.TTL)
				}
			})
		})
	}
}
