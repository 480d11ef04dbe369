package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch/table"
)

// withRegisters is a town that has committed the level of registers.
func withRegisters(t *testing.T, members ...string) *town {
	w := build(t, members, nil)
	w.apply(table.Command{Adopt: &table.Adopt{Level: owner.RegisterLevel}})
	return w
}

func TestRegister(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := withRegisters(t, "n1", "n2")
		n := w.client(direct, "n1").Register("config")
		if got := must(n.Get(soon(t), "k"))(t); got.Exists || got.Version != 0 || got.Value != nil || got.Unknown() {
			t.Errorf("%+v", got)
		}
		first := must(n.PutIfAbsent(soon(t), "k", []byte("a")))(t)
		if !first.Applied || first.Version == 0 || first.Refusal != 0 || !first.Current.Exists || string(first.Current.Value) != "a" || first.Current.Version != first.Version {
			t.Errorf("%+v", first)
		}
		if late := must(n.PutIfAbsent(soon(t), "k", []byte("b")))(t); late.Applied || late.Refusal != OtherVersion || late.Version != first.Version || string(late.Current.Value) != "a" {
			t.Errorf("%+v", late)
		}
		set := must(n.CompareAndSet(soon(t), "k", nil, first.Version))(t)
		if got := must(n.Get(soon(t), "k"))(t); !set.Applied || !got.Exists || len(got.Value) != 0 || got.Version != set.Version || !set.Current.Exists {
			t.Errorf("%+v, %+v", set, got)
		}
		put := must(n.Put(soon(t), "k", []byte("c"), Fenced(7)))(t)
		if old := must(n.Put(soon(t), "k", []byte("d"), Fenced(6)))(t); old.Applied || old.Refusal != OldFence || string(old.Current.Value) != "c" {
			t.Errorf("%+v", old)
		}
		if r := must(n.Delete(soon(t), "k", IfVersion(set.Version)))(t); r.Applied || r.Refusal != OtherVersion || r.Version != put.Version {
			t.Errorf("%+v", r)
		}
		gone := must(n.Delete(soon(t), "k", IfVersion(put.Version)))(t)
		if !gone.Applied || gone.Version <= put.Version || gone.Current.Exists {
			t.Errorf("%+v", gone)
		}
		if r := must(n.Delete(soon(t), "k"))(t); r.Applied || r.Refusal != 0 || r.Version != 0 {
			t.Errorf("%+v", r)
		}
		if got := must(n.Get(soon(t), "k"))(t); got.Exists || got.Fence != 7 {
			t.Errorf("%+v", got)
		}
		must(n.Delete(soon(t), "k", ForgetFence()))(t)
		if again := must(n.Put(soon(t), "k", []byte("e"), Fenced(1)))(t); !again.Applied || again.Version <= gone.Version {
			t.Errorf("%+v", again)
		}
		long := bytes.Repeat([]byte("v"), MaxValue)
		must(n.Put(soon(t), "k", long))(t)
		if got := must(n.Get(soon(t), "k"))(t); !bytes.Equal(got.Value, long) {
			t.Errorf("%d bytes", len(got.Value))
		}
	})
}

// A write under a lock is refused once the lock is over, though nobody has had it since.
func TestRegisterWhileHeld(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := withRegisters(t, "n1", "n2")
		c := w.client(direct, "n1")
		n := c.Register("")
		held := must(c.Lock("deploy").Acquire(soon(t), "k"))(t)
		if r := must(n.Put(soon(t), "k", []byte("1"), WhileHeld(held)))(t); !r.Applied {
			t.Errorf("%+v", r)
		}
		if _, err := n.Put(soon(t), "other", []byte("1"), WhileHeld(held)); !errors.Is(err, ErrInvalid) {
			t.Errorf("a lock of another key: %v", err)
		}
		if r := must(n.Put(soon(t), "k", []byte("2"), WhileHeldAs("", held.Token())))(t); r.Applied || r.Refusal != HoldOver {
			t.Errorf("another lock of the key: %+v", r)
		}
		if err := held.Release(soon(t)); err != nil {
			t.Fatal(err)
		}
		for name, r := range map[string]Written{
			"put":             must(n.Put(soon(t), "k", []byte("2"), WhileHeld(held)))(t),
			"compare-and-set": must(n.CompareAndSet(soon(t), "k", []byte("2"), 0, WhileHeldAs("deploy", held.Token())))(t),
			"delete":          must(n.Delete(soon(t), "k", WhileHeld(held)))(t),
		} {
			if r.Applied || r.Refusal != HoldOver || string(r.Current.Value) != "1" || r.Refusal.String() != "the lock is not held" {
				t.Errorf("%s: %+v", name, r)
			}
		}
	})
}

