package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/internal/cli/latency"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// Names of what is measured on a cluster.
const (
	OneNode   = "client, one node" // the Go client, without gathering, on a node that runs alone
	ManyNodes = "client, cluster"  // … on a cluster, each call to its owner
	Gathered  = "client, gathered" // … gathering calls, as it does by default
	Direct    = "direct"           // bare calls to the owner
	Forwarded = "forwarded"        // bare calls to a node that is not the owner

	ManyAckOwner     = "client, cluster, ack=owner"  // as ManyNodes, on a cluster whose answers do not wait for the standby
	GatheredAckOwner = "client, gathered, ack=owner" // as Gathered, likewise
)

// Cluster is what to measure on a cluster and on a node that runs alone.
type Cluster struct {
	Config          // Workloads are of ClusterWorkloads; nil = the first of them
	Alone  string   // address of the node that runs alone: of the workload check
	Nodes  []string // addresses of the nodes of the cluster
	// AckOwner are those of another cluster, whose answers do not wait for the
	// standby. nil = there is none.
	AckOwner []string
}

// ClusterResult is one way to call, over all rounds.
type ClusterResult struct {
	What        string  `json:"what"`
	Concurrency int     `json:"concurrency"`
	PerSec      float64 `json:"checks_per_second"` // median of the rounds; of calls, or of cycles of two calls, that are none of checks
	P50         float64 `json:"p50_us"`
	P99         float64 `json:"p99_us"`
	Errors      int64   `json:"errors"`
	Against     string  `json:"against,omitempty"` // what Ratio compares with
	Ratio       float64 `json:"ratio,omitempty"`   // median of the rounds' ratios; 0 = the other was not measured
	// P50Ratio is the median of the rounds' ratios of the median call to that of what Ratio compares with.
	P50Ratio float64 `json:"p50_ratio,omitempty"`
	// PerAckOwner is the median of the rounds' ratios to the same without waiting for
	// the standby; 0 = that was not measured.
	PerAckOwner float64 `json:"per_ack_owner,omitempty"`
}

// against is what each way is compared with.
var against = map[string]string{ManyNodes: OneNode, Gathered: ManyNodes, Forwarded: Direct, GatheredAckOwner: ManyAckOwner,
	Across: Forwarded, AcrossHold: Forwarded}

// ackOwner is the same on a cluster whose answers do not wait for the standby.
var ackOwner = map[string]string{ManyNodes: ManyAckOwner, Gathered: GatheredAckOwner}

