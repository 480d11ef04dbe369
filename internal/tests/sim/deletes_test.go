package sim

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"
)

// deleted is how many counters are deleted and made again, few enough for each of them to be
// one of the two when a node dies.
const deleted = 12

// makeAndDelete has a client add to counters and delete them until the context ends, a third
// of it under idempotency keys: in turn, so that most are made anew by the next add.
func (s *scene) makeAndDelete(ctx context.Context, number int) {
	k, err := NewClient(s.Cluster, s.judge, number, 1)
	if err != nil {
		s.t.Error(err)
		return
	}
	defer k.Close()
	for ctx.Err() == nil {
		key := fmt.Sprint("made-", k.rnd.IntN(deleted))
		if k.rnd.IntN(2) == 0 {
			k.Delete(ctx, key)
		} else {
			k.Add(ctx, key)
		}
		k.w.Rest(ctx, thinkTime)
	}
}

// TestDeletesUnderFaults: counters are deleted and made again while their owners die, stop in
// order, sleep and are cut off. Nothing that was deleted comes back, nothing acts twice, and
// no version comes again: the judge goes by a model that knows the version of each deletion.
func TestDeletesUnderFaults(t *testing.T) {
	t.Parallel()
	play(t, setting{nodes: 3, config: func(c *Config) { c.Old = false }}, func(s *scene) {
		s.Net.SetFaults("", "", delays)
		s.adopted()
		ctx, cancel := context.WithCancel(s.t.Context())
		var running sync.WaitGroup
		for i := range 3 {
			running.Go(func() { s.makeAndDelete(ctx, i+1) })
		}
		defer running.Wait()
		defer cancel()
		for round := range max(20/slower, 5) {
			s.sleep(s.between(500*time.Millisecond, 3*time.Second))
			i := s.follower()
			if round%5 == 3 {
				i = s.leader()
			}
			switch round % 5 {
			case 0, 3:
				s.Crash(i)
				s.until(stableTime, "the others serve all", func() bool { return s.servedWithout(i) })
			case 1:
				s.hosts[i].node.DrainBeforeStop(context.Background(), stableTime)
				s.Stop(i)
			case 2:
				s.Pause(i)
				s.sleep(s.between(ttl, 3*ttl))
			case 4:
				s.Partition([]int{i})
				s.sleep(s.between(ttl, 3*ttl))
			}
			s.sleep(s.between(0, time.Second))
			s.restore()
		}
		s.lostNothing()
	})
}
