package handoff

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// flushing starts a third process and cuts it off from the first one while that flushes
// before a Sync. It returns the processes, and a key of which the third one is about to be
// the standby.
func (w *world) flushing() (n []*process, key string) {
	w.t.Helper()
	n = w.cluster(2)
	n = append(n, w.start("n3", 1))
	w.set("sync", refused)
	w.towards(n...)
	key = w.keys(1, staying(n[0], n[2]))[0]
	end := w.agreed().Rows[w.agreed().Find(owner.Hash(key))].End
	w.until("the Sync is proposed", func() bool { return n[0].source.waiting(end) })
	n[0].to(n[2].self).stall()
	n[0].put([]string{key}, 1)
	pass(refusal + stablePoll) // until the next Sync
	return n, key
}

// noticed is how long it takes to notice that a process does not keep up.
const noticed = slowStandby + 2*pollEvery

// TestSyncIsGivenUp: a process that is about to be put in as a standby cannot be reached
// any more, and the leader reaches it. Answers wait for it no longer than for a standby.
func TestSyncIsGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n, key := w.flushing()
		a := n[0].add(key)
		a.pending(t, "a Sync waits for the flush")
		w.set("sync", passes)
		pass(noticed)
		a.checkAnswered(t, "nothing is proposed for a process that does not keep up")
		for range 20 {
			n[0].add(key).checkAnswered(t, "it is not tried again before it keeps up")
			pass(pollEvery)
		}
		n[0].to(n[2].self).flow()
		w.awaitStable()
		w.alike()
	})
}

// TestStandbyIsRemovedBeforeItsSync: the same process is removed. The source forgets it at
// once, and the next process of the node becomes the standby.
func TestStandbyIsRemovedBeforeItsSync(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n, key := w.flushing()
		a := n[0].add(key)
		a.pending(t, "a Sync waits for the flush")
		w.set("sync", passes)
		w.apply(table.Command{Remove: &table.Remove{Members: []table.Holder{n[2].self}, Reason: "died"}})
		a.checkAnswered(t, "the process is no member any more")
		w.awaitStable()
		n[0].source.mu.Lock()
		if n[0].source.plan.links[n[2].self] != nil {
			t.Error("the source still connects to it")
		}
		n[0].source.mu.Unlock()
		w.towards(n[0], n[1], w.start("n3", 2))
		w.awaitStable()
		w.alike()
	})
}

// TestFlipToOneBehind: the target of a flip cannot be reached any more while rows are
// frozen for it. They are served again until it can.
func TestFlipToOneBehind(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(2)
		key := w.keys(1, ownedBy(n[0], n[1]))[0]
		var freezes atomic.Int64
		n[0].source.cfg.Frozen = func(int, time.Duration) { freezes.Add(1) }
		w.set("unsync", held)
		n[0].to(n[1].self).stall()
		n[0].add(key)
		w.drain(n[0], n[1])
		pass(slowStandby / 5)
		n[0].may(key, serving.Frozen, "the row is handed over")
		pass(noticed)
		for range 20 {
			n[0].may(key, serving.Yes, "the target does not keep up")
			pass(7 * time.Millisecond)
		}
		if w.count("flip") > 0 || freezes.Load() != 1 {
			t.Errorf("%d flips are proposed, rows were frozen %d times", w.count("flip"), freezes.Load())
		}
		n[0].to(n[1].self).flow()
		w.release("unsync")
		w.until("the row has moved", func() bool { return len(w.agreed().Moves()) == 0 })
		if got := n[1].holds()[key]; got != 1 {
			t.Errorf("the new owner has %d", got)
		}
	})
}
