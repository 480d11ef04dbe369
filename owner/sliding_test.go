package owner

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/limit"
)

func sliding(n uint64) limit.Op {
	op := perSecond(n)
	op.Algorithm = limit.SlidingWindow
	return op
}

func refund(op limit.Op, n uint64) limit.Op {
	op.Cost, op.Refund = 0, n
	return op
}

// slid is a limit with its marks, which is never forgotten.
type slid struct {
	limit.State
	marks []limit.Mark
}

func (x *slid) apply(op limit.Op, now int64) (res limit.Result) {
	if op.Slides(&x.State) {
		next, marks, res, changed := limit.Slide(x.State, append([]limit.Mark(nil), x.marks...), op, now)
		if changed {
			x.State, x.marks = next, marks
		}
		return res
	}
	next, res, changed := limit.Apply(x.State, op, now)
	if changed {
		x.State, x.marks = next, nil
	}
	return res
}

// marksHeld returns how many cells for marks are in use, by looking for what is in them.
func marksHeld(s *Store) (n int) {
	for i := range s.shards {
		sh := &s.shards[i]
		for pos := range sh.index.Span() {
			if slot := sh.index.Slot(pos); slot != 0 && sh.entryLocked(slot).kind == KindLimit {
				if cell, _ := sh.entryLocked(slot).limit().markCell(); cell != 0 {
					n++
				}
			}
		}
	}
	return n
}

// Whatever algorithms a limit has, one after the other, whatever is refunded, and
// however often the store is swept: it answers as the core does on a state that is
// never forgotten; so does a copy that follows it; and cells of marks are taken and
// given back.
func TestSlidingAgainstCore(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 1))
		f := follower{t: t, to: must(New(Config{Rule: &testRule{epoch: 1}, Shards: 1}, 0))}
		s := must(New(Config{Rule: &testRule{epoch: 1}, Shards: 1, Sink: &f}, 0))
		models := map[Ref]*slid{}
		now, top := int64(0), []uint64{3, 12, 60}[seed%3]
		for range 300 {
			now += []int64{0, 1, second / 40, second / 40, second / 7, second / 3, 2 * second}[rng.IntN(7)]
			ref := Ref{Key: fmt.Sprint("key ", rng.IntN(3))}
			op := perSecond(top)
			if op.Algorithm = limit.SlidingWindow; rng.IntN(10) == 0 {
				op.Algorithm = limit.Algorithm(rng.IntN(2))
			}
			if rng.IntN(8) == 0 {
				op = refund(op, 1+rng.Uint64N(top))
			} else {
				op.Peek = rng.IntN(4) == 0
			}
			if models[ref] == nil {
				models[ref] = &slid{}
			}
			want := models[ref].apply(op, now)
			if got := must(s.Check(now, ref, noID, op)); got.Result != want {
				t.Fatalf("seed %d: %+v at %d: %+v, want %+v", seed, op, now, got.Result, want)
			}
			look := peekAt(op)
			a, b := must(s.Check(now, ref, noID, look)), must(f.to.Check(now, ref, noID, look))
			if a.Result != b.Result {
				t.Fatalf("seed %d: at %d: %+v, the copy %+v", seed, now, a.Result, b.Result)
			}
			if rng.IntN(10) == 0 {
				sweepAll(s, now)
			}
		}
		for _, x := range []*Store{s, f.to} {
			sweepAll(x, now+20*second)
			if n := held(x); n != 0 || marksHeld(x) != 0 {
				t.Fatalf("%d objects and %d cells of marks are left", n, marksHeld(x))
			}
		}
	}
}

// Windows that come and go, and grow and shrink, take no memory each time.
func TestMarksAreGivenBack(t *testing.T) {
	s := newStore(t, func(c *Config) { c.Shards = 1 })
	now, most := int64(0), 0
	for round := range 2000 {
		for i := range int64(20) { // through all rooms
			must(s.Check(now+i, door, noID, sliding(1000)))
		}
		now += second / 2
		must(s.Check(now, door, noID, sliding(1000)))
		now += second // all but one are over
		switch round % 3 {
		case 0:
			must(s.Check(now-second/4, door, noID, sliding(1000)))
		case 1:
			must(s.Check(now-second/4, door, noID, perSecond(1000)))
		}
		now += 2 * second
		if round%2 == 0 {
			sweepAll(s, now)
		}
		if b := s.shards[0].marks.Bytes(); round == 10 {
			most = b
		} else if round > 10 && b > most {
			t.Fatalf("round %d: %d bytes, there were %d", round, b, most)
		}
	}
}

// follower installs every record in another store.
type follower struct {
	t  testing.TB
	to *Store
}

func (f *follower) Changed(r *Record) {
	if err := f.to.Install(r.At, r, func(uint64) bool { return true }); err != nil {
		f.t.Fatal(err)
	}
}

