package client

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
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
