package table

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// member is a process as it asks to be admitted.
func member(node string, incarnation uint64) Member {
	return Member{
		Node: node, Incarnation: incarnation, HashKey: "key of " + node,
		GRPCAddr: node + ":7400", RaftAddr: node + ":7410", RaftID: node + "/1", Version: "v1",
	}
}

// holder is a process as commands name it.
func holder(node string, incarnation uint64) Holder { return Holder{node, incarnation} }

// deep copies a table with all that it points to.
func deep(t *Table) *Table {
	c := *t
	c.Members, c.Rows, c.nodes = slices.Clone(t.Members), slices.Clone(t.Rows), slices.Clone(t.nodes)
	if t.Transition != nil {
		c.Transition = &Transition{t.Transition.ID, slices.Clone(t.Transition.Want)}
	}
	return &c
}

// equal says whether two tables are the same to everybody.
func equal(a, b *Table) bool {
	same := a.Cluster == b.Cluster && a.UID == b.UID && a.Epoch == b.Epoch && slices.Equal(a.Members, b.Members) &&
		slices.Equal(a.Rows, b.Rows) && slices.Equal(a.nodes, b.nodes) && (a.Transition == nil) == (b.Transition == nil) && (a.want == nil) == (b.want == nil)
	if same && a.want != nil {
		same = a.want.Digest() == b.want.Digest()
	}
	if same && a.Transition != nil {
		same = a.Transition.ID == b.Transition.ID && slices.Equal(a.Transition.Want, b.Transition.Want)
	}
	return same
}

// grow applies commands that must take effect.
func grow(t testing.TB, tab *Table, commands ...Command) *Table {
	t.Helper()
	for _, c := range commands {
		next, err := tab.Apply(c)
		if err != nil {
			t.Fatalf("%s: %v", c.Kind(), err)
		}
		if err := next.Check(); err != nil {
			t.Fatalf("%s: %v", c.Kind(), err)
		}
		tab = next
	}
	return tab
}

// turned checks that a command is refused and changes nothing.
func turned(t testing.TB, tab *Table, c Command) {
	t.Helper()
	next, err := tab.Apply(c)
	if !errors.As(err, new(*Refused)) || next != tab {
		t.Fatalf("%s: %v; it should be refused and change nothing", c.Kind(), err)
	}
}

func made() *Table {
	next, _ := (&Table{}).Apply(Command{Init: &Init{Cluster: "test", UID: "u", Epoch: 100, LeaseTTL: 2e9, LeaseMargin: 5e7}})
	return next
}

func admit(node string, incarnation uint64) Command {
	return Command{Admit: &Admit{member(node, incarnation)}}
}

// towards begins a transition to the ring of all members.
func towards(t *Table) Command {
	var want []Holder
	for _, m := range t.Members {
		if m.Phase == Joining || m.Phase == Active {
			want = append(want, m.Holder())
		}
	}
	return Command{Begin: &Begin{want}}
}

// flips are the commands by which all that has to move does.
func flips(t *Table) []Command {
	type pair struct{ from, to Holder }
	ends := map[pair][]uint64{}
	var order []pair
	if t.Transition == nil {
		return nil
	}
	for _, m := range t.Moves() {
		p := pair{m.From, m.To}
		if ends[p] == nil {
			order = append(order, p)
		}
		ends[p] = append(ends[p], m.End)
	}
	var out []Command
	for _, p := range order {
		out = append(out, Command{Flip: &Flip{Transition: t.Transition.ID, WantSince: t.WantSince, From: p.from, To: p.to, Ends: ends[p]}})
	}
	return out
}

func end(t *Table) Command { return Command{End: &End{t.Transition.ID}} }

// joined admits a node and runs its transition to the end.
func joined(t testing.TB, tab *Table, node string, incarnation uint64) *Table {
	t.Helper()
	tab = grow(t, tab, admit(node, incarnation))
	tab = grow(t, tab, towards(tab))
	tab = grow(t, tab, flips(tab)...)
	return grow(t, tab, end(tab))
}

// cluster is a table of n1 to n<n>, incarnation 1 each.
func cluster(t testing.TB, n int) *Table {
	tab := made()
	for i := range n {
		tab = joined(t, tab, fmt.Sprintf("n%d", i+1), 1)
	}
	return tab
}

