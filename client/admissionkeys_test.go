package client

import (
	"context"
	"errors"
	"testing"
	"time"
)

// Demands of several keys are charged together, and a hold of theirs is settled by key.
func TestAdmitSeveralKeys(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		c := w.client(Config{}, "n1")
		ctx, cancel := context.WithCancel(soon(t))
		ended := make(chan struct{})
		go func() { defer close(ended); w.nodes["n1"].server.Across(ctx) }()
		defer func() { cancel(); <-ended }()
		used := c.Counter("used")
		q := Admit{Key: "org:7", Demands: []Demand{used.Demand(3, 10), used.Demand(2, 4).Under("model:1")}}
		if h, err := c.Admit(ctx, q); err != nil || !h.OK || h.Key() != "org:7" || h.Demands[1].Remaining != 2 {
			t.Fatal(h, err)
		}
		q.Hold = time.Minute
		h, err := c.Admit(ctx, q)
		if err != nil || h.Hold() == "" {
			t.Fatal(h, err)
		}
		if refused, err := c.Admit(ctx, q); !errors.Is(err, ErrNotAdmitted) || refused.Demands[0].Refused || !refused.Demands[1].Refused {
			t.Error(refused, err)
		}
		if holds, n, err := c.Admission("").Holds(ctx, "model:1", ""); err != nil || n != 1 || holds[0].Hold != h.Hold() || len(holds[0].Keys) != 2 {
			t.Error(holds, n, err)
		}
		if _, err := h.Settle(ctx, Cost{Name: "used", Cost: 1}, Cost{Key: "model:1", Name: "used", Cost: 0}); err != nil {
			t.Error(err)
		}
		for range 100 { // the owners learn a moment later that all of them hold
			one, err := used.Get(ctx, "org:7")
			other, bad := used.Get(ctx, "model:1")
			if err == nil && bad == nil && one.Value == 4 && other.Value == 2 {
				return
			}
			<-time.After(100 * time.Millisecond)
		}
		t.Error("the keys are not charged as was settled")
	})
}

// What chunks may pay is demanded of another key, and the owner of the request's own decides.
func TestAdmitAnywhere(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2"}, nil)
		w.agree()
		c := w.client(Config{}, "n1", "n2")
		all := c.Limit("all", PerSecond(10_000), Anywhere())
		shared, own := w.keyOf("n1"), w.keyOf("n2")
		demands := []Demand{all.Demand(1).Under(shared), c.Counter("used").Demand(1, 2).Under(own)}
		for i := range 3 {
			h, err := c.Admit(soon(t), Admit{Demands: demands})
			if h.OK != (i < 2) || h.Owner != "n2" || h.Key() != own || h.Demands[0].Capacity != 10_000 || i == 2 && (!errors.Is(err, ErrNotAdmitted) || !h.Demands[1].Refused) {
				t.Errorf("%d: %+v %v", i, h, err)
			}
		}
		if _, err := c.Admit(soon(t), Admit{Demands: demands, Hold: time.Minute}); !errors.Is(err, ErrInvalid) {
			t.Error(err)
		}
		if h, err := c.Admit(soon(t), Admit{Key: own, Demands: []Demand{all.Demand(1)}, Hold: time.Minute}); err != nil || h.Hold() == "" { // of its own key it is one of all
			t.Error(h, err)
		}
	})
}
