package table

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// maxSteps bounds the way from any table to one that stands well: each step moves or
// protects all that it can, and changes of the ring follow each other.
const maxSteps = 40

// TestPlanReachesWhatIsWanted: from any table that commands lead to, a leader that plans and
// owners that copy where CopyTo says bring every row to its place, with its standby,
// however little patience the leader has.
func TestPlanReachesWhatIsWanted(t *testing.T) {
	starts := []*Table{cluster(t, 3), clusterOf(t, locking(), 3), clusterOf(t, locking(), 2), made()}
	rapid.Check(t, func(t *rapid.T) {
		tab := rapid.SampledFrom(starts).Draw(t, "start")
		var past []Command
		for range rapid.IntRange(0, 40).Draw(t, "commands") {
			c := drawCommand(t, tab, past)
			past = append(past, c)
			tab, _ = tab.Apply(c)
			protection(t, tab)
		}
		for range 3 { // somebody comes, and before all is well somebody dies
			tab, _ = tab.Apply(admit(rapid.SampledFrom([]string{"n1", "n2", "n3", "n4"}).Draw(t, "new"), tab.Epoch))
			slow := rapid.Bool().Draw(t, "slow")
			for range rapid.IntRange(1, 4).Draw(t, "steps") {
				tab = proceed(t, tab, slow)
			}
			if len(tab.Members) > 0 {
				dead := rapid.SampledFrom(tab.Members).Draw(t, "dead").Holder()
				tab, _ = tab.Apply(Command{Remove: &Remove{Members: []Holder{dead}}})
				protection(t, tab)
			}
		}
		standsWell(t, converge(t, tab))
	})
}

// converge does what a leader and the owners do until nothing is left to do.
func converge(t *rapid.T, tab *Table) *Table {
	t.Helper()
	for range maxSteps {
		next := proceed(t, tab, false)
		if next == tab {
			return tab
		}
		tab = next
		protection(t, tab)
	}
	t.Fatalf("no end: transition %+v, %d rows to move, %d unprotected", tab.Transition, len(tab.Moves()), tab.Unprotected())
	return nil
}

// protection compares Unprotected with a count of its own.
func protection(t *rapid.T, tab *Table) {
	t.Helper()
	bare, other := 0, 0
	for _, r := range tab.Rows {
		owner, standby := tab.Wants(r.End)
		switch {
		case len(tab.WantedNodes()) < 2:
		case r.Standby.None():
			bare++
		case r.Standby != standby && !(r.Owner == standby && r.Standby == owner) && r.Owner != standby:
			other++
		}
	}
	if got := tab.Unprotected(); got != bare+other {
		t.Fatalf("%d rows have no standby and %d another than the ring wants, and Unprotected is %d", bare, other, got)
	}
}

// proceed does what a leader and the owners do next. If slow, copies for standbys take
// longer than the leader waits. It returns the table itself when nothing is left to do.
func proceed(t *rapid.T, tab *Table, slow bool) *Table {
	apply := func(c Command) {
		next, err := tab.Apply(c)
		if err != nil {
			t.Fatalf("%s: %v", c.Kind(), err)
		}
		tab = next
	}
	if want := tab.Plan(len(tab.Moves()), func(Member) bool { return true }); len(want) > 0 {
		apply(Command{Begin: &Begin{want}})
		return tab
	}
	if tab.Transition != nil && len(tab.Moves()) == 0 {
		hasty := slow || rapid.IntRange(0, 2).Draw(t, "hasty") == 0
		if next, err := tab.Apply(end(tab)); err == nil && (hasty || tab.Unprotected() == 0) {
			return next
		}
	}
	for _, c := range copies(tab) {
		if !slow || c.Sync == nil {
			apply(c)
		}
	}
	return tab
}

