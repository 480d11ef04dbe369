package sim

import (
	"sync"
	"testing"
	"time"

	"github.com/keystead/keystead/ring/epoch/table"
)

// adoptTime is until the nodes have agreed on what their disks promise: they do some time after
// the last change of the table.
const adoptTime = 40 * time.Second

// playOnDisks runs a scenario with nodes that have disks, when their promise is agreed on.
func playOnDisks(t *testing.T, durability string, nodes int, act func(*scene)) {
	agreed := table.Interval
	if durability == "always" {
		agreed = table.Entire
	}
	play(t, setting{nodes: nodes, clients: 3, drift: slewDrift, config: func(c *Config) {
		c.Durability, c.Dir, c.Old = durability, t.TempDir(), false
	}}, func(s *scene) {
		s.until(adoptTime, "the disks are agreed on", func() bool {
			p, ok := s.Process(0)
			return ok && p.Group.Table().Durable == agreed
		})
		act(s)
	})
}

// durabilities are those of which a crash of all loses nothing, or little.
var durabilities = []string{"always", "interval"}

// crashAll takes the power of all hosts, and starts them again one after the other.
func (s *scene) crashAll() {
	s.t.Helper()
	for _, i := range s.rnd.Perm(len(s.hosts)) {
		if s.rnd.IntN(3) == 0 {
			s.Kill(i)
		} else {
			s.Crash(i)
		}
	}
	s.sleep(s.between(0, 3*time.Second))
	for _, i := range s.rnd.Perm(len(s.hosts)) {
		if err := s.Start(i); err != nil {
			s.t.Fatal(err)
		}
		s.sleep(s.between(0, time.Second))
	}
}

// TestColdStart: all nodes die at once, by a power cut or by themselves, and come back in any order. What was acknowledged
// under always is there, and no loss is declared.
func TestColdStart(t *testing.T) {
	t.Parallel()
	for _, d := range durabilities {
		t.Run(d, func(t *testing.T) {
			t.Parallel()
			playOnDisks(t, d, 3, func(s *scene) {
				for range 3 {
					s.sleep(s.between(0, 3*time.Second))
					s.crashAll()
					s.restore()
				}
				if d == "always" {
					s.lostNothing()
				}
			})
		})
	}
}

// TestColdStartOfTwo: all nodes die, and one of them does not come back for long. The disk of the other one that had a
// row is enough.
func TestColdStartOfTwo(t *testing.T) {
	t.Parallel()
	playOnDisks(t, "always", 3, func(s *scene) {
		s.sleep(s.between(0, 3*time.Second))
		for _, i := range s.rnd.Perm(3) {
			s.Crash(i)
		}
		for _, i := range s.rnd.Perm(3)[:2] {
			if err := s.Start(i); err != nil {
				t.Fatal(err)
			}
		}
		s.until(2*time.Minute, "two serve all", s.served)
		s.sleep(s.between(0, 10*time.Second))
		s.restore()
		s.lostNothing()
	})
}

// TestColdStop: all are stopped in order, and nothing is lost, whatever the disks promise.
func TestColdStop(t *testing.T) {
	t.Parallel()
	for _, d := range durabilities {
		t.Run(d, func(t *testing.T) {
			t.Parallel()
			playOnDisks(t, d, 3, func(s *scene) {
				var stops sync.WaitGroup
				for i := range s.hosts {
					stops.Go(func() { s.Stop(i) })
				}
				stops.Wait()
				s.sleep(s.between(0, 3*time.Second))
				for _, i := range s.rnd.Perm(3) {
					if err := s.Start(i); err != nil {
						t.Fatal(err)
					}
					s.sleep(s.between(0, time.Second))
				}
				s.restore()
				s.lostNothing()
			})
		})
	}
}

// TestChaosOnDisks: faults of all kinds on top of each other, and deaths of all. Nothing is lost under always as long as
// no disk is.
func TestChaosOnDisks(t *testing.T) {
	t.Parallel()
	playOnDisks(t, "always", 3, func(s *scene) {
		for over := time.Now().Add(chaosTime); time.Now().Before(over); {
			switch s.rnd.IntN(12) {
			case 0:
				s.hosts[s.rnd.IntN(3)].disk.Slow(s.between(0, 2*time.Second))
			case 1, 2:
				for _, h := range s.hosts {
					h.disk.Slow(0)
				}
			case 3:
				for i := range s.hosts {
					s.Crash(i)
				}
			default:
				s.chaos()
			}
			s.sleep(s.between(time.Millisecond, 2*time.Second))
		}
		for _, h := range s.hosts {
			h.disk.Slow(0)
		}
		s.restore()
		s.lostNothing()
	})
}
