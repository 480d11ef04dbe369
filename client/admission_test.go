package client

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keystead/keystead/owner"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// TestAdmit: demands of a request are charged together, a refusal is an error that says when, and what was not used
// comes back when the handle is released, though its context has ended.
func TestAdmit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		c := w.client(Config{}, "n1")
		ctx, cancel := context.WithCancel(soon(t))
		tpm := c.Limit("tpm", Per(100, time.Hour).Windowed())
		q := Admit{Key: "org:7", Hold: time.Minute, Demands: []Demand{tpm.Demand(60), Slots("", 1, 1), c.Counter("jobs").Demand(2, 5)}}
		h, err := c.Admit(ctx, q)
		if err != nil || !h.OK || h.Hold() == "" || h.Demands[0].Remaining != 40 {
			t.Fatalf("%+v %v", h, err)
		}
		refused, err := c.Admit(ctx, q)
		if !errors.Is(err, ErrNotAdmitted) || refused.OK || !refused.Demands[0].Refused || !refused.Demands[1].Refused || refused.Demands[2].Refused {
			t.Errorf("%+v %v", refused, err)
		}
		if want := "2 of 3 demands refused, tpm, slots; nothing was charged"; err == nil || !strings.Contains(err.Error(), want) ||
			refused.Demands[1].Name != "slots" || h.Demands[2].Name != "jobs" {
			t.Errorf("%+v %v, not %s", refused.Demands, err, want)
		}
		if err := refused.Release(ctx); err != nil {
			t.Error(err)
		}
		if holds, n, err := c.Admission("").Holds(ctx, "org:7", ""); err != nil || n != 1 || holds[0].Hold != h.Hold() || holds[0].Costs[0] != (Cost{Name: "tpm", Cost: 60}) {
			t.Errorf("%+v %v", holds, err)
		}
		s, err := h.Settle(ctx, Cost{Name: "tpm", Cost: 250})
		if err != nil || s.Late || s.Costs[0].Taken != 190 || s.Costs[0].Debt != 150 || s.Costs[1].Back != 1 {
			t.Errorf("%+v %v", s, err)
		}
		cancel()
		if err := h.Release(ctx); err != nil { // it is settled
			t.Error(err)
		}
		ctx = soon(t)
		if v, err := c.Counter("jobs").Get(ctx, "org:7"); err != nil || v.Value != 2 {
			t.Errorf("%+v %v", v, err)
		}
		ended, end := context.WithCancel(ctx)
		other, err := c.Admit(ended, Admit{Key: "org:7", Hold: time.Minute, Demands: []Demand{Slots("", 1, 1)}})
		if err != nil {
			t.Fatal(err)
		}
		end()
		if err := other.Release(ended); err != nil {
			t.Error(err)
		}
		if _, err := c.Admission("").Settle(ctx, "org:7", other.Hold(), nil); !errors.Is(err, ErrHoldUnknown) {
			t.Error(err)
		}
		if on, err := c.Admission("").Extend(ctx, "org:7", other.Hold(), time.Minute); on || !errors.Is(err, ErrHoldUnknown) {
			t.Error(on, err)
		}
		if _, err := c.Admit(ctx, Admit{Key: "org:7", Keep: true, Demands: q.Demands}); !errors.Is(err, ErrInvalid) {
			t.Error(err)
		}
	})
}

// TestKeptHold: a hold that is kept outlasts its time until it is settled, and its holder learns that it is over.
func TestKeptHold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		c := w.client(Config{}, "n1")
		ctx := context.Background()
		q := Admit{Key: "k", Hold: 3 * time.Second, Keep: true, Demands: []Demand{Slots("", 1, 2)}}
		h, err := c.Admit(ctx, q)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if s, err := h.Settle(ctx); err != nil || s.Late {
			t.Errorf("%+v %v", s, err)
		}
		if h, err = c.Admit(ctx, q); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Admission("").Release(ctx, "k", h.Hold()); err != nil { // by another
			t.Error(err)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		select {
		case <-h.Lost():
		default:
			t.Error("the holder was not told that its hold is over")
		}
		if err := h.Release(ctx); !errors.Is(err, ErrHoldUnknown) {
			t.Error(err)
		}
	})
}

