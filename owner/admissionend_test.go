package owner

import (
	"testing"

	"github.com/keystead/keystead/owner/admission"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/owner/value"
)

// TestHoldsEndBesideAnotherKind: a limit that is full again is absent, so that another kind of object may take its name
// while it is held. No hold stays for that.
func TestHoldsEndBesideAnotherKind(t *testing.T) {
	s := newStore(t, nil)
	short := tokens("a", 5, 10)
	short.Params.Period = second // it is absent after a second
	admit(t, s, 0, id(1), 10*second, short)
	admit(t, s, 0, id(2), 20*second, slotsOf("slots", 1, 1))
	// the limit is full again, so absent; another caller puts a register there
	if _, err := s.SetRegister(2*second, under7("a"), noID, SetRegister{Set: value.Set{Value: []byte("x")}}); err != nil {
		t.Fatal(err)
	}
	for now := 10 * second; now <= 400*second; now += second {
		s.Wake(now)
		s.Sweep(now)
	}
	if v := must(s.Get(400*second, under7("slots"))); v.Value != 0 {
		t.Errorf("%d slots are taken 380 s after their hold is over", v.Value)
	}
	if a := must(s.Admit(400*second, gate7, id(3), Admit{Demands: []Demand{slotsOf("slots", 1, 1)}, Hold: second}, nil)); !a.Admitted {
		t.Errorf("no slot is ever given again: %+v", a)
	}
}

// TestSettleBesideAnotherKind: such a hold is settled, too, and the answer to its Admit stands.
func TestSettleBesideAnotherKind(t *testing.T) {
	s := newStore(t, nil)
	short := tokens("a", 5, 10)
	short.Params.Period = second
	h := admit(t, s, 0, id(1), 10*second, short, slotsOf("slots", 1, 1))
	if _, err := s.SetRegister(2*second, under7("a"), noID, SetRegister{Set: value.Set{Value: []byte("x")}}); err != nil {
		t.Fatal(err)
	}
	if b, err := s.Settle(3*second, gate7, id(2), h.Hold, nil, true); err != nil {
		t.Errorf("a settle of 0 gives nothing back: %+v, %v", b, err)
	}
	if again, err := s.Admit(3*second, gate7, retry(1, 3*second), Admit{Demands: []Demand{short, slotsOf("slots", 1, 1)}, Hold: 10 * second}, nil); err != nil || !again.Replayed {
		t.Errorf("the repetition of an admit that was answered: %+v, %v", again, err)
	}
}

// splitNames is a rule by which limits and counters of some names are split.
type splitNames struct {
	testRule
	names map[string]bool
}

func (*splitNames) Split(uint64) bool { return true }

func (r *splitNames) May(ref Ref, _ Kind) (uint32, error) {
	if r.names[ref.Name] {
		return 0, errFrozen
	}
	return 0, nil
}

// TestHoldsEndBesideASplit: what cannot be given back now is later, and keeps no other hold from ending; the answer to
// the Admit stands.
func TestHoldsEndBesideASplit(t *testing.T) {
	rule := &splitNames{testRule{epoch: 100}, map[string]bool{}}
	s := newStore(t, func(c *Config) { c.Rule = rule })
	op := Admit{Demands: []Demand{tokens("a", 5, 10), slotsOf("more", 1, 1)}, Hold: 10 * second}
	first := must(s.Admit(0, gate7, id(1), op, nil))
	admit(t, s, 0, id(2), 20*second, slotsOf("slots", 1, 1))
	rule.names["a"] = true
	for now := 10 * second; now <= 30*second; now += second / 4 {
		s.Wake(now)
	}
	if v := must(s.Get(30*second, under7("slots"))); v.Value != 0 {
		t.Errorf("%d slots are taken beside a hold that cannot end", v.Value)
	}
	if again := must(s.Admit(30*second, gate7, retry(1, 30*second), op, nil)); !again.Replayed || !again.Admitted || again.Hold != first.Hold || again.Demands[0].Capacity != 10 {
		t.Errorf("%+v", again)
	}
	rule.names["a"] = false
	s.Wake(32 * second)
	if n := spentOf(t, s, 32*second, "a", 10); n != 0 {
		t.Errorf("%d spent", n)
	}
	if v := must(s.Get(32*second, under7("more"))); v.Value != 0 {
		t.Errorf("%d slots are taken", v.Value)
	}
}

