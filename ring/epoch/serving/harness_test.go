package serving

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/keystead/keystead/ring/epoch/table"
)

func holder(node string, incarnation uint64) table.Holder {
	return table.Holder{Node: node, Incarnation: incarnation}
}

func admit(node string, incarnation uint64) table.Command {
	return table.Command{Admit: &table.Admit{Member: table.Member{Node: node, Incarnation: incarnation, HashKey: node}}}
}

// towards begins a transition to the ring of all members that do not leave.
func towards(t *table.Table) table.Command {
	var want []table.Holder
	for _, m := range t.Members {
		if m.Phase == table.Joining || m.Phase == table.Active {
			want = append(want, m.Holder())
		}
	}
	return table.Command{Begin: &table.Begin{Want: want}}
}

// flip gives rows away; nobody stands by for them then.
func flip(t *table.Table, from, to table.Holder, ends ...uint64) table.Command {
	return table.Command{Flip: &table.Flip{Transition: t.Transition.ID, WantSince: t.WantSince, From: from, To: to, Ends: ends}}
}

// handover gives rows away, and the source stands by for them then.
func handover(t *table.Table, from, to table.Holder, ends ...uint64) table.Command {
	c := flip(t, from, to, ends...)
	c.Flip.Standby = from
	return c
}

// syncing makes a process stand by for those of the rows that end there that it
// may.
func syncing(t *table.Table, owner, standby table.Holder, some func(end uint64) bool) table.Command {
	c := &table.Sync{WantSince: t.WantSince, Owner: owner, Standby: standby}
	for i, r := range t.Rows {
		if after, upTo := t.Segment(i); r.Owner == owner && r.Standby != standby && t.MayHold(i, standby) && some(upTo) {
			c.Rows = append(c.Rows, table.Stamp{After: after, End: upTo, Since: r.Since})
		}
	}
	return table.Command{Sync: c}
}

func unsync(owner, standby table.Holder, ends ...uint64) table.Command {
	return table.Command{Unsync: &table.Unsync{Owner: owner, Standby: standby, Ends: ends}}
}

func drain(h table.Holder, undo bool) table.Command {
	return table.Command{Drain: &table.Drain{Member: h, Undo: undo}}
}

func all(uint64) bool { return true }

func remove(h table.Holder) table.Command {
	return table.Command{Remove: &table.Remove{Members: []table.Holder{h}}}
}

func end(t *table.Table) table.Command {
	return table.Command{End: &table.End{Transition: t.Transition.ID}}
}

func grow(t testing.TB, tab *table.Table, commands ...table.Command) *table.Table {
	t.Helper()
	for _, c := range commands {
		next, err := tab.Apply(c)
		if err != nil {
			t.Fatalf("%s: %v", c.Kind(), err)
		}
		tab = next
	}
	return tab
}

// ring is a settled table of n1 to n<n>.
func ring(t testing.TB, n int) *table.Table {
	t.Helper()
	tab := grow(t, &table.Table{}, table.Command{Init: &table.Init{Cluster: "test", Epoch: 100}})
	for i := range n {
		tab = grow(t, tab, admit(fmt.Sprintf("n%d", i+1), 1))
	}
	tab = grow(t, tab, towards(tab))
	return grow(t, tab, end(tab))
}

// joining is a settled table of n1 and n2 and the start of n3's transition; from
// n1 move the rows that end at moves, n1 keeps those at stays.
func joining(t testing.TB) (settled, begun *table.Table, moves, stays []uint64) {
	t.Helper()
	settled = ring(t, 2)
	begun = grow(t, settled, admit("n3", 1))
	begun = grow(t, begun, towards(begun))
	for _, r := range begun.Rows {
		if r.Owner == n1 {
			if m, _ := begun.WantedOwner(r.End); m.Node == "n3" {
				moves = append(moves, r.End)
			} else {
				stays = append(stays, r.End)
			}
		}
	}
	return settled, begun, moves, stays
}

var n1, n2, n3 = holder("n1", 1), holder("n2", 1), holder("n3", 1)

// acting returns the rule of n1 that has learned a table, is clean, and holds a lease
// until 1000.
func acting(t testing.TB, tab *table.Table) *Rule {
	t.Helper()
	r := New(n1)
	if lost := r.Learn(tab); len(lost) > 0 {
		t.Fatalf("a new process has lost %v", lost)
	}
	r.Cleaned(tab.Epoch)
	r.Extend(1000)
	return r
}

// may checks what the rule says about an operation that begins, and returns the
// epoch seen.
func may(t testing.TB, r *Rule, h uint64, now int64, want Verdict) uint64 {
	t.Helper()
	since, seen, got := r.May(h, now)
	tab := r.Table()
	if got != want || seen != tab.Epoch || got == Yes && since != tab.Rows[tab.Find(h)].Since {
		t.Fatalf("May(%d, %d) is %d under %d, seen %d; it should be %d", h, now, got, since, seen, want)
	}
	return seen
}

// still checks what the rule says about an answer.
func still(t testing.TB, r *Rule, h, seen uint64, now int64, want bool) {
	t.Helper()
	if got := r.Still(h, seen, now); got != want {
		t.Fatalf("Still(%d, %d, %d) is %v", h, seen, now, got)
	}
}

func held(lost []Range, h uint64) bool {
	for _, l := range lost {
		if l.Holds(h) {
			return true
		}
	}
	return false
}

// random is a next command that is apt, most of the time.
func random(r *rand.Rand, t *table.Table) table.Command {
	node := fmt.Sprintf("n%d", 1+r.IntN(4))
	m, is := t.Member(node)
	moves := t.Moves()
	switch {
	case !is && r.IntN(2) == 0:
		return admit(node, t.Epoch)
	case is && r.IntN(8) == 0:
		return remove(m.Holder())
	case is && r.IntN(12) == 0:
		return drain(m.Holder(), m.Phase > table.Active)
	case len(t.Members) > 1 && len(t.Rows) > 0 && r.IntN(3) == 0:
		other := t.Members[r.IntN(len(t.Members))].Holder()
		if r.IntN(8) == 0 {
			return unsync(m.Holder(), other, t.Rows[r.IntN(len(t.Rows))].End)
		}
		return syncing(t, m.Holder(), other, func(uint64) bool { return r.IntN(8) > 0 })
	case t.Transition == nil && r.IntN(8) == 0 && t.Compactable():
		return table.Command{Compact: &table.Compact{}}
	case t.Transition == nil && len(t.Members) > 0:
		return towards(t)
	case t.Transition == nil || r.IntN(10) == 0:
		return table.Command{Raise: &table.Raise{Above: t.Epoch}}
	case len(moves) == 0:
		return end(t)
	}
	one := moves[r.IntN(len(moves))]
	var ends []uint64
	for _, v := range moves {
		if v.From == one.From && v.To == one.To && r.IntN(4) > 0 {
			ends = append(ends, v.End)
		}
	}
	c := flip(t, one.From, one.To, append(ends, 0)[:max(len(ends), 1)]...)
	if r.IntN(2) == 0 {
		c.Flip.Standby = one.From
	}
	return c
}
