package client

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keystead/keystead/owner"
)

func TestWaitForTurns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2"}, nil)
		w.agree()
		synctest.Wait()
		c := w.client(direct, "n1")
		l := c.Limit("calls", PerSecond(10).WithBurst(5).Spaced())
		key := w.keyOf("n2")
		began := time.Now()
		must(l.Wait(soon(t), key))(t)
		if d := must(l.WaitN(soon(t), key, 2))(t); !d.Allowed || d.Delay != 100*time.Millisecond || time.Since(began) != 100*time.Millisecond || d.Capacity != 5 {
			t.Errorf("%+v after %s", d, time.Since(began))
		}
		// Two tokens are through in 200 ms: the next turn is later than the caller can wait.
		short, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
		defer cancel()
		d, err := l.Wait(short, key)
		if e := new(Error); !errors.Is(err, ErrNoTurn) || !errors.As(err, &e) || e.RetryAfter != 50*time.Millisecond || d.Allowed {
			t.Errorf("%+v, %v", d, err)
		}
		if time.Since(began) != 100*time.Millisecond {
			t.Errorf("it was refused after %s", time.Since(began))
		}
		hasty := c.Limit("calls", l.Rate(), MaxDelay(150*time.Millisecond))
		if _, err := hasty.Wait(soon(t), key); !errors.Is(err, ErrNoTurn) {
			t.Errorf("%v", err)
		}
		if d := must(hasty.Check(soon(t), key))(t); d.Allowed || d.Delay != 0 {
			t.Errorf("%+v", d)
		}
		if d := must(l.Check(soon(t), key))(t); d.Allowed {
			t.Errorf("a check waits for nothing: %+v", d)
		}
		if d := must(c.Limit("calls", l.Rate(), MaxDelay(time.Second)).Peek(soon(t), key))(t); !d.Allowed || d.Delay != 200*time.Millisecond {
			t.Errorf("%+v", d)
		}
		if d := must(l.Refund(soon(t), key, 1))(t); d.Remaining != 4 {
			t.Errorf("%+v", d)
		}
		full := c.Limit("full", PerSecond(1).WithBurst(2).Spaced())
		must(full.CheckN(soon(t), key, 1))(t)
		must(c.Limit("full", full.Rate(), MaxDelay(time.Minute)).Check(soon(t), key))(t)
		if _, err := full.Wait(soon(t), key); !errors.Is(err, ErrNoTurn) || !strings.Contains(err.Error(), "its queue is full: 0 of 2 places are free") {
			t.Errorf("%v", err)
		}
		var none context.Context
		for _, bad := range []func() (Decision, error){
			func() (Decision, error) { return l.WaitN(soon(t), key, 0) },
			func() (Decision, error) { return c.Limit("calls", PerSecond(10)).Wait(soon(t), key) },
			func() (Decision, error) { return l.Wait(none, key) },
			func() (Decision, error) { return c.Limit("x", PerSecond(1), Budget(time.Second)).Check(soon(t), key) },
			func() (Decision, error) {
				return c.Limit("x", PerSecond(1), LocalCap(1, time.Second), LastKnown(time.Second)).Check(soon(t), key)
			},
			func() (Decision, error) { return Limit{rate: l.rate}.Wait(soon(t), key) },
			func() (Decision, error) { return c.Limit("calls", l.Rate(), MaxDelay(-1)).Check(soon(t), key) },
		} {
			if _, err := bad(); !errors.Is(err, ErrInvalid) {
				t.Errorf("%v", err)
			}
		}
	})
}

// A wait whose context ends gives up at once. Its turn passes: the next one is behind it.
func TestWaitGivesUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		synctest.Wait()
		l := w.client(direct, "n1").Limit("calls", PerSecond(1).WithBurst(5).Spaced())
		must(l.Wait(soon(t), "k"))(t)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, cancel)
		began := time.Now()
		if d, err := l.Wait(ctx, "k"); !errors.Is(err, ErrGaveUp) || !errors.Is(err, context.Canceled) || d.Delay != time.Second || time.Since(began) != 100*time.Millisecond {
			t.Errorf("%+v, %v after %s", d, err, time.Since(began))
		}
		if d := must(l.Wait(soon(t), "k"))(t); d.Delay != 1900*time.Millisecond {
			t.Errorf("%+v", d)
		}
	})
}

// The owner gives a turn and dies before it answers: the retry is told what is left of it, and
// asks for no more time than its caller has by then.
func TestFailoverKeepsTurns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2"}, nil)
		w.agree()
		a := w.nodes["n1"]
		b := w.house("n2", a.store)
		w.nodes["n2"].kill()
		w.nodes["n2"] = b
		l := w.client(direct, "n2").Limit("calls", PerMinute(6).Spaced())
		key := w.keyOf("n1")
		must(l.Wait(soon(t), key))(t)
		began := time.Now()
		var once sync.Once
		a.on(func(r *owner.Record) {
			if string(r.Key) == key {
				once.Do(a.cutAndDie)
			}
		})
		time.AfterFunc(3*time.Second, func() { w.remove("n1") })
		ctx, cancel := context.WithTimeout(t.Context(), 11*time.Second)
		defer cancel()
		if d := must(l.Wait(ctx, key))(t); !d.Replayed || time.Since(began) < 10*time.Second || time.Since(began) > 10100*time.Millisecond {
			t.Errorf("%+v after %s", d, time.Since(began))
		}
	})
}

// An attempt asks for the time that is left when it is made, not for that of the first.
func TestWaitAsksForWhatIsLeft(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		synctest.Wait()
		l := w.client(direct, "n1").Limit("calls", PerMinute(6).Spaced())
		must(l.Wait(soon(t), "k"))(t)
		w.nodes["n1"].denies.Store(true)
		time.AfterFunc(4*time.Second, func() { w.nodes["n1"].denies.Store(false) })
		// When it is let in, its turn is in 6 s, and 5 s are left.
		ctx, cancel := context.WithTimeout(t.Context(), 9*time.Second)
		defer cancel()
		began := time.Now()
		if _, err := l.Wait(ctx, "k"); !errors.Is(err, ErrNoTurn) || time.Since(began) > 6*time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		if d := must(l.Check(soon(t), "k"))(t); d.Remaining != 5 {
			t.Errorf("it holds a place: %+v", d)
		}
	})
}
