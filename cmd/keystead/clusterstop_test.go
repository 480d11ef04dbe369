package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
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
	g := n.taken("free")
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
	if held == 0 {
		t.Fatal("nobody has kept anything")
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
