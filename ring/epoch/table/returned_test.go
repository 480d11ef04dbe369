package table

import "testing"

// TestReturned: one that comes back in a cold start is marked until the last one is back, or
// somebody says that nobody is waited for; and only where all can read it.
func TestReturned(t *testing.T) {
	tab := cluster(t, 3)
	back := func(tab *Table, i int, cold bool) Command {
		was := tab.Members[i]
		return Command{Resume: &Resume{Member: current(member(was.Node, was.Incarnation+1)), Old: was.Incarnation, Cold: cold}}
	}
	turned(t, tab, back(tab, 0, true)) // of level 1
	if next := grow(t, tab, back(tab, 0, false)); next.Returning() {
		t.Error("marked without being asked to")
	}
	tab = deep(tab)
	tab.Level = 3
	turned(t, tab, Command{EndWait: &EndWait{}})
	one := grow(t, tab, back(tab, 0, true))
	if !one.Members[0].Returned || one.Members[1].Returned || !one.Returning() {
		t.Errorf("%+v", one.Members)
	}
	if read, err := Restore(one.Encode()); err != nil || !read.Members[0].Returned {
		t.Errorf("%v", err)
	}
	if next := grow(t, one, Command{EndWait: &EndWait{}}); next.Returning() || !one.Returning() {
		t.Error("EndWait")
	}
	rest := []Holder{one.Members[1].Holder(), one.Members[2].Holder()}
	if next := grow(t, one, Command{Remove: &Remove{Members: rest}}); next.Returning() {
		t.Error("nobody is left to be waited for")
	}
	two := grow(t, one, back(one, 1, true))
	if !two.Returning() {
		t.Error("the third one is waited for")
	}
	if three := grow(t, two, back(two, 2, true)); three.Returning() {
		t.Error("all are back")
	}
	if again := grow(t, two, back(two, 0, false)); again.Members[0].Returned {
		t.Error("the mark of the process before it stays")
	}
	more := current(member("n9", 1))
	if next := grow(t, one, Command{Admit: &Admit{Member: more, Cold: true}}); !next.Members[3].Returned {
		t.Error("one that is admitted meanwhile is none of before either")
	}
	for _, c := range []Command{back(tab, 0, true), {Admit: &Admit{Member: more, Cold: true}}, {EndWait: &EndWait{}}, {Remove: &Remove{Members: rest, Term: 7}}} {
		if c.Level() != 3 {
			t.Errorf("%s is of level %d", c.Kind(), c.Level())
		}
	}
}
