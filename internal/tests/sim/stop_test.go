package sim

import (
	"testing"
	"time"
)

// stopTime is how long a process takes to end, at most, whatever its wires are like.
const stopTime = 10 * time.Second

// TestStopsInTime: a process ends soon, also when others were cut off from it while they
// connected.
func TestStopsInTime(t *testing.T) {
	t.Parallel()
	play(t, setting{nodes: 3}, func(s *scene) {
		s.Net.SetFaults("", "", Faults{Min: time.Millisecond, Max: 10 * time.Millisecond})
		for range 8 {
			i := s.follower()
			for j := range s.hosts {
				if j != i {
					s.Net.Reset(s.hosts[j].addr, s.hosts[i].addr)
				}
			}
			s.sleep(s.between(0, 150*time.Millisecond)) // they connect again
			for j := range s.hosts {
				if j != i {
					s.Cut(j, i, true)
				}
			}
			began := time.Now()
			s.Kill(i)
			if took := time.Since(began); took > stopTime {
				s.t.Errorf("%s took %s to end", s.hosts[i].name, took)
			}
			s.restore()
			s.until(stableTime, "three vote", s.vote(3))
			s.Net.SetFaults("", "", Faults{Min: time.Millisecond, Max: 10 * time.Millisecond})
		}
	})
}
