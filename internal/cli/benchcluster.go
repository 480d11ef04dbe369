package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/keystead/keystead/internal/cli/bench"
	"github.com/keystead/keystead/internal/rpc"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
)

// runClusterBench measures a cluster and a node that runs alone, which it starts for the
// purpose.
func runClusterBench(ctx context.Context, std Process, cfg bench.Config, n int, acks, asJSON bool) error {
	if n < 2 || n > maxDevNodes {
		return usageError{fmt.Errorf("--nodes %d: choose 2 to %d", n, maxDevNodes)}
	}
	c := bench.Cluster{Config: cfg}
	if err := c.Validate(); err != nil {
		return usageError{err}
	}
	if acks && !c.Measures("check") {
		return usageError{errors.New("--acks compares checks: add check to --workload, or leave --acks out")}
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if c.Measures("check") {
		alone, err := startChild(ctx, bench.Keystead, serveFlags{})
		if err != nil {
			return err
		}
		defer alone.stop()
		c.Alone = alone.addr
	}
	d, err := startQuietCluster(ctx, std, n, "", nil)
	if err != nil {
		return err
	}
	defer d.end()
	c.Nodes = d.addrs()
	clusters := []*devCluster{d}
	if acks {
		without, err := startQuietCluster(ctx, std, n, "", map[string]string{"ack-owner": strings.Join(rpc.Kinds, ",")})
		if err != nil {
			return err
		}
		defer without.end()
		c.AckOwner = without.addrs()
		clusters = append(clusters, without)
	}
	bar := newProgress(std.Err)
	for _, d := range clusters {
		bar.show(0, "waiting for the cluster to use its newest formats")
		if err := d.awaitLevel(ctx); err != nil {
			return err
		}
	}
	c.Progress = func(done, total int, what string) { bar.show(float64(done)/float64(total), what) }
	results, err := bench.RunCluster(ctx, c)
	bar.clear()
	if err != nil {
		return err
	}
	return printClusterBench(std, n, results, asJSON)
}

// printClusterBench writes what was measured on a cluster of n nodes.
func printClusterBench(std Process, n int, results []bench.ClusterResult, asJSON bool) error {
	if asJSON {
		return printJSON(std.Out, struct {
			Version string                `json:"version"`
			Go      string                `json:"go"`
			CPUs    int                   `json:"cpus"`
			Nodes   int                   `json:"nodes"`
			Results []bench.ClusterResult `json:"results"`
		}{std.Version, runtime.Version(), runtime.NumCPU(), n, results})
	}
	return writeClusterBench(std.Out, results)
}

// addrs returns where the APIs of its nodes listen.
func (d *devCluster) addrs() []string {
	var addrs []string
	for _, node := range d.nodes {
		addrs = append(addrs, node.grpc)
	}
	return addrs
}

// startDurableCluster starts a cluster to compare: one whose nodes write to disks, with this --durability,
// or one whose nodes write nothing. The first has agreed on what disks promise when it returns.
func startDurableCluster(ctx context.Context, std Process, f *benchFlags, target string) (*devCluster, error) {
	if !slices.Contains(bench.Durabilities, target) {
		return startQuietCluster(ctx, std, f.nodes, "", nil)
	}
	dir, err := os.MkdirTemp(f.dataDir, "keystead-bench-")
	if err != nil {
		return nil, err
	}
	d, err := startQuietCluster(ctx, std, f.nodes, dir, map[string]string{"durability": target})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	d.dir = dir
	if err := d.awaitStatus(ctx, "did not agree on what its disks promise", func(st *clusterpb.GetStatusResponse) bool { return st.GetDisk().GetAgreed() == target }); err != nil {
		d.end()
		return nil, err
	}
	return d, nil
}

// startQuietCluster starts a cluster on free ports that logs nothing, with these flags of its nodes. dataDir
// is a directory for those of the nodes; "" = they have none.
func startQuietCluster(ctx context.Context, std Process, n int, dataDir string, flags map[string]string) (*devCluster, error) {
	var f nodeFlags
	cmd := &cobra.Command{}
	f.flags(cmd)
	f.GRPCAddr, f.AdminAddr = "127.0.0.1:0", ""
	if err := cmd.Flags().Lookup("log-level").Value.Set("error"); err != nil {
		return nil, err
	}
	for name, value := range flags {
		if err := cmd.Flags().Set(name, value); err != nil {
			return nil, err
		}
	}
	nodes, err := placeDevNodes(&f, n)
	if err != nil {
		return nil, err
	}
	d := &devCluster{nodes: nodes, out: io.Discard, err: std.Err, ended: make(chan string, n)}
	for _, node := range nodes {
		if err = d.start(cmd, node, dataDir); err != nil {
			break
		}
	}
	if err == nil {
		err = d.await(ctx)
	}
	if err != nil {
		d.end()
		return nil, err
	}
	return d, nil
}

func writeClusterBench(out io.Writer, results []bench.ClusterResult) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "what\tcallers\tcalls/s\tp50\tp99\tratio\tof p50\t÷ ack=owner\terrors\t")
	for _, r := range results {
		ratio := ""
		if r.Ratio != 0 {
			ratio = fmt.Sprintf("%.2f of %s", r.Ratio, r.Against)
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t\n", r.What, r.Concurrency, thousands(r.PerSec), micros(r.P50), micros(r.P99), ratio, ratioText(r.P50Ratio), ratioText(r.PerAckOwner), r.Errors)
	}
	return w.Flush()
}
