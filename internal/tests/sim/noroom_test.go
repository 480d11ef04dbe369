package sim

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/keystead/keystead/internal/node"
	"github.com/keystead/keystead/ring/epoch/table"
)

// drainTime is what a drain may take that begins behind a node that cannot join: its
// patience, some tries more, and what the rows take.
const drainTime = 90 * time.Second

// awayTime is less than a node that could not join stays away.
const awayTime = 10 * time.Second

// fill has the cluster count so many keys once more.
func (s *scene) fill(k *Client, keys int) {
	for i := range keys {
		k.Add(s.t.Context(), fmt.Sprintf("key-%d", i))
	}
}

// retire has a host die for good, so that it can come as a new one.
func (s *scene) retire(i int) {
	s.t.Helper()
	s.Crash(i)
	s.Wipe(i)
	s.until(stableTime, "it is out, and the others share the ring", func() bool {
		t := latest(s.Cluster)
		_, in := t.Member(s.hosts[i].name)
		return !in && calm(t, len(s.hosts)-1)
	})
}

// TestJoinerWithoutRoom: a node joins that has no room for what it is to take over. It
// gives up, so that another one can be drained; nothing is lost; it stays away for a
// while, and joins when it has room.
func TestJoinerWithoutRoom(t *testing.T) {
	t.Parallel()
	const small, drained, keys = 3, 1, 200
	maxObjects := int64(0)
	play(t, setting{nodes: 4, clients: 2, config: func(c *Config) {
		c.Tune = func(host int, cfg *node.Config) {
			if host == small {
				cfg.Store.MaxObjects = maxObjects
			}
		}
	}}, func(s *scene) {
		maxObjects = 0
		s.retire(small)
		k, err := NewClient(s.Cluster, s.judge, 9, keys)
		if err != nil {
			s.t.Fatal(err)
		}
		defer k.Close()
		s.fill(k, keys)
		maxObjects = 8 + s.rnd.Int64N(40)
		if err := s.Start(small); err != nil {
			s.t.Fatal(err)
		}
		s.until(stableTime, "rows are on their way to it", func() bool { return latest(s.Cluster).Transition != nil })

		began := time.Now()
		ctx, cancel := context.WithTimeout(s.t.Context(), drainTime)
		defer cancel()
		if _, err := s.hosts[drained].node.Drain(ctx); err != nil {
			s.t.Fatalf("the drain: %v\n%s", err, s.describe())
		}
		s.t.Logf("the drain took %s", time.Since(began))
		s.until(stableTime, "the transition ends", func() bool { return latest(s.Cluster).Transition == nil })
		s.until(stableTime, "it is left out", func() bool { p, _ := s.Process(small); return p.Group.LeftOut() > 0 })
		s.sleep(awayTime)
		if _, in := latest(s.Cluster).Member(s.hosts[small].name); in {
			s.t.Error("it is a member again")
		}
		s.fill(k, keys)
		s.lostNothing()

		s.Stop(drained)
		s.Stop(small)
		maxObjects = 0
		s.restore()
		s.fill(k, keys)
		s.lostNothing()
	})
}

// TestSlowJoinerStays: a node whose copies take long joins all the same, as the process
// that it came as.
func TestSlowJoinerStays(t *testing.T) {
	t.Parallel()
	const slow, keys = 3, 300
	play(t, setting{nodes: 4, config: func(c *Config) {
		c.Tune = func(_ int, cfg *node.Config) { cfg.CopyRate = 50 }
	}}, func(s *scene) {
		s.retire(slow)
		k, err := NewClient(s.Cluster, s.judge, 9, keys)
		if err != nil {
			s.t.Fatal(err)
		}
		defer k.Close()
		s.fill(k, keys)
		if err := s.Start(slow); err != nil {
			s.t.Fatal(err)
		}
		began := time.Now()
		var was table.Holder
		s.until(stableTime, "it is a member", func() bool {
			m, in := latest(s.Cluster).Member(s.hosts[slow].name)
			was = m.Holder()
			return in
		})
		s.until(time.Hour, "it takes part", func() bool { return calm(latest(s.Cluster), len(s.hosts)) })
		s.t.Logf("it took %s", time.Since(began))
		if m, _ := latest(s.Cluster).Member(s.hosts[slow].name); m.Holder() != was {
			s.t.Errorf("it came as %v and is %v", was, m.Holder())
		}
		s.lostNothing()
	})
}
