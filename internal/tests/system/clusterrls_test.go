//go:build system

package system

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const silentLimits = `
domain: d
descriptors:
- key: silent
  rate_limit: {unit: day, requests_per_unit: 10, keystead: {on_failure: allow}}
- key: back
  rate_limit: {unit: day, requests_per_unit: 10, keystead: {on_failure: allow, all_or_nothing: true}}
- key: own
  rate_limit: {unit: day, requests_per_unit: 10, keystead: {on_failure: allow}}
- key: full
  rate_limit: {unit: day, requests_per_unit: 1}
`

// hits asks for a hit on each descriptor, written as key=value.
func (n *testNode) hits(ctx context.Context, hits uint64, descriptors ...string) (*rlspb.RateLimitResponse, error) {
	req := &rlspb.RateLimitRequest{Domain: "d"}
	for _, d := range descriptors {
		key, value, _ := strings.Cut(d, "=")
		req.Descriptors = append(req.Descriptors, &commonpb.RateLimitDescriptor{
			Entries: []*commonpb.RateLimitDescriptor_Entry{{Key: key, Value: value}}, HitsAddend: wrapperspb.UInt64(hits)})
	}
	return rlspb.NewRateLimitServiceClient(n.conn).ShouldRateLimit(ctx, req)
}

// A node that is stopped neither answers nor ends its connections, and the one that is
// asked waits for it as its standby, too. What the third one says counts all the same;
// and what the stopped one counts when it goes on is given back.
func TestClusterRLSSilentOwner(t *testing.T) {
	t.Parallel()
	limits := write(t, filepath.Join(t.TempDir(), "limits.yaml"), silentLimits)
	// A lease that outlives the test: the stopped node stays the owner of its keys.
	c := newCluster(t, 3, false, "--rls-config", limits, "--lease-ttl", "15s")
	c.protected(c.nodes...)
	asked, others := c.leader()
	silent, third := others[0], others[1]
	// key is a descriptor whose owner and standby are these.
	key := func(name, owner, standby string) string {
		t.Helper()
		for i := range 1000 {
			value := strconv.Itoa(i)
			o := asked.owners(fmt.Sprintf("1:d%d:%s%d:%s", len(name), name, len(value), value))
			if len(o) == 1 && o[0].Owner == owner && o[0].Standby == standby {
				return name + "=" + value
			}
		}
		t.Fatalf("%s owns no key of %s with %s for a standby", owner, name, standby)
		return ""
	}
	back := key("back", silent.id, third.id)
	ask := []string{key("silent", silent.id, third.id), back, key("own", asked.id, silent.id), key("full", third.id, asked.id)}
	if r, err := asked.hits(t.Context(), 1, ask...); err != nil || r.OverallCode != rlspb.RateLimitResponse_OK || r.Statuses[1].LimitRemaining != 9 {
		t.Fatalf("with all there: %v %v", r, err)
	}

	silent.signal(t, syscall.SIGSTOP)
	ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
	defer cancel()
	r, err := asked.hits(ctx, 1, ask...)
	silent.signal(t, syscall.SIGCONT)
	if err != nil || r.OverallCode != rlspb.RateLimitResponse_OVER_LIMIT {
		t.Fatalf("with one silent: %v %v", r, err)
	}
	for i, s := range r.Statuses {
		if over := s.Code == rlspb.RateLimitResponse_OVER_LIMIT; over != (i == 3) {
			t.Errorf("%s: %v", ask[i], s)
		}
	}
	eventually(t, "what was counted late is given back", func() bool {
		_, body, err := asked.get("/metrics")
		return err == nil && strings.Contains(body, "keystead_rls_refunds_total{outcome=\"given\"} 1\n")
	})
	if r, err := third.hits(t.Context(), 0, back); err != nil || r.Statuses[0].LimitRemaining != 9 {
		t.Errorf("after that: %v %v", r, err)
	}
}
