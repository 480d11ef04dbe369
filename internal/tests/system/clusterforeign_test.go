package system

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// A node whose disk is of another cluster of the same name, and that is told to
// join this one, is not taken in, and neither cluster's log reaches the other's
// table.
func TestClusterForeignDisk(t *testing.T) {
	t.Parallel()
	stray := newTestNode(t, "n9", t.TempDir(), "--cluster-id", "c", "--bootstrap")
	stray.run()
	(&testCluster{t: t, nodes: []*testNode{stray}}).ready(stray)
	stray.kill()
	c := newCluster(t, 3, true)
	stray.id = "n9"
	stray.flags = []string{"--cluster-id", "c", "--join", c.addrs(nil)}
	stray.run()
	eventually(t, "somebody says so", func() bool {
		return slices.ContainsFunc(c.nodes, func(n *testNode) bool { return strings.Contains(n.err(), "another cluster of the same name") })
	})
	last := map[string]uint64{}
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); <-time.After(50 * time.Millisecond) {
		c.tokens(last)
		for _, n := range c.nodes {
			if st, ok := n.clusterStatus(); !ok || slices.Contains(st.Members, stray.id) || slices.Contains(st.Voters, stray.id) {
				t.Fatalf("%s: members %v, voters %v", n.id, st.Members, st.Voters)
			}
		}
		if st, ok := stray.clusterStatus(); ok && len(st.Members) > 1 {
			t.Fatalf("the stray one: %+v", st)
		}
	}
}

// tokens takes a lock of each of some keys, and checks that the tokens rise.
func (c *testCluster) tokens(last map[string]uint64) {
	c.t.Helper()
	for i, key := range []string{"a", "b", "c", "d", "e", "f"} {
		g := c.nodes[i%len(c.nodes)].mustAcquire(key)
		if g.token <= last[key] {
			c.t.Errorf("token %d after %d", g.token, last[key])
		}
		last[key] = g.token
	}
}
