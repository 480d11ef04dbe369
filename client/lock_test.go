package client

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/reqid"
)

func TestLockIsRenewed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2"}, nil)
		c := w.client(direct, "n1")
		type kind struct{}
		ctx, cancel := context.WithTimeout(context.WithValue(context.Background(), kind{}, 7), time.Second)
		l := must(c.Lock("").Acquire(ctx, "k", TTL(time.Second), HeldBy("me"), Metadata([]byte("m"))))(t)
		cancel()
		if l.Context().Value(kind{}) != 7 {
			t.Error("values are lost")
		}
		time.Sleep(time.Hour)
		if !l.Held() || l.Context().Err() != nil {
			t.Fatal(context.Cause(l.Context()))
		}
		s := must(c.Lock("").Inspect(soon(t), "k"))(t)
		if s.Holder == nil || s.Holder.Token != l.Token() || s.Holder.Held != time.Hour || s.Holder.ID != "me" || string(s.Holder.Metadata) != "m" {
			t.Errorf("%+v", s.Holder)
		}
		if err := l.Release(soon(t)); err != nil {
			t.Error(err)
		}
		if l.Held() || !errors.Is(context.Cause(l.Context()), ErrReleased) {
			t.Errorf("after Unlock: %v", context.Cause(l.Context()))
		}
		if err := l.Release(soon(t)); err != nil {
			t.Errorf("again: %v", err)
		}
		if s := must(c.Lock("").Inspect(soon(t), "k"))(t); s.Holder != nil {
			t.Errorf("%+v", s.Holder)
		}
	})
}

func TestLockQueue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		c := w.client(Config{}, "n1")
		l := must(c.Lock("").Acquire(soon(t), "k", HeldBy("first")))(t)
		_, err := c.Lock("").TryAcquire(soon(t), "k")
		var e *Error
		if !errors.Is(err, ErrLockHeld) || !errors.As(err, &e) || e.Holder.ID != "first" || e.Place != 1 {
			t.Errorf("tried once: %v", err)
		}
		began := time.Now()
		if _, err := c.Lock("").Acquire(context.Background(), "k", Wait(time.Minute)); !errors.Is(err, ErrLockHeld) || time.Since(began) != time.Minute {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		began = time.Now()
		if _, err := c.Lock("").Acquire(ctx2(t, time.Minute), "k"); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Minute {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		got := make(chan *HeldLock, 1)
		go func() { got <- must(c.Lock("").Acquire(context.Background(), "k"))(t) }()
		time.Sleep(time.Hour)
		if err := l.Release(soon(t)); err != nil {
			t.Error(err)
		}
		next := <-got
		if next.Token() <= l.Token() || !next.Held() {
			t.Errorf("token %d after %d", next.Token(), l.Token())
		}
		_ = next.Release(soon(t))
	})
}

// The owner is gone: the context ends before the lease does, on the owner's
// clock too.
func TestLockIsLostBeforeItsEnd(t *testing.T) {
	for what, o := range map[string]struct {
		margin time.Duration
		opts   []LockOption
	}{
		"default": {time.Second, []LockOption{TTL(10 * time.Second)}},
		"margin":  {4 * time.Second, []LockOption{TTL(10 * time.Second), Margin(4 * time.Second)}},
	} {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := build(t, []string{"n1"}, nil)
				c := w.client(Config{}, "n1")
				l := must(c.Lock("").Acquire(soon(t), "k", o.opts...))(t)
				began := time.Now()
				time.Sleep(time.Second)
				w.nodes["n1"].isolate(true)
				<-l.Context().Done()
				if took := time.Since(began); took != 10*time.Second-o.margin {
					t.Errorf("after %v", took)
				}
				if !errors.Is(context.Cause(l.Context()), ErrLockLost) || l.Held() {
					t.Errorf("the cause is %v", context.Cause(l.Context()))
				}
				a := must(w.nodes["n1"].store.Inspect(w.clock.Now(), owner.Ref{Key: "k", Name: "lock"}, 1))(t)
				if a.Holding.Token != l.Token() || a.Holding.Left != int64(o.margin) {
					t.Errorf("the owner says %+v", a.Holding)
				}
				if err := l.Release(ctx2(t, time.Second)); err == nil {
					t.Error("it was given back to nobody")
				}
			})
		})
	}
}

// A renewal that finds the lock taken away ends the context at once.
func TestLockTakenAway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		c := w.client(Config{}, "n1")
		l := must(c.Lock("").Acquire(soon(t), "k"))(t)
		ref := owner.Ref{Key: "k", Name: "lock"}
		must(w.nodes["n1"].store.Release(w.clock.Now(), ref, reqid.ID{}, l.Token()))(t)
		began := time.Now()
		<-l.Context().Done()
		if took := time.Since(began); took != DefaultLockTTL/renewPart || !errors.Is(context.Cause(l.Context()), ErrLockLost) {
			t.Errorf("after %v: %v", took, context.Cause(l.Context()))
		}
		if err := l.Release(soon(t)); !errors.Is(err, ErrLockLost) {
			t.Errorf("Unlock: %v", err)
		}
		if err := l.Release(soon(t)); !errors.Is(err, ErrLockLost) {
			t.Errorf("Unlock again: %v", err)
		}
	})
}

// An owner that is stopped answers nothing and breaks nothing. Whoever waits there
// for a lock goes on to the next owner as soon as there is one.
func TestMuteOwner(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2"}, nil)
		c := w.client(direct, "n2")
		key, wake := w.keyOf("n1"), make(chan struct{})
		defer close(wake)
		w.nodes["n1"].on(func(*owner.Record) { <-wake })
		time.AfterFunc(2*time.Second, func() { w.remove("n1") })
		began := time.Now()
		l := must(c.Lock("").Acquire(soon(t), key, Wait(time.Minute)))(t)
		if took := time.Since(began); l.Meta().Owner != "n2" || took > 2*time.Second+2*movedGrace {
			t.Errorf("%s granted after %s", l.Meta().Owner, took)
		}
	})
}

