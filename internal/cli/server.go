package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/keystead/keystead/internal/config"
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/node"
	"github.com/keystead/keystead/owner"
)

const defaultAdminAddr = "127.0.0.1:7480"

// autoAddr, as an address of HTTP, is the one httpPortStep above that of gRPC.
const (
	autoAddr     = "auto"
	httpPortStep = 3 // behind those of gRPC, raft and gossip
)

// defaultDrain is how long a node may drain itself before it stops.
const defaultDrain = 30 * time.Second

// gcPercent lets the heap grow to five times the live heap before it is
// collected: the owner's objects hold no pointers, so the live heap is cheap to
// scan and small. GOGC overrides it.
const gcPercent = 400

// nodeFlags are the settings of a node.
type nodeFlags struct {
	node.Config
	drainTimeout  time.Duration
	maxMemory     byteSize
	copyRate      byteSize
	idWindow      time.Duration
	maxLockTTL    time.Duration
	hotStay       time.Duration
	gossipKey     string
	logLevel      string
	logFormat     string
	announceReady func(io.Writer, *node.Node)
	idle          []string // flags that were given and have no effect
}

func (f *nodeFlags) flags(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.GRPCAddr, "grpc-addr", defaultAddr, "`HOST:PORT` where the API listens; port 0 picks a free one")
	fl.StringVar(&f.HTTPAddr, "http-addr", "", "`HOST:PORT` of the API as HTTP with JSON; auto = 3 ports above --grpc-addr; empty = none")
	fl.StringVar(&f.AdminAddr, "admin-addr", defaultAdminAddr, "`HOST:PORT` of a page, metrics, health, status, drain, pprof; loopback; empty = none")
	fl.StringVar(&f.MetricsAddr, "metrics-addr", "", "`HOST:PORT` of metrics and health without the rest, for Prometheus and probes; empty = at --admin-addr alone")
	fl.IntVar(&f.MaxConns, "max-conns", 10_000, "open connections to the API, of gRPC and of HTTP each; more wait to be accepted")
	fl.Int64Var(&f.MaxCalls, "max-calls", 100_000, "calls under way, waiting ones included; more are refused")
	fl.DurationVar(&f.StopGrace, "stop-grace", 5*time.Second, "how long a stop lets running calls finish")
	fl.DurationVar(&f.drainTimeout, "drain-timeout", defaultDrain, "how long a node of a cluster that is stopped drains itself before; 0 = it does not")
	fl.StringVar(&f.Durability, "durability", "", "what is in --data-dir when an answer leaves: none, interval or always, as interval,counters=always (default: interval)")
	fl.DurationVar(&f.DurabilityInterval, "durability-interval", node.DefaultDurabilityInterval, "with --durability interval: what was answered within it is lost with the process, 50ms to 5m")
	fl.Int64Var(&f.Store.MaxObjects, "max-objects", owner.DefaultMaxObjects, "objects held; more are refused")
	f.maxMemory = owner.DefaultMaxBytes
	fl.Var(&f.maxMemory, "max-memory", "memory for objects, like 512MiB or 2GiB; new objects beyond it are refused")
	fl.Int64Var(&f.Store.MaxWaiters, "max-waiters", owner.DefaultMaxWaiters, "callers that may wait for locks")
	fl.IntVar(&f.Store.MaxWaitersPerLock, "max-waiters-per-lock", owner.DefaultMaxWaitersPerLock, "callers that may wait for one lock")
	fl.DurationVar(&f.maxLockTTL, "max-lock-ttl", node.DefaultLockTTL, "longest TTL of a lock, at most 24h; a key whose state was lost grants no lock for so long")
	fl.StringVar(&f.Store.LostLimits, "lost-limits", owner.LostFull, "what limits start with while what was kept of their key is lost and may still be held: full or empty")
	fl.DurationVar(&f.idWindow, "request-id-window", owner.DefaultIDWindow, "how long request ids and idempotency keys are kept; in a cluster, the setting of its maker holds")
	fl.IntVar(&f.Store.RequestIDs.ClientsPerObject, "request-id-clients", owner.DefaultClientsPerObject, "clients whose request ids are kept on one object")
	fl.IntVar(&f.Store.RequestIDs.IDsPerClient, "request-ids-per-client", owner.DefaultIDsPerClient, "request ids kept of one client on one object")
	fl.Int64Var(&f.Store.Keys, "idempotency-keys", owner.DefaultKeys, "idempotency keys kept of what is used at this node; operations with more are refused")
	fl.IntVar(&f.Store.KeysPerObject, "idempotency-keys-per-object", owner.DefaultKeysPerObject, "idempotency keys kept of one object; operations with more are refused")
	fl.DurationVar(&f.Cluster.LeaseTTL, "lease-ttl", node.DefaultLeaseTTL, "how long a node may act without hearing from the leader; a dead owner is replaced after it")
	fl.DurationVar(&f.Cluster.LeaseMargin, "lease-margin", node.DefaultLeaseMargin, "how much the clocks of two nodes may drift apart within --lease-ttl")
	fl.StringSliceVar(&f.AckOwner, "ack-owner", nil, "kinds, like limits,locks: their answers do not wait for the standby: quicker, and lost with the owner")
	fl.DurationVar(&f.Cluster.Settle, "join-settle", node.DefaultSettle, "how long joins are collected before the ring changes")
	fl.DurationVar(&f.Cluster.ResumeWait, "resume-wait", node.DefaultResumeWait, "when all nodes were stopped: how long those that are back wait for the state of the others")
	fl.DurationVar(&f.Cluster.RecoverWait, "recover-wait", node.DefaultRecoverWait, "how long keys wait for a dead node's disk before they count as lost; for ever if any is under always")
	f.copyRate = node.DefaultCopyRate
	fl.Var(&f.copyRate, "copy-rate", "bytes a second that copies for other nodes send in all, like 32MiB; 0 = no limit")
	f.hotFlags(fl)
	f.rlsFlags(fl)
	fl.StringVar(&f.XDS.Listener, "xds-listener", node.DefaultXDSListener, "`IP:PORT` at which Envoys configured by this node listen; empty = nowhere")
	fl.StringVar(&f.XDS.KeyHeader, "xds-key-header", node.DefaultXDSKeyHeader, "header, or gRPC metadata, with the key, by which Envoy and gRPC clients route")
	fl.Bool("show-config", false, "print the settings, with where each comes from, and exit")
	fl.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
	fl.StringVar(&f.logFormat, "log-format", "text", "text or json")
}

