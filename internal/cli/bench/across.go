package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc"

	admissionpb "github.com/keystead/keystead/proto/keystead/admission/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
)

// Names of what is measured on a cluster of admissions whose demands are of keys of all nodes, one of each.
const (
	Across     = "across"      // bare calls to any node: all of it is spent at once
	AcrossHold = "across-hold" // … it is held, and settled by a second call
)

// ClusterWorkloads are the names of what a cluster is measured by, in their order. If none is named, it is the first.
var ClusterWorkloads = []string{"check", Across, AcrossHold}

// AboutCluster describes them, one a line.
func AboutCluster() string {
	return `
  check        one limit check a call: by the Go client, to the owner, forwarded
  across       charge a limit of a key of each node in one call, ÷ a forwarded check
  across-hold  reserve a limit of a key of each node and settle them, two calls, ÷ a forwarded check`
}

// Validate returns what in c, but for its nodes, makes no sense. RunCluster calls it, too.
func (c *Cluster) Validate() error {
	for _, name := range c.Workloads {
		if !slices.Contains(ClusterWorkloads, name) {
			return fmt.Errorf("workload %q: of a cluster, choose from %s", name, strings.Join(ClusterWorkloads, ", "))
		}
	}
	check := c.Config // the rest is as for one node
	check.Workloads, check.Targets = []string{"check"}, []Target{{Name: OneNode, Addr: c.Alone}}
	return check.Validate()
}

// Measures reports whether the workload of a name is measured.
func (c *Cluster) Measures(name string) bool {
	return slices.Contains(c.Workloads, name) || len(c.Workloads) == 0 && name == ClusterWorkloads[0]
}

// acrossWays returns the workloads of admissions whose demands are of keys of all nodes.
func (c *Cluster) acrossWays(owners map[string]int, keys []string, conns map[string]*grpc.ClientConn) (ways []workload, err error) {
	of := make([][]string, len(c.Nodes))
	for _, key := range keys {
		of[owners[key]] = append(of[owners[key]], key)
	}
	if slices.ContainsFunc(of, func(keys []string) bool { return len(keys) == 0 }) {
		return nil, fmt.Errorf("of %d keys, each of %d nodes should own one: choose more", len(keys), len(c.Nodes))
	}
	for _, name := range []string{Across, AcrossHold} {
		if !c.Measures(name) {
			continue
		}
		ways = append(ways, workload{name: name, items: single, start: func(_ context.Context, w *worker) (cycle, error) {
			return func(ctx context.Context) error {
				conn := conns[c.Nodes[w.rng.IntN(len(c.Nodes))]]
				return w.across(ctx, admissionpb.NewAdmissionServiceClient(conn), of, name == AcrossHold)
			}, nil
		}})
	}
	return ways, nil
}

// across admits one request under a key of each owner, and settles it if it is held.
func (w *worker) across(ctx context.Context, c admissionpb.AdmissionServiceClient, of [][]string, hold bool) error {
	q := &admissionpb.AdmitRequest{Name: "bench-across", RequestId: w.requestID()}
	for _, keys := range of {
		q.Demands = append(q.Demands, &admissionpb.Demand{Key: keys[w.rng.IntN(len(keys))], Name: "bench-level",
			Limit: &admissionpb.LimitDemand{Limit: 1_000_000, PeriodNs: 1_000_000_000}})
	}
	q.Key = q.Demands[0].Key
	if hold { // it has a request id in any case
		w.seq++
		q.HoldNs, q.RequestId = 10_000_000_000, &commonpb.RequestId{Client: w.client, Sequence: w.seq, Settled: w.seq}
	}
	r, err := c.Admit(ctx, q)
	if err != nil {
		return err
	}
	if !r.Admitted {
		return fmt.Errorf("%s and keys of other owners were not admitted", q.Key)
	}
	if hold {
		_, err = c.Settle(ctx, &admissionpb.SettleRequest{Key: q.Key, Name: q.Name, HoldId: r.HoldId, RequestId: w.requestID()})
	}
	return err
}
