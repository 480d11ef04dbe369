package table

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// durable has a table agree on what disks promise.
func durable(t testing.TB, tab *Table, d Durability) *Table {
	t.Helper()
	tab = deep(tab)
	for i := range tab.Members {
		tab.Members[i].Level = DiskLevel
	}
	return grow(t, tab, Command{Adopt: &Adopt{Level: DiskLevel, Durable: d}})
}

// drawDurability draws one, mostly none.
func drawDurability(t *rapid.T) Durability {
	return rapid.SampledFrom([]Durability{0, 0, 0, Interval, Always, Entire, Entire + 1}).Draw(t, "durable")
}

// drawKept draws what a Sync or a Flip says of the target's disk: seldom what it should not.
func drawKept(t *rapid.T, tab *Table) bool {
	odd := rapid.IntRange(0, 14).Draw(t, "kept") == 14
	return odd != (tab.Durable != Undurable)
}

// drawRecover gives cold rows to a process from its disk, with something wrong at times. If
// there is none of the node that it needs, it is admitted.
func drawRecover(t *rapid.T, tab *Table, pick func(string) Holder) Command {
	all := tab.ColdRows()
	if len(all) == 0 {
		return Command{Recover: &Recover{To: pick("to"), Of: pick("of"), Rows: []Stamp{{End: 1}}}}
	}
	g := rapid.SampledFrom(all).Draw(t, "rows of")
	of := g.Was
	if !g.Stood.None() && rapid.Bool().Draw(t, "of the standby") {
		of = g.Stood
	}
	m, ok := tab.Member(of.Node)
	if !ok {
		c := admit(of.Node, max(tab.Epoch, of.Incarnation+1))
		c.Admit.Member.Level = DiskLevel
		return c
	}
	c := &Recover{To: m.Holder(), Of: of, Rows: slices.Clone(g.Rows), Whole: rapid.Bool().Draw(t, "whole")}
	if rapid.IntRange(0, 3).Draw(t, "few") == 3 {
		c.Rows = c.Rows[:rapid.IntRange(1, len(c.Rows)).Draw(t, "rows")]
	}
	one := &c.Rows[rapid.IntRange(0, len(c.Rows)-1).Draw(t, "row")]
	switch rapid.IntRange(0, 19).Draw(t, "wrong") {
	case 19:
		c.To = pick("to")
	case 18:
		c.Of.Incarnation--
	case 17:
		c.Of = pick("of")
	case 16:
		one.Since--
	case 15:
		one.After--
	case 14:
		r := rapid.SampledFrom(tab.Rows).Draw(t, "other row")
		*one = Stamp{After: one.After, End: r.End, Since: r.Since}
	}
	return Command{Recover: c}
}

// drawForgo gives disks up, with something wrong at times.
func drawForgo(t *rapid.T, tab *Table, pick func(string) Holder) Command {
	c := &Forgo{Reason: "drawn"}
	for _, g := range tab.ColdRows() {
		for _, h := range []Holder{g.Was, g.Stood} {
			if !h.None() && rapid.IntRange(0, 2).Draw(t, "forgone") == 2 {
				c.Holders = append(c.Holders, h)
			}
		}
	}
	if len(c.Holders) == 0 || rapid.IntRange(0, 9).Draw(t, "odd") == 9 {
		c.Holders = append(c.Holders, pick("stranger"), Holder{})
	}
	return Command{Forgo: c}
}

// ofRows reports whether a Recover is one that can only be refused for its rows: it is refused
// for ever then.
func ofRows(t *Table, c *Recover) bool {
	if c == nil {
		return false
	}
	m, ok := t.Member(c.To.Node)
	return ok && m.Holder() == c.To && !m.Leaves()
}

// countCold counts what became of rows.
func countCold(reached map[string]int, c Command, was, is *Table) {
	if c.Recover != nil {
		reached[map[bool]string{true: "recovered whole", false: "recovered"}[c.Recover.Whole]]++
	}
	for i := range is.Rows {
		if len(was.Rows) == 0 {
			return
		}
		old, now := &was.Rows[was.Find(is.Rows[i].End)], &is.Rows[i]
		switch {
		case now.Cold() && !old.Cold() && now.Stood.None():
			reached["cold"]++
		case now.Cold() && !old.Cold():
			reached["cold of two"]++
		case c.Forgo != nil && old.Cold() && now.Cold() && *old != *now:
			reached["one of two forgone"]++
		case c.Forgo != nil && old.Cold() && now.Owner.None() && *old != *now:
			reached["forgone"]++
		case c.Forgo != nil && old.Cold() && *old != *now:
			reached["given away"]++
		}
	}
}

