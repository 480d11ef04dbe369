package sim

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/keystead/keystead/internal/node"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
)

// addOnce adds 1 to a counter under an idempotency key, at a host, and insists.
func (s *scene) addOnce(host int, counter, key string) (out *counterpb.AddResponse) {
	s.t.Helper()
	conn, err := s.Dial("10.0.8.1", host)
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	s.until(insistTime, "an answer", func() bool {
		ctx, cancel := context.WithTimeout(s.t.Context(), callTime)
		defer cancel()
		out, err = counterpb.NewCounterServiceClient(conn).Add(ctx, &counterpb.AddRequest{Key: counter, Delta: 1, IdempotencyKey: key})
		return err == nil
	})
	return out
}

// TestWindowIsAgreed: nodes that are told to keep keys for less, or for more, keep them for
// as long as the cluster has agreed: what was done under a key is not done again at the
// next owner. Also of one that has joined, and of a cluster that has agreed later.
func TestWindowIsAgreed(t *testing.T) {
	t.Parallel()
	const agreed = time.Minute
	for _, old := range []bool{false, true} {
		t.Run(fmt.Sprintf("old=%t", old), func(t *testing.T) {
			play(t, setting{nodes: 3, config: func(c *Config) {
				c.Old = old
				c.Tune = func(host int, cfg *node.Config) { // the first one makes the cluster, and leads it
					cfg.Store.RequestIDs.Window = int64([]time.Duration{agreed, 2 * time.Second, time.Hour}[host])
				}
			}}, func(s *scene) {
				s.adopted()
				for _, p := range s.Live() {
					if w := time.Duration(p.Group.Table().IDWindow); w != agreed {
						s.t.Fatalf("%s keeps ids for %s", p.Name, w)
					}
				}
				key := s.keyAt(0)
				if a := s.addOnce(1, key, "order"); a.Replay != nil || a.Value != 1 {
					s.t.Fatalf("%+v", a)
				}
				for _, i := range []int{1, 2, 0} { // each is away, and has it with what came to it
					s.sleep(10 * time.Second)
					s.hosts[i].node.DrainBeforeStop(context.Background(), stableTime)
					s.Stop(i)
					if a := s.addOnce((i+1)%3, key, "order"); a.Replay == nil || a.Value != 1 {
						s.t.Fatalf("without n%d: %+v", i+1, a)
					}
					s.restore()
				}
				s.sleep(agreed)
				if a := s.addOnce(2, key, "order"); a.Replay != nil || a.Value != 2 {
					s.t.Fatalf("when the window is over: %+v", a)
				}
			})
		})
	}
}

// TestKeysFromTheBeginning: a cluster whose nodes all know idempotency keys takes them as
// soon as it is made.
func TestKeysFromTheBeginning(t *testing.T) {
	t.Parallel()
	play(t, setting{nodes: 3, config: func(c *Config) { c.Old = false }}, func(s *scene) {
		began := time.Now()
		s.addOnce(0, "stock", "order")
		if took := time.Since(began); took > time.Second || s.formed > formTime {
			s.t.Errorf("the nodes serve after %s, and take a key after %s more", s.formed, took)
		}
	})
}

// TestLossesAreOver: when two nodes of five have died at once, keys are in doubt for as long
// as they are kept, and then everywhere taken again, also where rows have moved to since.
func TestLossesAreOver(t *testing.T) {
	t.Parallel()
	const window = 20 * time.Second
	play(t, setting{nodes: 5, config: func(c *Config) {
		c.Tune = func(_ int, cfg *node.Config) { cfg.Store.RequestIDs.Window = int64(window) }
	}}, func(s *scene) {
		s.adopted()
		i := s.follower()
		j := i
		for j == i {
			j = s.follower()
		}
		s.Crash(i)
		s.Crash(j)
		lost := func(unsure bool) (n int) {
			for _, r := range latest(s.Cluster).Rows {
				if r.Lost != 0 && r.Unsure == unsure {
					n++
				}
			}
			return n
		}
		s.until(stableTime, "rows are lost", func() bool { return lost(true) > 0 })
		began := time.Now()
		s.restore()
		s.until(2*window, "nothing is in doubt", func() bool { return lost(true) == 0 })
		if took := time.Since(began); took < window*9/10 || lost(false) == 0 {
			s.t.Errorf("after %s, with %d rows that were lost", took, lost(false))
		}
		s.Crash(i)
		s.Wipe(i)
		s.restore() // rows move to one that knows of no loss
		for n := range 20 {
			began := time.Now()
			s.addOnce(n%5, fmt.Sprint("stock-", n), "order")
			if took := time.Since(began); took > 2*time.Second {
				s.t.Errorf("a key was in doubt for %s", took)
			}
		}
	})
}
