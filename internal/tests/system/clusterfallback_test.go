//go:build system

package system

import (
	"context"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/keystead/keystead/client"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// Two of three nodes are stopped, as by a machine that hangs: nobody may act. The third one decides
// checks of everybody's keys by their fallbacks, a client that reaches no node at all by its own, and
// both within the budget. When all go on, the owners decide, by what they had.
func TestClusterWithoutOwners(t *testing.T) {
	const budget, limit, nodeCap, callers, rounds = 200 * time.Millisecond, 10_000, 5, 16, 25
	c := newCluster(t, 3, false)
	c.protected(c.nodes...)
	keys := c.keys(1)
	ask := func(key string) (*limitpb.CheckResponse, time.Duration, error) {
		ctx, cancel := context.WithTimeout(t.Context(), callTime)
		defer cancel()
		began := time.Now()
		r, err := limitpb.NewLimitServiceClient(c.nodes[0].conn).Check(ctx, &limitpb.CheckRequest{Key: key, Name: "api", Limit: limit, PeriodNs: int64(24 * time.Hour),
			Algorithm: limitpb.Algorithm_ALGORITHM_FIXED_WINDOW, Fallback: &limitpb.Fallback{Source: limitpb.FallbackSource_FALLBACK_SOURCE_LOCAL_CAP,
				Cap: nodeCap, PeriodNs: int64(time.Hour), BudgetNs: int64(budget)}})
		return r, time.Since(began), err
	}
	node, err := client.Dial(t.Context(), c.nodes[0].grpc, c.nodes[1].grpc, c.nodes[2].grpc)
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	alone := node.Limit("other", client.Per(limit, 24*time.Hour), client.LocalCap(nodeCap, time.Hour), client.Budget(budget))
	for _, n := range c.nodes {
		key := keys[n.id][0]
		if r, _, err := ask(key); err != nil || r.Degraded || r.Remaining != limit-1 || r.Owner != n.id {
			t.Fatalf("with all nodes: %v %v", r, err)
		}
		if _, err := alone.Check(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}

	c.nodes[1].signal(t, syscall.SIGSTOP)
	c.nodes[2].signal(t, syscall.SIGSTOP)
	eventually(t, "the last node may not act", func() bool { r, _, _ := ask(keys[c.nodes[0].id][0]); return r.GetDegraded() })
	for _, n := range c.nodes {
		var mu sync.Mutex
		var took []time.Duration
		admitted := 0
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				for range rounds {
					r, d, err := ask(keys[n.id][0])
					mu.Lock()
					if took = append(took, d); err != nil || !r.Degraded || r.Owner != c.nodes[0].id {
						t.Errorf("without owners: %v %v", r, err)
					} else if r.Allowed {
						admitted++
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if admitted > nodeCap {
			t.Errorf("%d admitted by a cap of %d", admitted, nodeCap)
		}
		slices.Sort(took)
		half := took[len(took)/2]
		t.Logf("keys of %s: %d checks, p50 %s, p99 %s of a budget of %s", n.id, len(took), half, took[len(took)*99/100], budget)
		if half > time.Second { // without a budget it is two
			t.Errorf("half of the checks took longer than %s", half)
		}
	}
	if _, body, err := c.nodes[0].get("/metrics"); err != nil || !strings.Contains(body, `keystead_degraded_checks_total{reason="budget",source="local_cap"}`) {
		t.Errorf("not counted: %v", err)
	}

	c.nodes[0].signal(t, syscall.SIGSTOP)
	admitted := 0
	var took []time.Duration
	for range rounds {
		began := time.Now()
		d, err := alone.Check(t.Context(), keys[c.nodes[0].id][0])
		if err != nil {
			t.Fatal(err)
		}
		if took = append(took, time.Since(began)); d.Degraded != client.ByLocalCap || d.Owner != "" {
			t.Fatalf("without nodes: %+v", d)
		}
		if d.Allowed {
			admitted++
		}
	}
	slices.Sort(took)
	t.Logf("by the client: p50 %s, p99 %s of a budget of %s", took[rounds/2], took[rounds-1], budget)
	if admitted != nodeCap || took[rounds/2] > time.Second {
		t.Errorf("%d admitted by a cap of %d; half of the checks took longer than %s", admitted, nodeCap, took[rounds/2])
	}

	for _, n := range c.nodes {
		n.signal(t, syscall.SIGCONT)
	}
	c.ready(c.nodes...)
	for _, n := range c.nodes {
		var r *limitpb.CheckResponse
		eventually(t, "the owners decide again", func() bool {
			var err error
			r, _, err = ask(keys[n.id][0])
			return err == nil && !r.Degraded
		})
		if r.LostEpoch != 0 || r.Remaining >= limit-1 {
			t.Errorf("what was spent before is forgotten: %v", r)
		}
		next, _, err := ask(keys[n.id][0])
		if err != nil || next.Degraded || next.Remaining != r.Remaining-1 {
			t.Errorf("it is not exact again: %v, then %v %v", r, next, err)
		}
	}
}
