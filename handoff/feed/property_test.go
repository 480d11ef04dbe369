package feed

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch/serving"
)

// Over wires that break at random points, so that acknowledgements are lost and
// old connections live on beside new ones, the target installs exactly what was
// appended, in order; and nothing is acknowledged before it is installed.
func TestBrokenWires(t *testing.T) {
	reconnects, batches := uint64(0), uint64(0)
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := brokenWires(t, seed)
				reconnects += st.Reconnects
				batches += st.Batches
			})
		})
	}
	if reconnects < 500 {
		t.Errorf("the wires broke only %d times", reconnects)
	}
	t.Logf("%d times connected again, %d batches", reconnects, batches)
}

func brokenWires(t *testing.T, seed uint64) Stats {
	rnd := rand.New(rand.NewPCG(seed, 2))
	g := newTarget(t, nil)
	slow := rand.New(rand.NewPCG(seed, 3))
	pause := func(string) error { // one at a time
		if slow.IntN(20) == 0 {
			time.Sleep(time.Duration(slow.IntN(4)) * time.Millisecond)
		}
		return nil
	}
	g.refuse.Store(&pause)
	w := newWires(t, g, time.Duration(seed%4)*time.Millisecond)
	w.rnd = rnd
	s := newSender(t, w, func(c *SenderConfig) { c.MaxBatch = 200 })
	stop := make(chan struct{})
	var checks, writers sync.WaitGroup
	checks.Go(func() {
		for {
			if acked, installed := s.Acked(), g.number.Load(); acked > installed {
				t.Errorf("%d are acknowledged, %d installed", acked, installed)
			}
			select {
			case <-stop:
				return
			case <-time.After(500 * time.Microsecond):
			}
		}
	})
	var mu sync.Mutex
	want := map[uint64]string{}
	for n := range uint64(4) {
		dice := rand.New(rand.NewPCG(seed, 10+n))
		writers.Go(func() {
			for i := range 100 {
				content := fmt.Sprint(n, " ", i)
				mu.Lock() // as a shard's, so that want is right when it is needed
				if dice.IntN(20) == 0 {
					want[s.Begin([]serving.Range{{After: n, UpTo: n + 1}})] = "begin"
				} else {
					want[s.Append(&owner.Record{Hash: dice.Uint64(), Key: []byte(content)}, 0)] = content
				}
				mu.Unlock()
				if dice.IntN(3) == 0 {
					time.Sleep(time.Duration(dice.IntN(8)) * time.Millisecond)
				}
				if dice.IntN(10) == 0 {
					seq := s.Last()
					soon(t, s, seq)
					if g.number.Load() < seq {
						t.Errorf("a wait for %d is over, %d are installed", seq, g.number.Load())
					}
				}
			}
		})
	}
	writers.Wait()
	soon(t, s, s.Last())
	close(stop)
	checks.Wait()
	got := g.log()
	if len(got) != len(want) || s.Last() != 400 {
		t.Fatalf("%d appended, %d installed, last %d", len(want), len(got), s.Last())
	}
	for i, r := range got {
		if want[uint64(i)+1] != r {
			t.Fatalf("record %d is %q, not %q", i+1, r, want[uint64(i)+1])
		}
	}
	st := s.Stats()
	if st.Unacked != 0 || st.UnackedLen != 0 || s.Err() != nil {
		t.Errorf("%+v %v", st, s.Err())
	}
	return st
}

// A source that makes new senders while what the old ones sent is still under way:
// once a record of a session is installed, none of an earlier one is; and of each
// session a first part is installed, in order.
func TestSessionsDoNotMix(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { replacedSessions(t, seed) })
		})
	}
}

func replacedSessions(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 4))
	g := newTarget(t, func(c *IntakeConfig) { c.MaxSources = 1 })
	pause := func(string) error { time.Sleep(time.Millisecond / 2); return nil }
	g.refuse.Store(&pause)
	w := newWires(t, g, time.Duration(1+seed%5)*time.Millisecond)
	w.rnd = rand.New(rand.NewPCG(seed, 5))
	acked := map[uint64]uint64{}
	for session := uint64(1); session <= 20; session++ {
		s := newSender(t, w, func(c *SenderConfig) { c.MaxBatch, c.Session = 100, session })
		for i := range 1 + rnd.IntN(40) {
			put(s, fmt.Sprintf("%d %d", session, i+1))
			time.Sleep(time.Duration(rnd.IntN(1500)) * time.Microsecond)
		}
		if rnd.IntN(3) == 0 {
			soon(t, s, s.Last())
		}
		if err := s.Err(); err != nil {
			t.Errorf("session %d: %v", session, err)
		}
		s.Close()
		acked[session] = s.Acked()
	}
	time.Sleep(time.Second)
	var session, seq uint64
	reached := map[uint64]uint64{}
	for _, r := range g.log() {
		var of, n uint64
		if _, err := fmt.Sscan(r, &of, &n); err != nil {
			t.Fatal(err)
		}
		if of > session {
			session, seq = of, 0
		}
		if of != session || n != seq+1 {
			t.Fatalf("after %d of session %d came %q", seq, session, r)
		}
		seq = n
		reached[of] = n
	}
	for session, n := range acked {
		if reached[session] < n {
			t.Errorf("%d of session %d are acknowledged, %d were installed", n, session, reached[session])
		}
	}
}
