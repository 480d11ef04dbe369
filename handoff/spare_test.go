package handoff

import (
	"testing"
	"time"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch/table"
)

// die has nobody reach a process any more, nor it anybody.
func (w *world) die(p *process) {
	w.mu.Lock()
	delete(w.nodes, p.self)
	others := make([]*process, 0, len(w.nodes))
	for _, q := range w.nodes {
		others = append(others, q)
	}
	w.mu.Unlock()
	for _, q := range others {
		q.to(p.self).cut()
		p.to(q.self).cut()
	}
}

// live brings it back: it was cut off, and learns what it missed.
func (w *world) live(p *process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nodes[p.self] = p
	p.learn(w.table)
}

// standby waits until a row of an owner has a standby.
func (w *world) standby(key string, h table.Holder) {
	w.t.Helper()
	w.until(h.Node+" stands by for "+key, func() bool {
		t := w.agreed()
		r := &t.Rows[t.Find(owner.Hash(key))]
		return r.Standby == h && r.Synced
	})
}

// TestSpareStandby: a standby that is lost is replaced at once, as long as it is still
// a member, by the one that will be the standby when it is not. It gets its rows back
// when it is there again.
func TestSpareStandby(t *testing.T) {
	for _, dies := range []bool{true, false} {
		bubble(t, func(t *testing.T, w *world) {
			n := w.cluster(3)
			w.apply(table.Command{Adopt: &table.Adopt{Level: 3}})
			keys := w.keys(5, ownedBy(n[0], n[1]))
			n[0].put(keys, 7)
			w.die(n[1])
			began := time.Now()
			a := n[0].add(keys[0])
			w.standby(keys[0], n[2].self)
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("after %s", took)
			}
			a.checkAnswered(t, "it has a standby")
			if is := n[2].holds(); is[keys[0]] != 8 || is[keys[4]] != 7 {
				t.Errorf("the standby has %v", is)
			}
			if dies {
				w.apply(table.Command{Remove: &table.Remove{Members: []table.Holder{n[1].self, n[0].self}, Reason: "died"}})
				if now := w.agreed(); now.Rows[now.Find(owner.Hash(keys[0]))].Lost > 0 {
					t.Error("the row is lost, although it had a standby")
				}
				return
			}
			w.live(n[1])
			for _, k := range keys {
				w.standby(k, n[1].self)
			}
			w.awaitStable()
			pass(time.Second)
			w.alike()
			if is := n[2].holds(); is[keys[0]] != 0 {
				t.Errorf("a process that stands by no more still has %v", is)
			}
		})
	}
}

// TestCopyGoesOnOverTablesOfOthers: a copy is not begun again because its source was not
// shown a table in which nothing changed for its rows. Syncs that are committed together
// are shown as one table: where there is much to copy, all copies of a cluster would begin
// again whenever two of its members come to an end with theirs.
func TestCopyGoesOnOverTablesOfOthers(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(3)
		n[0].put(w.keys(400, ownedBy(n[0], n[2])), 1)
		w.set("sync", held)
		w.out(n[1], n[2])
		w.out(n[2], n[1])
		w.until("two standbys are about to be put in", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return len(w.waiting) == 2
		})
		n[0].to(n[2].self).stall()
		w.out(n[0], n[2])
		w.until("a copy is being made", func() bool { return len(n[0].source.Progress().Copies) == 1 })
		n[0].deafen()
		if refusals := w.release("sync"); len(refusals) > 0 {
			t.Fatal(refusals)
		}
		pass(time.Second)
		n[0].hear()
		pass(10 * pollEvery)
		copies := n[0].source.Progress().Copies
		if len(copies) != 1 || copies[0].Age < time.Second {
			t.Errorf("a copy that was under way for a second is %+v", copies)
		}
		n[0].to(n[2].self).flow()
		w.awaitStable()
		w.alike()
	})
}

// TestSpareThatWasDiscarded: a spare that had to discard its copy in a table that the source
// was not shown does not stand by with what it has left.
func TestSpareThatWasDiscarded(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(3)
		w.apply(table.Command{Adopt: &table.Adopt{Level: 3}})
		of := ownedBy(n[0], n[1])
		keys := w.keys(20, of)
		n[0].put(keys, 7)
		w.die(n[1])
		n[0].add(keys[0])
		w.set("sync", held)
		w.another("sync") // the spare has all of it
		n[0].deafen()
		in := table.Sync{WantSince: w.agreed().WantSince, Owner: n[0].self, Standby: n[1].self}
		for now, i := w.agreed(), 0; i < len(now.Rows); i++ {
			if after, upTo := now.Segment(i); now.Rows[i].Owner == n[0].self && now.Rows[i].Standby.None() {
				in.Rows = append(in.Rows, table.Stamp{After: after, End: upTo, Since: now.Rows[i].Since})
			}
		}
		w.apply(table.Command{Sync: &in})
		w.out(n[0], n[1])
		n[0].hear()
		w.release("sync")
		for _, k := range keys {
			w.standby(k, n[2].self)
		}
		if is := n[2].holds(); is[keys[0]] != 8 || is[keys[9]] != 7 {
			t.Errorf("the standby has %v", is)
		}
	})
}
