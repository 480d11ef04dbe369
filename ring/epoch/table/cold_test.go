package table

import (
	"slices"
	"strings"
	"testing"
)

// backed is a table of n nodes with locks and disks, each row of which has the standby that the
// ring wants, if there is one.
func backed(t testing.TB, n int) *Table {
	t.Helper()
	return stoodBy(t, durable(t, clusterOf(t, locking(), n), Always))
}

// stoodBy gives all rows the standby that the ring wants.
func stoodBy(t testing.TB, tab *Table) *Table {
	t.Helper()
	pairs := map[[2]Holder]*Sync{}
	for i, r := range tab.Rows {
		owner, standby := tab.Wants(r.End)
		if r.Owner != owner || standby.None() || r.Standby == standby {
			continue
		}
		pair := [2]Holder{r.Owner, standby}
		if pairs[pair] == nil {
			pairs[pair] = &Sync{WantSince: tab.WantSince, Owner: r.Owner, Standby: standby, Kept: tab.Durable != Undurable}
		}
		after, upTo := tab.Segment(i)
		pairs[pair].Rows = append(pairs[pair].Rows, Stamp{After: after, End: upTo, Since: r.Since})
	}
	for _, c := range pairs {
		tab = grow(t, tab, Command{Sync: c})
	}
	return tab
}

// back admits the next process of a node.
func back(t testing.TB, tab *Table, node string, incarnation uint64) *Table {
	t.Helper()
	return grow(t, tab, Command{Admit: &Admit{Member: current(member(node, incarnation))}})
}

// recovering gives all cold rows that name one process to another.
func recovering(tab *Table, to, of Holder) *Recover {
	c := &Recover{To: to, Of: of, Whole: true}
	for _, g := range tab.ColdRows() {
		if g.Names(of) {
			c.Rows = append(c.Rows, g.Rows...)
		}
	}
	return c
}

// TestRowsGetCold: a row waits for disks when its owner and its standby are dead, and only then.
func TestRowsGetCold(t *testing.T) {
	tab := backed(t, 3)
	n1, n2, n3 := holder("n1", 1), holder("n2", 1), holder("n3", 1)
	one := grow(t, tab, Command{Remove: &Remove{Members: []Holder{n1}}})
	if one.Cold() != 0 || one.ColdRows() != nil || one.Share("n1") != 0 {
		t.Fatalf("%d rows are cold, whose standby lives", one.Cold())
	}
	both := grow(t, tab, Command{Remove: &Remove{Members: []Holder{n1, n2}}})
	cold := 0
	for i, r := range both.Rows {
		was := tab.Rows[i]
		switch {
		case was.Owner == n3 || was.Standby == n3:
			if r.Owner != n3 || r.Cold() || r.Lost != 0 {
				t.Fatalf("%+v is %+v, and n3 lives", was, r)
			}
		default:
			cold++
			if !r.Cold() || r.Was != was.Owner || r.Stood != was.Standby || r.Lost != 0 || r.Since != both.Epoch {
				t.Fatalf("%+v is %+v", was, r)
			}
		}
	}
	if cold == 0 || both.Cold() != cold {
		t.Fatalf("%d rows are cold, and %d should be", both.Cold(), cold)
	}
	later := grow(t, both, Command{Remove: &Remove{Members: []Holder{n3}}})
	for i, r := range later.Rows {
		if was := both.Rows[i]; was.Cold() && r != was {
			t.Fatalf("%+v is %+v after somebody else died", was, r)
		}
	}
	if later.Cold() != len(later.Rows) || len(later.Members) != 0 {
		t.Fatalf("%d rows of %d are cold", later.Cold(), len(later.Rows))
	}
	// A standby that was taken out before its owner died does not count.
	alone := tab
	for _, r := range tab.Rows {
		if r.Owner == n1 && r.Standby == n2 {
			alone = grow(t, alone, Command{Unsync: &Unsync{Owner: n1, Standby: n2, Ends: []uint64{r.End}}})
		}
	}
	alone = grow(t, alone, Command{Remove: &Remove{Members: []Holder{n1, n2}}})
	for i, r := range alone.Rows {
		if was := tab.Rows[i]; was.Owner == n1 && was.Standby == n2 && (r.Was != n1 || !r.Stood.None()) {
			t.Fatalf("%+v is %+v, and n2 had been taken out", was, r)
		}
	}
}