func newServer(std Process) *cobra.Command {
	var f nodeFlags
	host, _ := os.Hostname() // an empty name is refused with a message of its own
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Run a node",
		Long: `Runs a node until SIGTERM or SIGINT. One of a cluster then drains itself: it hands
its keys over to others, with their state, and serves until that is done, within
--drain-timeout. Then it refuses new calls, sends waiting ones away, lets running
ones finish within --stop-grace, writes its state to --data-dir if nobody has taken
it over, and exits with 0; with 1 if the state could not be written. A second signal
cuts the waiting short, a third one ends the process at once; signals within a second
count as one.

With --cluster-id it is part of a cluster: one node makes it with --bootstrap, once,
and the others --join any node that is in it. Without, it runs alone.

Counters, limits and locks are kept in memory. With --data-dir they are on disk as well: a
crash of a node that runs alone, or of all nodes of a cluster that have one, loses what was
answered within the last second, or nothing of that with --durability always. What all
nodes of a cluster promise, it agrees on; "keystead status" shows it. A node without a
disk is not admitted then. There are also who owns what, and the epoch, so that fencing
tokens rise across restarts even if the clock is set back.`,
		Example: `  keystead server --id n1 --data-dir /var/lib/keystead                 # alone
  keystead server --id n1 --cluster-id prod --bootstrap --data-dir /var/lib/keystead \
    --grpc-addr 10.0.0.1:7400 --raft-addr 10.0.0.1:7401 --gossip-addr 10.0.0.1:7402
  keystead server --id n2 --cluster-id prod --join 10.0.0.1:7402 --data-dir /var/lib/keystead \
    --grpc-addr 0.0.0.0:7400 --raft-addr 0.0.0.0:7401 --gossip-addr 0.0.0.0:7402 --advertise 10.0.0.2
  KEYSTEAD_MAX_MEMORY=4GiB keystead server --id n1 --config /etc/keystead.yaml`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.clusterSettings(); err != nil {
				return err
			}
			f.idle = clusterOnly(cmd, f.Cluster.ID)
			return f.run(cmd.Context(), std)
		},
	}
	f.flags(cmd)
	fl := cmd.Flags()
	fl.StringVar(&f.ID, "id", host, "name of this node: letters, digits, '.', '_', '-'")
	fl.StringVar(&f.DataDir, "data-dir", "", "`DIR` for what must survive a restart; empty = nothing does")
	fl.Uint64Var(&f.EpochFloor, "epoch-floor", 0, "least epoch to begin with, after a data directory (or a whole cluster) was lost; ahead of the clock needs --data-dir")
	fl.StringVar(&f.Cluster.ID, "cluster-id", "", "name of the cluster that this node is part of; empty = it runs alone")
	fl.BoolVar(&f.Cluster.Bootstrap, "bootstrap", false, "make the cluster: on one node, once")
	fl.StringSliceVar(&f.Cluster.Founders, "founders", nil, "`ID`s of the nodes that make the cluster, 3 to 16, on all of them: the first does, once it sees all and none has a log")
	fl.StringSliceVar(&f.Cluster.Join, "join", nil, "gossip `HOST:PORT`s of nodes of the cluster, with commas")
	fl.StringVar(&f.Cluster.RaftAddr, "raft-addr", "127.0.0.1:7401", "`HOST:PORT` where nodes agree and renew their leases; port 0 picks a free one")
	fl.StringVar(&f.Cluster.GossipAddr, "gossip-addr", "127.0.0.1:7402", "`HOST:PORT` of gossip, TCP and UDP; port 0 picks a free one")
	fl.StringVar(&f.Cluster.Advertise, "advertise", "", "`HOST` at which others reach this node (default: where it listens, or the private address)")
	fl.StringVar(&f.Cluster.HashKey, "hash-key", "", "what the node's points on the ring are computed from (default: advertised host:port of the API)")
	fl.StringVar(&f.AppAddr, "app-addr", "", "`HOST:PORT` of the application beside this node, for Envoy and gRPC clients to route to; empty = none")
	fl.BoolVar(&f.Cluster.HotNode, "hot-node", false, "take parts of split keys before nodes without this: for machines that are kept for them")
	fl.StringVar(&f.gossipKey, "gossip-key", "", "`KEY` that encrypts gossip: base64 of 16, 24 or 32 bytes, the same on all nodes")
	fl.StringVar(&f.Cluster.Profile, "gossip-profile", "lan", "timing of gossip: local, lan or wan")
	config.MarkSecret(fl, "gossip-key")
	f.announceReady = func(w io.Writer, n *node.Node) {}
	return cmd
}

