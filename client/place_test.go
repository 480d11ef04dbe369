package client

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/reqid"
)

// holding takes the lock "lock" of a key at a node, and returns its token.
func (h *house) holding(key string) uint64 {
	h.t.Helper()
	a, _, err := h.store.Acquire(h.clock.Now(), owner.Ref{Key: key, Name: "lock"}, reqid.ID{}, owner.AcquireLock{Holder: "first", TTL: int64(time.Minute)})
	if err != nil || !a.Acquired {
		h.t.Fatalf("%+v %v", a, err)
	}
	return a.Token
}

func (h *house) released(key string, token uint64) {
	h.t.Helper()
	a, err := h.store.Release(h.clock.Now(), owner.Ref{Key: key, Name: "lock"}, reqid.ID{}, token)
	if err != nil || !a.Released {
		h.t.Fatalf("%+v %v", a, err)
	}
}

// Another attempt of the same request, which was on its way for long, takes the
// place over and ends. The client comes back to it.
func TestSupersededComesBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		c, n1 := w.client(Config{}, "n1"), w.nodes["n1"]
		token := n1.holding("k")
		var place reqid.ID
		n1.on(func(r *owner.Record) {
			if l := r.Hold(); l != nil && l.Queue.Len() > 0 {
				place = l.Queue.Places[0].Caller.ID
			}
		})
		var l *HeldLock
		done := make(chan error)
		go func() {
			var err error
			l, err = c.Lock("").Acquire(soon(t), "k", Wait(time.Minute), HeldBy("me"))
			done <- err
		}()
		synctest.Wait()
		place.Age = 1
		_, other, err := n1.store.Acquire(w.clock.Now(), owner.Ref{Key: "k", Name: "lock"}, place, owner.AcquireLock{Holder: "me", TTL: int64(10 * time.Second), Wait: int64(time.Minute)})
		if other == nil || err != nil {
			t.Fatalf("it did not take the place over: %v", err)
		}
		time.Sleep(time.Second)
		other.GiveUp(w.clock.Now())
		n1.released("k", token)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if err := l.Release(context.Background()); err != nil {
			t.Error(err)
		}
	})
}
