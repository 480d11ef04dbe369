package handoff

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// drain begins to give away all that a process has.
func (w *world) drain(p *process, to ...*process) {
	w.t.Helper()
	w.apply(table.Command{Drain: &table.Drain{Member: p.self}})
	w.towards(to...)
}

// may checks what the rule of a process says about a key.
func (p *process) may(key string, want serving.Verdict, why string) {
	p.w.t.Helper()
	synctest.Wait()
	if _, _, got := p.rule.May(owner.Hash(key), p.w.now()); got != want {
		p.w.t.Errorf("May(%s) at %s is %d, and not %d, although %s", key, p.self.Node, got, want, why)
	}
}

// TestFlipWaitsForFlush: a flip is proposed when the target has acknowledged what
// was decided before the freeze, and answers have left that may.
func TestFlipWaitsForFlush(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(2)
		key := w.keys(1, ownedBy(n[0], n[1]))[0]
		theirs := w.keys(1, ownedBy(n[1], n[0]))[0]
		n[0].to(n[1].self).stall()
		a := n[0].add(key)
		w.drain(n[0], n[1])
		time.Sleep(slowStandby / 2)
		n[0].may(key, serving.Frozen, "the row is handed over")
		n[1].may(theirs, serving.Yes, "the row does not move")
		if w.count("flip") > 0 {
			t.Error("the flip is proposed, and the target has not acknowledged everything")
		}
		a.pending(t, "it is not acknowledged")
		n[0].to(n[1].self).flow()
		a.checkAnswered(t, "the target has it, and the row is not closed yet")
		w.until("the row has moved", func() bool { return len(w.agreed().Moves()) == 0 })
		n[1].add(key).checkAnswered(t, "the row is its own")
		if got := n[1].holds()[key]; got != 2 {
			t.Errorf("the new owner has %d", got)
		}
	})
}

// TestFlipIsGivenUp: if the stream to the target fails before it has acknowledged
// everything, nothing is proposed and the rows are served again.
func TestFlipIsGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(2)
		key := w.keys(1, ownedBy(n[0], n[1]))[0]
		n[0].add(key).checkAnswered(t, "nothing is stalled")
		w.set("unsync", held)
		n[0].to(n[1].self).stall()
		n[0].add(key)
		w.drain(n[0], n[1])
		time.Sleep(slowStandby / 5)
		n[0].may(key, serving.Frozen, "the row is handed over")
		n[1].target.Intake.Forget(n[0].self)
		n[0].to(n[1].self).cut()
		n[0].to(n[1].self).flow()
		time.Sleep(slowStandby)
		n[0].may(key, serving.Yes, "the target does not have all of the row")
		if w.count("flip") > 0 {
			t.Error("a flip is proposed")
		}
		w.release("unsync")
		w.until("the row has moved", func() bool { return len(w.agreed().Moves()) == 0 })
		if got := n[1].holds()[key]; got != 2 {
			t.Errorf("the new owner has %d", got)
		}
	})
}

// TestFlipOfOneThatWasRemoved: the rule of a process that was removed is another
// incarnation's before the source learns of it. What is ready to be handed over cannot be,
// and is not tried without end. It runs in real time: in a bubble's it would not pass.
func TestFlipOfOneThatWasRemoved(t *testing.T) {
	w := newWorld(t)
	n := w.cluster(2)
	w.set("flip", held)
	n3 := w.start("n3", 3)
	n[0].to(n3.self).stall()
	w.towards(n[0], n[1], n3)
	caught := func(is bool) func() bool {
		return func() bool {
			return slices.ContainsFunc(n[0].source.Progress().Copies, func(c Copy) bool { return c.To == "n3" && c.Caught == is })
		}
	}
	w.until("a copy is being made", caught(false))
	w.mu.Lock()
	n[0].deaf = true
	w.mu.Unlock()
	n[0].rule.Become(table.Holder{Node: "n1", Incarnation: 99})
	n[0].to(n3.self).flow()
	w.until("the copy is whole", caught(true))
	const while = 200 * time.Millisecond
	before := w.looks.Load()
	<-time.After(while)
	if looks, most := w.looks.Load()-before, int64(10*while/proposePause); looks > most {
		t.Errorf("clocks are looked at %d times in %s, more than %d", looks, while, most)
	}
}