// TestNobodyIsGivenColdRows: no transition gives cold rows away, or waits for them.
func TestNobodyIsGivenColdRows(t *testing.T) {
	tab := backed(t, 2)
	tab = grow(t, tab, Command{Remove: &Remove{Members: []Holder{holder("n1", 1), holder("n2", 1)}}})
	rows := len(tab.Rows)
	turned(t, tab, Command{Admit: &Admit{Member: current(member("n1", 1))}}) // it is over
	tab = back(t, tab, "n3", 1)
	tab = grow(t, tab, towards(tab))
	if tab.Cold() != len(tab.Rows) || len(tab.Rows) != rows+256 {
		t.Fatalf("%d rows of %d are cold after there were %d", tab.Cold(), len(tab.Rows), rows)
	}
	if n := tab.Unprotected() + len(tab.Moves()); n > 0 {
		t.Errorf("%d rows have still to move or to be copied", n)
	}
	tab = grow(t, tab, end(tab))
	if m, _ := tab.Member("n3"); m.Phase != Active || tab.Cold() != len(tab.Rows) {
		t.Errorf("%+v, %d rows are cold", m, tab.Cold())
	}
	if tab.Next(tab.Rows[0].End) != "" {
		t.Error("somebody is said to have it next")
	}
}

// TestRecover: a row goes on from a disk that it names, once, and is given to nobody by what
// was proposed before.
func TestRecover(t *testing.T) {
	tab := backed(t, 2)
	n1, n2, next := holder("n1", 1), holder("n2", 1), holder("n1", 7)
	tab = grow(t, tab, Command{Remove: &Remove{Members: []Holder{n1, n2}}})
	early := recovering(tab, next, n1)
	turned(t, tab, Command{Recover: early}) // it is not there
	tab = back(t, tab, "n1", 7)
	whole := grow(t, tab, Command{Recover: early})
	for i, r := range whole.Rows {
		if r.Owner != next || r.Cold() || !r.Stood.None() || r.Lost != 0 || r.Held != whole.Epoch || r.Since != whole.Epoch || tab.Rows[i].Lost != 0 {
			t.Fatalf("%+v", r)
		}
	}
	turned(t, whole, Command{Recover: early})
	partly := *early
	partly.Whole = false
	for _, r := range grow(t, tab, Command{Recover: &partly}).Rows {
		if r.Lost != r.Held || r.Gone != 0 || !r.Grace || r.Owner != next {
			t.Fatalf("what the disk may lack is not declared: %+v", r)
		}
	}
	for name, wrong := range map[string]func(c *Recover){
		"another node's disk":       func(c *Recover) { c.Of = n2 },
		"of a process that it had":  func(c *Recover) { c.Of.Incarnation = 3 },
		"of itself":                 func(c *Recover) { c.Of = next },
		"a process that is no more": func(c *Recover) { c.To.Incarnation = 6 },
		"no rows":                   func(c *Recover) { c.Rows = nil },
		"other bounds": func(c *Recover) {
			c.Rows = []Stamp{{After: c.Rows[0].After + 1, End: c.Rows[0].End, Since: c.Rows[0].Since}}
		},
		"an earlier row": func(c *Recover) {
			c.Rows = []Stamp{{After: c.Rows[0].After, End: c.Rows[0].End, Since: c.Rows[0].Since - 1}}
		},
		"no row": func(c *Recover) {
			c.Rows = []Stamp{{After: c.Rows[0].After, End: c.Rows[0].End + 1, Since: c.Rows[0].Since}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := *early
			wrong(&c)
			turned(t, tab, Command{Recover: &c})
		})
	}
	// The row got another owner, died with it, and is cold again: the first word is void.
	again := grow(t, whole, Command{Remove: &Remove{Members: []Holder{next}}})
	again = back(t, again, "n1", 8)
	turned(t, again, Command{Recover: early})
	late := *early
	late.To = holder("n1", 8)
	turned(t, again, Command{Recover: &late})
	grow(t, again, Command{Recover: recovering(again, late.To, next)})
	// And one whose disk it named once is nobody for the row now.
	turned(t, again, Command{Recover: &Recover{To: late.To, Of: n1, Rows: recovering(again, late.To, next).Rows}})
	// One that is about to be stopped is given nothing.
	leaving := back(t, tab, "n3", 1)
	leaving = grow(t, leaving, Command{Drain: &Drain{Member: next, Stop: true}})
	turned(t, leaving, Command{Recover: early})
}

