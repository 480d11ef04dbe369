package handoff

import (
	"testing"
	"time"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/reqid"
)

// TestTrap16AnswersWait: no answer is told before the standby has what it speaks
// of, be it a change, a refusal, a read or the repetition of an answer; answers
// about other objects do not wait for it.
func TestTrap16AnswersWait(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(2)
		k := w.keys(2, ownedBy(n[0], n[1]))
		key, other := k[0], k[1]
		n[0].put(k, 5)
		n[0].add(other).checkAnswered(t, "nothing is on its way")
		wire := n[0].to(n[1].self)
		wire.stall()
		id := reqid.ID{Client: reqid.Client{Lo: 1}, Sequence: 1}
		grow := func(now int64) (owner.Meta, error) {
			a, err := n[0].store.Add(now, ref(key), id, counter.AddOp{Delta: 1})
			return a.Meta, err
		}
		answers := map[string]*answer{"the change": n[0].ask(grow), "its repetition": n[0].ask(grow)}
		answers["a refusal"] = n[0].ask(func(now int64) (owner.Meta, error) {
			a, err := n[0].store.Add(now, ref(key), reqid.ID{}, counter.AddOp{Delta: 1, Max: 6, HasMax: true})
			if a.Applied {
				t.Error("it was not refused")
			}
			return a.Meta, err
		})
		answers["a read"] = n[0].ask(func(now int64) (owner.Meta, error) {
			a, err := n[0].store.Get(now, ref(key))
			return a.Meta, err
		})
		if n[0].source.Replicated(owner.Hash(key)) {
			t.Error("all was told, although the record is on its way")
		}
		read := n[0].ask(func(now int64) (owner.Meta, error) {
			a, err := n[0].store.Get(now, ref(other))
			return a.Meta, err
		})
		read.checkAnswered(t, "the standby has all of this object")
		for what, a := range answers {
			a.pending(t, what+" speaks of what the standby does not have")
		}
		wire.flow()
		for what, a := range answers {
			a.checkAnswered(t, what+" speaks of what the standby has")
		}
		if got := n[1].holds()[key]; got != 6 {
			t.Errorf("the standby has %d", got)
		}
	})
}

// TestAwaitEndsWithTheLease: one that cannot be told any more does not wait for ever.
func TestAwaitEndsWithTheLease(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(2)
		w.set("unsync", held)
		n[0].to(n[1].self).stall()
		a := n[0].add(w.keys(1, ownedBy(n[0], n[1]))[0])
		pass(time.Second)
		a.pending(t, "the standby has not acknowledged it")
		n[0].rule.Extend(0)
		pass(2 * pollEvery)
		select {
		case <-a.done:
			if a.err == nil {
				t.Error("it was confirmed without a lease")
			}
		default:
			t.Error("it waits without a lease")
		}
	})
}

// TestSlowStandby: a standby that does not keep up is taken out, and answers go on
// without it when this is agreed and the node goes by the table that says so, not
// before.
func TestSlowStandby(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(2)
		keys := w.keys(50, ownedBy(n[0], n[1]))
		n[0].put(keys, 1)
		w.set("unsync", held)
		n[0].to(n[1].self).stall()
		a := n[0].add(keys[0])
		pass(slowStandby - 2*pollEvery)
		if w.count("unsync") > 0 {
			t.Error("the standby is taken out before it is slow")
		}
		pass(10 * time.Second)
		if w.count("unsync") == 0 {
			t.Fatal("the standby is not taken out")
		}
		a.pending(t, "it is undecided whether the standby is taken out")
		n[0].deafen()
		w.release("unsync")
		pass(time.Second)
		a.pending(t, "the node does not go by the table that takes the standby out")
		n[0].hear()
		a.checkAnswered(t, "the standby is out")
		n[0].add(keys[0]).checkAnswered(t, "there is no standby")

		// It comes back with a new copy.
		n[0].to(n[1].self).flow()
		w.awaitStable()
		w.alike()
	})
}

// TestStandbyFails: a stream that has failed keeps answers waiting as a slow one
// does.
func TestStandbyFails(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(2)
		keys := w.keys(50, ownedBy(n[0], n[1]))
		n[0].put(keys, 1)
		n[0].add(keys[0]).checkAnswered(t, "the standby is there")
		w.set("unsync", held)
		n[1].target.Intake.Forget(n[0].self)
		n[0].to(n[1].self).cut()
		a := n[0].add(keys[0])
		pass(time.Second)
		a.pending(t, "the standby is not out")
		if w.count("unsync") == 0 {
			t.Error("the standby is not taken out")
		}
		w.release("unsync")
		a.checkAnswered(t, "the standby is out")
		w.awaitStable()
		w.alike()
	})
}

// TestDeafKeepsStandby: a node that hears nobody, the standby's acknowledgements
// included, does not take the standby out, which is what will be left of it.
func TestDeafKeepsStandby(t *testing.T) {
	slow := func(from, to *process) { from.to(to.self).stall() }
	failed := func(from, to *process) {
		to.target.Intake.Forget(from.self)
		from.to(to.self).cut()
	}
	for what, happens := range map[string]func(from, to *process){"slow": slow, "failed": failed} {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				n := w.cluster(2)
				n[0].unheard.Store(true)
				happens(n[0], n[1])
				a := n[0].add(w.keys(1, ownedBy(n[0], n[1]))[0])
				pass(2 * slowStandby)
				if w.count("unsync") > 0 {
					t.Error("it is taken out, and it may be the node itself that is cut off")
				}
				a.pending(t, "the standby does not have it")
				n[0].unheard.Store(false)
				pass(time.Second)
				a.checkAnswered(t, "it is the standby that is cut off")
			})
		})
	}
}

// TestUnsyncOfUnknownOutcome: a proposal whose outcome is unknown is made again, and
// answers wait until the table tells.
func TestUnsyncOfUnknownOutcome(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(2)
		n[0].to(n[1].self).stall()
		w.set("unsync", lost)
		n[0].deafen()
		a := n[0].add(w.keys(1, ownedBy(n[0], n[1]))[0])
		pass(time.Second)
		if w.count("unsync") < 2 {
			t.Error("it was not proposed again")
		}
		a.pending(t, "the node does not know what became of the proposal")
		w.set("unsync", passes)
		n[0].hear()
		a.checkAnswered(t, "the standby is out")
	})
}
