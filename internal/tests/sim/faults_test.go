package sim

import (
	"slices"
	"sync"
	"testing"
	"time"
)

// times collects how long something took, over seeds.
type times struct {
	mu  sync.Mutex // guards all
	all []time.Duration
}

func (x *times) add(d time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.all = append(x.all, d)
}

func (x *times) report(t *testing.T, what string) {
	slices.Sort(x.all)
	if n := len(x.all); n > 0 {
		t.Logf("%s: p50 %v, p99 %v, worst %v of %d", what, x.all[n/2], x.all[n*99/100], x.all[n-1], n)
	}
}

func TestForming(t *testing.T) {
	t.Parallel()
	var took times
	for _, nodes := range []int{1, 3, 5} {
		play(t, setting{nodes: nodes}, func(s *scene) {
			d := s.formed
			if took.add(d); d > formTime {
				t.Errorf("%d nodes took %v to form a cluster, more than %v", nodes, d, formTime)
			}
			s.sleep(5 * time.Second)
		})
	}
	took.report(t, "forming")
}

func TestFollowerDies(t *testing.T) {
	t.Parallel()
	dies(t, "follower", (*scene).follower)
}

func TestLeaderDies(t *testing.T) {
	t.Parallel()
	dies(t, "leader", (*scene).leader)
}

// dies has one node die that a scene chooses. Others serve its keys soon, and nothing is
// lost.
func dies(t *testing.T, what string, victim func(*scene) int) {
	var took times
	play(t, setting{nodes: 3, clients: 3}, func(s *scene) {
		s.sleep(s.between(0, 2*time.Second))
		i := victim(s)
		if s.rnd.IntN(2) == 0 {
			s.Kill(i)
		} else {
			s.Crash(i)
		}
		d := s.until(stableTime, "keys of the dead are served", s.served)
		if took.add(d); d > failoverTime {
			t.Errorf("seed %d: %v, more than %v", s.seed, d, failoverTime)
		}
		s.sleep(2 * time.Second)
		s.restore()
		s.lostNothing()
	})
	took.report(t, what+" dead until all keys are served")
}

func TestOrderlyStop(t *testing.T) {
	t.Parallel()
	var took times
	play(t, setting{nodes: 3, clients: 3}, func(s *scene) {
		for i := range s.hosts {
			began := time.Now()
			s.Stop(i)
			s.until(stableTime, "keys of the stopped are served", s.served)
			took.add(time.Since(began))
			s.restore()
		}
		s.lostNothing()
	})
	took.report(t, "orderly stop until all keys are served")
}