// TestForgo: the operator's word names processes, and a row is given up with the last of those
// that it waits for.
func TestForgo(t *testing.T) {
	tab := backed(t, 2)
	n1, n2 := holder("n1", 1), holder("n2", 1)
	tab = grow(t, tab, Command{Remove: &Remove{Members: []Holder{n1, n2}}})
	turned(t, tab, Command{Forgo: &Forgo{}})
	turned(t, tab, Command{Forgo: &Forgo{Holders: []Holder{{}, holder("n1", 2), holder("n3", 1)}}})
	one := grow(t, tab, Command{Forgo: &Forgo{Holders: []Holder{n1}}})
	for _, r := range one.Rows {
		if !r.Cold() || r.Was != n2 || !r.Stood.None() || r.Lost != 0 || r.Since != one.Epoch {
			t.Fatalf("%+v", r)
		}
	}
	turned(t, one, Command{Forgo: &Forgo{Holders: []Holder{n1}}})
	turned(t, back(t, one, "n1", 7), Command{Recover: recovering(tab, holder("n1", 7), n1)})
	other := back(t, one, "n2", 7)
	grow(t, other, Command{Recover: recovering(other, holder("n2", 7), n2)})
	none := grow(t, one, Command{Forgo: &Forgo{Holders: []Holder{n2}}})
	for _, r := range none.Rows {
		if r.Cold() || !r.Owner.None() || r.Lost != none.Epoch || r.Gone != none.Epoch || !r.Grace {
			t.Fatalf("%+v", r)
		}
	}
	none = back(t, none, "n3", 1)
	none = grow(t, none, towards(none))
	if m, _, ok := none.Owner(0); !ok || m.Node != "n3" {
		t.Errorf("what was given up belongs to %+v", m)
	}
	// Where there is a ring, it names the owner.
	tab = backed(t, 3)
	tab = grow(t, tab, Command{Remove: &Remove{Members: []Holder{n1, n2}}})
	next := grow(t, tab, Command{Forgo: &Forgo{Holders: []Holder{n1, n2}}})
	for i, r := range next.Rows {
		if was := tab.Rows[i]; r.Owner != holder("n3", 1) || was.Cold() != (r.Gone == next.Epoch && r.Grace) || !was.Cold() && r != was {
			t.Fatalf("%+v was %+v", r, was)
		}
	}
}

