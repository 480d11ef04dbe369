package client

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestBarrier(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		c := w.client(Config{}, "n1")
		b := c.Barrier("", 3)
		for _, bad := range []func() error{
			func() error { _, err := c.Barrier("", 0).Arrive(soon(t), "k"); return err },
			func() error { _, err := b.Wait(soon(t), "k", Within(-1)); return err },
			func() error { _, err := c.Phaser("").Register(soon(t), "k", ""); return err },
			func() error { _, err := c.Latch("", 0).Arrive(soon(t), "k"); return err },
			func() error { _, err := c.Counter("").Await(soon(t), "k", IdleTTL(time.Second)); return err },
		} {
			if err := bad(); !errors.Is(err, ErrInvalid) {
				t.Error(err)
			}
		}
		passed := make(chan Arrival, 3)
		for range 2 {
			go func() { passed <- must(b.Wait(context.Background(), "k"))(t) }()
		}
		time.Sleep(time.Hour) // longer than any one call waits
		synctest.Wait()
		if s := must(b.Inspect(soon(t), "k"))(t); s.Arrived != 2 || s.Parties != 3 || s.Phaser || len(s.Listed) != 2 || len(passed) != 0 {
			t.Errorf("%+v", s)
		}
		if _, err := c.Barrier("", 4).Arrive(soon(t), "k"); !errors.Is(err, ErrCapacityMismatch) {
			t.Errorf("another number: %v", err)
		}
		last := must(b.Wait(soon(t), "k", Party("me")))(t)
		if a, z := <-passed, <-passed; !last.Last || a.Phase != last.Phase || z.Phase != last.Phase || a.Last {
			t.Errorf("%+v, %+v and %+v", a, z, last)
		}
		if _, err := b.Arrive(soon(t), "k", InPhase(last.Phase)); !errors.Is(err, ErrPhaseOver) {
			t.Errorf("too late: %v", err)
		}
		if err := b.Await(soon(t), "k", last.Phase); err != nil {
			t.Errorf("a phase that is over: %v", err)
		}
		if err := b.Await(soon(t), "other", last.Phase); !errors.Is(err, ErrLost) {
			t.Errorf("a phase that is not known: %v", err)
		}
	})
}

// A caller whose context ends is not counted on any more; one whose barrier is broken hears of
// it.
func TestBarrierWaitEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		c := w.client(Config{}, "n1")
		b := c.Barrier("", 2)
		short, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := b.Wait(short, "k"); !errors.Is(err, ErrGaveUp) && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("alone: %v", err)
		}
		synctest.Wait()
		if s := must(b.Inspect(soon(t), "k"))(t); s.Arrived != 0 {
			t.Errorf("%+v", s)
		}
		broken := make(chan error, 1)
		go func() { _, err := b.Wait(context.Background(), "k"); broken <- err }()
		time.Sleep(time.Second)
		if ok := must(b.Break(soon(t), "k"))(t); !ok {
			t.Error("there was no phase")
		}
		if err := <-broken; !errors.Is(err, ErrBroken) {
			t.Error(err)
		}
		if _, err := b.Wait(context.Background(), "k", Within(time.Minute)); !errors.Is(err, ErrBroken) {
			t.Errorf("past its time: %v", err)
		}
	})
}

// An arrival whose answer is not heard before the context of the caller ends is taken back as well:
// the others are not to pass a phase with a caller that has given up.
func TestBarrierArrivalThatNobodyHeardOf(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		var deaf atomic.Bool
		cfg := Config{clock: w.clock}
		caller := must(cfg.dialing(w.deafening(&deaf)).Dial(soon(t), "n1:1"))(t)
		t.Cleanup(caller.Close)
		c := w.client(Config{}, "n1")
		must(caller.Barrier("", 2).Inspect(soon(t), "k"))(t)
		deaf.Store(true)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if _, err := caller.Barrier("", 2).Wait(ctx, "k"); err == nil {
			t.Error("it has passed")
		}
		synctest.Wait()
		if s := must(c.Barrier("", 2).Inspect(soon(t), "k"))(t); s.Phase == 0 || s.Arrived != 0 {
			t.Errorf("what is left of a caller that gave up: %+v", s)
		}
	})
}

