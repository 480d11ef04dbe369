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
	play(t, setting{nodes: 3, clients: 3, drift: slewDrift}, func(s *scene) {
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
			s.until(stableTime, "the others serve all", func() bool { return s.servedWithout(i) })
			s.sleep(s.between(0, ttl))
			for k := range s.hosts {
				s.SlewClock(k, 0)
			}
			s.restore()
		}
	})
}

// TestSlowHardware: the clock of a node is slower than the leader's by more than leases
// allow for. It notices, asks for no lease, and others take over, without a loss. When the
// clock is right again, it comes back.
func TestSlowHardware(t *testing.T) {
	t.Parallel()
	play(t, setting{nodes: 3, clients: 3, drift: slewDrift}, func(s *scene) {
		i := s.follower()
		s.RunClock(i, -slewed)
		s.until(stableTime, "the others serve all", func() bool { return s.servedWithout(i) })
		s.until(stableTime, "it is not a member", func() bool { _, in := latest(s.Cluster).Member(s.hosts[i].name); return !in })
		s.Partition([]int{i})
		s.sleep(s.between(ttl, 3*ttl))
		s.Heal()
		s.RunClock(i, 0)
		s.restore()
		s.lostNothing()
	})
}

// TestFastLeader: the leader's clock is faster than those of most. It removes nobody, and
// another one leads.
func TestFastLeader(t *testing.T) {
	t.Parallel()
	play(t, setting{nodes: 3, clients: 3, drift: slewDrift}, func(s *scene) {
		i := s.leader()
		s.RunClock(i, slewed)
		s.until(stableTime, "another one leads", func() bool { l := s.Leader(); return l >= 0 && l != i })
		s.until(stableTime, "all is well again", s.stable)
		s.sleep(5 * ttl)
		if l := s.leader(); l == i {
			t.Error("it leads again")
		}
		s.lostNothing()
	})
}

// TestPausedGuest: all clocks of a guest stand still, for less than a lease, and the guest
// goes on meanwhile: the worst of what a hypervisor does to clocks. At the next answer of
// the leader the guest drops its lease, asks again, and serves on.
func TestPausedGuest(t *testing.T) {
	t.Parallel()
	play(t, setting{nodes: 3, clients: 3, drift: slewDrift}, func(s *scene) {
		i := s.follower()
		s.sleep(20 * time.Second)
		p, _ := s.Process(i)
		s.RunClock(i, -1)
		s.sleep(ttl / 2)
		s.RunClock(i, 0)
		s.until(5*time.Second, "it notices", func() bool { _, times := p.Group.ClocksDiffer(); return times > 0 })
		s.until(5*time.Second, "it serves", func() bool { return p.Group.LeaseLeft() > 0 })
		s.restore()
		if now, _ := p.Group.ClocksDiffer(); now {
			t.Error("a pause counts as a difference of rates")
		}
		s.lostNothing()
	})
}
