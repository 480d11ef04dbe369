package table

import (
	"slices"
	"strings"
	"testing"
)

// TestLevels: as soon as a cluster has used what an older program does not know,
// such a program is not admitted, and it is told why.
func TestLevels(t *testing.T) {
	tab := deep(cluster(t, 2))
	if tab.Level != 0 || tab.Common() != 1 {
		t.Errorf("level %d, common %d", tab.Level, tab.Common())
	}
	for _, c := range everyKind() {
		if why := tab.Knows(c); (why != nil) != (c.Level() > 1) {
			t.Errorf("%s of level %d: %v", c.Kind(), c.Level(), why)
		}
	}
	tab.Level = 7
	for name, c := range map[string]Command{
		"admit":  admit("n9", 1),
		"resume": {Resume: &Resume{Member: member("n1", 99), Old: tab.Members[0].Incarnation}},
	} {
		if _, err := tab.Apply(c); err == nil || !strings.Contains(err.Error(), "too old") {
			t.Errorf("%s: %v", name, err)
		}
		for _, m := range []*Admit{c.Admit} {
			if m != nil {
				m.Member.Level = 7
			}
		}
		if c.Resume != nil {
			c.Resume.Member.Level = 7
		}
		next, err := tab.Apply(c)
		if err != nil || next.Level != 7 {
			t.Errorf("%s of level 7: %v", name, err)
		}
	}
	if read, err := Restore(tab.Encode()); err != nil || read.Level != 7 {
		t.Errorf("%v", err)
	}
}

// TestSplitsNeedLevel2: nothing about splits is proposed while a member does not know
// them, and once something was split nobody is admitted or comes back who does not.
func TestSplitsNeedLevel2(t *testing.T) {
	tab := made()
	for _, node := range []string{"n1", "n2"} {
		tab = grow(t, tab, Command{Admit: &Admit{Member: current(member(node, 1))}})
	}
	tab = grow(t, tab, towards(tab))
	tab = grow(t, tab, end(tab))
	old := grow(t, tab, admit("n3", 1))
	for _, c := range everyKind() {
		if why := tab.Knows(c); why != nil {
			t.Errorf("all know %s: %v", c.Kind(), why)
		}
		if why := old.Knows(c); (why != nil) != (c.Level() > 1) || why != nil && !strings.Contains(why.Error(), "n3") {
			t.Errorf("n3 is of level 1, and %s: %v", c.Kind(), why)
		}
	}
	if tab.Common() != Level || old.Common() != 1 {
		t.Errorf("common are %d and %d", tab.Common(), old.Common())
	}
	late := beginning(tab, "k") // n3 came before it
	turned(t, old, late)
	if tab.Level != 0 {
		t.Errorf("level %d before anything was split", tab.Level)
	}
	tab, s := splitTo(t, tab, Opening)
	for range 2 { // while it is split, and when it is whole again
		if tab.Level != 2 {
			t.Errorf("level %d", tab.Level)
		}
		turned(t, tab, admit("n3", 1))
		turned(t, tab, Command{Resume: &Resume{Member: member("n1", 2), Old: 1}})
		grow(t, tab, Command{Admit: &Admit{Member: current(member("n3", 1))}})
		grow(t, tab, Command{Resume: &Resume{Member: current(member("n1", 2)), Old: 1}})
		if read, err := Restore(tab.Encode()); err != nil || read.Level != 2 {
			t.Errorf("%v", err)
		}
		if len(tab.Splits) > 0 {
			tab = grow(t, tab, Command{EndSplit: &EndSplit{ID: s.ID, Home: homeOf(tab, s.Key), Since: s.Since}})
		}
	}
}

// TestAdopt: a level is committed when all members know it, once, and closes the
// door to those that do not (trap 48).
func TestAdopt(t *testing.T) {
	tab := made()
	adopt := Command{Adopt: &Adopt{Level: 3}}
	turned(t, tab, adopt) // nobody is there
	for _, node := range []string{"n1", "n2"} {
		tab = grow(t, tab, Command{Admit: &Admit{Member: current(member(node, 1))}})
	}
	two := member("n3", 1)
	two.Level = 2
	mixed := grow(t, tab, Command{Admit: &Admit{Member: two}})
	turned(t, mixed, adopt)
	if mixed.Uses(2) || mixed.Knows(adopt) == nil {
		t.Error("a level is used that a member does not know")
	}
	next := grow(t, tab, adopt)
	if !next.Uses(3) || !next.Uses(1) || next.Uses(4) || tab.Uses(3) {
		t.Errorf("level %d", next.Level)
	}
	turned(t, next, adopt)
	turned(t, next, Command{Adopt: &Adopt{Level: 2}})
	turned(t, next, Command{Adopt: &Adopt{Level: max(Level, DiskLevel) + 1}})
	turned(t, next, Command{Admit: &Admit{Member: two}})
	grow(t, next, Command{Admit: &Admit{Member: current(two)}})
	if read, err := Restore(next.Encode()); err != nil || !read.Uses(3) {
		t.Errorf("%v", err)
	}
}

