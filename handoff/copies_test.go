package handoff

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keystead/keystead/handoff/record"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// staying returns for keys: rows that stay with their owner and get this standby.
func staying(o, next *process) func(*table.Table, *table.Row) bool {
	return func(t *table.Table, r *table.Row) bool {
		wanted, standby := t.Wants(r.End)
		return r.Owner == o.self && wanted == o.self && standby == next.self && r.Standby != next.self
	}
}

// moving returns for keys: rows that the transition gives to another.
func moving(o, to *process) func(*table.Table, *table.Row) bool {
	return func(t *table.Table, r *table.Row) bool {
		wanted, _ := t.Wants(r.End)
		return r.Owner == o.self && wanted == to.self
	}
}

// TestTrap15SyncUndecided: while it is undecided whether a standby is in, answers
// wait for it and for the one before, and so they do until the node goes by the
// table that decides it.
func TestTrap15SyncUndecided(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(2)
		n = append(n, w.start("n3", 1))
		w.set("sync", held)
		w.towards(n...)
		key := w.keys(1, staying(n[0], n[2]))[0]
		row := w.agreed().Find(owner.Hash(key))
		w.until("the Sync is proposed", func() bool { return n[0].source.waiting(w.agreed().Rows[row].End) })
		was, next := n[0].to(n[1].self), n[0].to(n[2].self)
		both := func(why string) {
			t.Helper()
			for _, x := range []*wires{was, next} {
				x.stall()
				a := n[0].add(key)
				a.pending(t, why)
				x.flow()
				a.checkAnswered(t, "both have it")
			}
		}
		both("the Sync is held")
		time.Sleep(2 * proposeTime)
		both("the Sync is of unknown outcome")
		n[0].deafen()
		n[0].rule.Cleaned(n[0].rule.Table().Epoch - 1) // so that no other Sync is begun
		w.release("sync")
		both("the node does not know that the Sync is agreed on")
		time.Sleep(2 * proposeTime)
		both("the node was told that its Sync comes late, and does not go by the table yet")
		n[0].hear()
		was.stall()
		n[0].add(key).checkAnswered(t, "the standby of before is out")
		was.flow()
		next.stall()
		a := n[0].add(key)
		a.pending(t, "the standby has not acknowledged it")
		next.flow()
		a.checkAnswered(t, "the standby has")
		w.awaitStable()
		w.alike()
	})
}

// waiting reports whether a Sync of the row that ends there is undecided.
func (s *Source) waiting(end uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.plan.syncs[end] != nil
}

// TestSyncWaitsForAll: a Sync is proposed when the standby has all that may have
// been told without waiting for it.
func TestSyncWaitsForAll(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(2)
		n = append(n, w.start("n3", 1))
		w.set("sync", refused)
		w.towards(n...)
		key := w.keys(1, staying(n[0], n[2]))[0]
		own := 0
		w.watch(func(c table.Command) {
			if c.Sync != nil && c.Sync.Owner == n[0].self {
				own++
			}
		})
		w.until("the Sync is proposed", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return own > 0 })
		n[0].to(n[2].self).stall()
		n[0].add(key)
		time.Sleep(refusal + stablePoll)
		w.mu.Lock()
		own = 0
		w.mu.Unlock()
		time.Sleep(slowStandby / 2)
		w.mu.Lock()
		if own > 0 {
			t.Error("a Sync is proposed, and the standby lacks a record")
		}
		w.mu.Unlock()
		w.set("sync", passes)
		n[0].to(n[2].self).flow()
		w.awaitStable()
		w.alike()
	})
}

// whole checks, whenever a standby is to be put in or a row to change hands, that
// the target has all of it.
func (w *world) whole() {
	w.watch(func(c table.Command) {
		var from, to table.Holder
		ends := map[uint64]bool{}
		switch {
		case c.Sync != nil:
			from, to = c.Sync.Owner, c.Sync.Standby
			for _, r := range c.Sync.Rows {
				ends[r.End] = true
			}
		case c.Flip != nil:
			from, to = c.Flip.From, c.Flip.To
			for _, end := range c.Flip.Ends {
				ends[end] = true
			}
		default:
			return
		}
		missing, got := 0, w.nodes[to].holds()
		for key, v := range w.nodes[from].holds() {
			if ends[w.table.Rows[w.table.Find(owner.Hash(key))].End] && got[key] != v {
				missing++
			}
		}
		if missing > 0 {
			w.t.Errorf("a %s is proposed, and %s lacks %d objects", c.Kind(), to.Node, missing)
		}
	})
}