// drawCommand draws a command that may or may not be apt: most are, some are
// repeated, late, or name what is not there.
func drawCommand(t *rapid.T, tab *Table, past []Command) Command {
	if len(past) > 0 && rapid.IntRange(0, 5).Draw(t, "again") == 0 {
		return rapid.SampledFrom(past).Draw(t, "past")
	}
	node := fmt.Sprintf("n%d", rapid.IntRange(1, 5).Draw(t, "node"))
	pick := func(label string) Holder {
		if len(tab.Members) == 0 || rapid.IntRange(0, 19).Draw(t, "stranger") == 0 {
			return holder(node, 1)
		}
		return rapid.SampledFrom(tab.Members).Draw(t, label).Holder()
	}
	switch kind := rapid.IntRange(0, 17).Draw(t, "kind"); kind {
	case 0:
		return Command{Init: &Init{Cluster: "other", UID: "v", Epoch: 7}}
	case 1, 2, 3:
		return admit(node, tab.Epoch)
	case 4, 5:
		return towards(tab)
	case 6, 7:
		all := flips(tab)
		if tab.Transition == nil || len(all) == 0 {
			return Command{Flip: &Flip{Transition: tab.Epoch, From: pick("from"), To: pick("to"), Ends: []uint64{1}}}
		}
		f := *rapid.SampledFrom(all).Draw(t, "flip").Flip
		f.Ends = f.Ends[:rapid.IntRange(1, len(f.Ends)).Draw(t, "ends")]
		if rapid.IntRange(0, 9).Draw(t, "other target") == 0 {
			f.To = pick("to")
		}
		return Command{Flip: &f}
	case 8:
		if tab.Transition == nil {
			return Command{End: &End{tab.Epoch}}
		}
		return end(tab)
	case 9:
		gone := []Holder{pick("gone")}
		if rapid.Bool().Draw(t, "two") {
			gone = append(gone, pick("gone too"))
		}
		return Command{Remove: &Remove{Members: gone}}
	case 10:
		return Command{Tidy: &Tidy{}}
	case 12, 13, 14:
		return drawSync(t, tab, pick("owner"), pick("standby"))
	case 15:
		c := &Unsync{Owner: pick("owner"), Standby: pick("standby")}
		for _, r := range tab.Rows {
			if r.Owner == c.Owner && r.Standby == c.Standby {
				c.Ends = append(c.Ends, r.End)
			}
		}
		return Command{Unsync: c}
	case 16, 17:
		return Command{Drain: &Drain{Member: pick("drained"), Undo: rapid.Bool().Draw(t, "undo")}}
	default:
		return Command{Raise: &Raise{tab.Epoch - uint64(rapid.IntRange(0, 1).Draw(t, "late"))}}
	}
}

// withStandbys returns the table as if members had become standbys of some rows,
// which no command does yet.
func withStandbys(tab *Table, seed uint64) *Table {
	r := rand.New(rand.NewPCG(seed, 0))
	c := deep(tab)
	for i := range c.Rows {
		if s := c.Members[r.IntN(len(c.Members))].Holder(); s != c.Rows[i].Owner && !c.Rows[i].Owner.None() && r.IntN(2) == 0 {
			c.Rows[i].Standby, c.Rows[i].Synced = s, r.IntN(2) == 0
		}
	}
	return c.finish()
}

// at is the row that a position belongs to, by looking at all of them.
func at(t *Table, h uint64) (Row, bool) {
	for _, r := range t.Rows {
		if h <= r.End {
			return r, true
		}
	}
	if len(t.Rows) == 0 {
		return Row{}, false
	}
	return t.Rows[0], true
}

// drawSync makes a Sync of rows that may be synced, with something wrong at times.
func drawSync(t *rapid.T, tab *Table, owner, standby Holder) Command {
	c := &Sync{WantSince: tab.WantSince, Owner: owner, Standby: standby}
	for i, r := range tab.Rows {
		if after, upTo := tab.Segment(i); r.Owner == owner && tab.MayHold(i, standby) {
			c.Rows = append(c.Rows, Stamp{After: after, End: upTo, Since: r.Since})
		}
	}
	if len(c.Rows) == 0 {
		return Command{Sync: c}
	}
	c.Rows = c.Rows[:rapid.IntRange(1, len(c.Rows)).Draw(t, "rows")]
	switch rapid.IntRange(0, 9).Draw(t, "wrong") {
	case 0:
		c.WantSince--
	case 1:
		c.Rows[0].Since--
	case 2:
		c.Rows[0].After--
	}
	return Command{Sync: c}
}
