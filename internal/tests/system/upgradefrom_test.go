//go:build system

package system

import (
	"context"
	"flag"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/keystead/keystead/client"
)

// upgradeFrom is an earlier version of the program.
var upgradeFrom = flag.String("upgrade.from", "", "TestUpgradeFrom: path of an earlier version of the program, to upgrade from; empty = this version")

// TestUpgradeFrom upgrades a cluster node by node, under load, from an earlier version
// to this one: no call fails, nothing is lost, a waiter for a lock gets it. Then it
// stops the cluster as a whole, and it goes on with what it had.
func TestUpgradeFrom(t *testing.T) {
	t.Parallel()
	before := *upgradeFrom
	if before == "" {
		before = binary
	}
	c := layOut(t, 3, true, "--max-lock-ttl", "2h")
	for _, n := range c.nodes {
		n.prepare = func(cmd *exec.Cmd) { cmd.Path, cmd.Args[0] = before, before }
		n.run()
	}
	c.ready(c.nodes...)
	c.protected(c.nodes...)
	k := fill(t, c.nodes[0], *objects)
	q := startQueue(t, c)
	l := startLoad(t, c, time.Millisecond)
	for _, n := range c.nodes {
		stopped(t, n)
		n.flags = slices.DeleteFunc(n.flags, func(f string) bool { return f == "--bootstrap" })
		if !slices.Contains(n.flags, "--join") {
			n.flags = append(n.flags, "--join", c.addrs(n))
		}
		n.prepare = nil
		n.run()
		eventually(t, "it is back", func() bool { st, _, err := n.status(); return err == nil && st.RowsOwned > 0 })
		c.protected(c.nodes...)
		k.check(t, n)
	}
	q.end(t)
	l.end(t, c.nodes[0])
	stopped(t, c.nodes...)
	for _, n := range c.nodes {
		n.run()
	}
	c.ready(c.nodes...)
	c.protected(c.nodes...)
	k.check(t, c.nodes[1])
}

// queue is a held lock with callers that wait for it.
type queue struct {
	held    *client.HeldLock
	waiters sync.WaitGroup
	mu      sync.Mutex
	got     []string // guarded by mu: who had it, in order
	failed  []error  // guarded by mu
}

// startQueue has one caller hold a lock, and three wait.
func startQueue(t *testing.T, c *testCluster) *queue {
	t.Helper()
	var addrs []string
	for _, n := range c.nodes {
		addrs = append(addrs, n.grpc)
	}
	kc, err := client.Config{DialOptions: oldNames()}.Dial(t.Context(), addrs...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kc.Close)
	q := &queue{}
	if q.held, err = kc.Lock("").Acquire(t.Context(), "upgrade-queue", client.TTL(30*time.Second), client.HeldBy("first")); err != nil {
		t.Fatal(err)
	}
	for _, holder := range []string{"second", "third", "fourth"} {
		q.waiters.Go(func() {
			held, err := kc.Lock("").Acquire(t.Context(), "upgrade-queue", client.TTL(30*time.Second), client.HeldBy(holder))
			q.mu.Lock()
			if err != nil {
				q.failed = append(q.failed, err)
			} else {
				q.got = append(q.got, holder)
			}
			q.mu.Unlock()
			if err == nil {
				_ = held.Release(context.WithoutCancel(t.Context()))
			}
		})
		eventually(t, holder+" waits", func() bool {
			s, err := kc.Lock("").Inspect(t.Context(), "upgrade-queue")
			return err == nil && slices.ContainsFunc(s.Waiters, func(w client.Waiter) bool { return w.Name == holder })
		})
	}
	return q
}

// end gives the lock back, and checks that all that waited had it; in order, where all
// nodes were of this version.
func (q *queue) end(t *testing.T) {
	t.Helper()
	if err := q.held.Release(t.Context()); err != nil {
		t.Errorf("the holder: %v", err)
	}
	q.waiters.Wait()
	if len(q.failed) > 0 || len(q.got) != 3 || *upgradeFrom == "" && !slices.IsSorted([]int{slices.Index(q.got, "second"), slices.Index(q.got, "third"), slices.Index(q.got, "fourth")}) {
		t.Errorf("the lock went to %v; failed: %v", q.got, q.failed)
	}
}
