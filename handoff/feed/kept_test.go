package feed

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// kept checks how far the target's disk is, as the sender knows it.
func (s *Sender) checkKept(t *testing.T, want uint64, why string) {
	t.Helper()
	synctest.Wait()
	if got := s.Kept(); got != want {
		t.Errorf("%d of %d are kept, want %d: %s", got, s.Last(), want, why)
	}
}

// TestKept: a round of the target's disk is told when it is synced, though no record comes, and
// has what was installed when it began.
func TestKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newTarget(t, nil)
		s := newSender(t, newWires(t, g, 0), nil)
		for i := range 3 {
			soon(t, s, put(s, fmt.Sprint(i)))
		}
		s.checkKept(t, 0, "there was no round")
		done := s.KeptDone(3)
		synced := g.intake.Note()
		soon(t, s, put(s, "later"))
		s.checkKept(t, 0, "the round is not synced")
		synced()
		s.checkKept(t, 3, "the round has three of them")
		select {
		case <-done:
		default:
			t.Error("somebody still waits")
		}
		synced() // a caller that says so again changes nothing
		older := g.intake.Note()
		g.intake.Note()()
		s.checkKept(t, 4, "the next round has all")
		older()
		s.checkKept(t, 4, "a round that was noted before takes nothing back")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		put(s, "last")
		if err := s.WaitKept(ctx, 4); err != nil {
			t.Error(err)
		}
		if err := s.WaitKept(ctx, 5); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		s.Close()
		if err := s.WaitKept(t.Context(), 5); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	})
}

// TestKeptOfACopy: a round that began before a copy did tells nothing of the copy, although it
// finds part of it; nor of a record that was being installed.
func TestKeptOfACopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newTarget(t, nil)
		s := newSender(t, newWires(t, g, 0), nil)
		soon(t, s, put(s, "before"))
		synced := g.intake.Note()
		begin := s.Begin([]serving.Range{{After: 1, UpTo: 2}})
		put(s, "object")
		soon(t, s, s.Versions(9))
		synced()
		s.checkKept(t, begin-1, "the copy began while the round went on")
		g.shut()
		under := put(s, "under way")
		synctest.Wait()
		synced = g.intake.Note()
		g.open()
		soon(t, s, under)
		synced()
		s.checkKept(t, under-1, "it was being installed when the round began")
	})
}

// TestKeptIsToldAgain: a connection that breaks loses no word of the disk, and a new session has
// heard none.
func TestKeptIsToldAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newTarget(t, nil)
		w := newWires(t, g, 0)
		s := newSender(t, w, nil)
		soon(t, s, put(s, "a"))
		w.lift(false)
		w.breakAll()
		time.Sleep(time.Second)
		g.intake.Note()()
		s.checkKept(t, 0, "the target cannot be reached")
		w.lift(true)
		time.Sleep(time.Second)
		s.checkKept(t, 1, "it can again")

		soon(t, s, put(s, "b"))
		synced := g.intake.Note()
		s.Close()
		next := newSender(t, w, func(c *SenderConfig) { c.Session = 2 })
		for range 5 {
			soon(t, next, put(next, "c"))
		}
		synced()
		next.checkKept(t, 0, "that was of the session before")
		g.intake.Note()()
		next.checkKept(t, 5, "this is of the session")
	})
}

// TestUrgent: a batch with a record of which answers wait for the target's disk asks for a round,
// and so do the end of a copy and a fence; others do not.
func TestUrgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		g := newTarget(t, func(c *IntakeConfig) { c.Urgent = func() { asked++ } })
		s := newSender(t, newWires(t, g, 0), func(c *SenderConfig) {
			c.Always = func(k owner.Kind) bool { return k == owner.KindLock }
		})
		appends := func(k owner.Kind, hash uint64) uint64 {
			return s.Append(&owner.Record{Kind: k, Hash: hash, Key: []byte("x")}, 0)
		}
		for what, row := range map[string]struct {
			do   func() uint64
			asks bool
		}{
			"a lock":    {func() uint64 { return appends(owner.KindLock, 7) }, true},
			"a counter": {func() uint64 { return appends(owner.KindCounter, 7) }, false},
			"a copy":    {func() uint64 { return s.Begin([]serving.Range{{After: 1, UpTo: 2}}) }, false},
			"its end":   {func() uint64 { return s.Versions(3) }, true},
			"a fence":   {s.Fence, true},
		} {
			was := asked
			soon(t, s, row.do())
			if got := asked - was; got != 0 != row.asks {
				t.Errorf("%s asked for %d rounds", what, got)
			}
		}
	})
}