func newDev(std Process) *cobra.Command {
	var f nodeFlags
	nodes := 1
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a node, or a cluster, to try things on: on loopback",
		Long: `Runs a node in memory on loopback, and prints what to try. Everything is forgotten
when it stops (Ctrl-C), unless there is a --data-dir.

With --nodes it runs a cluster of that many nodes, each a process of its own, which
may be killed to see what happens. Their ports follow those of the first one in steps
of ten; with port 0, free ones are picked.`,
		Example: `  keystead dev
  keystead dev --nodes 3
  keystead dev --nodes 3 --data-dir /tmp/keystead    # survives Ctrl-C and a restart
  keystead dev --grpc-addr 127.0.0.1:0 --admin-addr ""`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.clusterSettings(); err != nil {
				return err
			}
			if nodes != 1 {
				return runDevCluster(cmd, std, &f, nodes)
			}
			// Nothing lasts here, and a restart is meant to begin anew: idempotency keys are
			// new with it.
			f.Fresh = f.DataDir == "" && f.Cluster.ID == ""
			return f.run(cmd.Context(), std)
		},
	}
	f.flags(cmd)
	f.ID = "dev"
	cmd.Flags().IntVar(&nodes, "nodes", 1, "nodes to run, each a process of its own, 1 to 16")
	cmd.Flags().StringVar(&f.DataDir, "data-dir", "", "`DIR` for what must survive a restart; empty = nothing does")
	for name, value := range map[string]string{"log-level": "warn", "http-addr": autoAddr} {
		_ = cmd.Flags().Set(name, value)
		cmd.Flags().Lookup(name).DefValue = value
		cmd.Flags().Lookup(name).Changed = false
	}
	f.announceReady = announceDev
	return cmd
}