// RunCluster measures calls in several ways that take turns: limit checks, one a call, and admissions across owners.
func RunCluster(ctx context.Context, cfg Cluster) ([]ClusterResult, error) {
	if len(cfg.Nodes) < 2 {
		return nil, errors.New("a cluster of two nodes or more is needed")
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	conns := map[string]*grpc.ClientConn{}
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	keys := keysOf(&cfg.Config)
	ways, done, err := cfg.ways(ctx, keys, conns)
	defer done()
	if err != nil {
		return nil, err
	}
	var out []ClusterResult
	steps, total := 0, len(cfg.Concurrency)*cfg.Rounds*len(ways)
	for _, n := range cfg.Concurrency {
		rounds := map[string][]measurement{}
		for round := range cfg.Rounds {
			for _, i := range rand.Perm(len(ways)) {
				w := ways[i]
				if cfg.Progress != nil {
					cfg.Progress(steps, total, fmt.Sprintf("%s ×%d", w.name, n))
				}
				m, err := measure(ctx, &cfg.Config, w, Target{}, []*grpc.ClientConn{nil}, keys, n)
				if err != nil {
					return out, fmt.Errorf("%s with %d callers, round %d: %w", w.name, n, round+1, err)
				}
				rounds[w.name] = append(rounds[w.name], m)
				steps++
			}
		}
		for _, w := range ways {
			out = append(out, summarizeWay(w.name, n, rounds))
		}
	}
	return out, nil
}

func keysOf(cfg *Config) []string {
	keys := make([]string, cfg.Keys)
	for i := range keys {
		keys[i] = fmt.Sprintf("client-%09d", i)
	}
	return keys
}

// ways returns the workloads of a cluster. done ends what they opened.
func (c *Cluster) ways(ctx context.Context, keys []string, conns map[string]*grpc.ClientConn) (ways []workload, done func(), err error) {
	var clients []*client.Client
	done = func() {
		for _, c := range clients {
			c.Close()
		}
	}
	byClient := []struct {
		name  string
		conf  client.Config
		addrs []string
	}{
		{OneNode, client.Config{NoBatching: true}, []string{c.Alone}},
		{ManyNodes, client.Config{NoBatching: true}, c.Nodes},
		{Gathered, client.Config{}, c.Nodes},
		{ManyAckOwner, client.Config{NoBatching: true}, c.AckOwner},
		{GatheredAckOwner, client.Config{}, c.AckOwner},
	}
	if !c.Measures("check") {
		byClient = nil
	}
	for _, w := range byClient {
		if len(w.addrs) == 0 {
			continue
		}
		cl, err := w.conf.Dial(ctx, w.addrs...)
		if err != nil {
			return nil, done, err
		}
		clients = append(clients, cl)
		ways = append(ways, workload{name: w.name, items: single, start: func(_ context.Context, x *worker) (cycle, error) {
			return func(ctx context.Context) error {
				_, err := cl.Limit("bench", client.PerSecond(1_000_000)).Check(ctx, x.key())
				return err
			}, nil
		}})
	}
	bare, err := c.bareWays(ctx, keys, conns)
	return append(ways, bare...), done, err
}

// bareWays returns the workloads without the client: calls to the owner of the key, and to
// another node, and admissions across owners.
func (c *Cluster) bareWays(ctx context.Context, keys []string, conns map[string]*grpc.ClientConn) (ways []workload, err error) {
	for _, addr := range c.Nodes {
		if conns[addr], err = dialBench(addr); err != nil {
			return nil, err
		}
	}
	owners, err := ownersOf(ctx, conns[c.Nodes[0]], keys, c.Nodes)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{Direct, Forwarded} {
		if name == Direct && !c.Measures("check") {
			continue
		}
		ways = append(ways, workload{name: name, items: single, start: func(_ context.Context, x *worker) (cycle, error) {
			return func(ctx context.Context) error {
				req := x.check()
				at := owners[req.Key]
				if name == Forwarded {
					at = (at + 1 + x.rng.IntN(len(c.Nodes)-1)) % len(c.Nodes)
				}
				_, err := limitpb.NewLimitServiceClient(conns[c.Nodes[at]]).Check(ctx, req)
				return err
			}, nil
		}})
	}
	admissions, err := c.acrossWays(owners, keys, conns)
	return append(ways, admissions...), err
}

// ownersOf asks which of the nodes owns each key.
func ownersOf(ctx context.Context, conn *grpc.ClientConn, keys, nodes []string) (map[string]int, error) {
	place := map[string]int{}
	for i, a := range nodes {
		place[a] = i
	}
	owners := make(map[string]int, len(keys))
	const atOnce = 1000
	for from := 0; from < len(keys); from += atOnce {
		part := keys[from:min(from+atOnce, len(keys))]
		r, err := clusterpb.NewClusterServiceClient(conn).GetOwners(ctx, &clusterpb.GetOwnersRequest{Keys: part})
		if err != nil {
			return nil, err
		}
		for i, o := range r.Owners {
			at, ok := place[o.OwnerAddr]
			if !ok {
				return nil, fmt.Errorf("the owner of %s is at %q, which is not one of the nodes", part[i], o.OwnerAddr)
			}
			owners[part[i]] = at
		}
	}
	return owners, nil
}

func summarizeWay(what string, n int, rounds map[string][]measurement) ClusterResult {
	hist := new(latency.Histogram)
	r := ClusterResult{What: what, Concurrency: n, Against: against[what]}
	var rates []float64
	for _, m := range rounds[what] {
		rates = append(rates, m.rate)
		hist.Merge(m.hist)
		r.Errors += m.errors
	}
	to := func(other string, of func(measurement) float64) float64 {
		var ratios []float64
		for i, m := range rounds[other] {
			if i < len(rounds[what]) && of(m) > 0 {
				ratios = append(ratios, of(rounds[what][i])/of(m))
			}
		}
		return median(ratios)
	}
	rate := func(m measurement) float64 { return m.rate }
	us := func(q float64) float64 { return float64(hist.Quantile(q)) / float64(time.Microsecond) }
	r.PerSec, r.Ratio, r.PerAckOwner, r.P50, r.P99 = median(rates), to(r.Against, rate), to(ackOwner[what], rate), us(0.5), us(0.99)
	r.P50Ratio = to(r.Against, func(m measurement) float64 { return float64(m.hist.Quantile(0.5)) })
	return r
}
