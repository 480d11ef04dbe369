package table

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestCommandsInAnyOrder applies commands that are apt, repeated, late or wrong,
// and checks after each what the package promises.
func TestCommandsInAnyOrder(t *testing.T) {
	starts := []*Table{cluster(t, 3), clusterOf(t, locking(), 3), clusterOf(t, locking(), 2), made(),
		durable(t, cluster(t, 3), Always), durable(t, clusterOf(t, locking(), 3), Interval), durable(t, clusterOf(t, locking(), 2), Entire), backed(t, 3), backed(t, 2),
		grow(t, backed(t, 2), Command{Remove: &Remove{Members: []Holder{holder("n1", 1), holder("n2", 1)}}})}
	reached := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		tab := rapid.SampledFrom(starts).Draw(t, "start")
		var past, refused []Command
		for range rapid.IntRange(20, 60).Draw(t, "commands") {
			c := drawCommand(t, tab, past)
			past = append(past, c)
			before := deep(tab)
			next, err := tab.Apply(c)
			if !equal(before, tab) {
				t.Fatalf("%s changed the table that it was applied to", c.Kind())
			}
			again, errAgain := tab.Apply(c)
			if !equal(next, again) || fmt.Sprint(err) != fmt.Sprint(errAgain) {
				t.Fatalf("%s has two outcomes", c.Kind())
			}
			if err != nil {
				if !errors.As(err, new(*Refused)) || next != tab {
					t.Fatalf("%s was refused (%v) and changed something", c.Kind(), err)
				}
				if c.Sync != nil || c.Flip != nil || ofRows(tab, c.Recover) {
					refused = append(refused, c)
				}
				continue
			}
			if err := compare(c, tab, next); err != nil {
				t.Fatalf("%s: %v", c.Kind(), err)
			}
			if repeated, err := next.Apply(c); c.Unsync == nil && (err == nil || repeated != next) {
				t.Fatalf("%s took effect twice", c.Kind())
			}
			for _, r := range refused {
				if _, err := next.Apply(r); err == nil {
					t.Fatalf("%+v was refused, and takes effect after %s", r, c.Kind())
				}
			}
			countCold(reached, c, tab, next)
			tab = next
		}
		restored, err := Restore(tab.Encode())
		if err != nil || !equal(restored, tab) {
			t.Fatalf("the table that was written down is not the one that was read: %v", err)
		}
	})
	for _, what := range []string{"cold", "cold of two", "recovered whole", "recovered", "forgone", "one of two forgone", "given away"} {
		if reached[what] == 0 {
			t.Errorf("no row was ever %s: %v", what, reached)
		}
	}
}

// compare checks a table against the one before it.
func compare(c Command, was, is *Table) error {
	if err := is.Check(); err != nil {
		return err
	}
	want := was.Epoch + 1
	if c.Raise != nil && c.Raise.To != 0 {
		want = c.Raise.To
	}
	if is.Epoch != want {
		return fmt.Errorf("the epoch went from %d to %d", was.Epoch, is.Epoch)
	}
	if len(was.Rows) > 0 && len(is.Rows) == 0 {
		return errors.New("the rows are gone")
	}
	if c.Compact == nil {
		for _, r := range was.Rows {
			if now, _ := at(is, r.End); now.End != r.End {
				return fmt.Errorf("the row that ends at %d is gone", r.End)
			}
		}
	}
	r := rand.New(rand.NewPCG(is.Epoch, 1))
	for range 50 {
		h := r.Uint64()
		if row, ok := at(is, h); ok && is.Rows[is.Find(h)] != row {
			return fmt.Errorf("Find(%d) is not the row that it lies in", h)
		}
	}
	for i := range is.Rows {
		if len(was.Rows) > 0 {
			old := was.Rows[was.Find(is.Rows[i].End)]
			old.End = is.Rows[i].End
			if err := compareRow(c, was, is, old, is.Rows[i]); err != nil {
				return fmt.Errorf("the row that ends at %d, before %+v, now %+v: %w", is.Rows[i].End, old, is.Rows[i], err)
			}
		}
	}
	return compareWhole(c, was, is)
}

