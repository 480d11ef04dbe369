package sim

import (
	"testing"
	"time"
)

// TestRemovedWhileItCopies: a process is cut off for so long that it is removed while it
// copies rows to one that joins. It learns that it was removed before it has the table
// that shows it, and by then a copy may be whole: it must not try to hand over what is
// no longer its own, again and again.
func TestRemovedWhileItCopies(t *testing.T) {
	t.Parallel()
	play(t, setting{nodes: 5, clients: 3}, func(s *scene) {
		both := func(i, j int, cut bool) {
			s.Cut(i, j, cut)
			s.Cut(j, i, cut)
		}
		for range max(3/slower, 1) {
			joins := s.follower()
			s.Crash(joins)
			s.Wipe(joins)
			s.until(stableTime, "it is out", func() bool { _, in := latest(s.Cluster).Member(s.hosts[joins].name); return !in })
			s.until(stableTime, "its rows are given to others", func() bool { return latest(s.Cluster).Transition == nil })
			if err := s.Start(joins); err != nil {
				t.Fatal(err)
			}
			s.until(stableTime, "rows are on their way to it", func() bool { return latest(s.Cluster).Transition != nil })
			gives := joins
			s.until(stableTime, "another one follows", func() bool {
				gives = s.follower()
				return gives != joins
			})
			for k := range s.hosts {
				if k != gives {
					both(gives, k, true)
				}
			}
			s.sleep(s.between(ttl, 5*time.Second))
			f := Faults{Min: 10 * time.Millisecond, Max: s.between(20*time.Millisecond, 100*time.Millisecond)}
			s.Net.SetFaults(s.hosts[gives].addr, s.hosts[joins].addr, f)
			s.Net.SetFaults(s.hosts[joins].addr, s.hosts[gives].addr, f)
			for k := range s.hosts {
				if k != gives {
					both(gives, k, false)
				}
			}
			s.sleep(4 * time.Second)
			s.restore()
		}
	})
}