// TestLastAlways: it is known which record of an object was the last that has to be on disk.
func TestLastAlways(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSender(t, newWires(t, newTarget(t, nil), 0), func(c *SenderConfig) {
			c.Always = func(k owner.Kind) bool { return k == owner.KindLock }
		})
		check := func(hash, want, urgent uint64, why string) {
			t.Helper()
			if got, all := s.LastAlways(hash), s.LastUrgent(); got != want || all != urgent {
				t.Errorf("%d and %d, want %d and %d: %s", got, all, want, urgent, why)
			}
		}
		check(1, 0, 0, "there is none")
		s.Append(&owner.Record{Kind: owner.KindCounter, Hash: 1}, 0)
		check(1, 0, 0, "nobody waits for counters")
		s.Append(&owner.Record{Kind: owner.KindLock, Hash: 1}, 0)
		check(1, 2, 2, "a lock has changed")
		check(2, 0, 2, "not there")
		s.Append(&owner.Record{Kind: owner.KindCounter, Hash: 1}, 0)
		check(1, 2, 2, "nobody waits for counters")
		s.Versions(1)
		check(1, 2, 4, "the end of a copy is of no object")
		s.Fence()
		check(1, 5, 5, "what was there before the stream, too")
		check(2, 5, 5, "what was there before the stream, too")
		s.Append(&owner.Record{Kind: owner.KindAdmission, Hash: 2, Beside: []owner.Record{{Kind: owner.KindCounter}, {Kind: owner.KindLock}}}, 0)
		check(2, 6, 6, "the step has changed a lock beside")
		s.Append(&owner.Record{Kind: owner.KindAdmission, Hash: 2, Beside: []owner.Record{{Kind: owner.KindCounter}}}, 0)
		check(2, 6, 6, "nobody waits for counters")
	})
}

// TestKeptBehind: how long a disk is behind is known, and no more remembered for that than a
// bounded list, however long it is.
func TestKeptBehind(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var m marks
		sent := map[uint64]int64{}
		now, last, kept, peak := int64(1), uint64(0), uint64(0), int64(0)
		for range 5000 {
			now += rnd.Int64N(int64(time.Duration(1+seed) * time.Millisecond))
			last++
			sent[last] = now
			m.add(last, now)
			m.add(uint64(rnd.Int64N(int64(last)))+1, now) // sent again
			if rnd.IntN(int(10*(seed+1))) == 0 {
				kept += uint64(rnd.Int64N(int64(last-kept) + 1))
				m.keep(kept)
			}
			want := int64(0)
			if kept < last {
				want = now - sent[kept+1]
			}
			got := m.age(now)
			peak = max(peak, want)
			if slack := minStep + peak/16; got < want || got > want+slack {
				t.Fatalf("seed %d: %d, not %d, of %d marks", seed, got, want, len(m.list))
			}
			if len(m.list) > maxMarks {
				t.Fatal(len(m.list))
			}
		}
		m.keep(last)
		if m.age(now) != 0 {
			t.Error("all is kept")
		}
	}
}

// TestRoundsOfTheTarget: the source learns how many rounds the target's disk has, and not those of the process that the
// target has become meanwhile.
func TestRoundsOfTheTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rounds, incarnation atomic.Uint64
		g := newTarget(t, func(c *IntakeConfig) {
			self := c.Self
			c.Self = func() table.Holder {
				h := self()
				h.Incarnation += incarnation.Load()
				return h
			}
			c.Rounds = rounds.Load
		})
		s := newSender(t, newWires(t, g, 0), nil)
		soon(t, s, put(s, "a"))
		if n := s.Stream().Rounds; n != 0 {
			t.Errorf("%d rounds of none", n)
		}
		rounds.Store(7)
		g.intake.Note()()
		synctest.Wait()
		if n := s.Stream().Rounds; n != 7 {
			t.Errorf("%d rounds of 7", n)
		}
		soon(t, s, put(s, "b"))
		synced := g.intake.Note()
		rounds.Store(9)
		incarnation.Store(1)
		synced()
		synctest.Wait()
		if n := s.Stream().Rounds; n != 7 {
			t.Errorf("%d rounds of 7, after another one has written", n)
		}
	})
}