// copies returns the commands with which the owners end the copies that CopyTo asks for, and
// take out the standbys that nobody wants.
func copies(tab *Table) []Command {
	type pair struct{ owner, to Holder }
	syncs, flips, unsyncs := map[pair]*Sync{}, map[pair]*Flip{}, map[pair]*Unsync{}
	for i, r := range tab.Rows {
		owner, standby := tab.Wants(r.End)
		p := pair{r.Owner, tab.CopyTo(i)}
		switch after, upTo := tab.Segment(i); {
		case r.Owner == owner && standby.None() && !r.Standby.None():
			q := pair{r.Owner, r.Standby}
			if unsyncs[q] == nil {
				unsyncs[q] = &Unsync{Owner: q.owner, Standby: q.to}
			}
			unsyncs[q].Ends = append(unsyncs[q].Ends, r.End)
		case p.to.None() || p.to == owner && p.to == r.Owner || p.to == r.Standby && p.to != owner:
		case p.to == owner:
			if flips[p] == nil {
				flips[p] = &Flip{Transition: tab.Transition.ID, WantSince: tab.WantSince, From: p.owner, To: p.to, Standby: p.owner}
			}
			flips[p].Ends = append(flips[p].Ends, r.End)
		default:
			if syncs[p] == nil {
				syncs[p] = &Sync{WantSince: tab.WantSince, Owner: p.owner, Standby: p.to}
			}
			syncs[p].Rows = append(syncs[p].Rows, Stamp{After: after, End: upTo, Since: r.Since})
		}
	}
	var out []Command
	for _, a := range tab.Members {
		for _, b := range tab.Members {
			p := pair{a.Holder(), b.Holder()}
			if c := syncs[p]; c != nil {
				out = append(out, Command{Sync: c})
			}
			if c := flips[p]; c != nil {
				out = append(out, Command{Flip: c})
			}
			if c := unsyncs[p]; c != nil {
				out = append(out, Command{Unsync: c})
			}
		}
	}
	return out
}

// standsWell checks that every row has the owner and the standby that the ring wants, and
// that nobody waits.
func standsWell(t *rapid.T, tab *Table) {
	t.Helper()
	if tab.Transition != nil || len(tab.Moves()) > 0 || tab.Unprotected() > 0 {
		t.Fatalf("transition %+v, %d rows to move, %d unprotected", tab.Transition, len(tab.Moves()), tab.Unprotected())
	}
	ring := 0
	for _, m := range tab.Members {
		if m.Phase == Active {
			ring++
		}
	}
	for _, m := range tab.Members {
		if m.Phase == Joining || m.Phase == Leaving && ring > 0 {
			t.Fatalf("%s is %s for ever", m.Node, m.Phase)
		}
	}
	for _, r := range tab.Rows {
		owner, standby := tab.Wants(r.End)
		if r.Owner != owner || r.Standby != standby || r.Synced == standby.None() {
			t.Fatalf("%s; the ring wants %v and %v", fmt.Sprintf("%+v", r), owner, standby)
		}
	}
}

// TestMisplaced: a transition that ended without all standbys, and then the death of an
// owner, leave rows with the standby of before. They count as unprotected, and another
// transition is planned for them.
func TestMisplaced(t *testing.T) {
	tab := cluster(t, 2)
	for _, c := range copies(tab) {
		tab = grow(t, tab, c)
	}
	tab = grow(t, tab, admit("n3", 1))
	tab = grow(t, tab, towards(tab))
	for _, c := range copies(tab) {
		if c.Flip != nil {
			tab = grow(t, tab, c)
		}
	}
	tab = grow(t, tab, end(tab), Command{Remove: &Remove{Members: []Holder{holder("n1", 1)}}})
	bare := 0
	for _, r := range tab.Rows {
		if r.Standby.None() {
			bare++
		}
	}
	if n := tab.Unprotected(); n != bare || bare == 0 {
		t.Errorf("%d rows have no standby, and %d are counted", bare, n)
	}
	moves := len(tab.Moves())
	if want := tab.Plan(moves, func(Member) bool { return true }); len(want) != 2 || moves == 0 {
		t.Errorf("%d rows stand elsewhere than the ring wants them, and the plan is %v", moves, want)
	}
}
