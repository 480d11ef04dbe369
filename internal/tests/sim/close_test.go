package sim

import (
	"testing"
	"time"
)

// Answers to renewals come late, and then nothing more gets through: the lease
// must count from when it was asked for.
func TestLateAnswers(t *testing.T) {
	t.Parallel()
	play(t, setting{nodes: 3, clients: 2}, func(s *scene) {
		for range 3 {
			l, i := s.leader(), s.follower()
			s.Cut(l, i, true)
			s.sleep(s.between(ttl/4, ttl))
			s.Mute(i, true)
			s.Cut(l, i, false)
			s.sleep(s.between(ttl, 2*ttl))
			s.restore()
		}
	})
}

// A node is silent for just about as long as its lease, while what is agreed goes
// through with difficulty: its renewals come when its removal is under way.
func TestSilentForALease(t *testing.T) {
	t.Parallel()
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
			s.restore()
		}
	})
}

// The leader changes while a node that was removed is cut off: the next leader
// hears from the node, under its old incarnation, before the node has read what
// became of it.
func TestRemovedMeetsNewLeader(t *testing.T) {
	t.Parallel()
	play(t, setting{nodes: 3, clients: 2}, func(s *scene) {
		for range 4 {
			l, i := s.leader(), s.follower()
			other := 3 - l - i
			s.Partition([]int{i})
			p, _ := s.Process(l)
			was, _ := s.Process(i)
			s.until(stableTime, "the node is removed", func() bool { return !p.Group.Table().Holds(was.Group.Self()) })
			s.Cut(l, other, true)
			s.sleep(s.between(400*time.Millisecond, ttl))
			s.Cut(l, other, false)
			s.until(stableTime, "the two agree on a leader", func() bool {
				q, _ := s.Process(other)
				return p.Group.Leader() != "" && p.Group.Leader() == q.Group.Leader()
			})
			s.sleep(s.between(0, time.Second))
			s.restore()
		}
	})
}
