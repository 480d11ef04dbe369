package table

import (
	"errors"
	"testing"
)

// TestTrap18DelayedFlip lets a source propose a flip and die. Whoever owns its
// rows then keeps them when the flip comes late, also when the source is back as
// another process.
func TestTrap18DelayedFlip(t *testing.T) {
	tab := cluster(t, 2)
	tab = grow(t, tab, admit("n3", 1))
	tab = grow(t, tab, towards(tab))
	late := flips(tab)
	if len(late) != 2 {
		t.Fatalf("%d members have rows to move", len(late))
	}
	tab = grow(t, tab, Command{Remove: &Remove{Members: []Holder{holder("n1", 1)}}})
	turned(t, tab, late[0])
	tab = grow(t, tab, admit("n1", 2))
	turned(t, tab, late[0])
	turned(t, tab, late[1]) // the wanted ring is another one
	tab = grow(t, tab, flips(tab)[0])
	tab = grow(t, tab, end(tab))
	tab = grow(t, tab, towards(tab))
	turned(t, tab, late[0])
}

// TestTrap20TargetRestarted lets the target of a flip come back as another
// process, which has nothing of what the one before it was sent.
func TestTrap20TargetRestarted(t *testing.T) {
	tab := grow(t, cluster(t, 1), admit("n2", 1))
	tab = grow(t, tab, towards(tab))
	late := flips(tab)[0]
	tab = grow(t, tab, Command{Remove: &Remove{Members: []Holder{holder("n2", 1)}}}, admit("n2", 2))
	turned(t, tab, late)
	tab = grow(t, tab, end(tab))
	tab = grow(t, tab, towards(tab))
	turned(t, tab, late)
	forged := *late.Flip // as if only the transition were compared
	forged.Transition = tab.Transition.ID
	turned(t, tab, Command{Flip: &forged})
}

// TestTrap21CrashInMidChange removes a member while rows are on their way. Those
// of the others stay where they are: nobody has frozen them.
func TestTrap21CrashInMidChange(t *testing.T) {
	tab := grow(t, cluster(t, 3), admit("n4", 1))
	tab = grow(t, tab, towards(tab))
	next := grow(t, tab, Command{Remove: &Remove{Members: []Holder{holder("n2", 1)}}})
	kept := 0
	for i, r := range tab.Rows {
		if r.Owner.Node != "n2" {
			kept++
			if next.Rows[i] != r {
				t.Fatalf("row %d was %+v and is %+v", i, r, next.Rows[i])
			}
		}
	}
	if kept == 0 || len(next.Moves()) == 0 {
		t.Errorf("%d rows stayed, %d have to move", kept, len(next.Moves()))
	}
}

// TestTrap27OldIncarnation restarts a node. Its rows are the old process's until
// that is removed; the new one owns nothing by being called the same.
func TestTrap27OldIncarnation(t *testing.T) {
	tab := cluster(t, 2)
	turned(t, tab, admit("n1", 2))
	moved := member("n1", 2)
	moved.HashKey = "another"
	turned(t, tab, Command{Admit: &Admit{Member: moved}})
	if tab.Holds(holder("n1", 2)) {
		t.Error("an incarnation that was never admitted is held for a member")
	}
	tab = grow(t, tab, Command{Remove: &Remove{Members: []Holder{holder("n1", 1)}}}, admit("n1", 2))
	if share := tab.Share("n1"); share != 0 {
		t.Errorf("it owns %.3f as soon as it is admitted", share)
	}
	turned(t, tab, Command{Remove: &Remove{Members: []Holder{holder("n1", 1)}}}) // late, and not meant for this one
}