func TestRegisterArguments(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := withRegisters(t, "n1").client(direct, "n1").Register("")
		for name, err := range map[string]error{
			"no key":             errOf(n.Get(soon(t), "")),
			"a long value":       errOf(n.Put(soon(t), "k", make([]byte, MaxValue+1))),
			"a version of a put": errOf(n.Put(soon(t), "k", nil, IfVersion(7))),
			"forget of a put":    errOf(n.CompareAndSet(soon(t), "k", nil, 0, ForgetFence())),
			"version 0":          errOf(n.Delete(soon(t), "k", IfVersion(0))),
			"an empty key":       errOf(n.Delete(soon(t), "k", IdempotencyKey(""))),
			"a long key":         errOf(n.Put(soon(t), "k", nil, IdempotencyKey(strings.Repeat("x", 65)))),
			"no fence":           errOf(n.Put(soon(t), "k", nil, Fenced(0))),
			"two fences":         errOf(n.Put(soon(t), "k", nil, Fenced(7), Fenced(8))),
			"two locks":          errOf(n.Put(soon(t), "k", nil, WhileHeldAs("a", 7), WhileHeldAs("b", 8))),
			"two versions":       errOf(n.Delete(soon(t), "k", IfVersion(7), IfVersion(8))),
			"token 0":            errOf(n.Put(soon(t), "k", nil, WhileHeldAs("a", 0))),
		} {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// A watch goes on over owners, and over the death of the node that it is at: what it tells
// never goes back.
func TestWatchRegister(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := withRegisters(t, "n1", "n2", "n3")
		c := w.client(Config{}, "n1", "n2", "n3")
		n, key := c.Register(""), w.keyOf("n2")
		must(n.Put(soon(t), key, []byte("0")))(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		states := make(chan Watched, 100)
		ended := make(chan error, 1)
		go func() {
			defer close(states)
			for s, err := range n.Watch(ctx, key, 0) {
				if err != nil {
					ended <- err
					return
				}
				states <- s
			}
		}()
		last := <-states
		next := func(value string) {
			t.Helper()
			for s := range states {
				if s.Version < last.Version || s.Version == last.Version && s.Exists && string(s.Value) != string(last.Value) {
					t.Fatalf("%+v after %+v", s, last)
				}
				if last = s; string(s.Value) == value && !s.Stale {
					return
				}
			}
			t.Fatal("it has ended")
		}
		put := func(value string) {
			t.Helper()
			must(n.Put(soon(t), key, []byte(value)))(t)
			next(value)
		}
		put("1")
		w.ring("n1", "n3") // which know nothing of it
		put("2")
		w.nodes["n2"].kill() // at which the watch may be
		put("3")
		must(n.Delete(soon(t), key))(t)
		next("")
		if last.Exists || last.Unknown() {
			t.Errorf("%+v", last)
		}
		put("4")
		for _, id := range []string{"n1", "n3"} {
			w.nodes[id].kill()
		}
		for s := range states {
			if last = s; s.Stale {
				break
			}
		}
		if string(last.Value) != "4" || !last.Stale {
			t.Errorf("when no node is left: %+v", last)
		}
		cancel()
		for range states {
		}
		select {
		case err := <-ended:
			t.Error(err)
		default:
		}
	})
}

// A caller that is busy is told the latest when it comes back, and that it is that.
func TestWatchRegisterWhileBusy(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := withRegisters(t, "n1", "n2")
		n := w.client(Config{}, "n1").Register("")
		must(n.Put(soon(t), "k", []byte("0")))(t)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := range 50 {
				if _, err := n.Put(context.Background(), "k", fmt.Append(nil, i+1)); err != nil {
					t.Error(err)
				}
			}
		}()
		states := 0
		for s, err := range n.Watch(t.Context(), "k", 0) {
			if states++; err != nil || s.Stale || states > 3 {
				t.Fatalf("state %d: %+v, %v", states, s, err)
			}
			if string(s.Value) == "50" {
				break
			}
			<-done
			busy := time.NewTimer(5 * firstStale)
			<-busy.C
		}
	})
}

func TestWatchRegisterEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := withRegisters(t, "n1")
		c := w.client(Config{}, "n1")
		n := c.Register("x")
		must(c.Counter("x").Add(soon(t), "k", 1))(t)
		for key, want := range map[string]error{"k": ErrKindMismatch, "": ErrInvalid} {
			var got error
			for _, err := range n.Watch(soon(t), key, 0) {
				got = err
			}
			if !errors.Is(got, want) {
				t.Errorf("%q: %v", key, got)
			}
		}
		put := must(n.Put(soon(t), "l", []byte("v")))(t)
		seen := 0
		for s, err := range n.Watch(soon(t), "l", put.Version-1) {
			if seen++; err != nil || s.Version != put.Version {
				t.Errorf("%+v, %v", s, err)
			}
			break
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		for s, err := range n.Watch(ctx, "l", put.Version) { // it has that already
			t.Errorf("%+v, %v", s, err)
		}
		if seen != 1 {
			t.Errorf("%d states", seen)
		}
	})
}

func errOf[A any](_ A, err error) error { return err }

// The node that a watch is at lives, and is cut off from those that know: the watch goes on at
// another one.
func TestWatchLeavesASilentNode(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := withRegisters(t, "n1", "n2")
		c := w.client(Config{}, "n1", "n2")
		n, key := c.Register(""), w.keyOf("n1")
		must(n.Put(soon(t), key, []byte("0")))(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		stale := false
		for s, err := range n.Watch(ctx, key, 0) {
			switch {
			case err != nil:
				t.Fatal(err)
			case string(s.Value) == "0" && !s.Stale && !stale:
				w.nodes["n1"].frozen.Store(w.now())
				w.nodes["n1"].denies.Store(true)
				w.ring("n2")
				must(w.client(direct, "n2").Register("").Put(soon(t), key, []byte("1")))(t)
			case s.Stale:
				stale = true
			case string(s.Value) == "1":
				if !stale {
					t.Error("nobody said that the state was stale")
				}
				return
			}
		}
		t.Error("the watch stays where nothing is known")
	})
}
