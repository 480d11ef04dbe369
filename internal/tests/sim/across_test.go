package sim

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/keystead/keystead/internal/tests/history"
	"github.com/keystead/keystead/internal/tests/kinds"
)

// Admissions of several keys go on while their coordinators and owners die, sleep, stop and are cut off, and clocks run
// fast and jump. All of an Admit is charged or nothing of it, never above a bound; a hold acts once; and in the end each
// counter is what was admitted and not given back.
func TestAcrossUnderFaults(t *testing.T) {
	t.Parallel()
	play(t, setting{nodes: 4, drift: slewDrift, config: func(c *Config) { c.Old = false }}, func(s *scene) {
		clients := s.demand(4)
		for _, act := range []func(i int){
			func(i int) { s.Crash(i); s.sleep(s.between(0, 5*time.Second)) },
			func(i int) { s.Partition([]int{i}); s.sleep(s.between(ttl/2, 4*ttl)) },
			func(i int) { s.Pause(i); s.sleep(s.between(100*time.Millisecond, 4*ttl)) },
			func(i int) { s.Stop(i); s.sleep(s.between(0, 5*time.Second)) },
			func(i int) {
				s.SlewClock(i, slewed)
				s.JumpWall((i+1)%len(s.hosts), s.between(-time.Hour, time.Hour))
				s.sleep(s.between(0, 5*time.Second))
			},
		} {
			s.sleep(s.between(0, 2*time.Second))
			act(s.rnd.IntN(len(s.hosts)))
			s.restore()
		}
		s.lostNothing()
		clients.stop()
		s.tallyAcross(map[history.AcrossOp]int{history.AcrossCharge: 100, history.AcrossChange: 100, history.AcrossRefuse: 1, history.AcrossBrief: 1})
	})
}

// The same while links are so slow and single connections so late that most faults find Admits half way: held by some,
// and not yet asked of the others. What a coordinator leaves is decided by its participants.
func TestAcrossHalfWay(t *testing.T) {
	t.Parallel()
	play(t, setting{nodes: 4, config: func(c *Config) { c.Old = false }}, func(s *scene) {
		clients := s.demand(6)
		for n := range 8 {
			s.Net.SetFaults("", "", Faults{Min: 5 * time.Millisecond, Max: s.between(20*time.Millisecond, 80*time.Millisecond), Reset: 0.001})
			s.sleep(s.between(time.Second, 3*time.Second))
			s.until(stableTime, "all have standbys", s.stable)
			i := s.rnd.IntN(len(s.hosts))
			j := (i + 1 + s.rnd.IntN(len(s.hosts)-1)) % len(s.hosts)
			switch n % 4 {
			case 0, 1:
				s.Crash(i)
			case 2:
				s.Cut(i, j, true)
			case 3:
				s.Partition([]int{i})
			}
			s.sleep(s.between(0, 4*time.Second))
			s.restore()
		}
		s.lostNothing()
		clients.stop()
		s.tallyAcross(map[history.AcrossOp]int{history.AcrossCharge: 100, history.AcrossChange: 100})
	})
}

// Owners die with their standbys, so that the state of some counters is lost. The others keep all that callers were told
// is admitted, and give back nothing of it before its time.
func TestAcrossLosesSome(t *testing.T) {
	t.Parallel()
	play(t, setting{nodes: 4, config: func(c *Config) { c.Old = false }}, func(s *scene) {
		clients := s.demand(4)
		for range 2 {
			s.sleep(s.between(2*time.Second, 4*time.Second))
			for _, i := range s.rnd.Perm(len(s.hosts))[:2] {
				s.Crash(i)
			}
			s.sleep(s.between(0, time.Second))
			s.restore()
		}
		clients.stop()
		s.tallyAcross(map[history.AcrossOp]int{history.AcrossCharge: 50, history.AcrossChange: 50})
		s.t.Logf("the state of %d keys was lost", s.judge.Lost())
	})
}

// demanders are clients that do nothing but admissions of several keys.
type demanders struct {
	s    *scene
	all  []*Client
	done chan struct{}
	wg   sync.WaitGroup
}

// demand has so many clients at work until they are stopped.
func (s *scene) demand(clients int) *demanders {
	d := &demanders{s: s, done: make(chan struct{})}
	for i := range clients {
		k, err := NewClient(s.Cluster, s.judge, i+1, 4)
		if err != nil {
			s.t.Fatal(err)
		}
		d.all = append(d.all, k)
		d.wg.Go(func() {
			for {
				select {
				case <-d.done:
					return
				default:
				}
				if k.w.WorkOn(context.Background(), k.objects, &kinds.Across); !k.w.Rest(context.Background(), thinkTime) {
					return
				}
				k.w.Probe(context.Background(), k.objects[&kinds.Across][k.rnd.IntN(4)], probeTime)
			}
		})
	}
	return d
}

// stop waits for what is under way, and reads what has become of each counter.
func (d *demanders) stop() {
	close(d.done)
	d.wg.Wait()
	for _, o := range d.all[0].objects[&kinds.Across] {
		d.all[0].w.Probe(context.Background(), o, 10*time.Second)
	}
	for _, k := range d.all {
		k.Close()
	}
}

// tallyAcross counts what has happened to counters, which is to be so much at least, and little that nobody knows.
func (s *scene) tallyAcross(least map[history.AcrossOp]int) {
	s.t.Helper()
	n := map[history.AcrossOp]int{}
	for _, c := range s.judge.recording.Record().Calls[kinds.Across.Name] {
		n[c.Input.(history.AcrossInput).Op]++
	}
	s.t.Logf("counters across: %v", n)
	for op, want := range least {
		if n[op] < want {
			s.t.Errorf("%s: %d times, fewer than %d", op, n[op], want)
		}
	}
	if s.judge.Lost() == 0 && n[history.AcrossLoose] > n[history.AcrossCharge]/10 {
		s.t.Errorf("of %d charges nobody knows what became of them", n[history.AcrossLoose])
	}
}