// TestTrap29TokensUsedUp raises the epoch once for one that is used up, however
// many ask, and how often.
func TestTrap29TokensUsedUp(t *testing.T) {
	tab := cluster(t, 1)
	raise := Command{Raise: &Raise{Above: tab.Epoch}}
	next := grow(t, tab, raise)
	if next.Epoch != tab.Epoch+1 {
		t.Errorf("the epoch went from %d to %d", tab.Epoch, next.Epoch)
	}
	turned(t, next, raise)
	turned(t, next, Command{Raise: &Raise{Above: next.Epoch + 1}}) // of an epoch that has not been
	leapt, err := next.Apply(Command{Raise: &Raise{Above: next.Epoch, To: next.Epoch + 1000}})
	if err != nil || leapt.Epoch != next.Epoch+1000 {
		t.Fatalf("from %d to %d: %v", next.Epoch, leapt.Epoch, err)
	}
	for _, to := range []uint64{1, leapt.Epoch, leapt.Epoch + MaxLeap + 1, 1<<64 - 1} {
		turned(t, leapt, Command{Raise: &Raise{Above: leapt.Epoch, To: to}})
	}
}

// TestDecodeRefusesWhatItDoesNotKnow: a node that went on would have another
// table than the rest.
func TestDecodeRefusesWhatItDoesNotKnow(t *testing.T) {
	for _, text := range []string{
		``, `null`, `{}`, `[]`, `{"v":1,"id":"x"}`,
		`{"v":2,"id":"x","tidy":{}}`,
		`{"v":1,"id":"x","tidy":{},"end":{"transition":1}}`,
		`{"v":1,"id":"x","split":{"key":"k"}}`,
		`{"v":1,"id":"x","end":{"transition":1,"force":true}}`,
		`{"v":1,"id":"x","end":{"transition":-1}}`,
	} {
		if c, err := Decode([]byte(text)); !errors.Is(err, ErrUnknown) {
			t.Errorf("%s: %+v, %v", text, c, err)
		}
	}
}

// TestAdmitRefuses tells what makes no member.
func TestAdmitRefuses(t *testing.T) {
	long := member("n9", 1)
	long.HashKey = string(make([]byte, 513))
	twin := member("n9", 1)
	twin.HashKey = member("n1", 1).HashKey
	for name, m := range map[string]Member{
		"no node": member("", 1), "no incarnation": member("n9", 0), "no hash key": {Node: "n9", Incarnation: 1},
		"a long hash key": long, "another's hash key": twin, "another incarnation": member("n1", 2), "the same": member("n1", 1),
	} {
		t.Run(name, func(t *testing.T) { turned(t, cluster(t, 1), Command{Admit: &Admit{Member: m}}) })
	}
	full := made()
	for i := range MaxMembers {
		full = grow(t, full, admit(string(rune('a'+i)), 1))
	}
	turned(t, full, admit("n9", 1))
}

// TestUnownedRowHasNoStandby: when the last owner goes, what a standby has half of
// is nobody's, and it may become the owner.
func TestUnownedRowHasNoStandby(t *testing.T) {
	tab := grow(t, cluster(t, 1), admit("n2", 1))
	tab = deep(tab)
	for i := range tab.Rows {
		tab.Rows[i].Standby = holder("n2", 1)
	}
	tab = grow(t, tab.finish(), Command{Remove: &Remove{Members: []Holder{holder("n1", 1)}}})
	if r := tab.Rows[0]; !r.Owner.None() || !r.Standby.None() || r.Lost != tab.Epoch {
		t.Errorf("nobody is left on the ring: %+v", r)
	}
	tab = grow(t, tab, towards(tab))
	if share := tab.Share("n2"); share < 0.999 {
		t.Errorf("n2 owns %.3f", share)
	}
}