// compareRow checks what became of a row, or of the part of one.
func compareRow(c Command, was, is *Table, old, now Row) error {
	moved := old.Owner != now.Owner || c.Forgo != nil && old.Cold() && !now.Cold() // to nobody, maybe
	stamped := now.Since == is.Epoch
	switch {
	case c.Compact != nil:
		if joined := !sameBounds(was, is, now.End); joined != stamped {
			return errors.New("Compact joined it without a stamp, or stamped it for nothing")
		}
		if is.Durable != Undurable && old.Gone != now.Gone && (now.Grace || now.Unsure || is.LockTTL+is.IDWindow == 0) {
			return errors.New("what disks have of it is void by a loss of another row that they may not have heard of")
		}
		old.Since, old.Held, old.Lost, old.Gone = now.Since, max(old.Held, now.Held), max(old.Lost, now.Lost), max(old.Gone, now.Gone)
		if old != now {
			return errors.New("Compact changed it")
		}
		return nil
	case moved && (!stamped || now.Held != is.Epoch):
		return errors.New("it has another owner and no stamp")
	case !moved && old.Held != now.Held:
		return errors.New("its owner is the same and Held is not")
	case old != now && !stamped && c.Compact == nil:
		return errors.New("it was changed and not stamped")
	case now.Synced && !old.Synced && c.Sync == nil && c.Flip == nil:
		return errors.New("it became synced")
	case now.Synced == now.Standby.None():
		return errors.New("a process stands by that is not synced, or none that is")
	case moved && now.Lost != is.Epoch && !(c.Remove != nil && old.Synced && now.Owner == old.Standby) && c.Flip == nil && c.Resume == nil && !old.Owner.None() && !now.Cold():
		return errors.New("it came to a process that has not all of it, and no loss is declared")
	case old.Lost != now.Lost && (now.Lost != is.Epoch || !moved):
		return errors.New("Lost is wrong")
	case old.Gone != now.Gone && (now.Gone != is.Epoch || now.Lost != is.Epoch || c.Recover != nil), is.Durable == Undurable && now.Gone != now.Lost:
		return errors.New("Gone is wrong")
	case old.Cold() && (c.Recover == nil && c.Forgo == nil) && old != now, !old.Cold() && now.Cold() && c.Remove == nil:
		return errors.New("it is or was cold, and should not have changed")
	case old.Lost != now.Lost && now.Grace != (is.LockTTL > 0):
		return errors.New("what was lost is not waited for, or for nothing")
	case old.Lost == now.Lost && old.Grace != now.Grace && (c.EndGrace == nil || c.EndGrace.IDs || now.Grace):
		return errors.New("Grace is wrong")
	case old.Lost != now.Lost && now.Unsure != (is.IDWindow > 0):
		return errors.New("ids that were lost are not in doubt, or for nothing")
	case now.Unsure && (now.Lost == 0 || is.IDWindow == 0):
		return errors.New("ids are in doubt, and none were lost")
	case old.Lost == now.Lost && old.Unsure && !now.Unsure && (c.EndGrace == nil || !c.EndGrace.IDs):
		return errors.New("ids are not in doubt any more, and nobody has said so")
	case c.Adopt != nil && was.IDWindow == 0 && is.IDWindow > 0 && now.Lost != 0:
		old.Unsure, old.Since = true, now.Since
		if !stamped || old != now {
			return errors.New("ids that were lost before there was a window are not in doubt")
		}
		return nil
	}
	switch {
	case c.Begin != nil && !old.Owner.None() && old != now:
		return errors.New("Begin changed a row that is owned")
	case c.Begin != nil:
		return nil
	case c.Flip != nil && old != now:
		return compareFlipped(c.Flip, was, is, old, now)
	case c.Remove != nil && was.Durable != Undurable:
		return compareCooled(c.Remove, is, old, now)
	case c.Remove != nil:
		return compareRemoved(c.Remove, old, now)
	case c.Recover != nil:
		return compareRecovered(c.Recover, was, is, old, now)
	case c.Forgo != nil:
		return compareForgone(c.Forgo, is, old, now)
	case c.Resume != nil:
		return compareResumed(c.Resume, is, old, now)
	case c.Sync != nil && old != now:
		return compareSynced(c.Sync, was, old, now)
	case c.Unsync != nil && (moved || now.Standby != old.Standby && (old.Standby != c.Unsync.Standby || !now.Standby.None())):
		return errors.New("Unsync changed what it does not name")
	case c.EndGrace != nil && old != now:
		return compareEndGrace(c.EndGrace, old, now)
	case c.Flip == nil && c.Sync == nil && c.Unsync == nil && old != now:
		return errors.New("it should not have changed")
	}
	return nil
}

// compareFlipped checks a row that a Flip changed.
func compareFlipped(c *Flip, was, is *Table, old, now Row) error {
	to, _ := was.Wants(now.End)
	switch {
	case old.Owner != c.From || now.Owner != c.To || now.Standby != c.Standby || !slices.Contains(c.Ends, now.End):
		return errors.New("Flip changed what it does not name")
	case to != c.To || was.Transition == nil || c.WantSince != was.WantSince || c.Transition != was.Transition.ID:
		return errors.New("Flip moved it to where the ring does not want it")
	case now.Lost != old.Lost:
		return errors.New("Flip declared a loss")
	}
	return nil
}