// TestKeptHoldOfASilentOwner: the holder learns that its hold may be over when it may be, and not only when the call
// that was to extend it has given up.
func TestKeptHoldOfASilentOwner(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		var deaf atomic.Bool
		cfg := Config{clock: w.clock}
		c := must(cfg.dialing(w.deafening(&deaf)).Dial(soon(t), "n1:1"))(t)
		t.Cleanup(c.Close)
		h, err := c.Admit(soon(t), Admit{Key: "k", Hold: 3 * time.Second, Keep: true, Demands: []Demand{Slots("", 1, 2)}})
		if err != nil {
			t.Fatal(err)
		}
		deaf.Store(true)
		time.Sleep(3*time.Second - time.Millisecond)
		synctest.Wait()
		select {
		case <-h.Lost():
			t.Error("it is lost before its time is over")
		default:
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		select {
		case <-h.Lost():
		default:
			t.Error("the holder was not told that its hold may be over")
		}
		deaf.Store(false)
	})
}

// TestKeptHoldOfAnEarlierCall: what is kept of a hold that an earlier call has made, under the same key, is what is left of
// it: it is lost at once when that is nothing.
func TestKeptHoldOfAnEarlierCall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		var deaf atomic.Bool
		cfg := Config{clock: w.clock}
		c := must(cfg.dialing(w.deafening(&deaf)).Dial(soon(t), "n1:1"))(t)
		t.Cleanup(c.Close)
		time.Sleep(10 * time.Minute) // the node knows of all keys by then
		q := Admit{Key: "k", Hold: 30 * time.Second, Demands: []Demand{Slots("", 1, 2)}, Options: []CallOption{IdempotencyKey("request 7")}}
		if _, err := c.Admit(soon(t), q); err != nil {
			t.Fatal(err)
		}
		lost := func(h *Admitted) bool {
			synctest.Wait()
			select {
			case <-h.Lost():
				return true
			default:
				return false
			}
		}
		q.Keep = true
		time.Sleep(25 * time.Second)
		h, err := c.Admit(soon(t), q)
		if err != nil || !h.Replayed {
			t.Fatalf("%+v %v", h, err)
		}
		time.Sleep(20 * time.Second)
		if lost(h) {
			t.Error("it was not extended in time")
		}
		if _, err := h.Settle(soon(t)); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if lost(h) {
			t.Error("it was settled, and is told to be lost")
		}
		if h, err = c.Admit(soon(t), q); err != nil || !h.Replayed || !lost(h) {
			t.Errorf("%+v %v: the hold of a request that was settled is kept", h, err)
		}
		q.Options, q.Keep = []CallOption{IdempotencyKey("request 8")}, false
		if _, err := c.Admit(soon(t), q); err != nil {
			t.Fatal(err)
		}
		time.Sleep(25 * time.Second)
		q.Keep = true
		if h, err = c.Admit(soon(t), q); err != nil {
			t.Fatal(err)
		}
		deaf.Store(true)
		time.Sleep(5 * time.Second)
		if !lost(h) {
			t.Error("the owner has ended the hold, and its holder does not know")
		}
		deaf.Store(false)
	})
}

