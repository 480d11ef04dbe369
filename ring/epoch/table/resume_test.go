package table

import "testing"

// TestResume: a process takes the place of the very one that it names, in the rows
// that this one still owns, and stands by for nothing.
func TestResume(t *testing.T) {
	tab := cluster(t, 2)
	var other Holder
	was := tab.Members[0].Holder()
	for _, r := range tab.Rows {
		if r.Owner != was {
			other = r.Owner
		}
	}
	for i, r := range tab.Rows { // each stands by for the other
		after, upTo := tab.Segment(i)
		by := was
		if r.Owner == was {
			by = other
		}
		tab = grow(t, tab, Command{Sync: &Sync{WantSince: tab.WantSince, Owner: r.Owner, Standby: by, Rows: []Stamp{{After: after, End: upTo, Since: r.Since}}}})
	}
	now := member(was.Node, was.Incarnation+7)
	turned(t, tab, Command{Resume: &Resume{Member: now, Old: was.Incarnation - 1}})
	turned(t, tab, Command{Resume: &Resume{Member: member("n9", 1), Old: 1}})
	turned(t, tab, Command{Resume: &Resume{Member: member(was.Node, was.Incarnation), Old: was.Incarnation}})
	next := grow(t, tab, Command{Resume: &Resume{Member: now, Old: was.Incarnation}})
	turned(t, next, Command{Resume: &Resume{Member: member(was.Node, was.Incarnation+9), Old: was.Incarnation}})
	for i, r := range next.Rows {
		owner := tab.Rows[i].Owner
		if owner == was {
			owner = now.Holder()
		}
		if r.Owner != owner || !r.Standby.None() || r.Synced || r.Lost != 0 || r.Since != next.Epoch {
			t.Fatalf("row %d was %+v and is %+v", i, tab.Rows[i], r)
		}
	}
	gone := grow(t, tab, Command{Remove: &Remove{Members: []Holder{was}}})
	turned(t, gone, Command{Resume: &Resume{Member: now, Old: was.Incarnation}})
}

// TestEndGraceNamesTheLoss: an owner that has seen an earlier loss does not end the
// grace of a later one, nor does anybody but the owner.
func TestEndGraceNamesTheLoss(t *testing.T) {
	tab := cluster(t, 3)
	tab = deep(tab)
	tab.LockTTL = 1
	tab = grow(t, tab, Command{Remove: &Remove{Members: []Holder{tab.Members[0].Holder()}}})
	for _, r := range tab.Rows {
		if !r.Grace {
			continue
		}
		turned(t, tab, Command{EndGrace: &EndGrace{Owner: r.Owner, Rows: []Loss{{End: r.End, Lost: r.Lost - 1}}}})
		for _, m := range tab.Members {
			if m.Holder() != r.Owner {
				turned(t, tab, Command{EndGrace: &EndGrace{Owner: m.Holder(), Rows: []Loss{{End: r.End, Lost: r.Lost}}}})
			}
		}
		settled := grow(t, tab, Command{EndGrace: &EndGrace{Owner: r.Owner, Rows: []Loss{{End: r.End, Lost: r.Lost}}}})
		turned(t, settled, Command{EndGrace: &EndGrace{Owner: r.Owner, Rows: []Loss{{End: r.End, Lost: r.Lost}}}})
		return
	}
	t.Fatal("no row is in grace")
}