// TestExtendNeverShortens: an Extend that comes late, or again, leaves a hold that its client counts on.
func TestExtendNeverShortens(t *testing.T) {
	s := newStore(t, nil)
	h := admit(t, s, 0, id(1), 10*second, slotsOf("slots", 1, 1))
	if a, _, err := s.Extend(5*second, gate7, h.Hold, 3600*second); err != nil || a.Left != 3600*second {
		t.Fatal(a, err)
	}
	// an Extend of before, delivered again
	if a, _, err := s.Extend(6*second, gate7, h.Hold, 10*second); err != nil || a.Left < 3599*second {
		t.Errorf("left %ds, and the client was told 3600 s a second ago (%v)", a.Left/second, err)
	}
	s.Wake(17 * second)
	if a := must(s.Admit(17*second, gate7, id(2), Admit{Demands: []Demand{slotsOf("slots", 1, 1)}, Hold: second}, nil)); a.Admitted {
		t.Error("two hold the one slot")
	}
}

// TestReleaseOfAWindowBeforeAfterTakeover: a hold of the window before gives nothing back into the window that is open.
// The record of the hold was on its way for half a second, and those after it came in their order: so the
// copy takes the hold for younger than the window, which a later check has told of without that delay.
func TestReleaseOfAWindowBeforeAfterTakeover(t *testing.T) {
	to := &lateTo{}
	s := newStore(t, func(c *Config) { c.Sink = to })
	to.store = newStore(t, func(c *Config) { c.Rule = ownsNothing })
	w := tokens("a", 1, 10)
	w.Params.Period = 10 * second
	eight, ten := w, w
	eight.Cost, ten.Cost = 8, 9
	admit(t, s, 0, noID, 0, w) // opens a window at 0
	h := admit(t, s, 10*second-second/100, id(1), 60*second, eight)
	admit(t, s, 10*second, noID, 0, ten) // the next window
	to.deliver(t, 10*second+second/2)
	at := 11 * second
	admit(t, s, at, noID, 0, w) // all of it
	to.deliver(t, at+second/1000)

	at += second / 100
	if n := spentOf(t, s, at, "a", 10); n != 10 {
		t.Fatal(n)
	}
	next := to.store
	next.cfg.Rule = &testRule{epoch: 200}
	must(next.Settle(at, gate7, noID, h.Hold, nil, true))
	if a := must(next.Admit(at, gate7, noID, Admit{Demands: []Demand{eight}}, nil)); a.Admitted {
		t.Error("18 of 10 in one window: what was held in the window before came back into this one")
	}
}

// TestSlotsAreNotForgotten: a counter that was to be forgotten when it is idle stays while slots of it are held.
func TestSlotsAreNotForgotten(t *testing.T) {
	s := newStore(t, nil)
	must(s.Add(0, under7("slots"), noID, counter.AddOp{Delta: 1, IdleTTL: second}))
	must(s.Add(0, under7("slots"), noID, counter.AddOp{Delta: -1, IdleTTL: second}))
	a := must(s.Admit(0, gate7, id(1), Admit{Demands: []Demand{slotsOf("slots", 4, 4)}, Hold: 60 * second}, nil))
	b := must(s.Admit(30*second, gate7, id(2), Admit{Demands: []Demand{slotsOf("slots", 4, 4)}, Hold: 60 * second}, nil))
	if a.Admitted && b.Admitted {
		t.Error("8 slots of 4 are held")
	}
}

