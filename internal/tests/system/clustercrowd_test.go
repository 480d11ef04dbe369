//go:build system

package system

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/keystead/keystead/client"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

var crowd = flag.Int("crowd", 1500, "how many callers wait for one lock, up to 65536")

// eachClient is how many callers share a client: a node takes 10,000 calls over one connection.
const eachClient = 5000

// TestClusterCrowd: many callers wait for one lock, and its row goes to another node, because its
// owner is drained or killed. Each of them gets the lock once, and those that were first in line get
// it in their order.
func TestClusterCrowd(t *testing.T) {
	for how, leaves := range map[string]func(c *testCluster, n, at *testNode){
		"drained": func(c *testCluster, n, at *testNode) {
			if r := keystead(c.t, "drain", n.id, "--wait", "--addr", at.grpc); r.code != 0 {
				c.t.Fatalf("drain ends with %d: %s%s", r.code, r.out, r.err)
			}
		},
		"killed": func(_ *testCluster, n, _ *testNode) { n.kill() },
	} {
		t.Run(how, func(t *testing.T) {
			c := newCluster(t, 3, false, "--max-lock-ttl", "1m", "--max-waiters-per-lock", "65536")
			c.protected(c.nodes...)
			var key string
			for _, keys := range c.keys(1) {
				key = keys[0]
			}
			at := c.nodes[1]
			victim := at.owners(key)[0].Owner
			crowdOf(t, c, key, func() {
				for _, n := range c.nodes {
					if n.id == victim {
						at = c.nodes[(slices.Index(c.nodes, n)+1)%3]
						leaves(c, n, at)
					}
				}
			})
		})
	}
}

// crowdOf has a crowd wait for a lock, does something, and lets them all have the lock.
func crowdOf(t *testing.T, c *testCluster, key string, do func()) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var clients []*client.Client
	for range *crowd/eachClient + 1 {
		k, err := client.Dial(ctx, c.nodes[0].grpc, c.nodes[1].grpc, c.nodes[2].grpc)
		if err != nil {
			t.Fatal(err)
		}
		defer k.Close()
		clients = append(clients, k)
	}
	first, err := clients[0].Lock("crowd").Acquire(ctx, key, client.HeldBy("first"), client.TTL(20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var got []string // guarded by mu, and what follows
	var last uint64
	var callers sync.WaitGroup
	for i := range *crowd {
		callers.Go(func() {
			held, err := clients[i/eachClient].Lock("crowd").Acquire(ctx, key, client.HeldBy(fmt.Sprint(i)), client.TTL(20*time.Second))
			if err != nil {
				t.Errorf("caller %d: %v", i, err)
				return
			}
			mu.Lock()
			if held.Token() <= last {
				t.Errorf("caller %d has token %d after %d", i, held.Token(), last)
			}
			last = held.Token()
			got = append(got, fmt.Sprint(i))
			mu.Unlock()
			if err := held.Release(ctx); err != nil {
				t.Errorf("caller %d: %v", i, err)
			}
		})
	}
	waiting := 0
	line := func() (names []string) {
		for _, n := range c.nodes {
			r, err := lockpb.NewLockServiceClient(n.conn).Inspect(ctx, &lockpb.InspectRequest{Key: key, Name: "crowd", MaxWaiters: 1000})
			if err == nil {
				waiting = int(r.Waiting)
			}
			if err == nil && waiting == *crowd {
				for _, w := range r.Waiters {
					names = append(names, w.Id)
				}
				return names
			}
		}
		return nil
	}
	var want []string
	all := func(where string) {
		for want = line(); want == nil; want = line() {
			if ctx.Err() != nil {
				t.Fatalf("%d of %d wait %s", waiting, *crowd, where)
			}
		}
	}
	began := time.Now()
	all("in the end")
	before := want
	t.Logf("%d callers wait after %s", *crowd, time.Since(began).Round(time.Millisecond))
	began = time.Now()
	do()
	all("at the new owner")
	if !slices.Equal(want, before) {
		t.Errorf("in line are now %v, and were %v", want[:10], before[:10])
	}
	t.Logf("%d callers wait at the new owner after %s", *crowd, time.Since(began).Round(time.Millisecond))
	began = time.Now()
	if err := first.Release(ctx); err != nil {
		t.Error(err)
	}
	callers.Wait()
	t.Logf("all have had the lock after %s", time.Since(began).Round(time.Millisecond))
	if len(got) != *crowd || !slices.Equal(got[:len(want)], want) {
		t.Errorf("%d callers had the lock, the first of them %v, and first in line were %v", len(got), got[:10], want[:10])
	}
}
