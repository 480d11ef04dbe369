package serving

import (
	"slices"
	"testing"

	"github.com/keystead/keystead/ring/epoch/table"
)

// edit returns a table like another one, an epoch later, with rows changed.
func edit(t *table.Table, change func(t *table.Table, r *table.Row)) *table.Table {
	next := *t
	next.Epoch++
	next.Durable = table.Always
	next.Rows = slices.Clone(t.Rows)
	for i := range next.Rows {
		change(&next, &next.Rows[i])
	}
	return &next
}

// same changes no row.
func same(*table.Table, *table.Row) {}

// dead removes processes all at once. Rows of which nobody lives become cold.
func dead(t testing.TB, tab *table.Table, gone ...table.Holder) *table.Table {
	t.Helper()
	next := grow(t, tab, table.Command{Remove: &table.Remove{Members: gone}})
	for i := range next.Rows {
		was, r := tab.Rows[i], &next.Rows[i]
		if r.Lost != next.Epoch {
			continue
		}
		r.Owner, r.Standby, r.Synced, r.Lost, r.Grace, r.Unsure = table.Holder{}, table.Holder{}, false, was.Lost, was.Grace, was.Unsure
		if r.Was = was.Owner; was.Synced {
			r.Stood = was.Standby
		}
	}
	next.Durable = table.Always
	return next
}

// joined admits a process.
func joined(t testing.TB, tab *table.Table, h table.Holder) *table.Table {
	t.Helper()
	next := grow(t, tab, admit(h.Node, h.Incarnation))
	next.Durable = tab.Durable
	return next
}

// recovered gives cold rows that name a process to the one that has its disk now; lost says
// that its last moments are lost.
func recovered(tab *table.Table, of, to table.Holder, lost bool) *table.Table {
	return edit(tab, func(t *table.Table, r *table.Row) {
		if !r.Cold() || r.Was != of && r.Stood != of {
			return
		}
		r.Owner, r.Was, r.Stood, r.Since, r.Held = to, table.Holder{}, table.Holder{}, t.Epoch, t.Epoch
		if lost {
			r.Lost = t.Epoch
		}
	})
}

// forgone gives cold rows up, and to a survivor.
func forgone(tab *table.Table, to table.Holder) *table.Table {
	return edit(tab, func(t *table.Table, r *table.Row) {
		if r.Cold() {
			r.Owner, r.Was, r.Stood, r.Since, r.Held, r.Lost, r.Gone = to, table.Holder{}, table.Holder{}, t.Epoch, t.Epoch, t.Epoch, t.Epoch
		}
	})
}

var n12, n22 = holder("n1", 2), holder("n2", 2)

// powerCut is a cluster of n1 and n2, each of which stands by for the other, that is killed, and
// n1's next process, which has n1's disk and has a lease. own and other are ends of rows that
// n1 and n2 owned.
func powerCut(t *testing.T) (r *Rule, before, after *table.Table, own, other uint64) {
	t.Helper()
	tab := ring(t, 2)
	own, other = tab.Rows[firstOf(tab, n1)].End, tab.Rows[firstOf(tab, n2)].End
	tab = grow(t, tab, syncing(tab, n1, n2, all), syncing(tab, n2, n1, all))
	before = edit(tab, same)
	return onDisk(before.Epoch, 1, 2), before, dead(t, before, n1, n2), own, other
}

// onDisk is a process n1/2 whose memory has what was on its disk.
func onDisk(epoch uint64, had ...uint64) *Rule {
	r := New(n12)
	r.OnDisk(had, epoch, true)
	r.Extend(1 << 60)
	return r
}

// TestColdIsKept: what a disk is waited for with is kept, and is the row as soon as the table
// says so.
func TestColdIsKept(t *testing.T) {
	r, before, after, own, other := powerCut(t)
	for _, old := range []*table.Table{ring(t, 2), before, after} { // from its own log
		if lost := r.Learn(old); len(lost) > 0 {
			t.Fatalf("lost before a table names it: %v", lost)
		}
		r.Cleaned(old.Epoch)
	}
	in := joined(t, joined(t, after, n12), n22)
	if lost := r.Learn(in); len(lost) > 0 {
		t.Fatalf("lost: %v", lost)
	}
	for _, h := range []uint64{own, other} {
		may(t, r, h, 1, NotOwner)
		if r.Accepts(h, n22) || r.Accepts(h, table.Holder{}) || r.Unclean(h, table.Holder{}) {
			t.Error("it takes records in for a row that nobody owns")
		}
	}
	r.Cleaned(in.Epoch)
	mine := recovered(in, n1, n12, true)
	if lost := r.Learn(mine); len(lost) > 0 {
		t.Fatalf("lost: %v", lost)
	}
	r.Cleaned(mine.Epoch)
	may(t, r, own, 1, Yes)
	may(t, r, other, 1, Yes)
	if e, _ := r.Enter(own, 1); e.Whole || e.Loss != mine.Epoch {
		t.Errorf("the loss of the last moments is not told: %+v", e)
	}
}

