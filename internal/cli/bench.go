package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/internal/cli/bench"
)

type benchFlags struct {
	bench.Config
	addr       string
	json, echo bool
	http       bool
	nodes      int
	acks       bool
	durability []string
	dataDir    string
}

func (f *benchFlags) flags(fl *pflag.FlagSet) {
	fl.IntVar(&f.nodes, "nodes", 0, "measure a cluster of this many nodes, 2 to 16")
	fl.BoolVar(&f.acks, "acks", false, "with --nodes: measure what waiting for the standby costs as well")
	fl.StringSliceVar(&f.durability, "durability", nil, "measure nodes, or clusters, that write to a disk as well: interval, always, or both with commas")
	fl.StringVar(&f.dataDir, "data-dir", "", "with --durability: `DIR` on the disk to measure, for a directory that is removed again (default: that of temporary files)")
	fl.StringVar(&f.addr, "addr", "", "`HOST:PORT` of a running node (default: start one)")
	fl.BoolVar(&f.echo, "echo", true, "measure the bare gRPC servers as well")
	fl.BoolVar(&f.http, "http", false, "measure limit checks over HTTP with JSON as well, against those over gRPC")
	fl.StringSliceVar(&f.Workloads, "workload", bench.Workloads, "what to measure")
	fl.IntSliceVar(&f.Concurrency, "concurrency", []int{1, 16, 64, 256}, "callers at once")
	fl.DurationVar(&f.Duration, "duration", time.Second, "of one measurement")
	fl.IntVar(&f.Rounds, "rounds", 3, "measurements of each server")
	fl.IntVar(&f.Batch, "batch", 100, "checks, or locks, in a batch")
	fl.IntVar(&f.Keys, "keys", 10_000, "distinct keys")
	fl.IntVar(&f.Conns, "conns", 4, "connections to each server")
	fl.BoolVar(&f.RequestIDs, "request-ids", false, "send a request id with each operation")
	fl.BoolVar(&f.json, "json", false, "print JSON")
}

// aboutBench is what --help says of bench.
var aboutBench = `Measures limit checks, counter adds, cycles of locks, semaphores and registers, and ids
over a grid of concurrency, in one run with two bare gRPC servers that answer constants
of the same shape: one with grpc-go at its defaults, one with the server options and the
codec of a node. Each is a process of its own; they take turns.

Without --addr it starts a node for the purpose. With --addr, mind that the
echoes run here: the ratios mean something only if the node does, too.

With --http it measures limit checks over HTTP with JSON as well, by callers that do
little more than write to a socket, and compares them with those over gRPC.

With --durability it also measures nodes of their own that run alone with a data
directory and that setting, and compares them with the one that writes nothing to a
disk. Limits then take 10 s for each unit to come back, at all of the nodes: one that
is full again before it could be lost is not written. What is written after a second
falls on what is measured then: choose a --duration of 5 s or more. With --nodes as
well, these are clusters of that many nodes, each node a process with a directory of its
own, and calls are spread over the nodes, which forward them to the owners.

With --nodes it measures a cluster of that many nodes instead, each a process of its
own: limit checks, one a call, by the Go client that knows the owners against the
same on a node that runs alone, and bare calls that must be forwarded against bare
calls to the owner. With --acks as well on a second cluster of that many nodes, whose
answers do not wait for the standby. It begins some ten seconds after the nodes are up,
when they use the formats that they would use in production. --workload then names what
of that cluster is measured: checks, or admissions across owners, one key of each node.
Their goal is 0.35 of the rate of a forwarded check, and twice its p50.

Workloads:` + bench.About(false) + `

with --nodes:` + bench.AboutCluster() + `

and, only if they are named:` + bench.About(true)

func newBench(std Process) *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure a node, side by side with bare gRPC",
		Long:  aboutBench,
		Example: `  keystead bench
  keystead bench --workload check --concurrency 64 --duration 3s --rounds 5
  keystead bench --nodes 3 --acks --concurrency 64 --duration 2s --rounds 5
  keystead bench --nodes 4 --workload across,across-hold --concurrency 1,64
  keystead bench --http --workload check --concurrency 64
  keystead bench --durability interval,always --workload check,counter,lock --concurrency 64 --duration 5s --echo=false
  keystead bench --nodes 3 --durability interval,always --workload check,counter,lock --concurrency 64 --duration 5s --echo=false
  keystead bench --json > bench.json`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.validateDurability(); err != nil {
				return err
			}
			if f.nodes != 0 && len(f.durability) == 0 {
				if !cmd.Flags().Changed("workload") {
					f.Workloads = nil
				}
				return runClusterBench(cmd.Context(), std, f.Config, f.nodes, f.acks, f.json)
			}
			if i := slices.IndexFunc(f.Workloads, func(name string) bool { return name == bench.Across || name == bench.AcrossHold }); i >= 0 {
				if f.nodes != 0 {
					return usageError{fmt.Errorf("workload %q is not compared by --durability: leave that out", f.Workloads[i])}
				}
				return usageError{fmt.Errorf("workload %q is of a cluster: choose --nodes, too", f.Workloads[i])}
			}
			if f.acks {
				return usageError{errors.New("--acks compares clusters: choose --nodes, too")}
			}
			if f.http && f.addr != "" {
				return usageError{errors.New("--http measures a node that bench starts: leave out --addr")}
			}
			return runBench(cmd.Context(), std, &f)
		},
	}
	f.flags(cmd.Flags())
	cmd.AddCommand(newBenchServe(std))
	return cmd
}

