package keysteadtest_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/client/keysteadtest"
)

// What users of other gateways met with limits of several levels, each by the thread in which they told of it. A
// period is of an hour, and what a test takes of it refills less than a token.

func perHour(c *client.Client, name string, n uint64) client.Limit {
	return c.Limit(name, client.Rate{Limit: n, Period: time.Hour, Algorithm: client.FixedWindow})
}

// admits asks, and fails the test if there is another error than a refusal.
func admits(t *testing.T, c *client.Client, q client.Admit) *client.Admitted {
	t.Helper()
	h, err := c.Admit(t.Context(), q)
	if err != nil && !errors.Is(err, client.ErrNotAdmitted) {
		t.Error(err)
	}
	return h
}

func settles(t *testing.T, h *client.Admitted, costs ...client.Cost) {
	t.Helper()
	if _, err := h.Settle(t.Context(), costs...); err != nil {
		t.Error(err)
	}
}

// TestCheckedFirstCountedAfter is litellm#18730: where requests are checked before they are counted, those under way
// together are all let through, 663 of 100 there.
func TestCheckedFirstCountedAfter(t *testing.T) {
	c := keysteadtest.Start(t).Client(t)
	q := client.Admit{Key: "k", Demands: []client.Demand{perHour(c, "tpm", 100).Demand(1)}, Hold: time.Hour}
	var admitted atomic.Int64
	var all sync.WaitGroup
	for range 663 {
		all.Go(func() {
			h := admits(t, c, q)
			if !h.OK {
				return
			}
			admitted.Add(1)
			settles(t, h, client.Cost{Name: "tpm", Cost: 1})
		})
	}
	all.Wait()
	if n := admitted.Load(); n != 100 {
		t.Errorf("%d admitted", n)
	}
}

// TestEstimateAboveTheLimit is litellm PR#29193: an estimate above the limit refuses even the first request.
func TestEstimateAboveTheLimit(t *testing.T) {
	c := keysteadtest.Start(t).Client(t)
	tpm := perHour(c, "tpm", 100)
	q := client.Admit{Key: "k", Demands: []client.Demand{tpm.Demand(4_000).Clamped(50)}, Hold: time.Hour}
	h := admits(t, c, q)
	if !h.OK || h.Demands[0].Reserved != 50 {
		t.Fatalf("%v, %+v", h.OK, h.Demands)
	}
	s, err := h.Settle(t.Context(), client.Cost{Name: "tpm", Cost: 130})
	if err != nil || s.Costs[0].Debt != 30 {
		t.Errorf("%+v, %v", s, err)
	}
	if h := admits(t, c, client.Admit{Key: "k", Demands: []client.Demand{tpm.Demand(1)}}); h.OK {
		t.Error("admitted beside a debt")
	}
}

// TestReservesFillABudget is litellm PR#38647: the worst cases of a few requests fill a budget of which nothing is spent.
func TestReservesFillABudget(t *testing.T) {
	c := keysteadtest.Start(t).Client(t)
	q := client.Admit{Key: "k", Demands: []client.Demand{perHour(c, "budget", 100).Demand(1_000).Clamped(25)}, Hold: time.Hour}
	var holds []*client.Admitted
	for range 4 {
		h := admits(t, c, q)
		if !h.OK {
			t.Fatal("refused")
		}
		holds = append(holds, h)
	}
	if admits(t, c, q).OK {
		t.Error("admitted above what is there")
	}
	for _, h := range holds {
		settles(t, h, client.Cost{Name: "budget", Cost: 1})
	}
	h := admits(t, c, q)
	if !h.OK || h.Demands[0].Remaining != 100-4-25 {
		t.Errorf("after these: %v, %+v", h.OK, h.Demands)
	}
}

// TestRefusedBySlotsCostsNoRequests is litellm#39309: what slots refuse is counted by the limit before them.
func TestRefusedBySlotsCostsNoRequests(t *testing.T) {
	c := keysteadtest.Start(t).Client(t)
	rpm := perHour(c, "rpm", 10)
	q := client.Admit{Key: "k", Demands: []client.Demand{rpm.Demand(1), client.Slots("", 1, 1)}, Hold: time.Hour}
	first := admits(t, c, q)
	for range 50 {
		if h := admits(t, c, q); h.OK || h.Demands[0].Refused || !h.Demands[1].Refused {
			t.Fatalf("%v, %+v", h.OK, h.Demands)
		}
	}
	settles(t, first)
	if h := admits(t, c, q); !h.OK || h.Demands[0].Remaining != 8 {
		t.Errorf("%v, %+v", h.OK, h.Demands)
	}
}

// TestWhatNobodySettlesComesBack is litellm#20256 and litellm#27955: a stream that is cancelled, or an error on its
// way, leaves a slot taken until somebody restarts the store.
func TestWhatNobodySettlesComesBack(t *testing.T) {
	c := keysteadtest.Start(t).Client(t)
	q := client.Admit{Key: "k", Demands: []client.Demand{client.Slots("", 1, 1)}, Hold: 10 * time.Millisecond}
	if !admits(t, c, q).OK {
		t.Fatal("refused")
	}
	q.Hold = time.Hour
	tries := 1
	h := admits(t, c, q)
	for ; !h.OK && !t.Failed(); tries++ {
		h = admits(t, c, q)
	}
	stream, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.Release(stream); err != nil { // as a handler defers it
		t.Errorf("after %d tries: %v", tries, err)
	}
	if !admits(t, c, q).OK {
		t.Error("what a cancelled caller released was not given back")
	}
}

// TestOneIdForAllLimits is kuadrant-operator PR#2225: a hold of several limits has to correct each of them, and an id
// for each overwrites the one before it.
func TestOneIdForAllLimits(t *testing.T) {
	c := keysteadtest.Start(t).Client(t)
	names := []string{"minute", "day", "model"}
	var demands, looks []client.Demand
	for _, name := range names {
		demands = append(demands, perHour(c, name, 100).Demand(40))
		looks = append(looks, perHour(c, name, 100).Demand(1))
	}
	h := admits(t, c, client.Admit{Key: "k", Demands: demands, Hold: time.Hour})
	settles(t, h, client.Cost{Name: "minute", Cost: 1}, client.Cost{Name: "day", Cost: 2}, client.Cost{Name: "model", Cost: 60})
	settles(t, h, client.Cost{Name: "minute", Cost: 0}) // a settled hold stays as it is
	look := admits(t, c, client.Admit{Key: "k", Demands: looks, Peek: true})
	for i, want := range []uint64{99 - 1, 98 - 1, 40 - 1} { // as for one more
		if got := look.Demands[i].Remaining; got != want {
			t.Errorf("%s: %d are left, want %d", names[i], got, want)
		}
	}
}

// TestLimitIsRaised is ratelimit#185: a limit that is raised within its period counts at once, and what was spent
// stays spent.
func TestLimitIsRaised(t *testing.T) {
	c := keysteadtest.Start(t).Client(t)
	ask := func(limit, cost uint64) *client.Admitted {
		return admits(t, c, client.Admit{Key: "k", Demands: []client.Demand{perHour(c, "month", limit).Demand(cost)}})
	}
	if !ask(100, 100).OK || ask(100, 1).OK {
		t.Error("not as stated")
	}
	if !ask(150, 50).OK || ask(150, 1).OK {
		t.Error("raised, it is not what was added")
	}
}
