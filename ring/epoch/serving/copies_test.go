package serving

import (
	"testing"

	"github.com/keystead/keystead/ring/epoch/table"
)

// TestPromotedAtOnce: a standby that is synced serves as soon as the table says
// so, and takes no record of the old owner from then on (trap 17).
func TestPromotedAtOnce(t *testing.T) {
	tab := ring(t, 2)
	h := tab.Rows[firstOf(tab, n2)].End
	r := acting(t, tab)
	with := grow(t, tab, syncing(tab, n2, n1, all))
	if lost := r.Learn(with); len(lost) > 0 || !r.Accepts(h, n2) || r.Accepts(h, n3) || r.Accepts(h, holder("n2", 9)) {
		t.Fatalf("a standby takes records of its owner; lost %v", lost)
	}
	if own := tab.Rows[firstOf(tab, n1)].End; r.Accepts(own, n1) || r.Accepts(own, n2) {
		t.Error("an owner takes records")
	}
	if lost := r.Learn(grow(t, with, remove(n2))); len(lost) > 0 {
		t.Errorf("lost by promotion: %v", lost)
	}
	may(t, r, h, 1, Yes)
	if r.Accepts(h, n2) {
		t.Error("a record of the old owner is taken after the promotion")
	}
}

// TestStandbysDisturbNobody: what is let in gets out, whatever becomes of the
// standby.
func TestStandbysDisturbNobody(t *testing.T) {
	tab := ring(t, 2)
	h := tab.Rows[firstOf(tab, n1)].End
	r := acting(t, tab)
	seen := may(t, r, h, 1, Yes)
	with := grow(t, tab, syncing(tab, n1, n2, all))
	r.Learn(with)
	still(t, r, h, seen, 1, true)
	r.Learn(grow(t, with, unsync(n1, n2, h)))
	still(t, r, h, seen, 1, true)
}

// TestTakesWhenClean: what was there before must be gone first.
func TestTakesWhenClean(t *testing.T) {
	tab := ring(t, 2)
	r := New(n1)
	r.Learn(tab)
	h := tab.Rows[firstOf(tab, n2)].End
	if r.Accepts(h, n2) || r.Clean(tab.Epoch) {
		t.Error("a record is taken before what was lost is discarded")
	}
	r.Cleaned(tab.Epoch)
	if !r.Accepts(h, n2) || !r.Clean(tab.Epoch) {
		t.Error("no record is taken")
	}
}

// TestTrap22SourceStandsBy: after a flip the source is the standby. It keeps what
// it has, takes what the new owner decides, and acts again at once when that one
// is removed: nothing is lost, and it must not discard it.
func TestTrap22SourceStandsBy(t *testing.T) {
	_, begun, moves, stays := joining(t)
	h := moves[0]
	gone := grow(t, begun, handover(begun, n1, n3, moves...))
	back := grow(t, gone, remove(n3))
	for name, seen := range map[string][]*table.Table{
		"seen to go":    {gone, back},
		"in a snapshot": {back},
	} {
		t.Run(name, func(t *testing.T) {
			r := acting(t, begun)
			before := may(t, r, h, 1, Yes)
			r.Freeze(begun.Transition.ID, n3, moves)
			r.Close(n3)
			for _, tab := range seen {
				if r.Table() == begun && r.Accepts(h, n3) { // trap 25: it has not applied the flip yet
					t.Error("it takes a record of one that does not own the row")
				}
				if lost := r.Learn(tab); len(lost) > 0 {
					t.Fatalf("epoch %d: lost %v", tab.Epoch, lost)
				}
				if takes := r.Accepts(h, n3); takes != (tab == gone) {
					t.Errorf("epoch %d: it takes a record of n3: %v", tab.Epoch, takes)
				}
			}
			may(t, r, h, 1, Yes)
			may(t, r, stays[0], 1, Yes)
			still(t, r, h, before, 1, false) // it has been another's
		})
	}
}

// TestDeclaredLoss: who was to become the standby, and has half a copy, gets the
// row with a declared loss. What it has must go before it acts.
func TestDeclaredLoss(t *testing.T) {
	tab := ring(t, 2)
	h, own := tab.Rows[firstOf(tab, n2)].End, tab.Rows[firstOf(tab, n1)].End
	r := acting(t, tab)
	if !r.Accepts(h, n2) {
		t.Fatal("it takes no copy")
	}
	tab = grow(t, tab, remove(n2))
	if lost := r.Learn(tab); !held(lost, h) || held(lost, own) {
		t.Errorf("lost: %v", lost)
	}
	may(t, r, h, 1, Frozen)
	may(t, r, own, 1, Yes)
	r.Cleaned(tab.Epoch)
	may(t, r, h, 1, Yes)
	for at, whole := range map[uint64]bool{h: false, own: true} {
		if e, _ := r.Enter(at, 1); e.Whole != whole {
			t.Errorf("position %d: whole is %v", at, e.Whole)
		}
	}
}