// TestDurable: what disks promise is agreed by all, be it less than before; while it is
// something, nothing is given to a process whose disk has not got it.
func TestDurable(t *testing.T) {
	tab := stoodBy(t, clusterOf(t, locking(), 2))
	adopt := func(level uint32, d Durability) Command { return Command{Adopt: &Adopt{Level: level, Durable: d}} }
	turned(t, tab, adopt(DiskLevel, Always)) // members do not know it
	knows := deep(tab)
	for i := range knows.Members {
		knows.Members[i].Level = DiskLevel
	}
	turned(t, knows, adopt(DiskLevel-1, Always))
	turned(t, knows, adopt(DiskLevel, Entire+1))
	later := grow(t, knows, adopt(DiskLevel, Undurable))
	if later.Durable != Undurable {
		t.Error("something is agreed")
	}
	later = grow(t, later, adopt(DiskLevel, Interval))
	turned(t, later, adopt(DiskLevel, Interval))
	always := grow(t, later, adopt(DiskLevel, Always))
	if lowered := grow(t, grow(t, always, adopt(DiskLevel, Entire)), adopt(DiskLevel, Always)); lowered.Durable != Always {
		t.Error("not all answers have to wait, and it is not agreed")
	}
	if lowered := grow(t, always, adopt(DiskLevel, Interval)); lowered.Durable != Interval {
		t.Error("nobody promises more, and it is not agreed")
	}
	turned(t, always, adopt(DiskLevel, Always))
	waiting := deep(always)
	waiting.cold = 1
	turned(t, waiting, adopt(DiskLevel, Interval)) // what they wait for may be given up then
	turned(t, always, adopt(DiskLevel-1, Entire))
	turned(t, always, adopt(DiskLevel, Undurable))
	next := deep(always)
	for i := range next.Members {
		next.Members[i].Level = DiskLevel + 1
	}
	if next = grow(t, next, adopt(DiskLevel+1, Undurable)); next.Durable != Always {
		t.Error("it is lowered with a level")
	}
	if read, err := Restore(always.Encode()); err != nil || read.Durable != Always {
		t.Errorf("%v", err)
	}
	if c := adopt(DiskLevel, Always); c.Level() != DiskLevel {
		t.Errorf("level %d", c.Level())
	}

	// A Sync and a Flip that were proposed before.
	n1, n2 := holder("n1", 1), holder("n2", 1)
	var of Stamp
	for i, r := range always.Rows {
		if after, upTo := always.Segment(i); r.Owner == n1 {
			of = Stamp{After: after, End: upTo, Since: r.Since}
		}
	}
	sync := &Sync{WantSince: always.WantSince, Owner: n1, Standby: n2, Rows: []Stamp{of}}
	turned(t, always, Command{Sync: sync})
	kept := *sync
	kept.Kept = true
	grow(t, always, Command{Sync: &kept})
	grow(t, knows, Command{Sync: sync})
	grow(t, knows, Command{Sync: &kept})
	moving := back(t, always, "n3", 1)
	moving = grow(t, moving, towards(moving))
	flip := flips(moving)[0]
	turned(t, moving, flip)
	flip.Flip.Kept = true
	grow(t, moving, flip)
	turned(t, always, Command{Resume: &Resume{Member: current(member("n1", 9)), Old: 1}})
}

// TestLossesWhereDisksDoNotCount: all of a row is lost with its last process, as ever, and an
// older program can read what is written down of it.
func TestLossesWhereDisksDoNotCount(t *testing.T) {
	tab := grow(t, clusterOf(t, locking(), 2), Command{Remove: &Remove{Members: []Holder{holder("n1", 1)}}})
	lost := 0
	for _, r := range tab.Rows {
		if r.Gone != r.Lost || !r.Was.None() {
			t.Fatalf("%+v", r)
		}
		if r.Lost != 0 {
			lost++
		}
	}
	if lost == 0 {
		t.Error("nothing was lost")
	}
	for _, field := range []string{`"p":`, `"w":`, `"d":`, `"dead":`, `"durable":`} {
		if text := string(tab.Encode()); strings.Contains(text, field) {
			t.Errorf("a snapshot has %s", field)
		}
	}
}