// validateDurability returns what of the settings about disks makes no sense.
func (f *benchFlags) validateDurability() error {
	for _, d := range f.durability {
		if !slices.Contains(bench.Durabilities, d) {
			return usageError{fmt.Errorf("--durability %q: choose from %s; a node that writes nothing is measured in any case", d, strings.Join(bench.Durabilities, ", "))}
		}
	}
	switch {
	case len(f.durability) == 0 && f.dataDir != "":
		return usageError{errors.New("--data-dir is for nodes that write to a disk: choose --durability, too")}
	case len(f.durability) != 0 && f.addr != "":
		return usageError{errors.New("--durability measures nodes that bench starts: leave out --addr")}
	case len(f.durability) != 0 && f.nodes != 0 && (f.acks || f.http):
		return usageError{errors.New("--durability compares clusters with each other: leave out --acks and --http")}
	case len(f.durability) != 0 && f.nodes != 0 && (f.nodes < 2 || f.nodes > maxDevNodes):
		return usageError{fmt.Errorf("--nodes %d: choose 2 to %d", f.nodes, maxDevNodes)}
	}
	return nil
}

// targets returns the names of what takes turns.
func (f *benchFlags) targets() []string {
	want := []string{bench.Keystead}
	if f.echo {
		want = append(want, bench.Echo, bench.TunedEcho)
	}
	if f.http {
		want = append(want, bench.HTTP)
	}
	for _, d := range bench.Durabilities {
		if slices.Contains(f.durability, d) {
			want = append(want, d)
		}
	}
	return want
}

func runBench(ctx context.Context, std Process, f *benchFlags) error {
	cfg, addr := f.Config, f.addr
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent) // the client should not be what is measured
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	want := f.targets()
	cfg.SlowRefill = len(f.durability) != 0
	for _, name := range want {
		cfg.Targets = append(cfg.Targets, bench.Target{Name: name, Addr: addr})
	}
	if err := cfg.Validate(); err != nil {
		return usageError{err}
	}
	web := "" // the node's
	for i, name := range want {
		if name == bench.HTTP {
			cfg.Targets[i].Addr = web
		} else if f.nodes != 0 && name != bench.Echo && name != bench.TunedEcho {
			d, err := startDurableCluster(ctx, std, f, name)
			if err != nil {
				return err
			}
			defer d.end()
			addrs := d.addrs()
			cfg.Targets[i].Addr, cfg.Targets[i].More = addrs[0], addrs[1:]
		} else if name != bench.Keystead || addr == "" {
			child, err := startChild(ctx, name, serveFlags{http: f.http && name == bench.Keystead, dataDir: f.dataDir})
			if err != nil {
				return err
			}
			defer child.stop()
			cfg.Targets[i].Addr = child.addr
			if name == bench.Keystead {
				web = child.http
			}
		}
	}
	bar := newProgress(std.Err)
	cfg.Progress = func(done, total int, what string) { bar.show(float64(done)/float64(total), what) }
	results, err := bench.Run(ctx, cfg)
	bar.clear()
	if status.Code(err) == codes.Unavailable {
		return (&remote{addr: cfg.Targets[0].Addr}).explain(err)
	}
	if err != nil {
		return err
	}
	if f.json {
		return printJSON(std.Out, struct {
			Version string         `json:"version"`
			Go      string         `json:"go"`
			CPUs    int            `json:"cpus"`
			Batch   int            `json:"batch"`
			Results []bench.Result `json:"results"`
		}{std.Version, runtime.Version(), runtime.NumCPU(), cfg.Batch, results})
	}
	return writeBench(std.Out, results)
}

func writeBench(out io.Writer, results []bench.Result) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "workload\tcallers\tserver\titems/s\tp50\tp99\tp99.9\t÷ echo\t÷ tuned\t÷ gRPC\t÷ none\terrors\t")
	for _, r := range results {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t\n", r.Workload, r.Concurrency, r.Target,
			thousands(r.ItemsPerSec), micros(r.P50), micros(r.P99), micros(r.P999), ratioText(r.PerEcho), ratioText(r.PerTunedEcho), ratioText(r.PerGRPC), ratioText(r.PerNone), r.Errors)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprint(out, benchLegend(results))
	for _, r := range results {
		if r.Errors > 0 {
			fmt.Fprintf(out, "first error of %s ×%d on %s: %s\n", r.Workload, r.Concurrency, r.Target, r.FirstError)
		}
	}
	return nil
}

