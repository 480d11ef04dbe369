package table

import "testing"

// TestAllStop: as long as one stays, those that stop give away what they have; when the
// last one is told to stop, all keep it.
func TestAllStop(t *testing.T) {
	tab := grow(t, made(), admit("n1", 1), admit("n2", 1), admit("n3", 1))
	tab = grow(t, tab, towards(tab))
	tab = grow(t, tab, end(tab))
	stop := func(node string) Command { return Command{Drain: &Drain{Member: holder(node, 1), Stop: true}} }
	drain := Command{Drain: &Drain{Member: holder("n3", 1)}}
	phases := func(tab *Table, want ...Phase) {
		t.Helper()
		for i, m := range tab.Members {
			if m.Phase != want[i] {
				t.Errorf("%s is %s, not %s", m.Node, m.Phase, want[i])
			}
		}
	}
	two := grow(t, tab, stop("n1"), stop("n2"))
	phases(two, Leaving, Leaving, Active)
	if two.Stopped(holder("n1", 1)) {
		t.Error("one stays, and n1 keeps what it has")
	}
	turned(t, two, drain) // it could not keep it
	all := grow(t, two, stop("n3"))
	phases(all, Active, Active, Active)
	for _, m := range all.Members {
		if !all.Stopped(m.Holder()) || m.MayReceive() {
			t.Errorf("%+v", m)
		}
		turned(t, all, stop(m.Node))
		turned(t, all, Command{Drain: &Drain{Member: m.Holder()}})
	}
	if all.Plan(0, func(Member) bool { return true }) != nil {
		t.Error("something is to move")
	}
	if read, err := Restore(all.Encode()); err != nil || !read.Stopped(holder("n2", 1)) {
		t.Errorf("it is forgotten: %v", err)
	}
	back := grow(t, all, Command{Resume: &Resume{Member: current(member("n1", 2)), Old: 1}})
	if back.Stopped(holder("n1", 2)) || !back.Members[0].MayReceive() || !back.Stopped(holder("n2", 1)) {
		t.Errorf("n1 is back: %+v", back.Members)
	}
	mixed := grow(t, tab, stop("n1"), Command{Drain: &Drain{Member: holder("n2", 1)}})
	turned(t, mixed, stop("n3")) // n2 is being drained, and cannot keep anything
	if undone := grow(t, mixed, Command{Drain: &Drain{Member: holder("n1", 1), Undo: true}}); undone.Members[0].Stopping {
		t.Error("its drain was taken back, and it stops")
	}
}

// TestDrainOfTheLastJoining: when nobody is left to take anything, a drain that is none of
// a process that keeps what it has is refused, also if the process has nothing yet: so do
// programs of level 2, and tables must be the same everywhere.
func TestDrainOfTheLastJoining(t *testing.T) {
	drain := func(node string) Command { return Command{Drain: &Drain{Member: holder(node, 1)}} }
	alone := grow(t, made(), admit("n1", 1))
	turned(t, alone, drain("n1"))
	two := grow(t, made(), admit("n1", 1), admit("n2", 1), drain("n1"))
	if two.Members[0].Phase != Drained {
		t.Fatalf("n1 is %s", two.Members[0].Phase)
	}
	turned(t, two, drain("n2"))
}

// TestLastTakerDies: when the one dies to whom all others, who stop, were to give what they
// have, they keep it, whether they had begun to give it away or not.
func TestLastTakerDies(t *testing.T) {
	tab := grow(t, made(), admit("n1", 1), admit("n2", 1), admit("n3", 1))
	tab = grow(t, tab, towards(tab))
	tab = grow(t, tab, end(tab))
	stop := func(node string) Command { return Command{Drain: &Drain{Member: holder(node, 1), Stop: true}} }
	dies := Command{Remove: &Remove{Members: []Holder{holder("n3", 1)}}}
	two := grow(t, tab, stop("n1"), stop("n2"))
	for name, left := range map[string]*Table{
		"at once": grow(t, two, dies),
		"begun":   grow(t, two, Command{Begin: &Begin{Want: []Holder{holder("n3", 1)}}}, dies),
	} {
		for _, m := range left.Members {
			if m.Phase != Active || !left.Stopped(m.Holder()) {
				t.Errorf("%s: %+v", name, m)
			}
		}
	}
	one := grow(t, tab, stop("n1"), Command{Drain: &Drain{Member: holder("n2", 1)}}, dies)
	if one.Members[0].Phase != Leaving || one.Members[1].Phase != Leaving {
		t.Errorf("n2 cannot keep what it has: %+v", one.Members)
	}
}
