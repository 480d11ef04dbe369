//go:build system

package system

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// splitState returns how an object is, as a node tells: its split, nil if it is whole.
func (n *testNode) splitState(key string) *clusterpb.Split {
	r, err := clusterpb.NewClusterServiceClient(n.conn).ListHot(n.t.Context(), &clusterpb.ListHotRequest{})
	if err != nil {
		return nil
	}
	for _, s := range r.Splits {
		if s.Key == key {
			return s
		}
	}
	return nil
}

// spend spends tokens of a limit that hardly fills up, until so many checks in a row were
// refused, and returns how many were allowed.
func (c *testCluster) spend(key string, most, refusals int, nodes ...*testNode) (allowed int) {
	c.t.Helper()
	for refused, i := 0, 0; allowed < most && refused < refusals; i++ {
		r, err := limitpb.NewLimitServiceClient(nodes[i%len(nodes)].conn).Check(c.t.Context(), &limitpb.CheckRequest{Key: key, Limit: 1, PeriodNs: int64(24 * time.Hour), Burst: 100})
		switch {
		case err != nil:
			c.t.Fatal(err)
		case r.Allowed:
			allowed, refused = allowed+1, 0
		default:
			refused++
		}
	}
	return allowed
}

// Counters and a limit are split by hand under load, while the node of a part is killed and
// comes back, and while another one is drained; then they are merged. Nothing is lost,
// counted twice or refilled, and no call fails.
func TestClusterSplit(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, false, "--hot-split", "off")
	l := startLoad(t, c, 2*time.Millisecond)
	if n := c.spend("used", 60, 1, c.nodes...); n != 60 {
		t.Fatalf("%d of 60 are allowed", n)
	}
	split := func(kind, name, key string, at *testNode) {
		t.Helper()
		if r := keystead(t, "hot", "split", key, "--kind", kind, "--name", name, "--into", "3", "--addr", at.grpc); r.code != 0 || !strings.Contains(r.out, "into 3 parts") {
			t.Fatalf("split ends with %d: %s%s", r.code, r.out, r.err)
		}
	}
	for i := range 6 {
		split("counter", "counter", "load-"+strconv.Itoa(i), c.nodes[i%3])
	}
	split("limit", "limit", "used", c.nodes[0])
	spent := 60 + c.spend("used", 100, 30, c.nodes...)
	if spent > 100 || spent < 98 { // less than a token is lost for each part
		t.Errorf("%d of 100 tokens are spent by the parts", spent)
	}
	leads, others := c.leader()
	victim := others[0]
	victim.kill()
	spent += c.spend("used", 100, 30, leads, others[1])
	victim.run()
	c.ready(c.nodes...)
	c.protected(c.nodes...)
	if r := keystead(t, "drain", others[1].id, "--wait", "--addr", leads.grpc); r.code != 0 {
		t.Fatalf("drain ends with %d: %s%s", r.code, r.out, r.err)
	}
	spent += c.spend("used", 100, 30, c.nodes...)
	for i := range 6 {
		key := "load-" + strconv.Itoa(i)
		if s := leads.splitState(key); s == nil || s.Phase != clusterpb.SplitPhase_SPLIT_PHASE_OPEN || len(s.Parts) != 3 {
			t.Errorf("%s: %v", key, s)
		}
		if r := keystead(t, "hot", "merge", key, "--addr", c.nodes[i%3].grpc); r.code != 0 {
			t.Fatalf("merge ends with %d: %s%s", r.code, r.out, r.err)
		}
	}
	// An operation that needs the whole makes it whole.
	if _, err := limitpb.NewLimitServiceClient(leads.conn).Check(t.Context(), &limitpb.CheckRequest{Key: "used", Limit: 1, PeriodNs: int64(24 * time.Hour), Burst: 100, Cost: 99}); err != nil {
		t.Fatal(err)
	}
	if s := leads.splitState("used"); s != nil {
		t.Errorf("it is split still: %v", s)
	}
	if spent += c.spend("used", 100, 30, c.nodes...); spent > 100 {
		t.Errorf("%d of 100 tokens are spent", spent)
	}
	l.end(t, leads)
}

// A key that gets hot is split by itself, soon, and merged when it is calm.
func TestClusterSplitsByItself(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, false, "--hot-floor", "50", "--hot-per-part", "20", "--hot-stay", "4s")
	l := startLoad(t, c, 2*time.Millisecond) // 16 keys that are busy alike
	began, sent := time.Now(), int64(0)
	for n := 0; c.nodes[0].splitState("hot") == nil; n++ {
		if time.Since(began) > 30*time.Second {
			t.Fatal("it is not split")
		}
		req := &counterpb.BatchAddRequest{}
		for range 200 {
			req.Adds = append(req.Adds, &counterpb.AddRequest{Key: "hot", Delta: 1})
		}
		r, err := counterpb.NewCounterServiceClient(c.nodes[n%3].conn).BatchAdd(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range r.Results {
			if x.Error != nil {
				t.Fatal(x.Error)
			}
			sent++
		}
		<-time.After(5 * time.Millisecond)
	}
	t.Logf("split after %s", time.Since(began))
	for _, n := range c.nodes { // each has a table of its own
		eventually(t, n.id+" has the split", func() bool { return n.splitState("hot") != nil })
	}
	for _, n := range c.nodes {
		eventually(t, n.id+" has it merged", func() bool { return n.splitState("hot") == nil })
	}
	r, err := counterpb.NewCounterServiceClient(c.nodes[2].conn).Get(t.Context(), &counterpb.GetRequest{Key: "hot"})
	if err != nil || r.Value != sent || r.Parts != 0 {
		t.Errorf("%d adds, and it is %v, %v", sent, r, err)
	}
	l.end(t, c.nodes[0])
}

// Parts come to the nodes that are for hot keys, if those are enough.
func TestClusterSplitDedicated(t *testing.T) {
	t.Parallel()
	c := layOut(t, 3, false, "--hot-split", "off")
	for i, n := range c.nodes {
		if i > 0 {
			n.flags = append(n.flags, "--hot-node")
		}
		n.run()
	}
	c.ready(c.nodes...)
	owners := func(parts string) (names []string) {
		t.Helper()
		key := "dedicated-" + parts
		if r := keystead(t, "hot", "split", key, "--kind", "counter", "--into", parts, "--addr", c.nodes[0].grpc); r.code != 0 {
			t.Fatalf("split ends with %d: %s%s", r.code, r.out, r.err)
		}
		for _, p := range c.nodes[1].splitState(key).GetParts() {
			names = append(names, p.Owner)
		}
		slices.Sort(names)
		return names
	}
	if got := owners("2"); !slices.Equal(got, []string{"n2", "n3"}) {
		t.Errorf("two parts are on %v", got)
	}
	if got := owners("3"); !slices.Equal(got, []string{"n1", "n2", "n3"}) {
		t.Errorf("three parts are on %v", got)
	}
}