// TestFlipWaitsForLocks: an operation that was let in before the freeze has made its
// record before the flip is proposed. It runs in real time, because a shard is
// locked.
func TestFlipWaitsForLocks(t *testing.T) {
	w := newWorld(t)
	n := w.cluster(2)
	key := w.keys(1, ownedBy(n[0], n[1]))[0]
	within, on, flipped := make(chan struct{}), make(chan struct{}), make(chan struct{}, 100)
	w.set("flip", held)
	w.set("unsync", held) // so that no table has anything discarded, which would wait for the lock
	n[0].into = func(*owner.Record) { close(within); <-on }
	w.watch(func(c table.Command) {
		if c.Flip != nil {
			select {
			case flipped <- struct{}{}:
			default:
			}
		}
	})
	done := make(chan error, 1)
	go func() {
		_, err := n[0].store.Add(w.now(), ref(key), reqid.ID{}, counter.AddOp{Delta: 1})
		done <- err
	}()
	<-within
	w.drain(n[0], n[1])
	w.until("the row is frozen", func() bool {
		_, _, v := n[0].rule.May(owner.Hash(key), w.now())
		return v == serving.Frozen
	})
	select {
	case <-flipped:
		t.Error("the flip is proposed, and an operation is under way")
	case <-time.After(slowStandby):
	}
	close(on)
	if err := <-done; err != nil {
		t.Error(err)
	}
	w.release("flip")
	w.until("the row has moved", func() bool { return len(w.agreed().Moves()) == 0 })
	if got := n[1].holds()[key]; got != 1 {
		t.Errorf("the new owner has %d", got)
	}
}

// TestFlipIsClosed: when a flip is proposed nothing is let in or out for its rows
// any more, and for others as before.
func TestFlipIsClosed(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(2)
		n = append(n, w.start("n3", 1))
		w.set("sync", held)
		w.set("flip", held)
		seen := w.agreed().Epoch
		flips := 0
		w.watch(func(c table.Command) {
			if c.Flip == nil || c.Flip.From != n[0].self {
				return
			}
			flips++
			ends := map[uint64]bool{}
			for _, end := range c.Flip.Ends {
				ends[end] = true
			}
			for _, r := range w.table.Rows {
				_, _, v := n[0].rule.May(r.End, w.now())
				still := n[0].rule.Still(r.End, seen, w.now())
				if r.Owner == n[0].self && (v == serving.Yes) == ends[r.End] {
					t.Errorf("May is %d for a row that moves: %v", v, ends[r.End])
					return
				}
				if r.Owner == n[0].self && still == ends[r.End] {
					t.Errorf("Still is %v for a row that moves: %v", still, ends[r.End])
					return
				}
			}
		})
		w.towards(n...)
		w.until("a flip is proposed", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return flips > 0 })
	})
}

// TestTrap19FrozenUntilATable: whatever the source is told of its proposal, and
// however long it takes, only a table unfreezes.
func TestTrap19FrozenUntilATable(t *testing.T) {
	for name, f := range map[string]fate{"held": held, "refused": refused} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				n := w.cluster(2)
				key := w.keys(1, ownedBy(n[0], n[1]))[0]
				w.set("flip", f)
				w.drain(n[0], n[1])
				w.until("the flip is proposed", func() bool { return w.count("flip") > 0 })
				time.Sleep(5 * time.Second)
				n[0].may(key, serving.Frozen, "no table says that the flip cannot happen")
				w.apply(table.Command{Remove: &table.Remove{Members: []table.Holder{n[1].self}}})
				n[0].may(key, serving.Yes, "the target is gone")
			})
		})
	}
	t.Run("lost", func(t *testing.T) {
		bubble(t, func(t *testing.T, w *world) {
			n := w.cluster(2)
			key := w.keys(1, ownedBy(n[0], n[1]))[0]
			w.set("flip", lost)
			w.watch(func(c table.Command) { n[0].deaf = n[0].deaf || c.Flip != nil })
			w.drain(n[0], n[1])
			time.Sleep(5 * time.Second)
			n[0].may(key, serving.Frozen, "the flip has happened")
			n[1].may(key, serving.Yes, "the flip has happened")
			n[0].hear()
			n[0].may(key, serving.NotOwner, "the flip has happened")
		})
	})
}

