//go:build system

package system

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	idpb "github.com/keystead/keystead/proto/keystead/id/v1"
)

// wiped removes what the node, which does not run, had on its disk.
func (n *testNode) wiped() {
	n.t.Helper()
	if n.runs() {
		n.t.Fatalf("%s still runs", n.id)
	}
	if err := os.RemoveAll(n.disk); err != nil {
		n.t.Fatal(err)
	}
}

// A cluster that was killed as a whole comes back from its disks. The node that
// made it is told to again, and does not.
func TestClusterFromDisk(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, true)
	last := map[string]uint64{}
	c.tokens(last)
	for _, n := range c.nodes {
		n.kill()
	}
	for _, n := range []*testNode{c.nodes[2], c.nodes[0], c.nodes[1]} {
		n.run()
	}
	c.ready(c.nodes...)
	c.tokens(last)
	// One at a time, each comes back as the same server: all that voted vote, and
	// the node that has --bootstrap among its flags stays in the cluster.
	for _, n := range []*testNode{c.nodes[1], c.nodes[0]} {
		was, _ := n.clusterStatus()
		n.kill()
		n.run()
		eventually(t, "its voters are the same from its log", func() bool {
			is, ok := n.clusterStatus()
			return ok && slices.Equal(slices.Sorted(slices.Values(is.Voters)), slices.Sorted(slices.Values(was.Voters)))
		})
		eventually(t, "it has another incarnation", func() bool {
			is, ok := n.clusterStatus()
			return ok && is.Ready && is.Incarnation != was.Incarnation
		})
		c.ready(c.nodes...)
		c.tokens(last)
	}
}

// A cluster whose disks are all set back to an earlier state gives no token and no id
// a second time.
func TestClusterDisksWentBack(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, true)
	stop := func() {
		for _, n := range c.nodes {
			n.kill()
		}
	}
	last, backup := map[string]uint64{}, t.TempDir()
	c.tokens(last)
	stop()
	for _, n := range c.nodes {
		if err := os.CopyFS(filepath.Join(backup, n.id), os.DirFS(n.disk)); err != nil {
			t.Fatal(err)
		}
	}
	highest := uint64(0)
	for again := range 3 {
		for _, n := range c.nodes {
			n.run()
		}
		c.ready(c.nodes...)
		for range 3 {
			c.tokens(last)
		}
		most := highest
		for _, n := range c.nodes {
			id := n.id64()
			if id <= highest {
				t.Errorf("after %d restores %s gives the id %d, and %d was given before", again, n.id, id, highest)
			}
			most = max(most, id)
		}
		highest = most
		stop()
		for _, n := range c.nodes {
			n.wiped()
			if err := os.CopyFS(n.disk, os.DirFS(filepath.Join(backup, n.id))); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// id64 returns an id that a node gives.
func (n *testNode) id64() (id uint64) {
	n.t.Helper()
	if !poll(func() bool {
		ctx, cancel := context.WithTimeout(n.t.Context(), callTime)
		defer cancel()
		resp, err := idpb.NewIdServiceClient(n.conn).Next(ctx, &idpb.NextRequest{Count: 1})
		id = resp.GetFirst()
		return err == nil
	}) {
		n.t.Fatalf("%s gives no id", n.id)
	}
	return id
}

// A node that lost its disk joins as a new server, and the old one no longer
// votes; also if it is the one that made the cluster, as long as it is told where
// to look.
func TestClusterWipedDisk(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, true)
	last := map[string]uint64{}
	c.tokens(last)
	for _, n := range c.nodes[:2] {
		n.kill()
		n.wiped()
		if n == c.nodes[0] {
			n.flags = append(n.flags, "--join", c.addrs(n)) // beside --bootstrap
		}
		n.run()
		if n == c.nodes[0] {
			n.said("there is a cluster already")
		}
		c.ready(c.nodes...)
		c.tokens(last)
	}
}

// A node that makes a second cluster of the same name is told apart and never
// taken in, and the first cluster goes on.
func TestClusterMadeTwice(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, true)
	last := map[string]uint64{}
	c.tokens(last)
	first, others := c.nodes[0], c.nodes[1:]
	first.kill()
	first.wiped()
	eventually(t, "the others go on", func() bool {
		st, ok := others[0].clusterStatus()
		return ok && len(st.Members) == 2
	})
	rest := &testCluster{t: t, nodes: others}
	rest.tokens(last)
	first.run() // --bootstrap alone: it cannot know better
	for _, n := range others {
		n.said("level=ERROR", "another cluster of the same name", `"its node"=n1`)
	}
	eventually(t, "it is ready in a cluster of its own", func() bool {
		code, _, err := first.get("/readyz")
		return err == nil && code == http.StatusOK
	})
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		rest.tokens(last)
		for _, n := range others {
			if st, ok := n.clusterStatus(); !ok || slices.Contains(st.Members, first.id) || st.RowsToMove > 0 {
				t.Fatalf("%s: %+v", n.id, st)
			}
		}
		if st, ok := first.clusterStatus(); !ok || !slices.Equal(st.Members, []string{first.id}) || !slices.Equal(st.Voters, []string{first.id}) {
			t.Fatalf("the second cluster: %+v", st)
		}
	}
	// It comes back when it is done as the log says.
	first.kill()
	first.wiped()
	first.flags = []string{"--cluster-id", "c", "--join", c.addrs(first)}
	first.run()
	c.ready(c.nodes...)
	c.tokens(last)
}