// TestColdIsNotKept: what no cold row names this disk for is discarded when this process is a
// member, and so is what was lost before.
func TestColdIsNotKept(t *testing.T) {
	for _, c := range []struct {
		name   string
		had    []uint64
		change func(t *table.Table, r *table.Row)
		epoch  func(before *table.Table) uint64
	}{
		{name: "names others", had: []uint64{1, 2}, change: func(_ *table.Table, r *table.Row) { r.Was, r.Stood = n2, n3 }},
		{name: "another disk", had: []uint64{2}, change: same},
		{name: "is a survivor's", had: []uint64{1, 2}, change: func(t *table.Table, r *table.Row) { r.Owner, r.Was, r.Stood = n22, table.Holder{}, table.Holder{} }},
		{name: "lost since", had: []uint64{1, 2}, change: func(t *table.Table, r *table.Row) { r.Lost, r.Gone = t.Epoch-1, t.Epoch-1 }},
		{name: "lost before the round", had: []uint64{1, 2}, change: func(t *table.Table, r *table.Row) { r.Lost, r.Gone = 101, 101 }, epoch: func(*table.Table) uint64 { return 100 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, before, after, own, other := powerCut(t)
			epoch := before.Epoch
			if c.epoch != nil {
				epoch = c.epoch(before)
			}
			r := onDisk(epoch, c.had...)
			after = edit(after, c.change)
			r.Learn(after)
			in := joined(t, joined(t, after, n22), n12)
			if lost := r.Learn(in); !held(lost, own) || !held(lost, other) {
				t.Errorf("lost: %v", lost)
			}
		})
	}
}

// TestKeptIsAnothers: the row goes on from another disk. What this one had is discarded, before it
// takes a copy.
func TestKeptIsAnothers(t *testing.T) {
	r, _, after, own, other := powerCut(t)
	in := joined(t, joined(t, after, n12), n22)
	want := []table.Holder{n12, n22}
	began := grow(t, in, table.Command{Begin: &table.Begin{Want: want}})
	began = edit(began, func(_ *table.Table, r *table.Row) {
		r.Owner, r.Was, r.Stood = table.Holder{}, n1, n2
	})
	r.Learn(in)
	if lost := r.Learn(began); len(lost) > 0 {
		t.Fatalf("lost: %v", lost)
	}
	r.Cleaned(began.Epoch)
	others := recovered(began, n2, n22, false)
	if !others.MayHold(others.Find(own), n12) {
		t.Fatal("it is not wanted as a standby, and the test shows nothing")
	}
	if lost := r.Learn(others); !held(lost, own) || !held(lost, other) {
		t.Errorf("lost: %v", lost)
	}
	if r.Accepts(own, n22) || !r.Unclean(own, n22) {
		t.Error("it takes a copy before the stale one is discarded")
	}
	r.Cleaned(others.Epoch)
	if !r.Accepts(own, n22) {
		t.Error("it takes no copy afterwards")
	}
}

// TestKeptIsVoid: the row is given up while it is kept, and comes to this process empty. It sees
// that in the table that gives it, or in a later one.
func TestKeptIsVoid(t *testing.T) {
	r, _, after, own, _ := powerCut(t)
	in := joined(t, after, n12)
	r.Learn(in)
	r.Cleaned(in.Epoch)
	given := forgone(in, n12)
	if lost := r.Learn(given); !held(lost, own) {
		t.Errorf("lost: %v", lost)
	}
	may(t, r, own, 1, Frozen)
	if c := r.CleanEpoch(); c >= given.Epoch {
		t.Errorf("clean at %d, and what was lost by %d is there", c, given.Epoch)
	}
	r.Cleaned(given.Epoch)
	may(t, r, own, 1, Yes)
}

// TestKeptIsVoidInSnapshot: it is given up, and its next owner dies, while no table is seen; so this
// disk, which the row named before, is named again by nobody.
func TestKeptIsVoidInSnapshot(t *testing.T) {
	r, _, after, own, _ := powerCut(t)
	in := joined(t, joined(t, after, n12), n22)
	r.Learn(in)
	r.Cleaned(in.Epoch)
	again := dead(t, forgone(in, n12), n12) // it was the owner without knowing it
	if lost := r.Learn(again); !held(lost, own) {
		t.Errorf("lost: %v", lost)
	}
}

