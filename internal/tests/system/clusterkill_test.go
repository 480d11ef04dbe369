package system

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Any node of a cluster takes any call; one that must not forward names the owner.
func TestClusterReady(t *testing.T) {
	t.Parallel()
	began := time.Now()
	c := newCluster(t, 3, false)
	took := time.Since(began)
	t.Logf("three nodes were ready after %s", took)
	if took > 20*time.Second {
		t.Errorf("three nodes were ready only after %s", took)
	}
	last := map[string]uint64{}
	for owner, keys := range c.keys(5) {
		for _, key := range keys {
			for _, n := range c.nodes {
				if g := n.mustAcquire(key); g.owner != owner || g.token <= last[key] {
					t.Errorf("%s: %q belongs to %s, and %+v was granted after token %d", n.id, key, owner, g, last[key])
				} else {
					last[key] = g.token
				}
				g, err := n.acquire(t.Context(), key, false)
				why, at := reason(err)
				switch {
				case n.id == owner && (err != nil || g.token <= last[key]):
					t.Errorf("%s owns %q: %+v, %v", n.id, key, g, err)
				case n.id == owner:
					last[key] = g.token
				case why != "NOT_OWNER" || at != owner:
					t.Errorf("%s does not own %q: %+v, %s, %v", n.id, key, g, at, err)
				}
			}
		}
	}
}

// A node that is killed is replaced, and nothing happens to what others own.
func TestClusterKilled(t *testing.T) {
	t.Parallel()
	for _, which := range []string{"follower", "leader"} {
		t.Run(which, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 3, false)
			leads, others := c.leader()
			victim := leads
			if which == "follower" {
				victim = others[0]
			}
			survivors := slices.DeleteFunc(slices.Clone(c.nodes), func(n *testNode) bool { return n == victim })
			keys := c.keys(8)
			before := map[string]grant{}
			for _, of := range keys {
				for i, key := range of {
					before[key] = survivors[i%2].mustAcquire(key)
					if _, err := survivors[i%2].add(key, 7); err != nil {
						t.Fatal(err)
					}
				}
			}
			victim.kill()
			killed := time.Now()
			for owner, of := range keys {
				for i, key := range of {
					g, value := survivors[i%2].mustAcquire(key), int64(7)
					if g.owner == victim.id || g.token <= before[key].token || g.epoch < before[key].epoch {
						t.Errorf("%q: %+v after %+v", key, g, before[key])
					}
					eventually(t, "the counter can be read", func() bool {
						r, err := survivors[(i+1)%2].add(key, 0)
						if err == nil && r.Value != value {
							t.Fatalf("%q of %s was %d and is %d", key, owner, value, r.Value)
						}
						return err == nil
					})
				}
			}
			t.Logf("all keys were served again %s after the death of the %s", time.Since(killed), which)
			victim.flags = []string{"--cluster-id", "c", "--join", c.addrs(victim)}
			victim.run()
			c.ready(c.nodes...)
			for key, g := range before {
				if now := victim.mustAcquire(key); now.token <= g.token {
					t.Errorf("%q: %+v after %+v", key, now, g)
				}
			}
		})
	}
}

