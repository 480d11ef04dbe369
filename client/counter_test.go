package client

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
)

func TestCompareAndSet(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2"}, nil)
		n := w.client(direct, "n1").Counter("config")
		first := must(n.CompareAndSet(soon(t), "k", 7, 0))(t)
		if !first.Applied || first.Value != 7 || first.Version == 0 || first.Refusal != 0 {
			t.Errorf("%+v", first)
		}
		if late := must(n.CompareAndSet(soon(t), "k", 8, 0))(t); late.Applied || late.Refusal != OtherVersion || late.Version != first.Version {
			t.Errorf("%+v", late)
		}
		if got := must(n.Get(soon(t), "k"))(t); !got.Exists || got.Value != 7 || got.Version != first.Version {
			t.Errorf("%+v", got)
		}
		if was := must(n.Reset(soon(t), "k"))(t); !was.Existed || was.Previous != 7 || was.Version <= first.Version || was.Current != 0 {
			t.Errorf("%+v", was)
		}
		if was := must(n.Reset(soon(t), "never"))(t); was.Existed || was.Version != 0 {
			t.Errorf("%+v", was)
		}
		idle := must(n.CompareAndSet(soon(t), "idle", 1, 0, IdleTTL(time.Minute)))(t)
		time.Sleep(2 * time.Hour) // also longer than request ids are remembered
		synctest.Wait()
		if got := must(n.Get(soon(t), "idle"))(t); !idle.Applied || got.Exists {
			t.Errorf("%+v, %+v", idle, got)
		}
		if _, err := n.CompareAndSet(soon(t), "k", 1, 0, AtLeast(0)); !errors.Is(err, ErrInvalid) {
			t.Errorf("with a bound: %v", err)
		}
	})
}

func TestRefusals(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		n := w.client(direct, "n1").Counter("stock")
		must(n.Add(soon(t), "k", 1<<62))(t)
		for want, x := range map[string]Change{
			"below the minimum":       must(n.Add(soon(t), "k", -1, AtLeast(1<<62)))(t),
			"above the maximum":       must(n.Add(soon(t), "k", 1, AtLeast(0), AtMost(5)))(t),
			"does not fit in 64 bits": must(n.Add(soon(t), "k", 1<<62))(t),
			"none":                    must(n.Add(soon(t), "k", 1, AtLeast(0)))(t),
		} {
			if x.Refusal.String() != want || x.Applied != (want == "none") {
				t.Errorf("%s: %+v", want, x)
			}
		}
	})
}

// TestIdempotencyKey: what another process has done under a key is not done again, alone
// and in a batch.
func TestIdempotencyKey(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		one, two := w.client(direct, "n1"), w.client(direct, "n1")
		stock := one.Counter("stock")
		if _, err := stock.Add(soon(t), "k", -1, IdempotencyKey("order-6")); !errors.Is(err, ErrRecovering) {
			t.Errorf("a node that has just started: %v", err)
		}
		time.Sleep(10 * time.Minute)
		must(stock.Add(soon(t), "k", 10))(t)
		first := must(stock.Add(soon(t), "k", -1, AtLeast(0), IdempotencyKey("order-7")))(t)
		again := must(two.Counter("stock").Add(soon(t), "k", -1, AtLeast(0), IdempotencyKey("order-7")))(t)
		if first.Replayed || first.Value != 9 || !again.Replayed || again.Value != 9 || again.Version != first.Version {
			t.Errorf("%+v, again %+v", first, again)
		}
		if _, err := stock.Add(soon(t), "k", -2, AtLeast(0), IdempotencyKey("order-7")); !errors.Is(err, ErrRequestIDReused) {
			t.Errorf("another order: %v", err)
		}
		batch := must(two.BatchAdd(soon(t), []Add{{Counter: stock, Key: "k", Delta: -1, Options: []CounterOption{IdempotencyKey("order-8")}},
			{Counter: stock, Key: "k", Delta: -1, Options: []CounterOption{IdempotencyKey("order-8")}}}))(t)
		if batch[0].Replayed || !batch[1].Replayed || batch[1].Value != 8 {
			t.Errorf("%+v", batch)
		}
		for i := range 2 {
			if set := must(stock.CompareAndSet(soon(t), "set", 5, 0, IdempotencyKey("order-9")))(t); !set.Applied || set.Replayed != (i == 1) {
				t.Errorf("%+v", set)
			}
		}
		if _, err := stock.CompareAndSet(soon(t), "set", 5, 0, IdempotencyKey(strings.Repeat("k", 65))); !errors.Is(err, ErrInvalid) {
			t.Errorf("a long key: %v", err)
		}
	})
}

// Handles cost nothing.
func TestHandlesDoNotAllocate(t *testing.T) {
	c := &Client{}
	var rate Rate
	if n := testing.AllocsPerRun(100, func() {
		rate = c.Limit("api", PerMinute(20), Anywhere()).rate
		_, _, _ = c.Counter("stock"), c.Lock("nightly"), c.Admin()
	}); n != 0 || rate.Limit != 20 {
		t.Errorf("%v allocations", n)
	}
}

// Options cost nothing but the bound that is sent.
func TestOptionsDoNotAllocate(t *testing.T) {
	n := (&Client{}).Counter("stock")
	var r *counterpb.AddRequest
	for _, tc := range []struct {
		what string
		do   func()
		want float64
	}{
		{"none", func() { r = n.addition("k", 1, nil) }, 1},
		{"a bound", func() { r = n.addition("k", -1, []CounterOption{AtLeast(1000)}) }, 2},
		{"a key", func() { r = n.addition("k", -1, []CounterOption{IdempotencyKey("order-7")}) }, 1},
	} {
		if got := testing.AllocsPerRun(100, tc.do); got != tc.want || r == nil {
			t.Errorf("%s: %v allocations, want %v", tc.what, got, tc.want)
		}
	}
}

func TestRegisterIdempotent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := withRegisters(t, "n1")
		one, two := w.client(direct, "n1").Register(""), w.client(direct, "n1").Register("")
		time.Sleep(10 * time.Minute) // a node that has just started refuses keys
		first := must(one.PutIfAbsent(soon(t), "k", []byte("a"), IdempotencyKey("order-7")))(t)
		must(one.Put(soon(t), "k", []byte("b")))(t)
		again := must(two.PutIfAbsent(soon(t), "k", []byte("a"), IdempotencyKey("order-7")))(t)
		if first.Replayed || !again.Replayed || !again.Applied || again.Version != first.Version || string(again.Current.Value) != "b" {
			t.Errorf("%+v, again %+v", first, again)
		}
	})
}