// announceAddr prints where a node serves: gRPC, and on a line of its own HTTP, if it does.
func announceAddr(w io.Writer, n *node.Node) {
	fmt.Fprintln(w, n.GRPCAddr())
	if n.HTTPAddr() != "" {
		fmt.Fprintln(w, n.HTTPAddr())
	}
}

func announceDev(w io.Writer, n *node.Node) {
	addr := ""
	if n.GRPCAddr() != defaultAddr {
		addr = " --addr " + n.GRPCAddr()
	}
	fmt.Fprintf(w, "A Keystead node serves on %s. Try, in another terminal:\n\n", n.GRPCAddr())
	suggest(w, addr)
	suggestHTTP(w, n.HTTPAddr())
	if a := n.AdminAddr(); a != "" {
		fmt.Fprintf(w, "\nLook at it in a browser: http://%s/ (metrics, health and profiles are there as well)\n", a)
	}
	if n.KeepsState() {
		fmt.Fprintln(w, "Ctrl-C stops it; it goes on with all that it has when it is started again.")
	} else {
		fmt.Fprintln(w, "Everything is forgotten when it stops (Ctrl-C).")
	}
}

// suggest prints commands to try, with the flag that names the node.
func suggest(w io.Writer, addr string) {
	for _, line := range []string{
		"limit check 203.0.113.7 --name api --limit 20/1m",
		"counter add page:/index.html",
		"lock nightly-report -- sh -c 'echo token $KEYSTEAD_FENCING_TOKEN'",
		"replay ACCESS.LOG --by client_ip --limit 20/1m",
		"bench",
	} {
		command, rest, _ := strings.Cut(line, " ")
		if command == "limit" || command == "counter" {
			verb, more, _ := strings.Cut(rest, " ")
			command, rest = command+" "+verb, more
		}
		fmt.Fprintln(w, "  "+strings.TrimRight("keystead "+command+addr+" "+rest, " "))
	}
}

// suggestHTTP prints a command to try without the program.
func suggestHTTP(w io.Writer, addr string) {
	if addr != "" {
		fmt.Fprintf(w, "  curl -d '{\"key\":\"alice\",\"rate\":\"20/1m\"}' http://%s/v1/limit/check\n", addr)
	}
}

// placeHTTP returns where HTTP is served if that goes by the address of gRPC.
func placeHTTP(addr, grpc string) (string, error) {
	if addr != autoAddr {
		return addr, nil
	}
	host, port, err := net.SplitHostPort(grpc)
	n, perr := strconv.Atoi(port)
	if err != nil || perr != nil {
		return "", usageError{fmt.Errorf("--http-addr %s goes by --grpc-addr, which is %q: write HOST:PORT", autoAddr, grpc)}
	}
	if n != 0 {
		n += httpPortStep
	}
	return net.JoinHostPort(host, strconv.Itoa(n)), nil
}

// run runs a node until a signal stops it or it cannot go on.
func (f *nodeFlags) run(ctx context.Context, std Process) error {
	log, err := f.logger(std.Err)
	if err != nil {
		return err
	}
	f.tuneMemory()
	f.Log, f.Version = log, std.Version
	f.Store.MaxBytes, f.Store.MaxLockTTL, f.Store.RequestIDs.Window = int64(f.maxMemory), int64(f.maxLockTTL), int64(f.idWindow)
	f.CopyRate = int64(f.copyRate)
	f.ProcessMetrics = true
	if f.HTTPAddr, err = placeHTTP(f.HTTPAddr, f.GRPCAddr); err != nil {
		return err
	}
	if err := f.xdsSettings(); err != nil {
		return err
	}
	if err := f.hotSettings(); err != nil {
		return err
	}
	if err := f.Validate(); err != nil {
		return usageError{err}
	}
	if f.drainTimeout < 0 {
		return usageError{fmt.Errorf("--drain-timeout %s: choose 0 or more", f.drainTimeout)}
	}
	if len(f.idle) > 0 {
		log.Warn("these settings have no effect on a node that runs alone: set --cluster-id, or leave them out", "settings", f.idle)
	}
	o := catchOrders()
	defer o.end()
	n, err := f.start(o, log)
	if err != nil {
		return rlsSetting(storeSetting(err))
	}
	f.announceReady(std.Out, n)
	select {
	case err = <-n.Failed():
		n.Stop()
	case <-ctx.Done():
		n.Stop()
	case <-o.next:
		err = f.stop(n, o, log)
	}
	return errors.Join(err, notKept(n.Kept(), f.DataDir))
}