// compareSynced checks a row that a Sync changed.
func compareSynced(c *Sync, was *Table, old, now Row) error {
	i := was.Find(now.End)
	after, upTo := was.Segment(i)
	named := slices.Contains(c.Rows, Stamp{After: after, End: upTo, Since: old.Since})
	standby := old
	standby.Standby, standby.Synced, standby.Since = c.Standby, true, now.Since
	switch {
	case !named || old.Owner != c.Owner || now != standby:
		return errors.New("Sync changed what it does not name, or not as it was seen")
	case c.WantSince != was.WantSince:
		return errors.New("the wanted ring has changed since the Sync was made")
	case !was.MayHold(i, c.Standby):
		return errors.New("the standby does not keep what it has of it")
	}
	return nil
}

// compareEndGrace checks a row that an EndGrace changed.
func compareEndGrace(c *EndGrace, old, now Row) error {
	settled := old
	was := &settled.Grace
	if c.IDs {
		was = &settled.Unsure
	}
	waited := *was
	*was, settled.Since = false, now.Since
	if old.Owner != c.Owner || !waited || now != settled || !slices.Contains(c.Rows, Loss{now.End, old.Lost}) {
		return errors.New("EndGrace changed what it does not name, or not as it was seen")
	}
	return nil
}

// sameBounds reports whether the row that ends there is the same segment in both.
func sameBounds(was, is *Table, end uint64) bool {
	i, j := was.Find(end), is.Find(end)
	a, _ := was.Segment(i)
	b, _ := is.Segment(j)
	return a == b
}

func compareRemoved(c *Remove, old, now Row) error {
	ownerGone, standbyGone := slices.Contains(c.Members, old.Owner), slices.Contains(c.Members, old.Standby)
	switch {
	case !ownerGone && !standbyGone && old != now:
		return errors.New("Remove changed a row that does not name the removed")
	case !ownerGone && old.Owner != now.Owner:
		return errors.New("Remove moved a row between survivors")
	case slices.Contains(c.Members, now.Owner) || slices.Contains(c.Members, now.Standby):
		return errors.New("it names the removed")
	case ownerGone && old.Synced && !standbyGone && (now.Owner != old.Standby || now.Lost != old.Lost):
		return errors.New("the synced standby was not promoted, or its state is called lost")
	case ownerGone && (!old.Synced || standbyGone) && now.Lost == old.Lost:
		return errors.New("its state is lost, and the row does not say so")
	case now.Synced && (!old.Synced || now.Standby != old.Standby):
		return errors.New("it became synced")
	}
	return nil
}

// compareResumed checks a row after a Resume: only what the earlier process owned
// is the later one's, and nobody counts as its standby.
func compareResumed(c *Resume, is *Table, old, now Row) error {
	was := Holder{c.Member.Node, c.Old}
	switch {
	case old.Owner == was:
		old.Owner, old.Standby, old.Synced, old.Since, old.Held = c.Member.Holder(), Holder{}, false, is.Epoch, is.Epoch
	case old.Standby == was:
		old.Standby, old.Synced, old.Since = Holder{}, false, is.Epoch
	}
	if old != now {
		return errors.New("Resume changed something else")
	}
	return nil
}

// compareWhole checks what a command promises of the whole table.
func compareWhole(c Command, was, is *Table) error {
	switch {
	case c.End != nil && (is.Transition != nil || len(is.Moves()) > 0):
		return errors.New("the transition ended with rows to move")
	case c.Compact != nil && is.Compactable():
		return errors.New("Compact left something")
	case c.Begin != nil && slices.ContainsFunc(is.Rows, func(r Row) bool { return r.Owner.None() && r.Was.None() }):
		return errors.New("Begin left a row without an owner")
	}
	if err := compareSplits(c, was, is); err != nil {
		return err
	}
	if err := compareColdRows(is); err != nil {
		return err
	}
	return compareRing(c, was, is)
}

