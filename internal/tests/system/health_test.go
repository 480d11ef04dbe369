package system

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// health returns what a node's health service answers for a name.
func (n *testNode) health(name string) (healthpb.HealthCheckResponse_ServingStatus, error) {
	ctx, cancel := context.WithTimeout(n.t.Context(), callTime)
	defer cancel()
	resp, err := healthpb.NewHealthClient(n.conn).Check(ctx, &healthpb.HealthCheckRequest{Service: name})
	return resp.GetStatus(), err
}

// TestHealthFollowsReadiness holds grpc.health.v1 to /readyz: of a member, of one that
// was drained, of one that is cut off because most nodes are dead.
func TestHealthFollowsReadiness(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, false)
	n1, n2, n3 := c.nodes[0], c.nodes[1], c.nodes[2]
	names := []string{"", "keystead.limit.v1.LimitService", "keystead.cluster.v1.ClusterService"}
	says := func(n *testNode, want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		for _, name := range names {
			if got, err := n.health(name); err != nil || got != want {
				t.Errorf("%s: %q is %v, %v; want %v", n.id, name, got, err, want)
			}
		}
		if got, err := n.health("liveness"); err != nil || got != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("%s: liveness is %v, %v", n.id, got, err)
		}
	}
	says(n2, healthpb.HealthCheckResponse_SERVING)
	for _, name := range []string{"no.such.Service", "ratelimit"} { // without --rls-config there is none
		if _, err := n1.health(name); status.Code(err) != codes.NotFound {
			t.Errorf("%q: %v", name, err)
		}
	}
	watch, err := healthpb.NewHealthClient(n2.conn).Watch(t.Context(), &healthpb.HealthCheckRequest{Service: "keystead.lock.v1.LockService"})
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := watch.Recv(); err != nil || resp.Status != healthpb.HealthCheckResponse_SERVING {
		t.Fatalf("watched: %v, %v", resp, err)
	}

	if r := keystead(t, "drain", "n2", "--wait", "--addr", n1.grpc); r.code != 0 {
		t.Fatalf("%d %s", r.code, r.err)
	}
	if resp, err := watch.Recv(); err != nil || resp.Status != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Fatalf("watched: %v, %v", resp, err)
	}
	says(n2, healthpb.HealthCheckResponse_NOT_SERVING)
	says(n1, healthpb.HealthCheckResponse_SERVING)

	n2.kill()
	n3.kill()
	// A lease that was granted by the others in their last moment may end the first time
	// that there is none.
	eventually(t, "n1 has no lease, by /readyz and all names", func() bool {
		code, _, err := n1.get("/readyz")
		for _, name := range names {
			got, e := n1.health(name)
			err = errors.Join(err, e)
			if got != healthpb.HealthCheckResponse_NOT_SERVING {
				code = 0
			}
		}
		return err == nil && code == 503
	})
	says(n1, healthpb.HealthCheckResponse_NOT_SERVING)
}
