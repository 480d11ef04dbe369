package rls_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/keystead/keystead/internal/node"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
)

const clusterLimits = `
domain: d
descriptors:
- key: shared
  rate_limit: {unit: day, requests_per_unit: 4}
- key: error
  rate_limit: {unit: day, requests_per_unit: 1000}
- key: allow
  rate_limit: {unit: day, requests_per_unit: 1000, keystead: {on_failure: allow}}
- key: deny
  rate_limit: {unit: day, requests_per_unit: 1000, keystead: {on_failure: deny}}
`

// Whichever node is asked, a key has one count; and when its owner is dead, each
// limit does what it says, while the caller still listens.
func TestCluster(t *testing.T) {
	t.Parallel()
	member := func(id string, change func(*node.ClusterConfig)) *service {
		return serve(t, clusterLimits, func(c *node.Config) {
			c.ID, c.StopGrace = id, time.Millisecond
			c.Cluster = node.ClusterConfig{ID: "c", RaftAddr: "127.0.0.1:0", GossipAddr: "127.0.0.1:0", Profile: "local", Settle: 50 * time.Millisecond}
			change(&c.Cluster)
		})
	}
	n1 := member("n1", func(c *node.ClusterConfig) { c.Bootstrap = true })
	gossip := n1.node.Status().Cluster.GossipAddr
	n2 := member("n2", func(c *node.ClusterConfig) { c.Join = []string{gossip} })
	eventually(t, "both own rows, and nothing moves", func() bool {
		a, b := n1.node.Status().Cluster, n2.node.Status().Cluster
		return a.RowsOwned > 0 && b.RowsOwned > 0 && a.RowsToMove == 0 && a.RowsUnprotected == 0 && a.Rows == b.Rows
	})

	for i := range 8 { // some of n1's, some of n2's
		ask := []string{fmt.Sprintf("shared=%d", i), fmt.Sprintf("shared=%d", i+100)}
		for turn, want := range []string{"ok: ok 3 of 4/day, ok 3 of 4/day", "ok: ok 2 of 4/day, ok 2 of 4/day"} {
			r, err := []*service{n1, n2}[turn].ask(t, "d", 1, ask...)
			if err != nil || show(r) != want {
				t.Errorf("%q: %v %v", ask, r, err)
			}
		}
	}

	// A value under which the keys of all three limits are n2's.
	policies := []string{"error", "allow", "deny"}
	value := ""
	for i := 0; value == ""; i++ {
		ask := &clusterpb.GetOwnersRequest{}
		for _, p := range policies {
			ask.Keys = append(ask.Keys, objectKey(p, fmt.Sprint(i)))
		}
		r, err := clusterpb.NewClusterServiceClient(dial(t, n1.node)).GetOwners(t.Context(), ask)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(r.Owners, func(o *clusterpb.KeyOwner) bool { return o.Owner != "n2" }) {
			value = fmt.Sprint(i)
		}
	}
	n2.node.Kill()
	var wg sync.WaitGroup
	said := make([]string, len(policies))
	for n, p := range policies {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			r, err := n1.ShouldRateLimit(ctx, request(t, "d", 1, p+"="+value))
			if said[n] = r.GetOverallCode().String(); err != nil {
				said[n] = "an error"
			}
		})
	}
	wg.Wait()
	if want := []string{"an error", rlspb.RateLimitResponse_OK.String(), rlspb.RateLimitResponse_OVER_LIMIT.String()}; !slices.Equal(said, want) {
		t.Errorf("%v, want %v", said, want)
	}
	// When the lease of the dead node is over, its keys are served again.
	eventually(t, "n1 has taken over", func() bool {
		r, err := n1.ask(t, "d", 0, "error="+value+" +0")
		return err == nil && r.OverallCode == rlspb.RateLimitResponse_OK
	})
}

// objectKey returns the key of a descriptor of one entry, as key.go describes it.
func objectKey(key, value string) string {
	return fmt.Sprintf("1:d%d:%s%d:%s", len(key), key, len(value), value)
}
