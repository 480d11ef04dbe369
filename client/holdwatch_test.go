package client

import (
	"context"
	"fmt"
	"iter"
	"testing"
	"time"

	"github.com/keystead/keystead/owner"
)

// tells is what a watch tells, as it comes.
func tells[S any](t *testing.T, watch func(ctx context.Context) iter.Seq2[S, error]) (next func() S, quiet func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	told, done := make(chan S, 100), make(chan struct{})
	go func() {
		defer close(done)
		for s, err := range watch(ctx) {
			if err != nil {
				t.Error(err)
			}
			told <- s
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	next = func() (s S) {
		t.Helper()
		select {
		case s = <-told:
		case <-time.After(time.Minute): // of the bubble
			t.Fatal("nothing is told")
		}
		return s
	}
	return next, func() {
		t.Helper()
		<-time.After(10 * time.Second) // of the bubble
		if n := len(told); n > 0 {
			t.Errorf("%d more, such as %+v", n, <-told)
		}
	}
}

// A watch of a lock tells who holds it, and goes on over owners: what is the same there is not told
// again.
func TestWatchLock(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := withRegisters(t, "n1", "n2", "n3")
		w.agree()
		c := w.client(Config{}, "n1", "n2", "n3")
		l, key := c.Lock(""), w.keyOf("n2")
		next, quiet := tells(t, func(ctx context.Context) iter.Seq2[WatchedLock, error] { return l.Watch(ctx, key, 0) })
		if s := next(); len(s.Holders) != 0 || s.Version == 0 || s.Unknown() {
			t.Errorf("%+v", s)
		}
		a := must(l.Acquire(soon(t), key, Shared(), HeldBy("a"), Metadata([]byte("m"))))(t)
		last := next()
		if last.Holding != 1 || last.Holders[0].ID != "a" || last.Holders[0].Token != a.Token() || string(last.Holders[0].Metadata) != "m" || !last.Holders[0].Shared {
			t.Errorf("%+v", last)
		}
		all := func(uint64) bool { return true }
		if !w.nodes["n2"].store.Export(w.clock.Now, all, func(r *owner.Record, now int64) bool {
			return w.nodes["n1"].store.Install(now, r.Clone(), all) == nil && w.nodes["n3"].store.Install(now, r.Clone(), all) == nil
		}, func() bool { return true }) {
			t.Fatal("not copied")
		}
		w.ring("n1", "n3")
		quiet()
		b := must(l.Acquire(soon(t), key, Shared(), HeldBy("b")))(t)
		if s := next(); s.Holding != 2 || s.Holders[1].Token != b.Token() || s.Version <= last.Version {
			t.Errorf("%+v after %+v", s, last)
		} else {
			last = s
		}
		from, _ := tells(t, func(ctx context.Context) iter.Seq2[WatchedLock, error] { return l.Watch(ctx, key, last.Version) })
		for i, h := range []*HeldLock{a, b} {
			if err := h.Release(soon(t)); err != nil {
				t.Error(err)
			}
			for _, next := range []func() WatchedLock{next, from} {
				if s := next(); s.Holding != 1-i || s.Version < last.Version {
					t.Errorf("%+v", s)
				}
			}
		}
	})
}

func TestWatchSemaphore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		s := w.client(direct, "n1").Semaphore("", 4)
		next, quiet := tells(t, func(ctx context.Context) iter.Seq2[WatchedSemaphore, error] { return s.Watch(ctx, "k", 0) })
		expect := func(want string) {
			t.Helper()
			v := next()
			if got := fmt.Sprintf("%d of %d by %d", v.Held, v.Capacity, len(v.Holders)); got != want || v.Version == 0 || v.Unknown() {
				t.Errorf("%s, want %s: %+v", got, want, v)
			}
		}
		expect("0 of 0 by 0")
		a := must(s.Acquire(soon(t), "k", 3))(t)
		expect("3 of 4 by 1")
		quiet() // renewals
		if err := a.Downgrade(soon(t), 2); err != nil {
			t.Error(err)
		}
		expect("2 of 4 by 1")
		must(s.Acquire(soon(t), "k", 1))(t)
		expect("3 of 4 by 2")
		if err := a.Release(soon(t)); err != nil {
			t.Error(err)
		}
		expect("1 of 4 by 1")
		if err := s.SetCapacity(soon(t), "k", 9); err != nil {
			t.Error(err)
		}
		expect("1 of 9 by 1")
	})
}
