package sim

import (
	"testing"
	"time"
)

// Answers to renewals come late, and then nothing more gets through: the lease
// must count from when it was asked for.
func TestLateAnswers(t *testing.T) {
	play(t, setting{nodes: 3, clients: 2}, func(s *scene) {
		for range 3 {
			l, i := s.leader(), s.follower()
			s.Cut(l, i, true)
			s.sleep(s.between(ttl/4, ttl))
			s.Mute(i, true)
			s.Cut(l, i, false)
			s.sleep(s.between(ttl, 2*ttl))
			s.settle()
		}
	})
}

// A node is silent for just about as long as its lease, while what is agreed goes
// through with difficulty: its renewals come when its removal is under way.
func TestSilentForALease(t *testing.T) {
	play(t, setting{nodes: 3, clients: 2}, func(s *scene) {
		for range 4 {
			l, i := s.leader(), s.follower()
			for j := range s.hosts {
				if j != l {
					s.Net.SetFaults(s.hosts[l].addr, s.hosts[j].addr, Faults{Min: time.Millisecond, Max: 100 * time.Millisecond, Loss: 0.2})
				}
			}
			s.Mute(i, true)
			s.sleep(s.between(ttl-ttl/4, ttl+ttl/4))
			s.Mute(i, false)
			s.sleep(s.between(10*time.Millisecond, 500*time.Millisecond))
			if s.rnd.IntN(2) == 0 {
				s.Partition([]int{i})
				s.sleep(s.between(ttl/2, 2*ttl))
			}
			s.settle()
		}
	})
}

// The leader changes while a node that it has removed does not know it: what the
// node sent long ago arrives at the next leader.
func TestRemovedMeetsNewLeader(t *testing.T) {
	play(t, setting{nodes: 3, clients: 2}, func(s *scene) {
		l, i := s.leader(), s.follower()
		other := 3 - l - i
		s.Cut(l, i, true) // it hears nothing of its removal
		s.Cut(i, l, true)
		s.until(settleTime, "the node is removed", func() bool {
			p, ok := s.Process(l)
			m, is := p.Group.Table().Member(s.hosts[i].name)
			q, _ := s.Process(i)
			return ok && (!is || m.Holder() != q.Group.Self())
		})
		s.Cut(other, i, true) // nor from the other one
		s.Crash(l)
		s.sleep(s.between(0, 2*ttl))
		s.Heal()
		s.until(settleTime, "the two serve all", s.served)
		s.settle()
	})
}