// TestRowThatStayed: a loss of rows that were joined to one that has never left
// the node is none of what it holds of that, though it did not see the joining.
func TestRowThatStayed(t *testing.T) {
	tab := ring(t, 2)
	h, own := tab.Rows[firstOf(tab, n2)].End, tab.Rows[firstOf(tab, n1)].End
	joined := grow(t, tab, remove(n2), table.Command{Compact: &table.Compact{}})
	for i := range joined.Rows {
		if joined.Rows[i].Lost == 0 && joined.Find(own) == i {
			own = tab.Rows[firstOf(tab, n1)+1].End
		}
	}
	r := acting(t, tab)
	if lost := r.Learn(joined); !held(lost, h) || held(lost, own) || joined.Rows[joined.Find(own)].Lost == 0 {
		t.Errorf("lost: %v", lost)
	}
	// A process that was removed in between and admitted again is another matter.
	r = acting(t, tab)
	tab = grow(t, tab, remove(n1), admit("n1", 1))
	tab = grow(t, tab, towards(tab)) // all is n2's
	if lost := r.Learn(grow(t, tab, remove(n2))); !held(lost, own) {
		t.Errorf("lost: %v", lost)
	}
}

// TestKeepsWhileItMay: a standby keeps a copy until the table has it nowhere near
// the row: not when the ring wants another, but when that one stands by.
func TestKeepsWhileItMay(t *testing.T) {
	settled := ring(t, 3)
	settled = grow(t, settled, syncing(settled, n2, n1, all))
	begun := grow(t, settled, admit("n4", 1))
	begun = grow(t, begun, towards(begun))
	n4 := holder("n4", 1)
	var h uint64
	for _, row := range begun.Rows {
		if owner, standby := begun.Wants(row.End); owner == n2 && row.Owner == n2 && row.Standby == n1 && standby == n4 {
			h = row.End
		}
	}
	if h == 0 {
		t.Fatal("no row gets another standby")
	}
	r := acting(t, settled)
	if lost := r.Learn(begun); held(lost, h) || !r.Accepts(h, n2) {
		t.Errorf("lost: %v", lost)
	}
	for name, c := range map[string]table.Command{
		"another stands by":     syncing(begun, n2, n4, all),
		"it was taken out":      unsync(n2, n1, h),
		"the row has moved on":  remove(n2), // to this node: it stood by
		"it is another process": {},
	} {
		t.Run(name, func(t *testing.T) {
			r := acting(t, begun)
			var lost []Range
			if c.Remove != nil {
				if lost = r.Learn(grow(t, begun, c)); held(lost, h) {
					t.Errorf("lost: %v", lost)
				}
				may(t, r, h, 1, Yes)
				return
			}
			if c == (table.Command{}) {
				lost = r.Become(holder("n1", 2))
			} else {
				lost = r.Learn(grow(t, begun, c))
			}
			if !held(lost, h) || r.Accepts(h, n2) {
				t.Errorf("lost: %v", lost)
			}
		})
	}
}

// TestDrainedKeepsNothing: a node that is drained stands by for what it gave away,
// until others do.
func TestDrainedKeepsNothing(t *testing.T) {
	tab := grow(t, ring(t, 3), drain(n1, false))
	tab = grow(t, tab, towards(tab))
	r := acting(t, tab)
	for _, to := range []table.Holder{n2, n3} {
		var ends []uint64
		for _, m := range tab.Moves() {
			if m.To == to {
				ends = append(ends, m.End)
			}
		}
		r.Freeze(tab.Transition.ID, to, ends)
		r.Close(to)
		tab = grow(t, tab, handover(tab, n1, to, ends...))
		if lost := r.Learn(tab); len(lost) > 0 {
			t.Errorf("lost: %v", lost)
		}
		r.Cleaned(tab.Epoch)
		may(t, r, ends[0], 1, NotOwner)
		if !r.Accepts(ends[0], to) {
			t.Error("it does not stand by")
		}
	}
	size := 0.0
	for _, pair := range [][2]table.Holder{{n2, n3}, {n3, n2}} {
		tab = grow(t, tab, syncing(tab, pair[0], pair[1], all))
		for _, l := range r.Learn(tab) {
			size += float64(l.UpTo - l.After)
		}
	}
	if size < 1<<62 {
		t.Errorf("it discards %.3f of the space", size/(1<<63)/2)
	}
	tab = grow(t, tab, end(tab))
	if lost := r.Learn(tab); len(lost) > 0 {
		t.Errorf("lost when the transition ends: %v", lost)
	}
	for i := range tab.Rows {
		if end := tab.Rows[i].End; r.Accepts(end, n2) || r.Accepts(end, n3) {
			t.Fatal("it takes records")
		}
	}
}