// TestSlotsBelowZero: of slots there are no more than their bound, whatever the counter was before.
func TestSlotsBelowZero(t *testing.T) {
	s := newStore(t, nil)
	must(s.Add(0, under7("slots"), noID, counter.AddOp{Delta: -100}))
	n := 0
	for i := range uint64(40) {
		if must(s.Admit(0, gate7, id(i+1), Admit{Demands: []Demand{slotsOf("slots", 4, 4)}, Hold: 60 * second}, nil)).Admitted {
			n += 4
		}
	}
	if n > 4 {
		t.Errorf("%d slots of 4 are held", n)
	}
}

// lateTo keeps records until they are delivered, as of when they were made.
type lateTo struct {
	store *Store
	all   []*Record
}

func (a *lateTo) Changed(r *Record) { a.all = append(a.all, r.Clone()) }
func (a *lateTo) Partial() bool     { return true }

// deliver has the records read now, as moments of a clock that has gone on meanwhile.
func (a *lateTo) deliver(t *testing.T, at int64) {
	for _, r := range a.all {
		r.State.now, r.At = at, at
		for i := range r.Beside {
			r.Beside[i].State.now, r.Beside[i].At = at, at
		}
		if err := a.store.Install(at, r, always); err != nil {
			t.Fatal(err)
		}
	}
	a.all = nil
}

// TestReservedComesBackBelowZero: what a hold has not used of a counter comes back, exactly, also below 0.
func TestReservedComesBackBelowZero(t *testing.T) {
	s := newStore(t, nil)
	must(s.Add(0, under7("balance"), noID, counter.AddOp{Delta: -50}))
	h := admit(t, s, 0, id(1), 60*second, bounded("balance", 30, 100))
	b := must(s.Settle(second, gate7, noID, h.Hold, []Cost{{"balance", 10}}, false))
	if v := must(s.Get(second, under7("balance"))); v.Value != -40 {
		t.Errorf("balance is %d after 10 were used of it at -50: %+v", v.Value, b)
	}
}

// TestRememberedHoldsMakeRoom: holds that are only remembered keep none out, and copies forget them, too.
func TestRememberedHoldsMakeRoom(t *testing.T) {
	to := &changesTo{}
	s := newStore(t, func(c *Config) { c.Sink = to })
	to.store = newStore(t, func(c *Config) { c.Rule = ownsNothing })
	of := func(i uint64) reqid.ID {
		return reqid.ID{Client: reqid.Client{Hi: 5, Lo: i}, Sequence: 1}
	}
	for i := range uint64(admission.MaxHolds) {
		admit(t, s, int64(i), of(i), second, tokens("a", 1, 1<<39))
	}
	for range 2 * admission.MaxHolds / maxLapsed {
		s.Wake(2 * second)
	}
	first, last := of(0), of(admission.MaxHolds-1)
	if _, err := s.Admit(10*second, gate7, id(1), Admit{Demands: []Demand{tokens("a", 1, 1<<39)}, Hold: second}, nil); err != nil {
		t.Fatalf("nothing is held, and nothing can be for five minutes: %v", err)
	}
	to.store.cfg.Rule = &testRule{epoch: 200}
	for _, s := range []*Store{to.store, s} {
		if i := must(s.InspectAdmission(10*second, gate7, admission.ID{}, 1)); i.Total != admission.MaxHolds {
			t.Errorf("%d holds", i.Total)
		}
		if a := must(s.Settle(10*second, gate7, noID, admission.ID{Client: first.Client, Sequence: 1}, nil, true)); a.Phase != admission.Unknown {
			t.Errorf("the oldest: %+v", a)
		}
		if a := must(s.Settle(10*second, gate7, noID, admission.ID{Client: last.Client, Sequence: 1}, nil, true)); a.Phase != admission.Released {
			t.Errorf("the youngest: %+v", a)
		}
	}
}
