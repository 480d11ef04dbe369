//go:build system

package system

import (
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	admissionpb "github.com/keystead/keystead/proto/keystead/admission/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
)

// stranded has TestClusterStranded kill so many coordinators, one after the other.
var stranded = flag.Int("stranded", 1, "TestClusterStranded: how many coordinators to kill")

// strandedHold is for how long requests hold what nobody settles, and strandedRoom what there is of each key.
const (
	strandedHold = 5 * time.Second // longer than it takes until the keys of the dead are served
	strandedRoom = 1000
)

// TestClusterStranded kills the coordinator of admissions that hold something under keys of three owners, of which it is
// one, and all their callers go away. What they hold comes back when the hold is over, and when the keys of the dead
// have an owner; and not before: a request for all that there is, sent over and over through another node, is admitted
// then. Nothing is admitted twice.
func TestClusterStranded(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, false, "--max-lock-ttl", strandedHold.String())
	var failover, free []time.Duration
	for round := range *stranded {
		leads, others := c.leader()
		victim := []*testNode{others[0], leads, others[1]}[round%3]
		f, all := c.strand(victim, fmt.Sprint("used-", round))
		failover, free = append(failover, f), append(free, all)
		if round+1 < *stranded {
			victim.flags = []string{"--cluster-id", "c", "--join", c.addrs(victim)}
			victim.run()
			c.ready(c.nodes...)
		}
	}
	t.Logf("kill -9 of the coordinator until its keys are served again: %s", spreadOf(failover))
	t.Logf("kill -9 until all is free that its requests held for %s: %s", strandedHold, spreadOf(free))
}

// strand kills a node while it coordinates. It returns how long it took until the keys of all nodes answered, and
// until nothing was held any more.
func (c *testCluster) strand(victim *testNode, name string) (failover, free time.Duration) {
	c.t.Helper()
	keys := c.keys(1)
	request := func(cost uint64) *admissionpb.AdmitRequest {
		client := make([]byte, 16)
		_, _ = rand.Read(client)
		q := &admissionpb.AdmitRequest{RequestId: &commonpb.RequestId{Client: client, Sequence: 1, Settled: 1}}
		for _, of := range keys {
			q.Demands = append(q.Demands, &admissionpb.Demand{Key: of[0], Name: name, Cost: cost, Counter: &admissionpb.CounterDemand{Max: strandedRoom}})
		}
		return q
	}
	var mu sync.Mutex
	var until time.Time // guarded by mu: no sooner may all be free
	var held atomic.Int64
	var dead atomic.Bool
	var last atomic.Value // what the last error said
	var wg sync.WaitGroup
	for caller := range 8 {
		q := request(1)
		q.HoldNs = int64(strandedHold)
		api := admissionpb.NewAdmissionServiceClient(victim.conn)
		wg.Go(func() {
			for n := uint64(1); !dead.Load(); n++ {
				q.RequestId.Sequence, q.RequestId.Settled = n, n
				sent := time.Now()
				ctx, cancel := context.WithTimeout(c.t.Context(), callTime)
				a, err := api.Admit(ctx, q)
				if err == nil && a.Admitted && (int(n)+caller)%8 != 0 { // one of eight settles nothing
					_, err = api.Settle(ctx, &admissionpb.SettleRequest{Key: q.Demands[n%3].Key, HoldId: a.HoldId, Release: true})
				} else if err == nil && a.Admitted {
					held.Add(1)
					mu.Lock()
					if over := sent.Add(strandedHold); over.After(until) {
						until = over
					}
					mu.Unlock()
				}
				cancel()
				if err != nil {
					last.Store(err.Error())
					rest := time.NewTimer(10 * time.Millisecond) // it is killed, or does not know admissions yet
					<-rest.C
				}
			}
		})
	}
	all := request(strandedRoom)
	if !poll(func() bool { return held.Load() >= 20 }) {
		dead.Store(true)
		wg.Wait()
		c.t.Fatalf("%d hold something: %v", held.Load(), last.Load())
	}
	killed := time.Now()
	victim.kill()
	dead.Store(true)
	wg.Wait()
	var survivor *testNode
	for _, n := range c.nodes {
		if n != victim {
			survivor = n
		}
	}
	var served sync.WaitGroup
	served.Go(func() {
		api := counterpb.NewCounterServiceClient(survivor.conn)
		poll(func() bool {
			ctx, cancel := context.WithTimeout(c.t.Context(), time.Second)
			defer cancel()
			_, err := api.Get(ctx, &counterpb.GetRequest{Key: keys[victim.id][0], Name: name})
			return err == nil
		})
		failover = time.Since(killed)
	})
	eventually(c.t, "all is free", func() bool {
		ctx, cancel := context.WithTimeout(c.t.Context(), 3*time.Second)
		defer cancel()
		a, err := admissionpb.NewAdmissionServiceClient(survivor.conn).Admit(ctx, all)
		if err != nil {
			all.RequestId.AgeNs = int64(time.Since(killed))
			return false
		}
		free = time.Since(killed)
		all.RequestId = request(1).RequestId // a refusal stays one
		return a.Admitted
	})
	served.Wait()
	mu.Lock()
	if at := killed.Add(free); at.Before(until) {
		c.t.Errorf("all was admitted %s before the last hold was over", until.Sub(at))
	}
	mu.Unlock()
	for _, d := range all.Demands {
		if r, err := counterpb.NewCounterServiceClient(survivor.conn).Get(c.t.Context(), &counterpb.GetRequest{Key: d.Key, Name: name}); err != nil || r.Value != strandedRoom {
			c.t.Errorf("%s: %v is charged of %d, %v", d.Key, r.GetValue(), strandedRoom, err)
		}
	}
	c.t.Logf("%d held until the end; served after %s, free after %s", held.Load(), failover.Round(time.Millisecond), free.Round(time.Millisecond))
	return failover, free
}