// compareRing checks the wanted ring and who is on it.
func compareRing(c Command, was, is *Table) error {
	for _, n := range is.nodes {
		if _, ok := is.Member(n); !ok {
			return fmt.Errorf("the ring has %s, which is not a member", n)
		}
	}
	for _, m := range is.Members {
		on, named := slices.Contains(is.nodes, m.Node), is.named(m.Holder())
		switch {
		case m.Phase == Active && !on, m.Phase == Drained && (on || named):
			return fmt.Errorf("%s is %s; on the ring: %v; named in rows: %v", m.Node, m.Phase, on, named)
		case is.Transition == nil && on != (m.Phase == Active || m.Phase == Leaving):
			return fmt.Errorf("%s is %s without a transition; on the ring: %v", m.Node, m.Phase, on)
		}
	}
	if is.want != nil && len(is.Rows) > 0 {
		for i := range is.want.Size() { // or else Wants of a row's end is not that of all of it
			if point, _ := is.want.At(i); is.Rows[is.Find(point)].End != point {
				return fmt.Errorf("the point %d lies within a row", point)
			}
		}
	}
	changed := (is.want == nil) != (was.want == nil) || is.want != nil && is.want.Digest() != was.want.Digest()
	switch {
	case changed != (is.WantSince == is.Epoch), !changed && is.WantSince != was.WantSince:
		return fmt.Errorf("the ring changed: %v, since %d", changed, is.WantSince)
	case changed && c.Begin == nil && c.Remove == nil && was.want != nil:
		return fmt.Errorf("%s changed the ring", c.Kind())
	}
	return nil
}

// TestJoinsMakeTheRing lets nodes join one after the other. The table is the
// ring's then, for every position.
func TestJoinsMakeTheRing(t *testing.T) {
	tab := made()
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 8 {
		tab = joined(t, tab, fmt.Sprintf("n%d", i+1), 1)
		if len(tab.Rows) != 256*(i+1) {
			t.Errorf("%d nodes make %d rows", i+1, len(tab.Rows))
		}
		for range 10_000 {
			h := r.Uint64()
			if m, _, ok := tab.Owner(h); !ok || m.HashKey != tab.Wanted().Owner(h) {
				t.Fatalf("%d nodes: %d is owned by %+v, and the ring gives it to %s", i+1, h, m, tab.Wanted().Owner(h))
			}
		}
	}
}

// TestJoinsAndRemovalsInAnyOrder lets up to 8 nodes come and go, with flips that
// are half done when somebody dies, and joins the rows again in the end.
func TestJoinsAndRemovalsInAnyOrder(t *testing.T) {
	for seed := range uint64(6) {
		r := rand.New(rand.NewPCG(seed, 3))
		tab := made()
		if seed%2 == 0 {
			tab = locking()
		}
		for range 25 {
			node := fmt.Sprintf("n%d", 1+r.IntN(8))
			switch m, is := tab.Member(node); {
			case !is:
				tab = grow(t, tab, admit(node, tab.Epoch))
			case r.IntN(2) == 0:
				tab = grow(t, tab, Command{Remove: &Remove{Members: []Holder{m.Holder()}}})
			}
			if tab.Transition == nil && len(tab.Members) > 0 {
				tab = grow(t, tab, towards(tab))
			}
			for _, f := range flips(tab) {
				if r.IntN(3) > 0 && tab.Transition != nil {
					tab = grow(t, tab, f)
				}
			}
			if tab.Transition != nil && len(tab.Moves()) == 0 {
				tab = grow(t, tab, end(tab))
			}
		}
		for range 2 { // the first time, those that run; then those that came meanwhile
			if tab.Transition == nil && len(tab.Members) > 0 {
				tab = grow(t, tab, towards(tab))
			}
			if tab.Transition != nil {
				tab = grow(t, tab, flips(tab)...)
				tab = grow(t, tab, end(tab))
			}
		}
		for _, m := range tab.Members {
			if c := settling(tab, m.Holder()); len(c.EndGrace.Rows) > 0 {
				tab = grow(t, tab, c)
			}
		}
		if n := tab.InGrace(); n > 0 {
			t.Errorf("%d rows are in grace", n)
		}
		tidied(t, tab)
	}
}

// tidied joins the rows of a table and checks that nobody's position changes
// hands.
func tidied(t *testing.T, tab *Table) {
	t.Helper()
	size := 256 * len(tab.Members)
	next := tab
	if tab.Compactable() {
		next = grow(t, tab, Command{Compact: &Compact{}})
	}
	if len(next.Rows) != size && size > 0 {
		t.Errorf("%d members have %d rows after Compact", len(tab.Members), len(next.Rows))
	}
	if next.Compactable() {
		t.Error("Compact left something")
	}
	r := rand.New(rand.NewPCG(9, 9))
	for i := range 10_000 {
		h := r.Uint64()
		if i < len(tab.Rows) {
			h = tab.Rows[i].End + uint64(i%3) - 1
		}
		was, _, _ := tab.Owner(h)
		if is, _, _ := next.Owner(h); was.Holder() != is.Holder() {
			t.Fatalf("Compact moved %d from %v to %v", h, was.Holder(), is.Holder())
		}
	}
}