// TestBornWithALevel: a cluster may have a level from the beginning. It closes the door to
// those that do not know it.
func TestBornWithALevel(t *testing.T) {
	make := func(c Init) (*Table, error) {
		c.Cluster, c.Epoch = "test", 100
		return (&Table{}).Apply(Command{Init: &c})
	}
	for name, c := range map[string]Init{
		"a window, and no level": {IDWindow: 300e9},
		"a level of before":      {Level: WindowLevel - 1, IDWindow: 300e9},
		"a window below 0":       {Level: Level, IDWindow: -1},
	} {
		if tab, err := make(c); err == nil {
			t.Errorf("%s: %+v", name, tab)
		}
	}
	tab, err := make(Init{Level: Level, IDWindow: 300e9})
	if err != nil || !tab.Uses(Level) || tab.IDWindow != 300e9 {
		t.Fatalf("%+v, %v", tab, err)
	}
	old := member("n1", 1)
	old.Level = Level - 1
	turned(t, tab, Command{Admit: &Admit{Member: old}})
	tab = grow(t, tab, Command{Admit: &Admit{Member: current(old)}})
	turned(t, tab, Command{Adopt: &Adopt{Level: Level, IDWindow: 60e9}})
	read, err := Restore(tab.Encode())
	if err != nil || read.IDWindow != 300e9 || read.Level != Level {
		t.Errorf("%+v, %v", read, err)
	}
	if plain, err := make(Init{}); err != nil || plain.Uses(2) || plain.IDWindow != 0 {
		t.Errorf("%+v, %v", plain, err)
	}
}

// TestAdoptedWindow: how long ids are kept is agreed on with the level in which all nodes
// keep them for as long, and once.
func TestAdoptedWindow(t *testing.T) {
	one, two := Holder{"n1", 1}, Holder{"n2", 1}
	tab := locking()
	for _, h := range []Holder{one, two} {
		tab = grow(t, tab, Command{Admit: &Admit{Member: current(member(h.Node, h.Incarnation))}})
	}
	tab = grow(t, tab, Command{Begin: &Begin{Want: []Holder{one, two}}})
	tab = grow(t, tab, Command{Remove: &Remove{Members: []Holder{two}}})
	turned(t, tab, Command{Adopt: &Adopt{Level: WindowLevel - 1, IDWindow: 300e9}})
	tab = grow(t, tab, Command{Adopt: &Adopt{Level: WindowLevel - 1}})
	if tab.IDWindow != 0 {
		t.Errorf("%d ns with level %d", tab.IDWindow, tab.Level)
	}
	if tab = grow(t, tab, Command{Adopt: &Adopt{Level: WindowLevel, IDWindow: 300e9}}); tab.IDWindow != 300e9 {
		t.Errorf("%d ns", tab.IDWindow)
	}
	end := &EndGrace{Owner: one, IDs: true}
	for _, r := range tab.Rows {
		if r.Unsure != (r.Lost != 0) || r.Unsure && r.Since != tab.Epoch {
			t.Fatalf("%+v in epoch %d", r, tab.Epoch)
		}
		if r.Unsure {
			end.Rows = append(end.Rows, Loss{r.End, r.Lost})
		}
	}
	if read, err := Restore(tab.Encode()); err != nil || !slices.Equal(read.Rows, tab.Rows) {
		t.Errorf("%v", err)
	}
	settled := grow(t, tab, Command{EndGrace: end})
	if slices.ContainsFunc(settled.Rows, func(r Row) bool { return r.Unsure || r.Lost != 0 && !r.Grace }) {
		t.Error("ids are in doubt when all is too old, or that has ended a grace")
	}
	turned(t, settled, Command{EndGrace: end})
	tab.Level-- // as if there were another level
	if next := grow(t, tab, Command{Adopt: &Adopt{Level: WindowLevel, IDWindow: 60e9}}); next.IDWindow != 300e9 {
		t.Errorf("%d ns, agreed on again", next.IDWindow)
	}
}