// A process that is stopped beyond its lease and goes on answers for nothing until
// it is admitted anew; also what lay in its sockets meanwhile.
func TestClusterStopped(t *testing.T) {
	t.Parallel()
	for _, which := range []string{"follower", "leader"} {
		t.Run(which, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 3, false, "--lease-ttl", "1s", "--lease-margin", "25ms")
			leads, others := c.leader()
			victim := leads
			if which == "follower" {
				victim = others[0]
			}
			survivors := slices.DeleteFunc(slices.Clone(c.nodes), func(n *testNode) bool { return n == victim })
			keys := c.keys(8)[victim.id]
			was, ok := victim.clusterStatus()
			if !ok {
				t.Fatal("it has no status")
			}
			for _, key := range keys {
				if _, err := victim.acquire(t.Context(), key, false); err != nil {
					t.Fatal(err)
				}
			}
			victim.signal(t, syscall.SIGSTOP)
			next := map[string]grant{}
			for i, key := range keys {
				next[key] = survivors[i%2].mustAcquire(key)
			}
			late := ask(t.Context(), victim, keys)
			<-time.After(200 * time.Millisecond) // they are in its sockets
			victim.signal(t, syscall.SIGCONT)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			more := ask(ctx, victim, keys) // calls that come while it finds its way
			c.ready(c.nodes...)
			cancel()
			check := func(answers map[string][]grant) (n int) {
				for key, of := range answers {
					for _, g := range of {
						n++
						// What it owns again, it owns since a later epoch.
						if g.owner != victim.id || g.token <= next[key].token || g.epoch <= next[key].epoch {
							t.Errorf("%q: the stopped node answered %+v, and %+v had been granted by then", key, g, next[key])
						}
					}
				}
				return n
			}
			t.Logf("of what lay in its sockets it granted %d, of later calls %d", check(late()), check(more()))
			if is, ok := victim.clusterStatus(); !ok || is.Incarnation == was.Incarnation {
				t.Errorf("it has the incarnation %s again", is.Incarnation)
			}
			for _, key := range keys {
				var g grant
				var err error
				if !poll(func() bool { g, err = victim.acquire(t.Context(), key, false); return err == nil }) || g.token <= next[key].token {
					t.Errorf("%q: %+v after %+v, %v", key, g, next[key], err)
				}
			}
		})
	}
}

// ask takes locks at a node that must not forward the calls, each again and again
// until one is granted, ctx ends, or as long as a call may last. What it returns
// waits for the end and returns the grants by key.
func ask(ctx context.Context, n *testNode, keys []string) func() map[string][]grant {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	var mu sync.Mutex
	var wg sync.WaitGroup
	got := map[string][]grant{}
	for _, key := range keys {
		wg.Go(func() {
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for ctx.Err() == nil {
				g, err := n.acquire(ctx, key, false)
				if err == nil {
					mu.Lock()
					got[key] = append(got[key], g)
					mu.Unlock()
				}
				select {
				case <-tick.C:
				case <-ctx.Done():
				}
			}
		})
	}
	return func() map[string][]grant { defer cancel(); wg.Wait(); return got }
}

// A node that is told to stop is replaced at once: here its lease would last for
// 20 s. It ends with 0, be it the leader or not.
func TestClusterTerminated(t *testing.T) {
	t.Parallel()
	const ttl = 20 * time.Second
	c := newCluster(t, 3, false, "--lease-ttl", ttl.String())
	leads, others := c.leader()
	keys := c.keys(8)
	before := map[string]grant{}
	for _, of := range keys {
		for _, key := range of {
			before[key] = others[1].mustAcquire(key)
		}
	}
	for _, victim := range []*testNode{others[0], leads} {
		told := time.Now()
		victim.signal(t, syscall.SIGTERM)
		for _, key := range keys[victim.id] {
			var g grant
			eventually(t, fmt.Sprintf("another owns %q", key), func() bool {
				g = others[1].mustAcquire(key)
				return g.owner != victim.id
			})
			if g.token <= before[key].token {
				t.Errorf("%q: %+v after %+v", key, g, before[key])
			}
		}
		took := time.Since(told)
		t.Logf("the keys of %s were served by others %s after it was told to stop", victim.id, took)
		if took > ttl/2 { // it would be all of it
			t.Errorf("the keys of %s were served only after %s", victim.id, took)
		}
		victim.ends(t, 0)
		if victim == leads {
			break
		}
		victim.flags = []string{"--cluster-id", "c", "--join", c.addrs(victim)}
		victim.run()
		c.ready(c.nodes...)
		keys = c.keys(8)
	}
}