// TestCopyIsWhole: one that gets a copy is put in as a standby, or handed rows over, when
// it has all of it: a copy of many times what is sent at once.
func TestCopyIsWhole(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(1)
		var keys []string
		for i := range 6000 {
			keys = append(keys, fmt.Sprint("key", i, strings.Repeat("-", owner.MaxKey-16)))
		}
		n[0].put(keys, 1)
		n = append(n, w.start("n2", 1))
		w.whole()
		w.towards(n...)
		w.awaitStable()
		w.alike()
		if got := len(n[1].holds()); got != len(keys) {
			t.Errorf("%d of %d objects are there", got, len(keys))
		}
	})
}

// TestFrozenWhenCopied: no row is frozen before the target has acknowledged all of
// the copy.
func TestFrozenWhenCopied(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(1)
		n = append(n, w.start("n2", 1))
		n[0].to(n[1].self).stall()
		w.towards(n...)
		keys := w.keys(20, moving(n[0], n[1]))
		n[0].put(keys, 1)
		time.Sleep(time.Second)
		for _, k := range keys {
			if _, _, v := n[0].rule.May(owner.Hash(k), w.now()); v != serving.Yes {
				t.Fatalf("May is %d, and nothing is acknowledged", v)
			}
		}
		n[0].to(n[1].self).flow()
		w.awaitStable()
		w.alike()
	})
}

// TestTrap17LateRecords: what comes from a process that the table does not name as
// the owner any more is not taken in.
func TestTrap17LateRecords(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(2)
		key := w.keys(1, ownedBy(n[0], n[1]))[0]
		n[0].add(key).checkAnswered(t, "nothing is stalled")
		n[0].deafen()
		w.apply(table.Command{Remove: &table.Remove{Members: []table.Holder{n[0].self}}})
		n[1].put([]string{key}, 10)
		n[0].put([]string{key}, 100)
		synctest.Wait()
		if got := n[1].holds()[key]; got != 11 {
			t.Errorf("the owner has %d", got)
		}
	})
}

// TestCopyBeginsWithNothing: what a target has of a row from before is gone when it
// gets a copy; else what was deleted meanwhile would come back with it.
func TestCopyBeginsWithNothing(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(2)
		keys := w.keys(50, ownedBy(n[0], n[1]))
		n[0].put(keys[:49], 1)
		synctest.Wait()
		ghost := w.counter(keys[49], 7)
		n[0].to(n[1].self).stall()
		w.out(n[0], n[1])
		if err := n[1].store.Install(w.now(), ghost, func(uint64) bool { return true }); err != nil {
			t.Fatal(err)
		}
		n[0].to(n[1].self).flow()
		w.awaitStable()
		w.alike()
	})
}

// counter returns the record of a counter.
func (w *world) counter(key string, value int64) *owner.Record {
	now := w.now()
	r := &owner.Record{Hash: owner.Hash(key), Key: []byte(key), Name: []byte(ref(key).Name), Version: 1, At: now}
	return r.SetCounter(counter.State{Value: value, Version: 1, At: now})
}

// passing takes n3 out of the copies of n1, and gives it a place among them again
// after it had to discard what it had: a fourth member comes, and goes. It returns
// keys of rows that n3 had to discard.
func (w *world) passing(n []*process) []string {
	w.t.Helper()
	n4 := table.Holder{Node: "n4", Incarnation: 1}
	w.apply(table.Command{Admit: &table.Admit{Member: table.Member{Node: n4.Node, Incarnation: n4.Incarnation, HashKey: "n4"}}})
	w.apply(table.Command{Begin: &table.Begin{Want: []table.Holder{n[0].self, n[1].self, n[2].self, n4}}})
	keys := w.keys(20, func(t *table.Table, r *table.Row) bool {
		return r.Owner == n[0].self && !t.MayHold(t.Find(r.End), n[2].self) && r.Standby.None()
	})
	w.apply(table.Command{Remove: &table.Remove{Members: []table.Holder{n4}}})
	return keys
}