// compareCooled checks a row after a Remove where disks count: a survivor has all of it, or it
// is cold.
func compareCooled(c *Remove, is *Table, old, now Row) error {
	ownerGone, standbyGone := slices.Contains(c.Members, old.Owner), slices.Contains(c.Members, old.Standby)
	want := old
	switch {
	case ownerGone && old.Synced && !standbyGone:
		want.Owner, want.Standby, want.Synced, want.Held = old.Standby, Holder{}, false, is.Epoch
	case ownerGone:
		want.Owner, want.Was, want.Held = Holder{}, old.Owner, is.Epoch
		if want.Standby, want.Synced = (Holder{}), false; old.Synced {
			want.Stood = old.Standby
		}
	case standbyGone:
		want.Standby, want.Synced = Holder{}, false
	}
	if want != old {
		want.Since = is.Epoch
	}
	if now != want {
		return fmt.Errorf("Remove should make it %+v", want)
	}
	return nil
}

// compareRecovered checks a row after a Recover: nothing but what it names went on, from a disk
// that the row named.
func compareRecovered(c *Recover, was, is *Table, old, now Row) error {
	if old == now {
		return nil
	}
	after, upTo := was.Segment(was.Find(now.End))
	m, _ := was.Member(c.To.Node)
	switch {
	case !old.Cold() || old.Was != c.Of && old.Stood != c.Of || c.Of.Node != c.To.Node:
		return errors.New("Recover gave it to one whose disk it does not wait for")
	case !slices.Contains(c.Rows, Stamp{After: after, End: upTo, Since: old.Since}):
		return errors.New("Recover changed what it does not name, or not as it was seen")
	case m.Holder() != c.To || m.Leaves():
		return errors.New("Recover gave it to one that is not there, or leaves")
	}
	want := old
	want.Owner, want.Was, want.Stood, want.Since, want.Held = c.To, Holder{}, Holder{}, is.Epoch, is.Epoch
	if !c.Whole {
		want.Lost, want.Grace, want.Unsure = is.Epoch, is.LockTTL > 0, is.IDWindow > 0
	}
	if now != want {
		return fmt.Errorf("Recover should make it %+v", want)
	}
	return nil
}

// compareForgone checks a row after a Forgo: it waits for those that are not named, or it is lost.
func compareForgone(c *Forgo, is *Table, old, now Row) error {
	want := old
	left := slices.DeleteFunc([]Holder{old.Was, old.Stood}, func(h Holder) bool { return h.None() || slices.Contains(c.Holders, h) })
	switch {
	case !old.Cold():
	case len(left) == 0:
		want.Owner, _ = is.Wants(now.End)
		want.Was, want.Stood, want.Since, want.Held = Holder{}, Holder{}, is.Epoch, is.Epoch
		want.Lost, want.Gone, want.Grace, want.Unsure = is.Epoch, is.Epoch, is.LockTTL > 0, is.IDWindow > 0
	case len(left) == 1 && !old.Stood.None():
		want.Was, want.Stood, want.Since = left[0], Holder{}, is.Epoch
	}
	if now != want {
		return fmt.Errorf("Forgo should make it %+v", want)
	}
	return nil
}

// compareColdRows checks what a table says of its cold rows.
func compareColdRows(t *Table) error {
	n, named := 0, map[Holder]bool{}
	for i, r := range t.Rows {
		if !r.Was.None() && r.Owner.None() {
			n++
			named[r.Was], named[r.Stood] = true, true
		}
		if _, _, ok := t.Owner(r.End); ok == r.Owner.None() || !ok && t.Next(r.End) != "" && !r.Was.None() || r.Cold() && (!t.Spare(i).None() || !t.CopyTo(i).None()) {
			return fmt.Errorf("row %d is cold: %v; somebody has it, or is to have it", i, r.Cold())
		}
	}
	sum := 0
	for _, g := range t.ColdRows() {
		sum += len(g.Rows)
		for _, s := range g.Rows {
			r := t.Rows[t.Find(s.End)]
			if r.End != s.End || r.Was != g.Was || r.Stood != g.Stood || r.Since != s.Since || r.Since < g.Since || r.Gone > g.Gone || !g.Names(r.Was) {
				return fmt.Errorf("the row that ends at %d is not as ColdRows has it", s.End)
			}
		}
	}
	if n != t.Cold() || n != sum {
		return fmt.Errorf("%d rows are cold; Cold says %d, and ColdRows has %d", n, t.Cold(), sum)
	}
	for h := range named {
		if !h.None() && (t.Holds(h) || !slices.Contains(t.Awaited(h.Node), h)) {
			return fmt.Errorf("%v is waited for; it is a member, or not said to be", h)
		}
	}
	return nil
}