// TestTrap20TargetRestarts: a flip to a process that has restarted since it
// acknowledged everything does not happen, and nothing is lost.
func TestTrap20TargetRestarts(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(2)
		n = append(n, w.start("n3", 1))
		w.set("flip", held)
		keys := w.keys(200, func(_ *table.Table, r *table.Row) bool { return r.Owner == n[0].self })
		n[0].put(keys, 1) // before rows may be frozen
		w.towards(n...)
		t1 := w.agreed()
		keys = slices.DeleteFunc(keys, func(k string) bool { return !moving(n[0], n[2])(t1, &t1.Rows[t1.Find(owner.Hash(k))]) })
		if len(keys) == 0 {
			t.Fatal("none of the keys moves")
		}
		w.until("flips are proposed", func() bool { return w.count("flip") > 1 })
		n[2].deafen()
		w.apply(table.Command{Remove: &table.Remove{Members: []table.Holder{n[2].self}}})
		again := w.start("n3", 2)
		w.awaitStable()
		w.towards(n[0], n[1], again)
		if refusals := w.release("flip"); len(refusals) == 0 {
			t.Error("the flips were not refused")
		}
		w.awaitStable()
		w.alike()
		have := again.holds()
		for _, k := range keys {
			if have[k] != 1 {
				t.Fatalf("%s is %d at the owner", k, have[k])
			}
		}
	})
}

// TestTrap25NewOwnerIsAhead: what a new owner decides is not told before the one of
// before, which stands by now, goes by the table that makes it so.
func TestTrap25NewOwnerIsAhead(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(2)
		n = append(n, w.start("n3", 1))
		w.watch(func(c table.Command) { n[0].deaf = n[0].deaf || c.Flip != nil && c.Flip.From == n[0].self })
		w.towards(n...)
		key := w.keys(1, moving(n[0], n[2]))[0]
		w.until("the row has moved", func() bool { return w.agreed().Rows[w.agreed().Find(owner.Hash(key))].Owner == n[2].self })
		a := n[2].add(key)
		a.pending(t, "its standby does not know that it stands by")
		n[0].hear()
		w.watch(nil)
		a.checkAnswered(t, "its standby has it")
		if got := n[0].holds()[key]; got != 1 {
			t.Errorf("the standby has %d", got)
		}
	})
}

// TestMisplaced: the new standbys of a join take longer than the leader waits, and an
// owner dies. What its old standbys own now is copied to where the ring wants it as soon
// as a transition says so, and every row has a standby.
func TestMisplaced(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(2)
		w.set("sync", held)
		n3 := w.start("n3", 1)
		w.towards(n[0], n[1], n3)
		w.until("rows have moved", func() bool { return len(w.agreed().Moves()) == 0 })
		w.apply(table.Command{End: &table.End{Transition: w.agreed().Transition.ID}})
		w.apply(table.Command{Remove: &table.Remove{Members: []table.Holder{n[0].self}, Reason: "died"}})
		bare := 0
		for _, r := range w.agreed().Rows {
			if r.Standby.None() {
				bare++
			}
		}
		if counted := w.agreed().Unprotected(); counted < bare {
			t.Errorf("%d rows have no standby, and %d are counted", bare, counted)
		}
		w.release("sync")
		pass(time.Minute)
		want := w.agreed().Plan(len(w.agreed().Moves()), func(table.Member) bool { return true })
		if len(want) == 0 {
			t.Fatalf("nothing is planned for %d rows that stand elsewhere", len(w.agreed().Moves()))
		}
		w.apply(table.Command{Begin: &table.Begin{Want: want}})
		w.awaitStable()
	})
}

// TestRefusedFlipIsOpened: a flip is refused, and before it is proposed again the target
// forgets what it had. While the rows are copied anew, however long that takes, the source
// serves them.
func TestRefusedFlipIsOpened(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(2)
		key := w.keys(1, ownedBy(n[0], n[1]))[0]
		n[0].add(key).checkAnswered(t, "nothing is stalled")
		w.set("flip", refused)
		w.drain(n[0], n[1])
		w.until("the flip is proposed", func() bool { return w.count("flip") > 0 })
		w.set("unsync", held) // until then nothing is copied anew
		n[1].target.Intake.Forget(n[0].self)
		n[0].to(n[1].self).cut()
		pass(10 * time.Second)
		n[0].may(key, serving.Yes, "no attempt of the flip can take effect any more")
		n[0].put([]string{key}, 1)
		w.set("flip", passes)
		w.release("unsync")
		w.until("the rows have moved", func() bool { return len(w.agreed().Moves()) == 0 })
		if got := n[1].holds()[key]; got != 2 {
			t.Errorf("the new owner has %d", got)
		}
	})
}