// Renewals go on when the owner is away for a while.
func TestRenewalIsRetried(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		c := w.client(Config{}, "n1")
		l := must(c.Lock("").Acquire(soon(t), "k"))(t)
		for range 20 {
			w.nodes["n1"].denies.Store(true)
			time.Sleep(3 * time.Second)
			w.nodes["n1"].denies.Store(false)
			time.Sleep(3 * time.Second)
			w.nodes["n1"].cut()
		}
		if !l.Held() {
			t.Error(context.Cause(l.Context()))
		}
		if err := l.Release(soon(t)); err != nil {
			t.Error(err)
		}
	})
}

// The answer to an Acquire is lost; the retry is a replay, and the lease is
// counted from the first send.
func TestReplayedAcquire(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		c := w.client(Config{}, "n1")
		a := w.nodes["n1"]
		var once sync.Once
		a.on(func(*owner.Record) {
			once.Do(func() {
				a.isolate(true)
				time.AfterFunc(2*time.Second, func() { a.isolate(false) })
			})
		})
		began := time.Now()
		l := must(c.Lock("").Acquire(soon(t), "k"))(t)
		took := time.Since(began)
		if took < 2*time.Second || !l.Meta().Replayed {
			t.Errorf("after %v: %+v", took, l.Meta())
		}
		if left := l.left(); left > 9*time.Second-took {
			t.Errorf("%v left after %v", left, took)
		}
		if err := l.Release(soon(t)); err != nil {
			t.Error(err)
		}
	})
}

// A grant whose answer came after its end is not believed in: the lock is asked
// for anew.
func TestGrantThatCameTooLate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		c := w.client(Config{}, "n1")
		a := w.nodes["n1"]
		var once sync.Once
		a.on(func(r *owner.Record) {
			once.Do(func() {
				a.isolate(true)
				time.AfterFunc(9500*time.Millisecond, func() { a.isolate(false) })
			})
		})
		l := must(c.Lock("").Acquire(context.Background(), "k"))(t)
		if l.Meta().Replayed || !l.Held() || l.left() < 8*time.Second {
			t.Errorf("%+v, %v left", l.Meta(), l.left())
		}
		if s := must(c.Lock("").Inspect(soon(t), "k"))(t); s.Holder == nil || s.Holder.Token != l.Token() {
			t.Errorf("%+v", s)
		}
		_ = l.Release(soon(t))
	})
}

// A process that was stopped sees by the clock that its time is over, before any
// timer or goroutine of it has run.
func TestStoppedProcess(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		jump := &jumping{base: w.clock}
		c := w.client(Config{}, "n1")
		c.clock = jump
		l := must(c.Lock("").Acquire(soon(t), "k"))(t)
		child, cancel := context.WithCancel(l.Context())
		defer cancel()
		synctest.Wait()
		jump.by.Store(int64(9 * time.Second))
		if err := l.Context().Err(); err == nil {
			t.Error("the context is not over")
		}
		if l.Held() || child.Err() == nil || !errors.Is(context.Cause(child), ErrLockLost) {
			t.Errorf("held %v, child %v", l.Held(), context.Cause(child))
		}
	})
}

// jumping is a clock that can be moved on.
type jumping struct {
	base interface{ Now() int64 }
	by   atomic.Int64
}

func (j *jumping) Now() int64 { return j.base.Now() + j.by.Load() }

// An Acquire without Wait waits until its context ends, also for longer than a queue has
// its callers wait.
func TestLockWaitsForever(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		c := w.client(Config{}, "n1")
		first := must(c.Lock("").Acquire(soon(t), "k", TTL(time.Minute)))(t)
		got := make(chan *HeldLock, 1)
		go func() { got <- must(c.Lock("").Acquire(context.Background(), "k", TTL(time.Minute)))(t) }()
		time.Sleep(maxLockWait + time.Hour)
		synctest.Wait()
		if s := must(c.Lock("").Inspect(soon(t), "k"))(t); s.Waiting != 1 || len(s.Waiters) != 1 || s.Waiters[0].Waited != time.Hour {
			t.Errorf("%+v", s)
		}
		_ = first.Release(soon(t))
		next := <-got
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(maxLockWait+time.Hour, cancel)
		if _, err := c.Lock("").Acquire(ctx, "k"); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		_ = next.Release(soon(t))
	})
}

// No time to wait is no time to wait, whatever it is called.
func TestLockWithoutAWait(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		c := w.client(Config{}, "n1")
		held := must(c.Lock("x").TryAcquire(soon(t), "k"))(t)
		began := time.Now()
		for what, err := range map[string]error{
			"TryAcquire": last(c.Lock("x").TryAcquire(soon(t), "k")),
			"Wait(0)":    last(c.Lock("x").Acquire(soon(t), "k", Wait(0))),
		} {
			if !errors.Is(err, ErrLockHeld) || time.Since(began) != 0 {
				t.Errorf("%s after %v: %v", what, time.Since(began), err)
			}
		}
		for what, err := range map[string]error{
			"Wait of TryAcquire": last(c.Lock("x").TryAcquire(soon(t), "k", Wait(time.Second))),
			"negative Wait":      last(c.Lock("x").Acquire(soon(t), "k", Wait(-1))),
			"TTL of 0":           last(c.Lock("x").Acquire(soon(t), "k", TTL(0))),
		} {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("%s: %v", what, err)
			}
		}
		_ = held.Release(soon(t))
	})
}
