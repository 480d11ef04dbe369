package serving

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/keystead/keystead/ring/epoch/table"
)

// TestTrap08TwoSamples: the lease lapsed between the checks and came back, under
// another admission.
func TestTrap08TwoSamples(t *testing.T) {
	tab := ring(t, 2)
	r := acting(t, tab)
	h := tab.Rows[firstOf(tab, n1)].End
	seen := may(t, r, h, 10, Yes)
	tab = grow(t, tab, remove(n1))
	lost := r.Learn(tab)
	if !held(lost, h) {
		t.Errorf("lost: %v", lost)
	}
	again := holder("n1", 2)
	if more := r.Become(again); len(more) > 0 {
		t.Errorf("lost twice: %v", more)
	}
	still(t, r, h, seen, 10, false)
	tab = grow(t, tab, admit("n1", 2))
	tab = grow(t, tab, towards(tab))
	tab = grow(t, tab, flip(tab, n2, again, h))
	r.Learn(tab)
	r.Cleaned(tab.Epoch)
	r.Extend(2000)
	still(t, r, h, seen, 20, false)
	seen = may(t, r, h, 20, Yes)
	still(t, r, h, seen, 30, true)
	// The same in one step: the tables between were in a snapshot.
	one := acting(t, ring(t, 2))
	seen = may(t, one, h, 10, Yes)
	one.Become(again)
	one.Learn(tab)
	one.Cleaned(tab.Epoch)
	one.Extend(2000)
	still(t, one, h, seen, 20, false)
}

// firstOf returns the index of the first row of a member.
func firstOf(t *table.Table, h table.Holder) int {
	for i, r := range t.Rows {
		if r.Owner == h {
			return i
		}
	}
	return -1
}

// TestTrap09TheCheckThatProtects: each thing that can end between May and the
// answer holds the answer back.
func TestTrap09TheCheckThatProtects(t *testing.T) {
	_, begun, moves, stays := joining(t)
	h := moves[0]
	t.Run("the lease", func(t *testing.T) {
		r := acting(t, begun)
		seen := may(t, r, h, 999, Yes)
		still(t, r, h, seen, 999, true)
		still(t, r, h, seen, 1000, false)
		may(t, r, h, 1000, NoLease)
		r.Extend(0)
		still(t, r, h, seen, 999, false)
	})
	t.Run("the row", func(t *testing.T) {
		r := acting(t, begun)
		seen := may(t, r, h, 1, Yes)
		lost := r.Learn(grow(t, begun, flip(begun, n1, n3, h)))
		still(t, r, h, seen, 1, false)
		if len(lost) > 0 { // it is to stand by for the row
			t.Errorf("lost: %v", lost)
		}
		may(t, r, h, 1, NotOwner)
	})
	t.Run("the handover", func(t *testing.T) {
		r := acting(t, begun)
		seen := may(t, r, h, 1, Yes)
		if froze := r.Freeze(begun.Transition.ID, n3, moves); len(froze) != len(moves) {
			t.Errorf("%d of %d rows were frozen", len(froze), len(moves))
		}
		may(t, r, h, 1, Frozen)
		still(t, r, h, seen, 1, true) // what is in may get out
		r.Close(n2)
		still(t, r, h, seen, 1, true)
		r.Close(n3)
		still(t, r, h, seen, 1, false)
		may(t, r, stays[0], 1, Yes)
	})
	t.Run("nothing", func(t *testing.T) {
		r := acting(t, begun)
		r.Quiet()
		seen := begun.Epoch
		may(t, r, h, 1, Frozen)
		still(t, r, h, seen, 1, true)
	})
}

// TestTrap10DiscardOnLapse: a lapse silences the node and discards nothing.
func TestTrap10DiscardOnLapse(t *testing.T) {
	tab := ring(t, 2)
	r := acting(t, tab)
	h := tab.Rows[firstOf(tab, n1)].End
	seen := may(t, r, h, 1, Yes)
	may(t, r, h, 5000, NoLease)
	if lost := r.Learn(grow(t, tab, table.Command{Raise: &table.Raise{Above: tab.Epoch}})); len(lost) > 0 {
		t.Errorf("a lapse lost %v", lost)
	}
	r.Extend(6000)
	may(t, r, h, 5000, Yes)
	still(t, r, h, seen, 5000, true)
}

// TestTrap24UnrelatedCommit: what does not concern the row holds no answer back.
func TestTrap24UnrelatedCommit(t *testing.T) {
	settled, begun, moves, stays := joining(t)
	r := acting(t, settled)
	seen := may(t, r, stays[0], 1, Yes)
	tab := begun
	for _, next := range []*table.Table{
		begun,
		grow(t, tab, flip(begun, n1, n3, moves...)),
		grow(t, tab, flip(begun, n1, n3, moves...), remove(n2)),
		grow(t, tab, flip(begun, n1, n3, moves...), remove(n2), remove(n3)),
	} {
		r.Learn(next)
		still(t, r, stays[0], seen, 1, true)
		if next != begun {
			still(t, r, moves[0], seen, 1, false)
		}
	}
}

