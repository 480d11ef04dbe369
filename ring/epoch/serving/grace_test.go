package serving

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/keystead/keystead/ring/epoch/table"
)

// locking is a settled table of n1 to n<n> that has agreed on how long locks last.
func locking(t testing.TB, n int) *table.Table {
	t.Helper()
	tab := grow(t, &table.Table{}, table.Command{Init: &table.Init{Cluster: "test", Epoch: 100, LeaseTTL: 2e9, LeaseMargin: 5e7, LockTTL: 60e9}})
	for i := range n {
		tab = grow(t, tab, admit(fmt.Sprintf("n%d", i+1), 1))
	}
	tab = grow(t, tab, towards(tab))
	return grow(t, tab, end(tab))
}

// settling ends the grace of all rows of a process.
func settling(tab *table.Table, owner table.Holder) table.Command {
	c := &table.EndGrace{Owner: owner}
	for _, r := range tab.Rows {
		if r.Owner == owner && r.Grace {
			c.Rows = append(c.Rows, table.Loss{End: r.End, Lost: r.Lost})
		}
	}
	return table.Command{EndGrace: c}
}

// inGrace checks what an operation finds.
func inGrace(t testing.TB, r *Rule, h, lost uint64, at int64) {
	t.Helper()
	e, v := r.Enter(h, 1)
	if v != Yes || e.Lost != lost || e.LostAt != at {
		t.Fatalf("%+v, verdict %d; want a loss in %d, at %d", e, v, lost, at)
	}
}

// TestGrace: the grace of a row runs from when it came to this process, whatever
// else happens to the row, and anew when it comes once more.
func TestGrace(t *testing.T) {
	now := int64(0)
	r := New(n1)
	r.Clock(func() int64 { return now })
	learn := func(at int64, tab *table.Table) *table.Table {
		t.Helper()
		now = at
		r.Learn(tab)
		r.Cleaned(tab.Epoch)
		return tab
	}
	tab := learn(10, locking(t, 3))
	r.Extend(1000)
	own, h := tab.Rows[firstOf(tab, n1)].End, tab.Rows[firstOf(tab, n2)].End
	inGrace(t, r, own, 0, 0)
	tab = learn(20, grow(t, tab, remove(n2), remove(n3)))
	lost := tab.Rows[tab.Find(h)].Lost
	inGrace(t, r, own, 0, 0)
	inGrace(t, r, h, lost, 20)
	if got, self, of := r.Recoveries(); len(got) != 512 || self != n1 || of != tab || got[0].At != 20 || got[0].Lost == 0 {
		t.Errorf("%d rows of %v are in grace: %+v", len(got), self, got)
	}
	tab = learn(30, grow(t, tab, table.Command{Compact: &table.Compact{}}, admit("n2", 2)))
	inGrace(t, r, h, tab.Rows[tab.Find(h)].Lost, 20)
	tab = learn(40, grow(t, tab, towards(tab)))
	before := tab
	inGrace(t, r, h, tab.Rows[tab.Find(h)].Lost, 20)
	// It goes, and comes back: by a flip, with all that is kept of it.
	again := holder("n2", 2)
	away := learn(50, grow(t, tab, handover(tab, n1, again, h)))
	may(t, r, h, 1, NotOwner)
	back := learn(60, grow(t, away, remove(again)))
	inGrace(t, r, h, back.Rows[back.Find(h)].Lost, 60)
	if m := back.Rows[back.Find(h)]; m.Lost == back.Epoch {
		t.Error("it was lost again")
	}
	learn(70, grow(t, back, settling(back, n1)))
	inGrace(t, r, h, 0, 60) // what was lost of it was lost by then
	if got, _, _ := r.Recoveries(); len(got) != 0 {
		t.Errorf("%+v are in grace", got)
	}
	// The same, if the tables between were in a snapshot.
	r = New(n1)
	r.Clock(func() int64 { return now })
	learn(80, before)
	r.Extend(1000)
	inGrace(t, r, h, before.Rows[before.Find(h)].Lost, 80)
	learn(90, back)
	inGrace(t, r, h, back.Rows[back.Find(h)].Lost, 90)
}

// TestGraceInAnyOrder: the grace never seems to have begun before the row came to
// the process, and does not begin anew without reason, though it does not see all
// tables.
func TestGraceInAnyOrder(t *testing.T) {
	for seed := range uint64(30) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		now := int64(0)
		r := New(n1)
		r.Clock(func() int64 { return now })
		r.Extend(1 << 40)
		tab := locking(t, 1+int(seed%3))
		came := map[uint64]int64{} // by epoch: when it was made
		seen := map[uint64]Entry{} // by position
		lost := map[uint64]int64{} // by position: when what was kept of it was lost last
		for range 150 {
			c := random(rnd, tab)
			if m, is := tab.Member("n1"); is && rnd.IntN(12) == 0 {
				c = settling(tab, m.Holder())
			}
			now++
			next, err := tab.Apply(c)
			if err != nil {
				continue
			}
			for h := range seen {
				if i := next.Find(h); i >= 0 && next.Rows[i].Lost == next.Epoch {
					lost[h] = now
				}
			}
			tab = next
			came[tab.Epoch] = now
			if m, is := tab.Member("n1"); is && m.Holder() != r.Self() {
				r.Become(m.Holder())
				r.Extend(1 << 40)
				clear(seen)
			}
			if rnd.IntN(3) == 0 {
				continue
			}
			joined := len(tab.Rows) < len(r.Table().Rows)
			r.Learn(tab)
			r.Cleaned(tab.Epoch)
			checkGrace(t, r, rnd, came, seen, joined)
			checkLosses(t, r, seen, lost)
		}
	}
}

// checkLosses checks that nothing of a position was lost after the moment by which all of it
// is said to be, whether or not its row is in grace.
func checkLosses(t *testing.T, r *Rule, seen map[uint64]Entry, lost map[uint64]int64) {
	t.Helper()
	for h, e := range seen {
		if e.Since != 0 && lost[h] != 0 && (e.Whole || e.LostAt < lost[h]) {
			t.Fatalf("%d was lost at %d: %+v of %+v", h, lost[h], e, r.Table().Rows[r.Table().Find(h)])
		}
	}
}

func checkGrace(t *testing.T, r *Rule, rnd *rand.Rand, came map[uint64]int64, seen map[uint64]Entry, joined bool) {
	t.Helper()
	if len(seen) == 0 {
		for range 40 {
			seen[rnd.Uint64()] = Entry{}
		}
	}
	tab := r.Table()
	for h, was := range seen {
		row := tab.Rows[max(tab.Find(h), 0)]
		e, v := r.Enter(h, 1)
		if v != Yes {
			seen[h] = Entry{}
			continue
		}
		switch {
		case row.Grace != (e.Lost != 0), e.Lost != 0 && e.Lost != row.Lost:
			t.Fatalf("%+v of %+v", e, row)
		case e.Lost != 0 && e.LostAt < came[row.Held]:
			t.Fatalf("%d: the grace is said to have begun at %d, and the row came at %d", h, e.LostAt, came[row.Held])
		case was.Lost != 0 && was.Lost == e.Lost && row.Held <= was.Seen && !joined && was.LostAt != e.LostAt:
			t.Fatalf("%d: the grace began at %d, and begins anew at %d", h, was.LostAt, e.LostAt)
		case was.Since != 0 && !was.Whole && !e.Whole && row.Held <= was.Seen && !joined && was.LostAt != e.LostAt:
			t.Fatalf("%d: was lost by %d, and by %d, when nothing was lost", h, was.LostAt, e.LostAt)
		}
		seen[h] = e
	}
}
