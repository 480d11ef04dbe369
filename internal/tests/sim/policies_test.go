package sim

import (
	"testing"
	"time"

	"github.com/keystead/keystead/internal/tests/history"
	"github.com/keystead/keystead/internal/tests/kinds"
)

// Policies are applied while nodes die and are cut off, and limits are checked by them: the judge
// sees that of one key the versions never fall.
func TestPoliciesUnderFaults(t *testing.T) {
	t.Parallel()
	play(t, setting{nodes: 3, clients: 3}, func(s *scene) {
		s.sleep(15 * time.Second) // until all nodes know policies
		s.Crash(s.leader())
		s.sleep(s.between(0, 5*time.Second))
		s.restore()
		i := s.follower()
		s.Partition([]int{i})
		s.sleep(s.between(ttl/2, 5*ttl))
		s.restore()
		i = s.leader()
		s.Pause(i)
		s.sleep(s.between(ttl, 5*ttl))
		s.Resume(i)
		s.restore()
		s.until(2*time.Minute, "ten versions of policies have decided checks", func() bool {
			s.sleep(time.Second)
			return s.versions() >= 10
		})
	})
}

// versions returns how many versions of policies answers were given by.
func (s *scene) versions() int {
	seen := map[uint64]bool{}
	for _, c := range s.judge.recording.Record().Calls[kinds.Policy.Name] {
		if o, told := c.Output.(history.PolicyOutput); told && o.Version != 0 {
			seen[o.Version] = true
		}
	}
	return len(seen)
}