// TestRowThatComesBack: the node acts for it when what it held of it is gone.
func TestRowThatComesBack(t *testing.T) {
	_, begun, moves, stays := joining(t)
	gone := grow(t, begun, flip(begun, n1, n3, moves...))
	back := grow(t, gone, remove(n3))
	h := moves[0]
	t.Run("seen to go", func(t *testing.T) {
		r := acting(t, begun)
		if lost := r.Learn(gone); len(lost) > 0 { // it is to stand by for the row
			t.Errorf("lost: %v", lost)
		}
		if lost := r.Learn(back); !held(lost, h) || held(lost, stays[0]) { // the loss is declared
			t.Errorf("lost by getting it: %v", lost)
		}
		may(t, r, h, 1, Frozen)
		may(t, r, stays[0], 1, Yes)
		r.Cleaned(gone.Epoch)
		may(t, r, h, 1, Frozen)
		r.Cleaned(back.Epoch)
		may(t, r, h, 1, Yes)
	})
	t.Run("in a snapshot", func(t *testing.T) {
		r := acting(t, begun)
		seen := may(t, r, h, 1, Yes)
		r.Freeze(begun.Transition.ID, n3, moves)
		r.Close(n3)
		if lost := r.Learn(back); !held(lost, h) || held(lost, stays[0]) {
			t.Errorf("lost: %v", lost)
		}
		still(t, r, h, seen, 1, false)
		may(t, r, h, 1, Frozen)
		r.Cleaned(back.Epoch)
		may(t, r, h, 1, Yes)
	})
}

// TestFreezeEndsWhenTheFlipCannotHappen and not before.
func TestFreezeEndsWhenTheFlipCannotHappen(t *testing.T) {
	settled, begun, moves, stays := joining(t)
	h, id := moves[0], begun.Transition.ID
	r := acting(t, begun)
	for name, froze := range map[string][]uint64{
		"a row that stays":   r.Freeze(id, n3, stays[:1]),
		"no end of a row":    r.Freeze(id, n3, []uint64{h - 1}),
		"another transition": r.Freeze(id-1, n3, moves),
		"another target":     r.Freeze(id, n2, moves),
		"a target that was":  r.Freeze(id, holder("n3", 7), moves),
		"to itself":          r.Freeze(id, n1, stays),
	} {
		if len(froze) > 0 {
			t.Errorf("%s: %d rows were frozen", name, len(froze))
		}
	}
	may(t, r, h, 1, Yes)
	r.Freeze(id, n3, moves)
	r.Close(n3)
	tab := grow(t, begun, admit("n4", 1))
	r.Learn(tab)
	may(t, r, h, 1, Frozen)
	still(t, r, h, tab.Epoch, 1, false)
	r.Extend(0) // a lapse ends no freeze
	r.Extend(1000)
	may(t, r, h, 1, Frozen)
	tab = grow(t, tab, remove(n3))
	if lost := r.Learn(tab); len(lost) > 0 {
		t.Errorf("lost: %v", lost)
	}
	seen := may(t, r, h, 1, Yes)
	still(t, r, h, seen, 1, true)
	// Not in a transition at all.
	if froze := acting(t, settled).Freeze(settled.Epoch, n2, stays); len(froze) > 0 {
		t.Errorf("%d rows were frozen without a transition", len(froze))
	}
}

// TestRange tells which positions lie in a range.
func TestRange(t *testing.T) {
	const top = 1<<64 - 1
	for _, c := range []struct {
		r    Range
		in   []uint64
		out  []uint64
		name string
	}{
		{name: "within", r: Range{10, 20}, in: []uint64{11, 20}, out: []uint64{10, 21, 0, top}},
		{name: "around the end", r: Range{top - 1, 5}, in: []uint64{top, 0, 5}, out: []uint64{top - 1, 6}},
		{name: "up to the end", r: Range{5, top}, in: []uint64{6, top}, out: []uint64{5, 0}},
		{name: "all", r: Range{7, 7}, in: []uint64{0, 6, 7, 8, top}},
		{name: "one", r: Range{top, 0}, in: []uint64{0}, out: []uint64{top, 1}},
	} {
		for _, h := range c.in {
			if !c.r.Holds(h) {
				t.Errorf("%s: %d is out", c.name, h)
			}
		}
		for _, h := range c.out {
			if c.r.Holds(h) {
				t.Errorf("%s: %d is in", c.name, h)
			}
		}
	}
}

