//go:build system

package system

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
)

// stopped tells nodes to stop, all at once, and waits until they have.
func stopped(t *testing.T, nodes ...*testNode) {
	t.Helper()
	for _, n := range nodes {
		n.signal(t, syscall.SIGTERM)
	}
	for _, n := range nodes {
		select {
		case <-n.done:
		case <-time.After(40 * time.Second):
			t.Fatalf("%s does not end: %s", n.id, n.err())
		}
	}
}

// checkTokens checks that a lock that is free gets a higher token than all before.
func (k *kept) checkTokens(t *testing.T, n *testNode) {
	t.Helper()
	g := n.mustAcquire("free")
	for _, token := range k.tokens {
		if token >= g.token {
			t.Fatalf("the token %d was granted after %d", g.token, token)
		}
	}
}

// All nodes are told to stop at once, as before a change of machines, and come
// back one after the other, the last one long after a lease is over. Nothing is
// lost. Then each dies without a word: what was on the disks does not come back.
func TestClusterStopsAsAWhole(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, true, "--max-lock-ttl", "2h")
	c.protected(c.nodes...)
	k := fill(t, c.nodes[0], 150)
	began := time.Now()
	stopped(t, c.nodes...)
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("it took %s", took)
	}
	held := 0
	for _, n := range c.nodes {
		if _, err := os.Stat(filepath.Join(n.disk, "state")); err == nil {
			held++
		}
	}
	if held != len(c.nodes) {
		t.Errorf("%d of %d nodes have kept what they had: the others gave it away, without a copy", held, len(c.nodes))
	}
	c.nodes[0].run()
	c.nodes[1].run()
	<-time.After(3 * time.Second) // more than a lease
	c.nodes[2].run()
	c.ready(c.nodes...)
	k.check(t, c.nodes[0])
	k.checkTokens(t, c.nodes[1])
	c.protected(c.nodes...)
	for _, n := range c.nodes {
		if _, err := os.Stat(filepath.Join(n.disk, "state")); err == nil {
			t.Errorf("the state of %s is still there", n.id)
		}
		n.kill()
	}
	for _, n := range c.nodes {
		n.run()
	}
	c.ready(c.nodes...)
	if v, err := c.nodes[0].add(stateKey(1), 0); err != nil || v.Value != 0 {
		t.Errorf("a counter is %d after all nodes died; %v", v.GetValue(), err)
	}
}

// A cluster of one node stops and starts, twice.
func TestClusterOfOneRestarts(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, true, "--max-lock-ttl", "2h")
	n := c.nodes[0]
	k := fill(t, n, 100)
	for range 2 {
		stopped(t, n)
		began := time.Now()
		n.run()
		c.ready(n)
		t.Logf("ready again after %s", time.Since(began))
		k.check(t, n)
		k.checkTokens(t, n)
	}
}

// adding adds to counters at all nodes until it is stopped, and returns what was
// acknowledged for each key.
func (c *testCluster) adding(keys int) (stop func() []int64) {
	ctx, cancel := context.WithCancel(c.t.Context())
	acked := make([]atomic.Int64, keys)
	var wg sync.WaitGroup
	for i := range keys {
		wg.Go(func() {
			for k := i; ctx.Err() == nil; k++ {
				if r, err := c.nodes[k%len(c.nodes)].add(stateKey(i), 1); err == nil && r.Applied {
					acked[i].Add(1)
				} else {
					<-time.After(5 * time.Millisecond)
				}
			}
		})
	}
	return func() []int64 {
		cancel()
		wg.Wait()
		out := make([]int64, keys)
		for i := range acked {
			out[i] = acked[i].Load()
		}
		return out
	}
}

// placeOf asks a node who owns a key, and who stands by.
func (n *testNode) placeOf(key string) (owner, standby string) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), callTime)
	defer cancel()
	r, err := clusterpb.NewClusterServiceClient(n.conn).GetOwners(ctx, &clusterpb.GetOwnersRequest{Keys: []string{key}})
	if err != nil {
		n.t.Fatal(err)
	}
	return r.Owners[0].Owner, r.Owners[0].Standby
}

// All nodes are told to stop at once, under load: nothing that was acknowledged is
// lost. If one of them is killed meanwhile, nothing is that the others owned.
func TestClusterStopsUnderLoad(t *testing.T) {
	t.Parallel()
	for _, killed := range []int{-1, 1} {
		t.Run(map[bool]string{true: "one is killed", false: "all stop"}[killed >= 0], func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 3, true, "--max-lock-ttl", "5s")
			c.protected(c.nodes...)
			const keys = 24
			owners := make([]string, keys)
			for i := range keys {
				owners[i], _ = c.nodes[0].placeOf(stateKey(i))
			}
			stop := c.adding(keys)
			<-time.After(time.Second)
			for i, n := range c.nodes {
				if n.signal(t, syscall.SIGTERM); i == killed {
					n.kill()
				}
			}
			for i, n := range c.nodes {
				if i == killed {
					continue
				}
				select {
				case <-n.done:
				case <-time.After(40 * time.Second):
					t.Fatalf("%s does not end: %s", n.id, n.err())
				}
				if _, err := os.Stat(filepath.Join(n.disk, "state")); err != nil {
					t.Errorf("%s has kept nothing: %v", n.id, err)
				}
			}
			acked := stop()
			for _, n := range c.nodes {
				n.run()
			}
			c.ready(c.nodes...)
			for i, least := range acked {
				if killed >= 0 && owners[i] == c.nodes[killed].id {
					continue
				}
				r, err := c.nodes[0].add(stateKey(i), 0)
				if err != nil || r.Value < least {
					t.Errorf("%s of %s is %d, and %d was acknowledged; %v", stateKey(i), owners[i], r.GetValue(), least, err)
				}
			}
		})
	}
}