// out takes a standby out of all rows of an owner.
func (w *world) out(o, standby *process) {
	w.t.Helper()
	var ends []uint64
	for _, r := range w.agreed().Rows {
		if r.Owner == o.self && r.Standby == standby.self {
			ends = append(ends, r.End)
		}
	}
	w.apply(table.Command{Unsync: &table.Unsync{Owner: o.self, Standby: standby.self, Ends: ends}})
}

// TestCopyThatWasDiscarded: if the target of a copy had to discard it in one of the
// tables, it is made anew, also by a source that has missed this table.
func TestCopyThatWasDiscarded(t *testing.T) {
	for name, missed := range map[string]bool{"seen": false, "missed": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				n := w.cluster(3)
				n[0].put(w.keys(400, ownedBy(n[0], n[2])), 1)
				w.set("sync", held)
				w.out(n[0], n[2])
				w.another("sync") // the copy is there
				if missed {
					n[0].deafen()
				}
				w.passing(n)
				if missed {
					n[0].hear()
				}
				w.release("sync")
				w.awaitStable()
				w.alike()
			})
		})
	}
}

// TestUncleanTarget: what comes while a target has still to discard what it had of
// the row is neither dropped nor discarded with it.
func TestUncleanTarget(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(3)
		n[0].put(w.keys(400, ownedBy(n[0], n[2])), 1)
		w.set("sync", held)
		n[2].soil()
		w.out(n[0], n[2])
		w.passing(n)
		time.Sleep(time.Second)
		n[2].clean()
		w.release("sync")
		w.awaitStable()
		w.alike()
	})
}

// TestUncleanSource: what a source has still to discard itself is not copied.
func TestUncleanSource(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(3)
		n[1].put(w.keys(100, ownedBy(n[1], n[0])), 1)
		synctest.Wait()
		n[1].deafen()
		n[0].soil()
		w.out(n[1], n[0])
		w.apply(table.Command{Remove: &table.Remove{Members: []table.Holder{n[1].self}}}) // the loss is declared
		time.Sleep(time.Second)
		n[0].clean()
		w.awaitStable()
		n[0].put(w.keys(100, ownedBy(n[0], n[2])), 1)
		w.alike()
	})
}

// TestInstallWaitsForClean: neither a copy begins nor a record counts as taken in
// before what the target had of the row is discarded.
func TestInstallWaitsForClean(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(3)
		w.set("sync", held)
		n[2].soil()
		w.out(n[0], n[2])
		key := w.passing(n)[0]
		r := w.counter(key, 7)
		b := record.Append(nil, r, w.now())
		began, taken := make(chan error, 1), make(chan error, 1)
		go func() { began <- n[2].target.begin(n[0].self, []serving.Range{{}}) }()
		go func() { taken <- n[2].target.install(n[0].self, b) }()
		time.Sleep(time.Second)
		if len(began) > 0 || len(taken) > 0 {
			t.Errorf("a copy has begun: %v; a record was taken: %v; and old state is still to be discarded", len(began) > 0, len(taken) > 0)
		}
		n[2].clean()
		synctest.Wait() // nobody polls
		if len(began) == 0 || len(taken) == 0 {
			t.Fatalf("a copy has begun: %v; a record was taken: %v; and all is discarded", len(began) > 0, len(taken) > 0)
		}
		if err := <-taken; err != nil {
			t.Error(err)
		}
		if err := <-began; err != nil {
			t.Error(err)
		}
	})
}

// TestFewSyncsAtATime: a cluster that forms has a Sync for every pair of its processes. Each
// has a few of them under way, and takes the next when one is decided.
func TestFewSyncsAtATime(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		const nodes = 2*maxSyncs + 1
		w.set("sync", held)
		var all []*process
		for i := range nodes {
			all = append(all, w.start(fmt.Sprint("n", i+1), 1))
		}
		w.towards(all...)
		pass(time.Minute)
		w.mu.Lock()
		under := map[table.Holder]int{}
		for _, c := range w.waiting {
			under[c.Sync.Owner]++
		}
		w.mu.Unlock()
		for _, p := range all {
			if n := under[p.self]; n != maxSyncs {
				t.Errorf("%s has %d standbys put in at a time, and not %d", p.self.Node, n, maxSyncs)
			}
		}
		w.release("sync")
		w.awaitStable()
	})
}
