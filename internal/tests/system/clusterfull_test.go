package system

import (
	"context"
	"strconv"
	"strings"
	"testing"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
)

// fillUp adds to new counters until each node has refused some, and returns the keys of
// those that were acknowledged.
func (c *testCluster) fillUp() (kept []string) {
	c.t.Helper()
	prefix, refused := strings.Repeat("k", 200)+"-", map[string]bool{}
	for next := 0; len(refused) < len(c.nodes); {
		if next > 1_000_000 {
			c.t.Fatalf("with %d counters, only %v are full", len(kept), refused)
		}
		req := &counterpb.BatchAddRequest{}
		for range 500 {
			req.Adds = append(req.Adds, &counterpb.AddRequest{Key: prefix + strconv.Itoa(next), Delta: 1})
			next++
		}
		r, err := counterpb.NewCounterServiceClient(c.nodes[next/500%3].conn).BatchAdd(c.t.Context(), req)
		if err != nil {
			c.t.Fatal(err)
		}
		var full []string
		for i, x := range r.Results {
			switch {
			case x.Error == nil:
				kept = append(kept, req.Adds[i].Key)
			case x.Error.Reason == commonpb.Reason_REASON_STORE_FULL:
				full = append(full, req.Adds[i].Key)
			case x.Error.Reason != commonpb.Reason_REASON_OUTCOME_UNKNOWN:
				c.t.Fatal(x.Error)
			}
		}
		for _, o := range c.nodes[0].owners(full...) {
			refused[o.Owner] = true
		}
	}
	return kept
}

// uncounted returns how many of these counters are 0 at a node.
func (n *testNode) uncounted(keys []string) (lost int) {
	n.t.Helper()
	for at := 0; at < len(keys); at += 1000 {
		req := &counterpb.BatchGetRequest{}
		for _, key := range keys[at:min(at+1000, len(keys))] {
			req.Gets = append(req.Gets, &counterpb.GetRequest{Key: key})
		}
		var r *counterpb.BatchGetResponse
		eventually(n.t, "all counters are read", func() bool {
			var err error
			if r, err = counterpb.NewCounterServiceClient(n.conn).BatchGet(n.t.Context(), req); err != nil {
				return false
			}
			for _, x := range r.Results {
				if x.Error != nil {
					return false
				}
			}
			return true
		})
		for _, x := range r.Results {
			if x.Response.Value < 1 {
				lost++
			}
		}
	}
	return lost
}

// A cluster of three is filled with new counters until all nodes refuse them. What is
// there goes on, with request ids, too; every row keeps its copy; and when a node is
// killed, nothing that was acknowledged is lost, and all has its copy again.
func TestClusterFull(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, false, "--max-memory", "16MiB", "--hot-split", "off")
	c.protected(c.nodes...)
	kept := c.fillUp()
	for i := range 30 {
		ctx, cancel := context.WithTimeout(t.Context(), callTime)
		_, err := counterpb.NewCounterServiceClient(c.nodes[i%3].conn).Add(ctx, &counterpb.AddRequest{Key: kept[i*len(kept)/30], Delta: 1,
			RequestId: &commonpb.RequestId{Client: []byte("0123456789abcd" + strconv.Itoa(10+i)), Sequence: 1}})
		cancel()
		if err != nil {
			t.Errorf("add %d with an id to a counter that is there: %v", i, err)
		}
	}
	c.protected(c.nodes...)
	for _, n := range c.nodes {
		if strings.Contains(n.err(), "NOT_TAKEN") {
			t.Errorf("copies of %s were refused", n.id)
		}
	}
	leads, others := c.leader()
	others[0].kill()
	for _, key := range c.someKeys() {
		eventually(t, "somebody answers for "+key, func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), callTime)
			defer cancel()
			_, err := counterpb.NewCounterServiceClient(leads.conn).Get(ctx, &counterpb.GetRequest{Key: key})
			return err == nil
		})
	}
	if lost := leads.uncounted(kept); lost > 0 {
		t.Errorf("%d of %d counters are lost", lost, len(kept))
	}
	c.protected(leads, others[1])
	t.Logf("%d counters", len(kept))
}
