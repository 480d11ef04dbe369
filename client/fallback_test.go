package client

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keystead/keystead/internal/fallback"
)

// TestClientFallsBack: the owner is silent, so another node decides; no node is reached, so the client
// does; and each within the budget, by bounds of their own.
func TestClientFallsBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2"}, nil)
		w.agree()
		var deaf atomic.Bool
		dial := w.deafening(&deaf)
		c := must(Config{clock: w.clock}.dialing(dial).Dial(soon(t), "n1:1", "n2:1"))(t)
		defer c.Close()
		l, key := c.Limit("api", Per(9, time.Hour), LocalCap(2, time.Minute), Budget(100*time.Millisecond)), w.keyOf("n1")
		within := func(d Decision, began time.Time) Decision {
			t.Helper()
			if took := time.Since(began); took > 100*time.Millisecond {
				t.Errorf("it took %s", took)
			}
			return d
		}
		if d := must(l.Check(soon(t), key))(t); d.Degraded != "" || d.Remaining != 8 || d.Owner != "n1" {
			t.Errorf("%+v", d)
		}
		if d, err := l.CheckN(soon(t), key, 10); !errors.Is(err, ErrInvalid) {
			t.Errorf("what a node refuses: %+v %v", d, err)
		}
		w.nodes["n1"].isolate(true)
		for i := range 3 {
			began := time.Now()
			if d := within(must(l.Check(soon(t), key))(t), began); d.Degraded != ByLocalCap || d.Owner != "n2" || d.Allowed != (i < 2) || d.RetryAfter > time.Second || d.Epoch != 0 {
				t.Errorf("by the other node, %d: %+v", i, d)
			}
		}
		w.nodes["n2"].isolate(true)
		for i := range 3 {
			began := time.Now()
			if d := within(must(l.Check(soon(t), key))(t), began); d.Degraded != ByLocalCap || d.Owner != "" || d.Allowed != (i < 2) || d.Capacity != 2 {
				t.Errorf("by the client, %d: %+v", i, d)
			}
		}
		if _, err := c.Limit("api", Per(9, time.Hour)).Check(soonIn(t, time.Second), key); !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("without a fallback: %v", err)
		}
		if _, err := l.Refund(soonIn(t, time.Second), key, 1); err == nil {
			t.Error("a refund without an owner")
		}
		w.nodes["n1"].isolate(false)
		w.nodes["n2"].isolate(false)
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if d := must(l.Check(soon(t), key))(t); d.Degraded != "" || d.Remaining < 5 {
			t.Errorf("when they are back: %+v", d)
		}
	})
}

// TestClientFallsBackOnce: what a client admits by itself of a limit is one sum, whatever its checks say beside: under an
// idempotency key or not, with the name left out or written.
func TestClientFallsBackOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		time.Sleep(10 * time.Minute) // the node knows of all keys by then
		c := w.client(Config{}, "n1")
		capped, known := []LimitOption{LocalCap(3, time.Minute)}, []LimitOption{LastKnown(time.Minute)}
		key, other := "capped", "known"
		must(c.Limit("", Per(9, time.Hour), known...).CheckN(soon(t), other, 6, IdempotencyKey("first")))(t)
		w.nodes["n1"].isolate(true)
		check := func(l Limit, key string, opts ...CallOption) bool {
			t.Helper()
			d := must(l.Check(soon(t), key, opts...))(t)
			if d.Degraded == "" || d.Owner != "" {
				t.Errorf("%+v", d)
			}
			return d.Allowed
		}
		for i, opts := range [][]LimitOption{capped, known} {
			key := [...]string{key, other}[i]
			unnamed, named := c.Limit("", Per(9, time.Hour), opts...), c.Limit(limitObject, Per(9, time.Hour), opts...)
			for i, allowed := range []bool{check(unnamed, key), check(unnamed, key, IdempotencyKey("second")), check(named, key, IdempotencyKey("third")), check(named, key), check(unnamed, key, IdempotencyKey("fourth"))} {
				if allowed != (i < 3) {
					t.Errorf("%s, check %d: %t", key, i, allowed)
				}
			}
		}
	})
}

// TestClientHearsNothing: connections stand, and no answer comes.
func TestClientHearsNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2"}, nil)
		w.agree()
		var deaf atomic.Bool
		c := must(Config{clock: w.clock}.dialing(w.deafening(&deaf)).Dial(soon(t), "n1:1", "n2:1"))(t)
		defer c.Close()
		l, key := c.Limit("api", Per(9, time.Hour), LastKnown(time.Minute)), w.keyOf("n1")
		must(l.CheckN(soon(t), key, 4))(t)
		must(l.Check(soon(t), w.keyOf("n2")))(t) // so that both are connected
		deaf.Store(true)
		for _, want := range []bool{true, false} {
			began := time.Now()
			d := must(l.CheckN(soon(t), key, 3))(t)
			if took := time.Since(began); took > fallback.DefaultBudget || d.Degraded != ByLastKnown || d.Owner != "" || d.Allowed != want || d.Remaining != 2 || d.Capacity != 9 {
				t.Errorf("after %s: %+v", took, d)
			}
		}
		if _, err := l.Check(soon(t), "a key that it knows nothing of"); err == nil {
			t.Error("decided by nothing")
		}
	})
}

// TestFallbackIsJudged: what cannot be is told without a node.
func TestFallbackIsJudged(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		c := w.client(direct, "n1")
		for _, l := range []Limit{
			c.Limit("api", PerMinute(5), LocalCap(0, time.Minute)),
			c.Limit("api", PerMinute(5), LocalCap(1, 0)),
			c.Limit("api", PerMinute(5), LastKnown(time.Millisecond)),
			c.Limit("api", PerMinute(5), LocalCap(1, time.Minute), Budget(time.Hour)),
			c.Limit("api", PerMinute(5), LocalCap(1, time.Minute), Anywhere()),
			c.Limit("api", PerMinute(5).Spaced(), LastKnown(time.Minute)),
		} {
			if _, err := l.Check(soon(t), "k"); !errors.Is(err, ErrInvalid) {
				t.Errorf("%+v: %v", l.fallback, err)
			}
			if r := must(c.BatchCheck(soon(t), []Check{{Limit: l, Key: "k"}}))(t); !errors.Is(r[0].Err, ErrInvalid) {
				t.Errorf("%+v in a batch: %v", l.fallback, r[0].Err)
			}
		}
	})
}

// soonIn is a context that ends after d.
func soonIn(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}
