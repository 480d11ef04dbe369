package table

import "testing"

// TestSpare: the spare of a row is who will be its standby when the one that the ring
// wants is removed, and nobody while there is a standby or a member does not know of it.
func TestSpare(t *testing.T) {
	tab := made()
	for _, n := range []string{"n1", "n2", "n3", "n4"} {
		tab = grow(t, tab, Command{Admit: &Admit{Member: current(member(n, 1))}})
	}
	tab = grow(t, tab, towards(tab))
	tab = grow(t, tab, end(tab))
	for i := range tab.Rows {
		if !tab.Spare(i).None() {
			t.Fatal("not all members are known to know it")
		}
	}
	tab = grow(t, tab, Command{Adopt: &Adopt{Level: 3}})
	gone := holder("n2", 1)
	after := grow(t, tab, Command{Remove: &Remove{Members: []Holder{gone}, Reason: "died"}})
	seen := 0
	for i, r := range tab.Rows {
		owner, standby := tab.Wants(r.End)
		spare := tab.Spare(i)
		if spare.None() || spare == owner || spare == standby || !tab.MayHold(i, spare) {
			t.Fatalf("row %d of %s with the standby %s has the spare %q", i, owner.Node, standby.Node, spare.Node)
		}
		if standby != gone {
			continue
		}
		seen++
		if _, will := after.Wants(r.End); will != spare {
			t.Fatalf("row %d has the spare %s, and %s stands by afterwards", i, spare.Node, will.Node)
		}
	}
	if seen == 0 {
		t.Fatal("nobody has it as its standby")
	}
	r := tab.Rows[0]
	_, standby := tab.Wants(r.End)
	after0, upTo := tab.Segment(0)
	tab = grow(t, tab, Command{Sync: &Sync{WantSince: tab.WantSince, Owner: r.Owner, Standby: standby, Rows: []Stamp{{After: after0, End: upTo, Since: r.Since}}}})
	if spare := tab.Spare(0); !spare.None() {
		t.Errorf("a row with a standby has the spare %s", spare.Node)
	}
}
