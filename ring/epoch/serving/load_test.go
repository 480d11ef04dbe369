package serving

import (
	"testing"

	"github.com/keystead/keystead/ring/epoch/table"
)

func resume(old, now table.Holder) table.Command {
	return table.Command{Resume: &table.Resume{Old: old.Incarnation, Member: table.Member{Node: now.Node, Incarnation: now.Incarnation, HashKey: now.Node}}}
}

// back is a process that holds what n1 held in a table, and has a lease.
func back(t *testing.T, at *table.Table) (*Rule, table.Holder) {
	t.Helper()
	self := holder("n1", 77)
	r := New(self)
	r.Load(at.Epoch)
	r.Extend(1 << 60)
	return r, self
}

// TestLoaded: one that comes back with what an earlier process of its node left, acts
// for the rows that this one still owns, and only for them. The rest goes.
func TestLoaded(t *testing.T) {
	tab := ring(t, 2)
	own, other := tab.Rows[firstOf(tab, n1)].End, tab.Rows[firstOf(tab, n2)].End
	tab = grow(t, tab, syncing(tab, n1, n2, all), syncing(tab, n2, n1, all))
	r, self := back(t, tab)
	for _, before := range []*table.Table{ring(t, 2), tab} { // from its own log
		if lost := r.Learn(before); len(lost) > 0 {
			t.Fatalf("lost before a table names it: %v", lost)
		}
		may(t, r, own, 1, NotOwner)
	}
	with := grow(t, tab, resume(n1, self))
	if lost := r.Learn(with); held(lost, own) || !held(lost, other) {
		t.Errorf("lost: %v", lost)
	}
	may(t, r, own, 1, Yes)
	may(t, r, other, 1, NotOwner)
	if e, _ := r.Enter(own, 1); !e.Whole || r.Accepts(other, n2) {
		t.Error("it is not whole, or takes a copy before the stale one is discarded")
	}
	r.Cleaned(with.Epoch)
	if !r.Accepts(other, n2) {
		t.Error("it takes no copy afterwards")
	}
	if lost := r.Learn(grow(t, with, table.Command{Raise: &table.Raise{Above: with.Epoch}})); len(lost) > 0 {
		t.Errorf("lost by the next table: %v", lost)
	}
}

// TestLoadedTooLate (trap 27): n1 writes its state at one epoch and stops, n2 is
// promoted at the next and acknowledges. n1's state counts for nothing, whether its
// return is refused or it comes to own rows again.
func TestLoadedTooLate(t *testing.T) {
	tab := ring(t, 2)
	own := tab.Rows[firstOf(tab, n1)].End
	tab = grow(t, tab, syncing(tab, n1, n2, all))
	r, self := back(t, tab)
	promoted := grow(t, tab, remove(n1))
	if _, err := promoted.Apply(resume(n1, self)); err == nil {
		t.Fatal("it is back in the rows that another owns")
	}
	in := grow(t, promoted, admit("n1", self.Incarnation))
	if lost := r.Learn(in); !held(lost, own) {
		t.Errorf("lost: %v", lost)
	}
	may(t, r, own, 1, NotOwner)
	lost := grow(t, in, remove(n2)) // nobody is left: n1 gets what n2 had, with a declared loss
	lost = grow(t, lost, towards(lost))
	for name, seen := range map[string][]*table.Table{"seen": {in, lost}, "in a snapshot": {lost}} {
		t.Run(name, func(t *testing.T) {
			r, _ := back(t, tab)
			gone := false
			for _, tab := range seen {
				gone = held(r.Learn(tab), own) || gone
			}
			if !gone {
				t.Error("what it had is not discarded")
			}
			may(t, r, own, 1, Frozen)
			r.Cleaned(lost.Epoch)
			may(t, r, own, 1, Yes)
			if e, _ := r.Enter(own, 1); e.Whole {
				t.Error("what was lost counts as whole")
			}
		})
	}
}

// TestLoadedAndRemoved: a process that becomes another one before any table has
// named it, gives up what it has.
func TestLoadedAndRemoved(t *testing.T) {
	tab := ring(t, 2)
	own := tab.Rows[firstOf(tab, n1)].End
	r, _ := back(t, tab)
	if lost := r.Become(holder("n1", 99)); !held(lost, own) {
		t.Errorf("lost: %v", lost)
	}
	if lost := r.Learn(tab); len(lost) > 0 {
		t.Errorf("lost again: %v", lost)
	}
}
