package serving

import "testing"

// TestBecome: a process that has become another incarnation acts for nothing and
// answers nothing under what the one before had, even if its own lease is there
// before the table that says so.
func TestBecome(t *testing.T) {
	tab := ring(t, 2)
	r := acting(t, tab)
	h := tab.Rows[firstOf(tab, n1)].End
	seen := may(t, r, h, 1, Yes)
	if lost := r.Become(holder("n1", 2)); !held(lost, h) {
		t.Errorf("lost: %v", lost)
	}
	r.Cleaned(tab.Epoch)
	r.Extend(1000)
	may(t, r, h, 1, NotOwner)
	still(t, r, h, seen, 1, false)
	if r.Accepts(h, n1) {
		t.Error("it takes records of the one that it was")
	}
}

// TestFreezeOnlyWhenClean: a row of which old state has still to be discarded is not
// handed over.
func TestFreezeOnlyWhenClean(t *testing.T) {
	_, begun, moves, _ := joining(t)
	r := New(n1)
	r.Extend(1000)
	r.Learn(begun)
	if froze := r.Freeze(begun.Transition.ID, n3, moves); len(froze) > 0 {
		t.Errorf("%d rows were frozen", len(froze))
	}
	r.Cleaned(begun.Epoch)
	if froze := r.Freeze(begun.Transition.ID, n3, moves); len(froze) != len(moves) {
		t.Errorf("%d of %d rows were frozen", len(froze), len(moves))
	}
}