// TestReadersAndWriters lets a node be removed and admitted again and again,
// while readers ask. What one incarnation let in, none lets out after its lease,
// however the reader is interleaved with what happens.
func TestReadersAndWriters(t *testing.T) {
	base := ring(t, 1)
	h := base.Rows[0].End
	r := acting(t, base)
	const rounds, life, lapse, commits = 400, 100, 50, 4
	var clock atomic.Int64
	r.Extend(lapse)
	var readers sync.WaitGroup
	var out atomic.Int64
	for range 4 {
		readers.Go(func() {
			for {
				now := clock.Load()
				if now >= rounds*life {
					return
				}
				_, seen, v := r.May(h, now)
				runtime.Gosched()
				later := clock.Load()
				if !r.Still(h, seen, later) || v != Yes {
					continue
				}
				out.Add(1)
				if round := int64(seen-base.Epoch) / commits; round != later/life || later%life >= lapse {
					t.Errorf("let in by incarnation %d and out at %d", round+1, later)
				}
			}
		})
	}
	tab, self := base, n1
	for i := range int64(rounds) {
		for s := range int64(life) {
			clock.Store(i*life + s)
			if s%10 == 0 {
				runtime.Gosched()
			}
		}
		clock.Store((i+1)*life - 1)
		tab = grow(t, tab, remove(self))
		lost := r.Learn(tab)
		self.Incarnation++
		r.Become(self)
		tab = grow(t, tab, admit("n1", self.Incarnation))
		tab = grow(t, tab, towards(tab))
		tab = grow(t, tab, end(tab))
		r.Learn(tab)
		if len(lost) == 0 || r.Self() != self || r.Until() != 0 {
			t.Errorf("lost %v, is %v until %d", lost, r.Self(), r.Until())
		}
		clock.Store((i + 1) * life)
		r.Cleaned(tab.Epoch)
		r.Extend((i+1)*life + lapse)
	}
	clock.Store(rounds * life)
	readers.Wait()
	t.Logf("%d answers went out", out.Load())
}

// TestAsksAllocateNothing: they are asked for every request.
func TestAsksAllocateNothing(t *testing.T) {
	tab := ring(t, 3)
	r := acting(t, tab)
	h := uint64(0)
	if n := testing.AllocsPerRun(1000, func() {
		h += 1 << 54
		_, seen, _ := r.May(h, 1)
		r.Still(h, seen, 1)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkMay(b *testing.B) {
	r := acting(b, ring(b, 8))
	b.ReportAllocs()
	for h := uint64(0); b.Loop(); h += 0x9E3779B97F4A7C15 {
		r.May(h, 1)
	}
}

func BenchmarkStill(b *testing.B) {
	r := acting(b, ring(b, 8))
	seen := r.Table().Epoch
	b.ReportAllocs()
	for h := uint64(0); b.Loop(); h += 0x9E3779B97F4A7C15 {
		r.Still(h, seen, 1)
	}
}

func BenchmarkLearn(b *testing.B) {
	_, begun, moves, _ := joining(b)
	next := grow(b, begun, flip(begun, n1, n3, moves...))
	b.ReportAllocs()
	for b.Loop() {
		r := New(n1)
		r.Learn(begun)
		r.Learn(next)
	}
}

// TestThaw: rows that were not closed are let in again.
func TestThaw(t *testing.T) {
	_, begun, moves, _ := joining(t)
	r := acting(t, begun)
	r.Freeze(begun.Transition.ID, n3, moves)
	may(t, r, moves[0], 1, Frozen)
	r.Thaw(n3)
	may(t, r, moves[0], 1, Yes)
	r.Freeze(begun.Transition.ID, n3, moves)
	r.Close(n3)
	r.Thaw(n3)
	may(t, r, moves[0], 1, Frozen)
}

// TestReopen: rows that were closed for a flip that was refused may be thawed, by a rule
// that goes by the table in which it was refused. One that is behind does not know yet
// whether the rows are its own.
func TestReopen(t *testing.T) {
	_, begun, moves, _ := joining(t)
	r := acting(t, begun)
	r.Freeze(begun.Transition.ID, n3, moves)
	r.Close(n3)
	if r.Reopen(n3, begun.Epoch+1) {
		t.Error("opened by a table from before the refusal")
	}
	r.Thaw(n3)
	may(t, r, moves[0], 1, Frozen)
	if !r.Reopen(n3, begun.Epoch) {
		t.Error("not opened")
	}
	may(t, r, moves[0], 1, Frozen)
	r.Thaw(n3)
	may(t, r, moves[0], 1, Yes)
}

// TestAwaitClean: one that waits for what is to be discarded is woken when it is, also if that
// came just before, and by no earlier epoch.
func TestAwaitClean(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(holder("n1", 1))
		r.Cleaned(3)
		if err := r.AwaitClean(t.Context(), 3); err != nil {
			t.Error(err)
		}
		over, cancel := context.WithCancel(t.Context())
		given := make(chan error, 1)
		go func() { given <- r.AwaitClean(over, 9) }()
		done := make(chan error, 2)
		for range 2 {
			go func() { done <- r.AwaitClean(t.Context(), 5) }()
		}
		r.Cleaned(4)
		synctest.Wait()
		if len(done) > 0 {
			t.Error("epoch 4 is clean, and 5 was waited for")
		}
		r.Cleaned(6)
		synctest.Wait()
		if len(done) != 2 || len(given) > 0 {
			t.Errorf("%d of 2 were woken; %d that wait for a later epoch", len(done), len(given))
		}
		cancel()
		if err := <-given; !errors.Is(err, context.Canceled) {
			t.Errorf("given up: %v", err)
		}
	})
}
