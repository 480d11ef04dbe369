//go:build system

package system

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/internal/ids"
	idpb "github.com/keystead/keystead/proto/keystead/id/v1"
)

// idRun is a run of ids that a caller received.
type idRun struct {
	first, count uint64
	sent, got    time.Time
	node         string
}

// askForIDs asks the nodes of a cluster for ids, each caller another node each time,
// until it is stopped, and returns what came then.
func askForIDs(c *testCluster, callers int) (came func() int, stop func() []idRun) {
	ctx, cancel := context.WithCancel(context.Background())
	var mu sync.Mutex
	var all []idRun
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for ctx.Err() == nil {
				n := c.nodes[rand.IntN(len(c.nodes))]
				try, over := context.WithTimeout(ctx, time.Second)
				r := idRun{sent: time.Now()}
				resp, err := idpb.NewIdServiceClient(n.conn).Next(try, &idpb.NextRequest{Count: 1 + rand.Uint32N(ids.MaxCount)}, grpc.WaitForReady(true))
				over()
				if err != nil {
					<-time.After(10 * time.Millisecond)
					continue
				}
				r.first, r.count, r.got, r.node = resp.First, uint64(resp.Count), time.Now(), resp.Node
				mu.Lock()
				all = append(all, r)
				mu.Unlock()
				<-time.After(time.Millisecond)
			}
		})
	}
	came = func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(all)
	}
	return came, func() []idRun { cancel(); wg.Wait(); return all }
}

// judgeIDs sees that no id came twice, that those of a process rise, and that nodes did
// not get further out of order than Order.
func judgeIDs(t *testing.T, all []idRun) {
	t.Helper()
	slices.SortFunc(all, func(a, b idRun) int { return cmp.Compare(a.first, b.first) })
	byNode := map[string]int{}
	worst := time.Duration(0)
	greatest := time.Time{} // when the last of those below was sent
	for i, r := range all {
		byNode[r.node]++
		if i > 0 && r.first < all[i-1].first+all[i-1].count {
			t.Errorf("%s gave %d ids from %x on, %s %d from %x on", all[i-1].node, all[i-1].count, all[i-1].first, r.node, r.count, r.first)
		}
		worst = max(worst, greatest.Sub(r.got))
		if r.sent.After(greatest) {
			greatest = r.sent
		}
	}
	t.Logf("%d runs of ids: %v; one came %s after a greater one at most", len(all), byNode, worst)
	if worst > ids.Order {
		t.Errorf("one came %s after a greater one", worst)
	}
}

// TestClusterIDs: no id twice, through deaths of leader and followers, of all, and
// restarts.
func TestClusterIDs(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, true)
	_, stop := askForIDs(c, 6)
	for range 2 {
		leads, others := c.leader()
		<-time.After(time.Second)
		leads.kill()
		<-time.After(time.Second)
		leads.run()
		c.allVote()
		others[0].kill()
		others[0].run()
		c.allVote()
	}
	for _, n := range c.nodes {
		n.kill()
	}
	for _, n := range c.nodes {
		n.run()
	}
	c.allVote()
	<-time.After(2 * time.Second)
	all := stop()
	judgeIDs(t, all)
	if len(all) < 1000 {
		t.Errorf("only %d runs", len(all))
	}
	c.ready(c.nodes...)
}

// allVote waits until the three nodes are ready and vote; their epoch may rise meanwhile.
func (c *testCluster) allVote() {
	c.t.Helper()
	for _, n := range c.nodes {
		eventually(c.t, n.id+" is ready", func() bool {
			code, _, err := n.get("/readyz")
			st, _, look := n.status()
			return err == nil && code == 200 && look == nil && st.Members == 3 && len(st.Voters) == 3 && !st.Changing
		})
	}
}

// TestLoneIDs: a node that runs alone gives no id twice after kill -9, with a clock
// that stands still for all that it knows.
func TestLoneIDs(t *testing.T) {
	t.Parallel()
	n := newTestNode(t, "n1", t.TempDir(), "--epoch-floor", "400000000000")
	c := &testCluster{t: t, nodes: []*testNode{n}}
	n.run()
	came, stop := askForIDs(c, 3)
	for i := range 6 {
		if i > 0 {
			n.kill()
			n.run()
		}
		before := came()
		eventually(t, "ids come", func() bool { return came() > before+20 })
	}
	all := stop()
	judgeIDs(t, all)
	if all[0].first>>ids.SeqBits < 400000000000 {
		t.Errorf("%x is of an epoch below the floor", all[0].first)
	}
}
