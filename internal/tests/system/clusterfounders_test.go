//go:build system

package system

import (
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// layOutFounders is a cluster of three founders with disks that do not run yet, all
// with the same flags.
func layOutFounders(t *testing.T) *testCluster {
	t.Helper()
	c := layOut(t, 3, true)
	for _, n := range c.nodes {
		n.flags = []string{"--cluster-id", "c", "--max-lock-ttl", "1s", "--founders", "n1,n2,n3", "--join", c.addrs(nil)}
	}
	return c
}

// founds reports whether the first founder says that it has made a cluster.
func (n *testNode) founds() bool { return strings.Contains(n.err(), "made the cluster") }

// The first founder makes the cluster when the last one is there, and not before; and
// nobody makes another one afterwards, whichever of them loses its disk.
func TestClusterFounders(t *testing.T) {
	t.Parallel()
	c := layOutFounders(t)
	first, rest := c.nodes[0], c.nodes[1:]
	first.run()
	rest[0].run()
	first.said("this node makes the cluster when all founders are there", "n3 not seen")
	eventually(t, "the two know of each other", func() bool {
		_, members, err := first.status()
		return err == nil && len(members) == 2
	})
	for end := time.Now().Add(2 * founderWait); time.Now().Before(end); {
		if st, ok := first.clusterStatus(); !ok || st.Ready || len(st.Members) > 0 {
			t.Fatalf("before the third founder is there: %+v", st)
		}
		if code, _, err := first.get("/healthz"); err != nil || code != http.StatusOK {
			t.Fatalf("/healthz: %d, %v", code, err)
		}
	}
	rest[1].run()
	c.ready(c.nodes...)
	first.said("made the cluster")
	last := map[string]uint64{}
	c.tokens(last)
	for _, n := range c.nodes { // one at a time, the maker among them
		n.kill()
		n.wiped()
		n.run()
		c.ready(c.nodes...)
		c.tokens(last)
		if n.founds() {
			t.Errorf("%s made a second cluster", n.id)
		}
	}
	// Two disks at once: the majority of the voters is gone, and so is what they knew.
	// Nobody can tell that from a cut, so nobody makes a cluster.
	for _, n := range c.nodes {
		n.kill()
	}
	first.wiped()
	rest[0].wiped()
	for _, n := range c.nodes {
		n.run()
	}
	first.said("n3 belongs to a cluster")
	for end := time.Now().Add(2 * founderWait); time.Now().Before(end); {
		if st, ok := first.clusterStatus(); ok && (st.Ready || len(st.Members) > 0) {
			t.Fatalf("a second cluster, beside what is left of the first one: %+v", st)
		}
	}
}

// A founder that waits for others ends when it is told to.
func TestClusterFounderStops(t *testing.T) {
	t.Parallel()
	c := layOutFounders(t)
	first := c.nodes[0]
	first.run()
	first.said("this node makes the cluster when all founders are there")
	first.signal(t, syscall.SIGTERM)
	first.ends(t, 0)
}

// A cluster whose every disk is lost is made anew, because nobody has a log.
func TestClusterFoundersAnew(t *testing.T) {
	t.Parallel()
	c := layOutFounders(t)
	last := map[string]uint64{}
	for range 2 {
		for _, n := range c.nodes {
			n.run()
		}
		c.ready(c.nodes...)
		c.tokens(last) // they rise across it: by the wall clock
		for _, n := range c.nodes {
			n.kill()
			n.wiped()
		}
	}
}

// founderWait is how long the first founder sees all others before it makes the
// cluster, with the gossip of these tests: see internal/node.
const founderWait = 5 * time.Second
