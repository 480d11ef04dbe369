package table

import (
	"errors"
	"fmt"
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
	c.Splits = slices.Clone(t.Splits)
	for i := range c.Splits {
		c.Splits[i].Parts, c.Splits[i].hashes = slices.Clone(c.Splits[i].Parts), slices.Clone(c.Splits[i].hashes)
	}
	return &c
}

// equal reports whether two tables are the same to everybody.
func equal(a, b *Table) bool {
	same := a.Cluster == b.Cluster && a.UID == b.UID && a.Epoch == b.Epoch && a.Level == b.Level && slices.EqualFunc(a.Splits, b.Splits, sameSplit) && a.WantSince == b.WantSince && a.LockTTL == b.LockTTL && a.IDWindow == b.IDWindow && a.Durable == b.Durable && a.cold == b.cold && slices.Equal(a.Members, b.Members) &&
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

// locking is made, and has agreed on how long locks last.
func locking() *Table {
	t := *made()
	t.LockTTL = 60e9
	return &t
}

func admit(node string, incarnation uint64) Command {
	return Command{Admit: &Admit{Member: member(node, incarnation)}}
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

// flips returns the commands by which all that has to move does.
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
	return clusterOf(t, made(), n)
}

func clusterOf(t testing.TB, tab *Table, n int) *Table {
	for i := range n {
		tab = joined(t, tab, fmt.Sprintf("n%d", i+1), 1)
	}
	return tab
}

// settling ends the grace of all rows of a process.
func settling(t *Table, owner Holder) Command {
	c := &EndGrace{Owner: owner}
	for _, r := range t.Rows {
		if r.Owner == owner && r.Grace {
			c.Rows = append(c.Rows, Loss{r.End, r.Lost})
		}
	}
	return Command{EndGrace: c}
}

// towardsSome begins a transition to a ring that some of the members are on, apt or
// not.
func towardsSome(t *rapid.T, tab *Table) Command {
	var want []Holder
	for _, m := range tab.Members {
		often := map[Phase]int{Joining: 7, Active: 19, Leaving: 2, Drained: 1}[m.Phase]
		if rapid.IntRange(0, 19).Draw(t, "wanted") < often {
			want = append(want, m.Holder())
		}
	}
	return Command{Begin: &Begin{want}}
}

// drawCommand draws a command that may or may not be apt: most are, some are
// repeated, late, or name what is not there.
func drawCommand(t *rapid.T, tab *Table, past []Command) Command {
	node := fmt.Sprintf("n%d", rapid.IntRange(1, 5).Draw(t, "node"))
	pick := func(label string) Holder {
		if len(tab.Members) == 0 || rapid.IntRange(0, 19).Draw(t, "stranger") == 19 {
			return holder(node, 1)
		}
		return rapid.SampledFrom(tab.Members).Draw(t, label).Holder()
	}
	if tab.Cold() > 0 && rapid.IntRange(0, 3).Draw(t, "cold rows") == 3 {
		if rapid.IntRange(0, 2).Draw(t, "given up") == 2 {
			return drawForgo(t, tab, pick)
		}
		return drawRecover(t, tab, pick)
	}
	// Small numbers are drawn more often.
	switch kind := rapid.IntRange(0, 42).Draw(t, "kind"); kind {
	case 37, 38, 39, 40, 41:
		return drawRecover(t, tab, pick)
	case 42:
		return drawForgo(t, tab, pick)
	case 36:
		return Command{EndWait: &EndWait{}}
	case 35:
		return Command{Adopt: &Adopt{
			Level:    rapid.SampledFrom([]uint32{0, 1, 2, WindowLevel - 1, Level, Level, Level, Level + 1, DiskLevel}).Draw(t, "adopted"),
			Durable:  drawDurability(t),
			IDWindow: rapid.SampledFrom([]int64{0, 0, 300e9, 60e9, -1}).Draw(t, "window"),
		}}
	case 31, 32, 33, 34:
		return drawSplit(t, tab, pick)
	case 30:
		return drawResume(t, tab, pick)
	case 0, 20, 21, 22:
		return drawSync(t, tab, pick)
	case 1, 16, 17:
		return drawFlip(t, tab, pick)
	case 2, 18:
		if tab.Transition == nil {
			return towardsSome(t, tab)
		}
		return end(tab)
	case 3, 19:
		c := admit(node, tab.Epoch)
		c.Admit.Member.Level, c.Admit.Cold = drawLevel(t), rapid.Bool().Draw(t, "cold")
		return c
	case 4, 23:
		return Command{Drain: &Drain{Member: pick("drained"), Undo: rapid.IntRange(0, 2).Draw(t, "undo") == 2, Stop: rapid.Bool().Draw(t, "stop")}}
	case 5, 24:
		return drawUnsync(t, tab, pick)
	case 6, 25, 26, 27:
		if len(past) > 0 {
			return rapid.SampledFrom(past).Draw(t, "past")
		}
		return towards(tab)
	case 7:
		return Command{Compact: &Compact{}}
	case 8, 9:
		gone := []Holder{pick("gone")}
		switch rapid.IntRange(0, 3).Draw(t, "more") {
		case 1, 2:
			gone = append(gone, pick("gone too"))
		case 3:
			for gone = nil; len(gone) < len(tab.Members); {
				gone = append(gone, tab.Members[len(gone)].Holder())
			}
		}
		return Command{Remove: &Remove{Members: gone}}
	case 10, 11:
		return towards(tab)
	case 12:
		return Command{End: &End{tab.Epoch}}
	case 14, 28, 29:
		return drawEndGrace(t, tab, pick)
	case 13:
		return Command{Init: &Init{Cluster: "other", UID: "v", Epoch: 7}}
	default:
		c := &Raise{Above: tab.Epoch - uint64(rapid.IntRange(0, 1).Draw(t, "late"))}
		if leap := rapid.IntRange(-1, 3).Draw(t, "leap"); leap != 0 {
			c.To = c.Above + uint64(leap)
		}
		return Command{Raise: c}
	}
}

// drawResume has a member come back as another process, at another place at times.
func drawResume(t *rapid.T, tab *Table, pick func(string) Holder) Command {
	was := pick("back")
	m := member(was.Node, was.Incarnation+uint64(rapid.IntRange(0, 9).Draw(t, "later")))
	m.Level = drawLevel(t)
	switch rapid.IntRange(0, 7).Draw(t, "odd") {
	case 7:
		m.HashKey = "moved"
	case 6:
		was.Incarnation--
	}
	return Command{Resume: &Resume{Member: m, Old: was.Incarnation, Cold: rapid.Bool().Draw(t, "cold")}}
}

// drawFlip makes a Flip of rows that have to move, with something wrong at times.
func drawFlip(t *rapid.T, tab *Table, pick func(string) Holder) Command {
	all := flips(tab)
	if tab.Transition == nil || len(all) == 0 {
		return Command{Flip: &Flip{Transition: tab.Epoch, WantSince: tab.WantSince, From: pick("from"), To: pick("to"), Ends: []uint64{1}}}
	}
	f := *rapid.SampledFrom(all).Draw(t, "flip").Flip
	if rapid.IntRange(0, 3).Draw(t, "few") == 3 {
		f.Ends = f.Ends[:rapid.IntRange(1, len(f.Ends)).Draw(t, "ends")]
	}
	switch rapid.IntRange(0, 2).Draw(t, "stands by") {
	case 0:
		f.Standby = f.From
	case 1:
		_, f.Standby = tab.Wants(f.Ends[0])
	}
	f.Kept = drawKept(t, tab)
	switch rapid.IntRange(0, 14).Draw(t, "wrong") {
	case 14:
		f.To = pick("to")
	case 13:
		f.WantSince--
	}
	return Command{Flip: &f}
}

// at returns the row that a position belongs to, by looking at all of them.
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
func drawSync(t *rapid.T, tab *Table, pick func(string) Holder) Command {
	c := &Sync{WantSince: tab.WantSince, Owner: pick("owner"), Standby: pick("standby"), Kept: drawKept(t, tab)}
	for i, r := range tab.Rows {
		if after, upTo := tab.Segment(i); r.Owner == c.Owner && tab.MayHold(i, c.Standby) {
			c.Rows = append(c.Rows, Stamp{After: after, End: upTo, Since: r.Since})
		}
	}
	if len(c.Rows) == 0 {
		return Command{Sync: c}
	}
	if rapid.IntRange(0, 3).Draw(t, "few") == 3 {
		c.Rows = c.Rows[:rapid.IntRange(1, len(c.Rows)).Draw(t, "rows")]
	}
	one := &c.Rows[rapid.IntRange(0, len(c.Rows)-1).Draw(t, "row")]
	switch rapid.IntRange(0, 14).Draw(t, "wrong") {
	case 14:
		c.WantSince--
	case 13:
		one.Since--
	case 12:
		one.After--
	case 11:
		r := rapid.SampledFrom(tab.Rows).Draw(t, "other row")
		*one = Stamp{After: one.After, End: r.End, Since: r.Since}
	}
	return Command{Sync: c}
}

// drawEndGrace ends the grace of rows, with something wrong at times.
func drawEndGrace(t *rapid.T, tab *Table, pick func(string) Holder) Command {
	c := settling(tab, pick("owner"))
	if rapid.IntRange(0, 2).Draw(t, "ids") == 0 {
		c.EndGrace.IDs, c.EndGrace.Rows = true, nil
		for _, r := range tab.Rows {
			if r.Owner == c.EndGrace.Owner && r.Unsure {
				c.EndGrace.Rows = append(c.EndGrace.Rows, Loss{r.End, r.Lost})
			}
		}
	}
	if len(c.EndGrace.Rows) == 0 {
		return c
	}
	rows := c.EndGrace.Rows[:rapid.IntRange(1, len(c.EndGrace.Rows)).Draw(t, "rows")]
	c.EndGrace.Rows = rows
	one := &rows[rapid.IntRange(0, len(rows)-1).Draw(t, "row")]
	switch rapid.IntRange(0, 14).Draw(t, "wrong") {
	case 14:
		one.Lost--
	case 13:
		one.End = rapid.SampledFrom(tab.Rows).Draw(t, "other row").End
	}
	return c
}

// drawUnsync takes a standby out of rows of an owner: of those where it stands, or
// of all, as a fence.
func drawUnsync(t *rapid.T, tab *Table, pick func(string) Holder) Command {
	c := &Unsync{Owner: pick("owner"), Standby: pick("standby")}
	fence := rapid.Bool().Draw(t, "fence")
	for _, r := range tab.Rows {
		if r.Owner == c.Owner && (fence || r.Standby == c.Standby) {
			c.Ends = append(c.Ends, r.End)
		}
	}
	return Command{Unsync: c}
}
