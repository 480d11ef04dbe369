package sim

import (
	"testing"
	"time"
)

// slewed is how fast chrony slews a clock that is wrong, by default: 83,333 ppm.
const slewed = 0.08333

// TestTrap45SlewedClocks: the clock of an owner runs as slow as NTP may make it, and those
// of all others as fast. Then it is cut off: nobody acts for its rows before it has stopped.
func TestTrap45SlewedClocks(t *testing.T) {
	t.Parallel()
	play(t, setting{nodes: 3, clients: 3}, func(s *scene) {
		for range max(6/slower, 1) {
			i := s.follower()
			for k := range s.hosts {
				s.SlewClock(k, slewed)
			}
			s.SlewClock(i, -slewed)
			s.sleep(s.between(time.Second, 3*ttl))
			if n := s.v.Served(time.Now().Add(-watchEvery)); n != positions {
				t.Errorf("%d of %d positions are served while clocks are slewed", n, positions)
			}
			s.Partition([]int{i})
			s.until(settleTime, "the others serve all", func() bool { return s.servedWithout(i) })
			s.sleep(s.between(0, ttl))
			for k := range s.hosts {
				s.SlewClock(k, 0)
			}
			s.settle()
		}
	})
}