// TestTidyWhereDisksCount: rows are not joined that wait for others, nor those of which one was
// lost so late that not all disks can have heard of it.
func TestTidyWhereDisksCount(t *testing.T) {
	base := backed(t, 2)
	n1, n2, n3 := holder("n1", 1), holder("n2", 1), holder("n3", 1)
	cold := Row{Since: 100, Held: 100, Was: n3, Stood: holder("n4", 1)}
	mine := Row{Owner: n1, Standby: n2, Synced: true, Since: 100, Held: 100}
	with := func(r Row, change func(*Row)) Row {
		change(&r)
		return r
	}
	late := func(r *Row) { r.Lost, r.Gone = 90, 90 }
	for _, c := range []struct {
		name          string
		a, b          Row
		locks, window int64
		joined        bool
	}{
		{"the same names", cold, cold, 1, 0, true},
		{"another owner", cold, with(cold, func(r *Row) { r.Was = holder("n3", 2) }), 1, 0, false},
		{"another standby", cold, with(cold, func(r *Row) { r.Stood = Holder{} }), 1, 0, false},
		{"cold and not", cold, mine, 1, 0, false},
		{"cold and nobody's", cold, with(cold, func(r *Row) { r.Was, r.Stood = Holder{}, Holder{} }), 1, 0, false},
		{"the same loss, in grace", with(mine, late), with(mine, late), 1, 0, true},
		{"a loss of one, over", mine, with(mine, late), 1, 0, true},
		{"a loss of one, by ids", mine, with(mine, late), 0, 1, true},
		{"a loss of one, never waited for", mine, with(mine, late), 0, 0, false},
		{"losses, both in grace", with(mine, func(r *Row) { r.Lost, r.Gone, r.Grace = 80, 80, true }), with(mine, func(r *Row) { late(r); r.Grace = true }), 1, 0, false},
		{"losses, both in doubt", with(mine, func(r *Row) { r.Lost, r.Gone, r.Unsure = 80, 80, true }), with(mine, func(r *Row) { late(r); r.Unsure = true }), 1, 1, false},
		{"partly lost, both in grace", with(mine, func(r *Row) { r.Lost, r.Grace = 80, true }), with(mine, func(r *Row) { r.Lost, r.Grace = 90, true }), 1, 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			tab := deep(base)
			tab.LockTTL, tab.IDWindow = c.locks, c.window
			c.b.End = tab.Rows[5].End
			c.a.End = c.b.End - 1
			tab.Rows = slices.Replace(tab.Rows, 5, 6, c.a, c.b)
			tab.finish()
			if err := tab.Check(); err != nil {
				t.Fatal(err)
			}
			if tab.Compactable() != c.joined {
				t.Fatalf("joined: %v", !c.joined)
			}
			if !c.joined {
				return
			}
			tab = grow(t, tab, Command{Compact: &Compact{}})
			if r := tab.Rows[5]; r.Lost != max(c.a.Lost, c.b.Lost) || r.Gone != max(c.a.Gone, c.b.Gone) || r.Was != c.a.Was || r.Stood != c.a.Stood {
				t.Errorf("%+v", r)
			}
		})
	}
}

// TestDrainOfAwaited: a node is not drained before it has the rows that wait for its disk, and
// not while it has rows and no place on the ring.
func TestDrainOfAwaited(t *testing.T) {
	n1, n2, n3 := holder("n1", 7), holder("n2", 7), holder("n3", 1)
	tab := backed(t, 2)
	tab = grow(t, tab, Command{Remove: &Remove{Members: []Holder{holder("n1", 1), holder("n2", 1)}}})
	for _, h := range []Holder{n1, n2, n3} {
		tab = back(t, tab, h.Node, h.Incarnation)
	}
	turned(t, tab, Command{Drain: &Drain{Member: n1}})
	grow(t, tab, Command{Drain: &Drain{Member: n1, Stop: true}})
	grow(t, tab, Command{Drain: &Drain{Member: n3}})
	tab = grow(t, tab, Command{Recover: recovering(tab, n1, holder("n1", 1))})
	if len(tab.Awaited("n1")) != 0 || tab.Cold() != 0 {
		t.Fatalf("%d rows are cold", tab.Cold())
	}
	turned(t, tab, Command{Drain: &Drain{Member: n1}})
	tab = grow(t, tab, towards(tab))
	tab = grow(t, tab, Command{Drain: &Drain{Member: n1}})
	if m, _ := tab.Member("n1"); m.Phase != Leaving {
		t.Errorf("%+v", m)
	}
}
