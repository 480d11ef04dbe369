package client

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keystead/keystead/internal/failure"
)

// Next implements rpc.IDs: a node numbers its ids from a million of its own.
func (h *house) Next(_ context.Context, n int) (uint64, error) {
	if h.denies.Load() {
		return 0, &failure.Error{Reason: failure.Unavailable, Message: "no ids", RetryAfter: 10 * time.Millisecond}
	}
	at := uint64(h.id[1]-'0') * 1e6
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ids += uint64(n)
	return at + h.ids - uint64(n), nil
}

// TestNextIDs: any node gives them; another one when one cannot.
func TestNextIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2", "n3"}, nil)
		c := w.client(Config{}, "n1", "n2", "n3")
		seen, from := map[uint64]bool{}, map[uint64]int{}
		take := func(n int) {
			t.Helper()
			first, err := c.NextIDs(t.Context(), n)
			if err != nil {
				t.Fatal(err)
			}
			for i := range uint64(n) {
				if seen[first+i] {
					t.Errorf("%d twice", first+i)
				}
				seen[first+i] = true
			}
			from[first/1e6]++
		}
		for i := range 60 {
			take(1 + i%7)
		}
		if len(from) != 3 {
			t.Errorf("ids of %v", from)
		}
		w.nodes["n1"].denies.Store(true)
		w.nodes["n2"].kill()
		before := from[3]
		for range 10 {
			take(1)
		}
		if from[3] < before+10 {
			t.Errorf("ids of %v after %d", from, before)
		}
		if id, err := c.NextID(t.Context()); err != nil || id/1e6 != 3 {
			t.Errorf("%d, %v", id, err)
		}
		for _, n := range []int{0, -1, MaxIDs + 1} {
			if _, err := c.NextIDs(t.Context(), n); !errors.Is(err, ErrInvalid) {
				t.Errorf("%d ids: %v", n, err)
			}
		}
		w.nodes["n3"].denies.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.NextID(ctx); !errors.Is(err, ErrUnavailable) {
			t.Errorf("%v", err)
		}
	})
}

// TestCheckAnywhere: it is not sent to the owner, most of the time, and spends once
// for all that.
func TestCheckAnywhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2", "n3"}, nil)
		c := w.client(Config{}, "n1", "n2", "n3")
		rate := PerHour(1000).WithBurst(800)
		allowed, slack := 0, uint64(0)
		for range 1000 {
			d, err := c.Limit("", rate, Anywhere()).Check(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			if slack = d.Slack; d.Allowed {
				allowed++
			}
		}
		if slack != 200 || allowed > 800 || allowed < 800-200-40 {
			t.Errorf("%d allowed of 800, with a slack of %d", allowed, slack)
		}
		if d, err := c.Limit("", rate, Anywhere()).Peek(t.Context(), "k"); err != nil || d.Slack != 0 || d.Remaining < 200 {
			t.Errorf("%+v, %v", d, err)
		}
		if _, err := c.Limit("", PerHour(10).Windowed(), Anywhere()).Check(t.Context(), "k"); !errors.Is(err, ErrInvalid) {
			t.Errorf("%v", err)
		}
		local := c.Limit("", rate, Anywhere())
		batch, err := c.BatchCheck(t.Context(), []Check{{Limit: local, Key: "k", Peek: true}, {Limit: local, Key: "k"}, {Limit: c.Limit("", rate), Key: "k", Peek: true}})
		if err != nil || batch[0].Err != nil || !errors.Is(batch[1].Err, ErrInvalid) || batch[2].Err != nil {
			t.Errorf("in a batch: %+v, %v", batch, err)
		}
	})
}