// TestFlipRefuses tells what a flip must not do.
func TestFlipRefuses(t *testing.T) {
	tab := grow(t, cluster(t, 2), admit("n3", 1))
	turned(t, tab, Command{Flip: &Flip{Transition: tab.Epoch, WantSince: tab.WantSince, From: holder("n1", 1), To: holder("n3", 1), Ends: []uint64{1}}})
	tab = grow(t, tab, towards(tab))
	good := *flips(tab)[0].Flip
	other := flips(tab)[1].Flip
	for name, change := range map[string]func(*Flip){
		"no rows":               func(f *Flip) { f.Ends = nil },
		"another transition":    func(f *Flip) { f.Transition-- },
		"no such row":           func(f *Flip) { f.Ends = []uint64{f.Ends[0] + 1} },
		"a row twice":           func(f *Flip) { f.Ends = []uint64{f.Ends[0], f.Ends[0]} },
		"another's row":         func(f *Flip) { f.Ends = append(f.Ends[:1:1], other.Ends[0]) },
		"not to whom it should": func(f *Flip) { f.To = other.From },
		"to itself":             func(f *Flip) { f.To = f.From },
		"to a stranger":         func(f *Flip) { f.To = holder("n9", 1) },
		"a strange standby":     func(f *Flip) { f.Standby = holder("n1", 2) },
		"its own standby":       func(f *Flip) { f.Standby = f.To },
		"an earlier ring":       func(f *Flip) { f.WantSince-- },
		"a row that stays": func(f *Flip) {
			for _, r := range tab.Rows {
				if m, _ := tab.WantedOwner(r.End); m.Holder() == f.From && r.Owner == f.From {
					f.Ends, f.To = []uint64{r.End}, f.From
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := good
			change(&f)
			turned(t, tab, Command{Flip: &f})
		})
	}
	good.Standby = good.From
	tab = grow(t, tab, Command{Flip: &good})
	for _, end := range good.Ends {
		if r := tab.Rows[tab.Find(end)]; r.Owner != good.To || r.Standby != good.From || !r.Synced || r.Lost != 0 || r.Held != tab.Epoch {
			t.Fatalf("%+v", r)
		}
	}
}

// protected syncs all rows with the standbys that the ring wants for them.
func protected(t testing.TB, tab *Table) *Table {
	t.Helper()
	for _, a := range tab.Members {
		for _, b := range tab.Members {
			if c := syncOf(tab, a.Holder(), b.Holder()); len(c.Rows) > 0 {
				tab = grow(t, tab, Command{Sync: c})
			}
		}
	}
	if n := tab.Unprotected(); n > 0 {
		t.Fatalf("%d rows are unprotected", n)
	}
	return tab
}

// TestTrap14StandbysThatMove adds a fourth node. The rows that stay with their
// owners and get another standby are no moves. Until the new standby is synced
// the old one is promoted, and not the new one, which has nothing (trap 11).
func TestTrap14StandbysThatMove(t *testing.T) {
	tab := grow(t, protected(t, cluster(t, 3)), admit("n4", 1))
	tab = grow(t, tab, towards(tab))
	n1, n4 := holder("n1", 1), holder("n4", 1)
	share, ends := 0.0, []uint64{}
	for i, r := range tab.Rows {
		owner, standby := tab.Wants(r.End)
		if owner == r.Owner && standby != r.Standby {
			share += tab.width(i)
			if r.Owner == n1 {
				ends = append(ends, r.End)
			}
		}
	}
	if share < 0.2 || share > 0.3 || len(ends) == 0 {
		t.Errorf("%.3f of the space gets another standby and keeps its owner", share)
	}
	check := func(was *Table, promoted func(Row) bool) {
		t.Helper()
		is := grow(t, was, Command{Remove: &Remove{Members: []Holder{n1}}})
		for _, end := range ends {
			if r := is.Rows[is.Find(end)]; !promoted(r) || r.Lost != 0 {
				t.Fatalf("%+v", r)
			}
		}
	}
	check(tab, func(r Row) bool { return r.Owner != n4 })
	late := Command{Sync: syncOf(tab, n1, n4)}
	check(grow(t, tab, late), func(r Row) bool { return r.Owner == n4 })
	// It is refused after the old standby has gone: the row is not as it was seen.
	turned(t, grow(t, tab, Command{Remove: &Remove{Members: []Holder{tab.Rows[tab.Find(ends[0])].Standby}}}), late)
}

// TestTrap13StandbyRestarted lets a standby come back under its name, with
// nothing. It stands by for nothing, whatever was proposed for the old process.
func TestTrap13StandbyRestarted(t *testing.T) {
	tab := cluster(t, 2)
	n1, n2, again := holder("n1", 1), holder("n2", 1), holder("n2", 2)
	late := Command{Sync: syncOf(tab, n1, n2)}
	tab = grow(t, protected(t, tab), Command{Remove: &Remove{Members: []Holder{n2}}}, admit("n2", 2))
	for i, r := range tab.Rows {
		if !r.Standby.None() || tab.MayHold(i, again) {
			t.Fatalf("%+v", r)
		}
	}
	tab = grow(t, tab, towards(tab))
	turned(t, tab, late)
	forged := *late.Sync // as if only the name were compared
	forged.Standby, forged.WantSince = again, tab.WantSince
	turned(t, tab, Command{Sync: &forged})
	lost := grow(t, tab, Command{Remove: &Remove{Members: []Holder{n1}}})
	if r := lost.Rows[0]; r.Owner != again || r.Lost != lost.Epoch {
		t.Errorf("the state is lost, and the row is %+v", r)
	}
}

// TestDrainTwice takes a drain back while rows are on their way and says it again.
// A node that has rows is never drained: its process would end.
func TestDrainTwice(t *testing.T) {
	n1, n2, n3 := holder("n1", 1), holder("n2", 1), holder("n3", 1)
	drain, undo := Command{Drain: &Drain{Member: n3}}, Command{Drain: &Drain{Member: n3, Undo: true}}
	tab := grow(t, cluster(t, 3), drain, Command{Begin: &Begin{[]Holder{n1, n2}}}, undo, drain)
	if m, _ := tab.Member("n3"); m.Phase != Leaving {
		t.Errorf("it has %.2f, and is %s", tab.Share("n3"), m.Phase)
	}
	// The others die: it keeps all, though it was to leave.
	last := grow(t, tab, Command{Remove: &Remove{Members: []Holder{n1, n2}}})
	if last.Share("n3") < 0.999 || last.Transition != nil || len(last.Moves()) > 0 {
		t.Errorf("n3 has %.2f, and %d rows have to move", last.Share("n3"), len(last.Moves()))
	}
	// As soon as it has none, it is: also if it comes back in between.
	tab = grow(t, tab, flips(tab)...)
	tab = grow(t, tab, undo, drain)
	if m, _ := tab.Member("n3"); m.Phase != Drained {
		t.Errorf("it has nothing, and is %s", m.Phase)
	}
	tab = grow(t, tab, end(tab))
	turned(t, tab, Command{Begin: &Begin{[]Holder{n1, n2, n3}}})
}

// syncOf returns the command by which a member becomes the standby of all rows of an
// owner for which the ring wants it.
func syncOf(t *Table, owner, standby Holder) *Sync {
	c := &Sync{WantSince: t.WantSince, Owner: owner, Standby: standby}
	for i, r := range t.Rows {
		after, upTo := t.Segment(i)
		if wanted, next := t.Wants(upTo); r.Owner == owner && wanted == owner && next == standby {
			c.Rows = append(c.Rows, Stamp{After: after, End: upTo, Since: r.Since})
		}
	}
	return c
}

// TestTrap12SyncedRowByRow lets a standby be synced for what it had, and checks
// that it is not for what came after.
func TestTrap12SyncedRowByRow(t *testing.T) {
	tab := cluster(t, 2)
	n1, n2 := holder("n1", 1), holder("n2", 1)
	tab = grow(t, tab, Command{Sync: syncOf(tab, n1, n2)})
	for _, r := range tab.Rows {
		if synced := r.Owner == n1; r.Synced != synced || synced && r.Standby != n2 {
			t.Fatalf("%+v", r)
		}
	}
	tab = grow(t, tab, Command{Remove: &Remove{Members: []Holder{n1}}})
	for _, r := range tab.Rows {
		if r.Owner != n2 || r.Lost != 0 || r.Synced {
			t.Fatalf("%+v", r)
		}
	}
}

// TestTrap15LateSync lets a Sync come after it was given up by an Unsync, after
// the row changed, and after the wanted ring did.
func TestTrap15LateSync(t *testing.T) {
	tab := cluster(t, 3)
	n1, n2 := holder("n1", 1), holder("n2", 1)
	late := Command{Sync: syncOf(tab, n1, n2)}
	var ends []uint64
	for _, r := range late.Sync.Rows {
		ends = append(ends, r.End)
	}
	turned(t, grow(t, tab, Command{Unsync: &Unsync{Owner: n1, Standby: n2, Ends: ends[:1]}}), late)
	turned(t, grow(t, tab, Command{Remove: &Remove{Members: []Holder{holder("n3", 1)}}}), late)
	synced := grow(t, tab, late)
	turned(t, synced, late)
	out := grow(t, synced, Command{Unsync: &Unsync{Owner: n1, Standby: n2, Ends: ends}})
	turned(t, out, late)
	for _, r := range out.Rows {
		if r.Owner == n1 && (r.Synced || !r.Standby.None()) {
			t.Fatalf("%+v", r)
		}
	}
	for name, change := range map[string]func(*Sync){
		"other bounds":    func(s *Sync) { s.Rows[0].After++ },
		"no such row":     func(s *Sync) { s.Rows[0].End++ },
		"another owner":   func(s *Sync) { s.Owner = holder("n3", 1) },
		"itself":          func(s *Sync) { s.Standby = n1 },
		"an old process":  func(s *Sync) { s.Standby.Incarnation++ },
		"nothing":         func(s *Sync) { s.Rows = nil },
		"an earlier ring": func(s *Sync) { s.WantSince-- },
	} {
		c := *late.Sync
		c.Rows = append([]Stamp(nil), c.Rows...)
		change(&c)
		if next, err := tab.Apply(Command{Sync: &c}); err == nil || next != tab {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestDrain takes a node off the ring: its phases, and that it keeps nothing.
func TestDrain(t *testing.T) {
	tab := cluster(t, 3)
	n3 := holder("n3", 1)
	tab = grow(t, tab, Command{Drain: &Drain{Member: n3}})
	turned(t, tab, Command{Drain: &Drain{Member: n3}})
	back := grow(t, tab, Command{Drain: &Drain{Member: n3, Undo: true}})
	if m, _ := back.Member("n3"); m.Phase != Active {
		t.Errorf("after the drain was taken back it is %s", m.Phase)
	}
	turned(t, back, Command{Drain: &Drain{Member: n3, Undo: true}})
	turned(t, tab, Command{Begin: &Begin{Want: []Holder{holder("n1", 1)}}}) // leaves n2 out
	tab = grow(t, tab, Command{Begin: &Begin{Want: []Holder{holder("n1", 1), holder("n2", 1)}}})
	turned(t, tab, end(tab))
	for _, f := range flips(tab) {
		f.Flip.Standby = n3 // as the source does
		tab = grow(t, tab, f)
	}
	turned(t, tab, end(tab)) // it stands by still
	tab = protected(t, tab)
	tab = grow(t, tab, end(tab))
	if m, _ := tab.Member("n3"); m.Phase != Drained {
		t.Errorf("it is %s", m.Phase)
	}
	for i := range tab.Rows {
		if tab.MayHold(i, n3) {
			t.Fatalf("it may hold row %d", i)
		}
	}
	tab = grow(t, tab, Command{Drain: &Drain{Member: holder("n2", 1)}})
	turned(t, tab, Command{Drain: &Drain{Member: holder("n1", 1)}}) // nobody would be left
	tab = grow(t, tab, Command{Drain: &Drain{Member: n3, Undo: true}})
	if m, _ := tab.Member("n3"); m.Phase != Joining {
		t.Errorf("it is %s", m.Phase)
	}
}