// A whole copy has all marks, too, and what cannot be is not taken.
func TestSlidingExport(t *testing.T) {
	s, to := newStore(t, nil), newStore(t, nil)
	op := sliding(100)
	for i := range int64(30) {
		must(s.Check(i*second/60, door, noID, op))
	}
	now := second / 2
	s.Export(func() int64 { return now }, func(uint64) bool { return true }, func(r *Record, now int64) bool {
		state, marks := r.Limit()
		if len(marks) != limit.MaxMarks {
			t.Errorf("%d marks", len(marks))
		}
		bad := r.Clone()
		for what, change := range map[string]func(){
			"of another kind": func() { bad.Kind = KindCounter },
			"more than spent": func() { state.Spent = 1; bad.SetLimit(state, marks) },
			"cut short":       func() { bad.State.bytes = bad.State.bytes[:len(bad.State.bytes)-1] },
			"too long":        func() { bad.State.bytes = append(bad.State.bytes, 1, 1) },
			"of nothing":      func() { bad.SetLimit(limit.State{Algorithm: limit.SlidingWindow}, marks) },
		} {
			state, marks = r.Limit()
			bad = r.Clone()
			if change(); reason(to.Install(now, bad, func(uint64) bool { return true })) != failure.Invalid {
				t.Errorf("%s: installed", what)
			}
		}
		if err := to.Install(now, r, func(uint64) bool { return true }); err != nil {
			t.Error(err)
		}
		return true
	}, func() bool { return true })
	for at := now; at < 2*second; at += second / 100 {
		a, b := must(s.Check(at, door, noID, peekAt(op))), must(to.Check(at, door, noID, peekAt(op)))
		if a.Result != b.Result {
			t.Errorf("at %d: %+v, the copy %+v", at, a.Result, b.Result)
		}
	}
}

// A refund of a limit that is not there makes nothing; its request id is kept, so
// that it does not give back later what others have spent.
func TestRefundOfNothing(t *testing.T) {
	for _, op := range []limit.Op{perSecond(3), sliding(3), {Params: limit.Params{Algorithm: limit.FixedWindow, Limit: 3, Period: second}}} {
		s := newStore(t, nil)
		now := 200 * second
		if a := must(s.Check(now, door, noID, refund(op, 2))); !a.Allowed || a.Remaining != 3 || held(s) != 0 {
			t.Errorf("%+v, %d objects", a, held(s))
		}
		if a := must(s.Check(now, door, id(1), refund(op, 2))); !a.Allowed || a.Replayed {
			t.Errorf("with a request id: %+v", a)
		}
		spend := peekAt(op)
		spend.Cost, spend.Peek = 3, false
		must(s.Check(now, door, noID, spend))
		if a := must(s.Check(now, door, retry(1, second), refund(op, 2))); !a.Allowed || !a.Replayed || a.Remaining != 0 {
			t.Errorf("its retry: %+v", a)
		}
		spend.Cost = 2
		if _, err := s.Check(now, door, retry(1, second), spend); reason(err) != failure.RequestIDReused {
			t.Errorf("a check under the id of a refund: %v", err)
		}
	}
}

// What was lost, and is taken to have been used up, is not given back.
func TestRefundOfWhatWasLost(t *testing.T) {
	for _, op := range []limit.Op{perSecond(3), sliding(3)} {
		s, rule := lost(t, func(c *Config) { c.LostLimits = LostEmpty })
		now := cameAt + second/10
		for _, rid := range []uint64{0, 1} {
			a := must(s.Check(now, door, retry(rid, 0), refund(op, 2)))
			if !a.Allowed || a.Remaining != 0 || a.RetryAfter != 0 || a.ResetAfter == 0 {
				t.Errorf("%+v", a)
			}
		}
		if a := must(s.Check(now, door, noID, op)); a.Allowed {
			t.Errorf("a check: %+v", a)
		}
		rule.lost, rule.lostAt = 0, 0
		if a := must(s.Check(now, door, noID, refund(op, 2))); a.Remaining != 2 {
			t.Errorf("after the grace: %+v", a)
		}
	}
}

// Where there is no memory for more marks, the check is refused and changes
// nothing.
func TestNoRoomForMarks(t *testing.T) {
	s := newStore(t, func(c *Config) { c.MaxBytes = 1 << 20 })
	must(s.Check(0, door, noID, sliding(9)))
	for i := 0; ; i++ {
		if _, err := s.Check(0, Ref{Key: fmt.Sprint(i), Name: "n"}, noID, perSecond(1)); err != nil {
			break
		}
	}
	if a := must(s.Check(0, door, noID, sliding(9))); !a.Allowed || a.Remaining != 7 { // no mark more
		t.Errorf("%+v", a)
	}
	if _, err := s.Check(1, door, noID, sliding(9)); reason(err) != failure.StoreFull {
		t.Fatalf("a second mark: %v", err)
	}
	if a := must(s.Check(1, door, noID, peekAt(sliding(9)))); a.Remaining != 7 || a.ResetAfter != second-1 {
		t.Errorf("afterwards: %+v", a)
	}
}

func BenchmarkCheckSliding(b *testing.B) {
	for name, pause := range map[string]int64{"one mark": 3 * second, "all marks": 1000} {
		b.Run(name, func(b *testing.B) {
			s, ks := newStore(b, func(c *Config) { c.Shards = DefaultShards }), keys(1000)
			op, now := sliding(1_000_000), int64(0)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				now += pause
				must(s.Check(now, Ref{Key: ks[i*7919%len(ks)], Name: "api"}, noID, op))
			}
		})
	}
}

// BenchmarkMillionSliding measures what a sliding window costs that was hit some
// times in its period, with keys of 16 bytes and a name of 3.
func BenchmarkMillionSliding(b *testing.B) {
	for _, hits := range []int{1, 2, 4, 17, 40} {
		b.Run(fmt.Sprint("hits=", hits), func(b *testing.B) {
			const n = 200_000
			ks := keys(n)
			for b.Loop() {
				s := newStore(b, func(c *Config) { c.Shards = 2 })
				op := limit.Op{Params: limit.Params{Algorithm: limit.SlidingWindow, Limit: 100, Period: 3600 * second}, Cost: 1}
				for h := range hits {
					for i, k := range ks {
						must(s.Check(int64(h*n+i), Ref{Key: k, Name: "api"}, noID, op))
					}
				}
				b.ReportMetric(float64(s.Stats().Bytes)/n, "store-B/window")
			}
		})
	}
}