func TestPhaser(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		c := w.client(Config{}, "n1")
		p := c.Phaser("")
		a := must(p.Register(soon(t), "k", "a", Lease(10*time.Second)))(t)
		b := must(p.Register(soon(t), "k", "b", Lease(10*time.Second), DropLost()))(t)
		time.Sleep(time.Hour) // the leases are renewed
		done := make(chan Arrival, 1)
		go func() { done <- must(a.Wait(context.Background()))(t) }()
		time.Sleep(time.Second)
		first := must(b.Wait(soon(t)))(t)
		if got := <-done; !first.Last || got.Phase != first.Phase {
			t.Errorf("%+v and %+v", got, first)
		}
		second := must(a.Arrive(soon(t)))(t)
		if err := b.Leave(soon(t)); err != nil {
			t.Error(err)
		}
		if err := p.Await(soon(t), "k", second.Phase); err != nil || second.Phase <= first.Phase {
			t.Errorf("without the one that left: %v", err)
		}
		if _, err := b.Arrive(soon(t)); !errors.Is(err, ErrNotRegistered) {
			t.Errorf("the one that left: %v", err)
		}
		if s := must(p.Inspect(soon(t), "k"))(t); !s.Phaser || s.Parties != 1 || s.Passed != 2 {
			t.Errorf("%+v", s)
		}
		broken := must(p.Inspect(soon(t), "k"))(t).Phase
		must(p.Break(soon(t), "k"))(t)
		if _, err := a.Arrive(soon(t), InPhase(broken)); !errors.Is(err, ErrPhaseOver) {
			t.Errorf("late by a phase: %v", err)
		}
		if s := must(p.Inspect(soon(t), "k"))(t); s.Arrived != 0 || s.Phase <= broken || a.Phase() >= broken {
			t.Errorf("what was for phase %d counts in the next: %+v", broken, s)
		}
		if _, err := a.Wait(soon(t), Within(time.Second)); !errors.Is(err, ErrInvalid) {
			t.Errorf("a deadline beside a lease: %v", err)
		}
		if err := a.Leave(soon(t)); err != nil {
			t.Error(err)
		}
	})
}

// The phases of children are passed together, also when the parties are at several clients.
func TestTreeOfPhasers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() { defer close(ended); w.nodes["n1"].server.Trees(ctx) }()
		c := w.client(Config{}, "n1")
		var parties []*Registered
		for _, key := range []string{"crawl-eu", "crawl-us"} {
			for _, id := range []string{"a", "b"} {
				parties = append(parties, must(c.Phaser("").Register(soon(t), key, id, WithParent("crawl")))(t))
			}
		}
		time.Sleep(time.Minute)
		for range 3 {
			passed := make(chan error, len(parties))
			for _, m := range parties[1:] {
				go func() { _, err := m.Wait(context.Background()); passed <- err }()
			}
			time.Sleep(time.Minute)
			if len(passed) != 0 {
				t.Fatal("passed early:", <-passed)
			}
			if s := must(c.Phaser("").Inspect(soon(t), "crawl-us"))(t); s.Parent != "crawl" || !s.WaitsForParent {
				t.Errorf("%+v", s)
			}
			must(parties[0].Wait(soon(t)))(t)
			for range parties[1:] {
				if err := <-passed; err != nil {
					t.Error(err)
				}
			}
		}
		for _, m := range parties {
			if err := m.Leave(soon(t)); err != nil {
				t.Error(err)
			}
		}
		cancel()
		<-ended
	})
}

func TestLatch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		c := w.client(Config{}, "n1")
		l := c.Latch("", 2)
		time.Sleep(time.Hour) // what was remembered before the node began is over
		opened := make(chan error, 1)
		go func() { opened <- l.Await(context.Background(), "k") }()
		if open := must(l.Arrive(soon(t), "k", IdempotencyKey("one")))(t); open {
			t.Error("open with one")
		}
		if open := must(l.Arrive(soon(t), "k", IdempotencyKey("one")))(t); open {
			t.Error("open with one that arrived twice")
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(opened) != 0 {
			t.Error("open early")
		}
		if open := must(l.Arrive(soon(t), "k"))(t); !open {
			t.Error("shut with two")
		}
		if err := <-opened; err != nil {
			t.Error(err)
		}
		if open := must(l.Arrive(soon(t), "k"))(t); !open {
			t.Error("shut with three")
		}
		if err := l.Reset(soon(t), "k"); err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := l.Await(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after a Reset: %v", err)
		}
	})
}

func TestCounterAwait(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		c := w.client(Config{}, "n1")
		jobs := c.Counter("jobs")
		must(jobs.Add(soon(t), "k", 2))(t)
		done := make(chan Count, 1)
		go func() { done <- must(jobs.Await(context.Background(), "k", AtMost(0)))(t) }()
		time.Sleep(time.Hour)
		must(jobs.Add(soon(t), "k", -2))(t)
		if v := <-done; v.Value != 0 || !v.Exists || v.Version == 0 {
			t.Errorf("%+v", v)
		}
	})
}
