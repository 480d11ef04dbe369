package table

import (
	"slices"
	"testing"
)

// TestDrainState follows a member from the order until it is drained.
func TestDrainState(t *testing.T) {
	tab := grow(t, made(), admit("n1", 1), admit("n2", 1))
	tab = grow(t, tab, towards(tab))
	tab = grow(t, tab, end(tab))
	tab = grow(t, tab, Command{Drain: &Drain{Member: holder("n1", 1)}})
	state := func() DrainState {
		s, ok := tab.DrainState("n1")
		if !ok {
			t.Fatal("n1 is no member")
		}
		return s
	}
	if s := state(); s.Empty || s.Owned != 256 || s.Member.Phase != Leaving {
		t.Errorf("before the ring changes: %+v", s)
	}
	apply := func(c Command) {
		t.Helper()
		next, err := tab.Apply(c)
		if err != nil {
			t.Fatal(err)
		}
		tab = next
	}
	to := holder("n2", 1)
	apply(Command{Begin: &Begin{Want: []Holder{to}}})
	var ends []uint64
	for _, m := range tab.Moves() {
		ends = append(ends, m.End)
	}
	flip := Flip{Transition: tab.Transition.ID, WantSince: tab.WantSince, From: state().Member.Holder(), To: to, Ends: ends[:1]}
	apply(Command{Flip: &flip})
	if s := state(); s.Empty || s.Owned != 255 {
		t.Errorf("with a row moved: %+v", s)
	}
	flip.Ends = ends[1:]
	apply(Command{Flip: &flip})
	if s := state(); !s.Empty || s.Member.Phase != Leaving {
		t.Errorf("with all rows moved: %+v", s)
	}
	apply(Command{End: &End{Transition: tab.Transition.ID}})
	if s := state(); !s.Empty || s.Member.Phase != Drained {
		t.Errorf("in the end: %+v", s)
	}
}

func TestWhoMayTake(t *testing.T) {
	tab := grow(t, made(), admit("n1", 1), admit("n2", 1), admit("n3", 1))
	tab = grow(t, tab, towards(tab))
	tab = grow(t, tab, end(tab))
	tab = grow(t, tab, Command{Drain: &Drain{Member: holder("n1", 1)}}, Command{Drain: &Drain{Member: holder("n2", 1)}})
	var takers []string
	for _, m := range tab.Members {
		if tab.HasTakers(m.Node) {
			takers = append(takers, m.Node)
		}
	}
	if !slices.Equal(takers, []string{"n1", "n2"}) {
		t.Errorf("%v have somebody to give to", takers)
	}
}