// TestFailedSettlementKeepsNothing: a hold that is kept ends with its time if nobody could be told that it is over.
func TestFailedSettlementKeepsNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		c, n1 := w.client(Config{}, "n1"), w.nodes["n1"]
		h, err := c.Admit(soon(t), Admit{Key: "k", Hold: 5 * time.Second, Keep: true, Demands: []Demand{Slots("", 1, 2)}})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second) // it is kept
		n1.isolate(true)
		if s, err := h.Settle(soonIn(t, 100*time.Millisecond)); err == nil {
			t.Errorf("settled at nobody: %+v", s)
		}
		n1.isolate(false)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		holds, _, err := c.Admission("").Holds(soon(t), "k", h.Hold())
		if err != nil || len(holds) > 0 && !holds[0].Over {
			t.Errorf("it is kept: %+v %v", holds, err)
		}
	})
}

// TestReleaseGoesOn though its context ends while it is under way.
func TestReleaseGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		c, n1 := w.client(Config{}, "n1"), w.nodes["n1"]
		h, err := c.Admit(soon(t), Admit{Key: "k", Hold: time.Minute, Demands: []Demand{Slots("", 1, 2)}})
		if err != nil {
			t.Fatal(err)
		}
		n1.isolate(true)
		time.AfterFunc(300*time.Millisecond, func() { n1.isolate(false) }) // connections are tried ever more seldom
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		if err := h.Release(ctx); err != nil {
			t.Error(err)
		}
		n1.isolate(true)
		h.settled = false
		began := time.Now()
		if err := h.Release(ctx); err == nil || time.Since(began) > releaseTime {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

// TestAdmittedToNobody: a hold whose caller had left is released, and not kept until its time is over.
func TestAdmittedToNobody(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		c, n1 := w.client(Config{}, "n1"), w.nodes["n1"]
		ctx, cancel := context.WithCancel(context.Background())
		n1.on(func(*owner.Record) {
			n1.on(func(*owner.Record) {})
			cancel()
			n1.cut()
		})
		if _, err := c.Admit(ctx, Admit{Key: "k", Hold: time.Minute, Demands: []Demand{Slots("", 1, 2)}}); !errors.Is(err, ErrOutcomeUnknown) {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if v := must(c.Counter("slots").Get(soon(t), "k"))(t); v.Value != 0 {
			t.Errorf("%d slots are held by nobody", v.Value)
		}
	})
}

// TestDemandOfALimit: a demand says all that a check of the limit does; what cannot be demanded is refused here.
func TestDemandOfALimit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		w.agree()
		c := w.client(Config{}, "n1")
		d := c.Limit("quota", PerCalendar(1000, CalendarYear).In("Europe/Berlin").FromDate(time.April, 6).CarryingOver(50)).Demand(3)
		l := d.onWire().Limit
		if l.Limit != 1000 || l.Calendar != limitpb.CalendarUnit_CALENDAR_UNIT_YEAR || l.TimeZone != "Europe/Berlin" || l.FirstMonth != 4 || l.FirstDay != 6 || l.CarryOver != 50 ||
			l.Algorithm != limitpb.Algorithm_ALGORITHM_CALENDAR_WINDOW {
			t.Error(l)
		}
		turns := c.Limit("turns", PerSecond(10).Spaced())
		if h, err := c.Admit(soon(t), Admit{Key: "k", Demands: []Demand{turns.Demand(1)}}); err != nil || !h.OK {
			t.Errorf("%+v %v", h, err)
		}
		if h, err := c.Admit(soon(t), Admit{Key: "k", Demands: []Demand{turns.Demand(1)}}); !errors.Is(err, ErrNotAdmitted) || h.RetryAfter <= 0 || h.RetryAfter > time.Second/10 {
			t.Errorf("%+v %v", h, err)
		}
		waits := c.Limit("turns", PerSecond(10).Spaced(), MaxDelay(time.Second))
		for _, d := range []Demand{waits.Demand(1), c.Policy("tenant").Demand(1), turns.Demand(0), Slots("", 0, 8)} {
			if _, err := c.Admit(soon(t), Admit{Key: "k", Demands: []Demand{d}}); !errors.Is(err, ErrInvalid) {
				t.Errorf("%+v: %v", d, err)
			}
		}
	})
}