// notKept returns the error of a node that could not write its state.
func notKept(err error, dir string) error {
	if err == nil {
		return nil
	}
	return hinted{fmt.Errorf("the state was not kept for the next process: limits, counters and locks ended with this one: %w", err),
		"make room on the disk of --data-dir " + dir + ", or repair it, before the next stop"}
}

// tuneMemory bounds the heap of the collector: gcPercent, but not
// beyond what the store may take, a quarter more, and memorySlack for calls and
// connections. Without the limit, a full store would let the heap grow to five
// times its size.
func (f *nodeFlags) tuneMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(int64(f.maxMemory) + int64(f.maxMemory)/4 + memorySlack)
	}
}

const memorySlack = 512 << 20

// storeFlags are the flags behind the fields of owner.Config.
var storeFlags = map[string]string{
	"MaxObjects": "--max-objects", "MaxBytes": "--max-memory", "MaxWaiters": "--max-waiters",
	"MaxWaitersPerLock": "--max-waiters-per-lock", "MaxLockTTL": "--max-lock-ttl", "LostLimits": "--lost-limits", "RequestIDs.Window": "--request-id-window",
	"RequestIDs": "--request-id-clients and --request-ids-per-client",
	"Keys":       "--idempotency-keys and --idempotency-keys-per-object",
}

// storeSetting makes an error about a field of owner.Config one about a flag.
func storeSetting(err error) error {
	var bad *failure.Error
	if errors.As(err, &bad) && bad.Reason == failure.Invalid && storeFlags[bad.Field] != "" {
		return usageError{fmt.Errorf("%s: %s", storeFlags[bad.Field], plainTimes(bad.Message))}
	}
	return err
}

// dropNil drops nil errors from a line of the log.
func dropNil(_ []string, a slog.Attr) slog.Attr {
	if a.Key == "error" && a.Value.Kind() == slog.KindAny && a.Value.Any() == nil {
		return slog.Attr{}
	}
	return a
}

func (f *nodeFlags) logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.logLevel)); err != nil {
		return nil, usageError{fmt.Errorf("--log-level %q: choose debug, info, warn or error", f.logLevel)}
	}
	opts := &slog.HandlerOptions{Level: level, ReplaceAttr: dropNil}
	switch f.logFormat {
	case "text":
		return slog.New(slog.NewTextHandler(w, opts)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	}
	return nil, usageError{fmt.Errorf("--log-format %q: choose text or json", f.logFormat)}
}

// byteSize is a number of bytes as people write it: 512MiB, 2GiB, 1e9.
type byteSize int64

var byteUnits = []struct {
	suffix string
	size   int64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1},
	{"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30}, {"Ti", 1 << 40}, {"K", 1 << 10}, {"M", 1 << 20}, {"G", 1 << 30}, {"T", 1 << 40}}

// String implements pflag.Value.
func (b *byteSize) String() string {
	for i := 3; i >= 0; i-- {
		if u := byteUnits[i]; *b != 0 && int64(*b)%u.size == 0 {
			return strconv.FormatInt(int64(*b)/u.size, 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(*b), 10)
}

// Set implements pflag.Value.
func (b *byteSize) Set(text string) error {
	number, unit := strings.TrimSpace(text), int64(1)
	for _, u := range byteUnits {
		if rest, ok := strings.CutSuffix(number, u.suffix); ok {
			number, unit = strings.TrimSpace(rest), u.size
			break
		}
	}
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || !(n >= 0 && n*float64(unit) < 1<<62) {
		return fmt.Errorf("%q is not a size like 512MiB or 2GiB", text)
	}
	*b = byteSize(n * float64(unit))
	return nil
}

// Type implements pflag.Value.
func (b *byteSize) Type() string { return "SIZE" }