// benchLegend explains the columns that compare servers, of those that are in a table.
func benchLegend(results []bench.Result) string {
	text := ""
	has := func(ratio func(bench.Result) float64) bool {
		return slices.ContainsFunc(results, func(r bench.Result) bool { return ratio(r) != 0 })
	}
	if has(func(r bench.Result) float64 { return r.PerEcho + r.PerTunedEcho }) {
		text += "÷ echo, ÷ tuned: items/s, divided by those of a bare gRPC server that answers a constant:\n" +
			"  echo as grpc-go comes, tuned-echo with the options and the codec of a node. 1.00 = as fast.\n"
	}
	if has(func(r bench.Result) float64 { return r.PerGRPC }) {
		text += "÷ gRPC: items/s over HTTP with JSON, divided by those over gRPC.\n"
	}
	if has(func(r bench.Result) float64 { return r.PerNone }) {
		text += "÷ none: items/s of a node that writes to a disk, divided by those of one that does not.\n"
	}
	if text != "" {
		text = "\n" + text
	}
	return text
}

func micros(us float64) string { return people(time.Duration(us * float64(time.Microsecond))) }

func ratioText(r float64) string {
	if r == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", r)
}

// thousands writes a rate with separators.
func thousands(v float64) string {
	s := fmt.Sprintf("%.0f", v)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// serveFlags are those of bench serve.
type serveFlags struct {
	http    bool   // serve HTTP as well, and print where on a second line
	dataDir string // where a node that writes to a disk makes its directory; "" = that of temporary files
}

// newBenchServe returns what bench runs its servers as. It stops when its standard
// input is closed, that is, when bench ends in whatever way.
func newBenchServe(std Process) *cobra.Command {
	var f serveFlags
	cmd := &cobra.Command{
		Use:    "serve TARGET",
		Hidden: true,
		Args:   exactArgs("TARGET"),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch args[0] {
			case bench.Keystead, bench.Interval, bench.Always:
				return serveUntilClosed(cmd.Context(), std, args[0], f)
			case bench.Echo, bench.TunedEcho:
			default:
				return usageError{fmt.Errorf("there is no server %q", args[0])}
			}
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return err
			}
			tuned := args[0] == bench.TunedEcho
			if tuned && os.Getenv("GOGC") == "" {
				debug.SetGCPercent(gcPercent)
			}
			go func() {
				_, _ = io.Copy(io.Discard, std.In)
				_ = l.Close()
			}()
			fmt.Fprintln(std.Out, l.Addr())
			if err := bench.ServeEcho(l, tuned); err != nil && !errors.Is(err, net.ErrClosed) {
				return err
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&f.http, "http", false, "serve HTTP as well, and print where on a second line")
	cmd.Flags().StringVar(&f.dataDir, "data-dir", "", "directory for that of a node that writes to a disk")
	return cmd
}

// serveUntilClosed runs a node of its own on loopback, prints its address, and serves until standard
// input is closed.
func serveUntilClosed(ctx context.Context, std Process, target string, serve serveFlags) error {
	dir, err := os.MkdirTemp(serve.dataDir, "keystead-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	f := nodeFlags{logLevel: "error", logFormat: "text"}
	f.RLS.Path = filepath.Join(dir, "bench.yaml")
	if err := os.WriteFile(f.RLS.Path, []byte(bench.EnvoyConfig), 0o600); err != nil {
		return err
	}
	f.ID, f.GRPCAddr, f.StopGrace, f.announceReady = "private", "127.0.0.1:0", time.Second, announceAddr
	if serve.http {
		f.HTTPAddr = "127.0.0.1:0"
	}
	if slices.Contains(bench.Durabilities, target) {
		f.DataDir, f.Durability = filepath.Join(dir, "data"), target
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, std.In)
		cancel()
	}()
	return f.run(ctx, std)
}

// child is a server process that ends when its standard input is closed.
type child struct {
	cmd  *exec.Cmd
	in   io.Closer
	addr string
	http string // "" = it has none
}

func startChild(ctx context.Context, target string, f serveFlags) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args := []string{"bench", "serve", target, "--data-dir", f.dataDir}
	if f.http {
		args = append(args, "--http")
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{cmd: cmd, in: in}
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	c.addr = strings.TrimSpace(line)
	if err == nil && f.http {
		line, err = lines.ReadString('\n')
		c.http = strings.TrimSpace(line)
	}
	if err != nil {
		c.stop()
		return nil, fmt.Errorf("the %s server did not start: %w", target, err)
	}
	return c, nil
}

func (c *child) stop() {
	_ = c.in.Close()
	_ = c.cmd.Wait() // it was measured; how it ends does not matter
}