// TestBecomeKeeps: a process that was removed keeps what its rows wait for, whether it learns of that
// by the table or before it.
func TestBecomeKeeps(t *testing.T) {
	for name, toldFirst := range map[string]bool{"by the table": false, "by the leader": true} {
		t.Run(name, func(t *testing.T) {
			_, tab, _, own, other := powerCut(t)
			tab = edit(tab, func(_ *table.Table, r *table.Row) {
				if r.Owner == n1 { // its standby has gone before
					r.Standby, r.Synced = table.Holder{}, false
				}
			})
			r := New(n1)
			r.OnDisk([]uint64{1}, 0, false)
			r.Extend(1 << 60)
			r.Learn(tab)
			r.Cleaned(tab.Epoch)
			may(t, r, own, 1, Yes)
			out := dead(t, tab, n1) // n2 goes on with its own rows
			var lost []Range
			if toldFirst {
				lost = append(lost, r.Become(n12)...)
				lost = append(lost, r.Learn(out)...)
			} else {
				lost = append(lost, r.Learn(out)...)
				lost = append(lost, r.Become(n12)...)
			}
			if held(lost, own) || !held(lost, other) {
				t.Errorf("lost: %v", lost)
			}
			r.OnDisk([]uint64{1, 2}, 0, false)
			r.Extend(1 << 60)
			r.Cleaned(out.Epoch)
			may(t, r, own, 1, NotOwner)
			in := joined(t, out, n12)
			lost = r.Learn(in)
			lost = append(lost, r.Learn(recovered(in, n1, n12, true))...)
			if held(lost, own) {
				t.Errorf("lost: %v", lost)
			}
			may(t, r, own, 1, Yes)
		})
	}
}

// TestBecomeBehind: the leader tells a process that it was removed, and the table by which that goes is from before
// it was made the synced standby, or the owner, of rows that it had a copy of. Rows wait for its disk then.
func TestBecomeBehind(t *testing.T) {
	tab := ring(t, 2)
	other := tab.Rows[firstOf(tab, n2)].End
	tab = edit(tab, same) // n1 is wanted as the standby of n2, and has its copy
	c := syncing(tab, n2, n1, all)
	c.Sync.Kept = true
	out := grow(t, tab, c, table.Command{Remove: &table.Remove{Members: []table.Holder{n1, n2}}})
	if r := out.Rows[out.Find(other)]; r.Was != n2 || r.Stood != n1 {
		t.Fatalf("the row waits for %v and %v", r.Was, r.Stood)
	}
	r := New(n1)
	r.OnDisk([]uint64{1}, 0, false)
	r.Learn(tab)
	r.Cleaned(tab.Epoch)
	if !r.Accepts(other, n2) {
		t.Fatal("it takes no copy")
	}
	lost := r.Become(n12)
	r.OnDisk([]uint64{1, 2}, 0, false)
	lost = append(lost, r.Learn(out)...)
	again := admit("n1", 2)
	again.Admit.Member.Level = table.DiskLevel
	in := grow(t, out, again)
	lost = append(lost, r.Learn(in)...)
	lost = append(lost, r.Learn(recovered(in, n1, n12, false))...)
	if held(lost, other) {
		t.Errorf("lost: %v", lost)
	}
}

// TestBecomeWithoutDisk: without a disk, or in a cluster where none counts, all goes.
func TestBecomeWithoutDisk(t *testing.T) {
	_, tab, _, own, _ := powerCut(t)
	for name, c := range map[string]struct {
		tab  *table.Table
		disk bool
	}{
		"no disk":     {tab, false},
		"none counts": {edit(tab, func(t *table.Table, _ *table.Row) { t.Durable = table.Undurable }), true},
	} {
		t.Run(name, func(t *testing.T) {
			r := New(n1)
			if c.disk {
				r.OnDisk([]uint64{1}, 0, false)
			}
			r.Learn(c.tab)
			if lost := r.Become(n12); !held(lost, own) {
				t.Errorf("lost: %v", lost)
			}
		})
	}
}

// TestLoadedBecomes: a process that becomes another one before any table has named it, keeps what it
// has read from its disk.
func TestLoadedBecomes(t *testing.T) {
	r, before, after, own, _ := powerCut(t)
	lost := r.Learn(before)
	n13 := holder("n1", 3)
	lost = append(lost, r.Become(n13)...)
	r.OnDisk([]uint64{1, 2, 3}, 0, false)
	lost = append(lost, r.Learn(after)...)
	in := joined(t, after, n13)
	lost = append(lost, r.Learn(in)...)
	lost = append(lost, r.Learn(recovered(in, n1, n13, false))...)
	if len(lost) > 0 {
		t.Errorf("lost: %v", lost)
	}
	r.Extend(1 << 60)
	may(t, r, own, 1, Yes)
}

// TestCleanEpoch: what is on disk of a time is not called clean by a later table before it is.
func TestCleanEpoch(t *testing.T) {
	r, before, after, own, _ := powerCut(t)
	check := func(what string, want uint64) {
		t.Helper()
		if got := r.CleanEpoch(); got != want {
			t.Errorf("%s: clean at %d, which should be %d", what, got, want)
		}
	}
	from := before.Epoch
	check("loaded", from)
	after = edit(after, func(_ *table.Table, r *table.Row) {
		if r.End != own {
			r.Was, r.Stood = n2, table.Holder{}
		}
	})
	r.Learn(after)
	r.Cleaned(after.Epoch) // there was nothing to discard for it
	check("not named", from)
	in := joined(t, after, n12)
	if lost := r.Learn(in); held(lost, own) || len(lost) == 0 {
		t.Errorf("lost: %v", lost)
	}
	check("not discarded", from)
	r.Cleaned(in.Epoch)
	check("discarded", in.Epoch)
}
