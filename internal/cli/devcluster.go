package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
)

const (
	maxDevNodes   = 16
	maxPort       = 1<<16 - 1
	devPortStep   = 10 // from the ports of one node to those of the next
	devReadyTime  = 30 * time.Second
	devReadyPause = 50 * time.Millisecond
	devStopTime   = 45 * time.Second // for all nodes to end, before they are killed: a drain and the grace of a stop
)

// devNode is one process of a cluster to try things on.
type devNode struct {
	id                              string
	grpc, http, admin, raft, gossip string
	cmd                             *exec.Cmd
}

// runDevCluster runs nodes as processes until a signal comes.
func runDevCluster(cmd *cobra.Command, std Process, f *nodeFlags, n int) error {
	if n < 1 || n > maxDevNodes {
		return usageError{fmt.Errorf("--nodes %d: choose 1 to %d", n, maxDevNodes)}
	}
	nodes, err := placeDevNodes(f, n)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	d := &devCluster{nodes: nodes, out: std.Out, err: std.Err, ended: make(chan string, n)}
	defer d.end()
	for _, node := range nodes {
		if err := d.start(cmd, node, f.DataDir); err != nil {
			return err
		}
	}
	began := time.Now()
	if err := d.await(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	d.up.Store(true)
	d.announce(time.Since(began), f.DataDir)
	for left := n; left > 0; {
		select {
		case <-ctx.Done():
			return nil
		case how := <-d.ended:
			left--
			fmt.Fprintln(std.Err, how)
		}
	}
	return errors.New("all nodes have ended")
}

// placeDevNodes chooses the ports: those of the first node, and further ones in
// steps; or free ones.
func placeDevNodes(f *nodeFlags, n int) ([]*devNode, error) {
	host, port, err := net.SplitHostPort(f.GRPCAddr)
	first, perr := strconv.Atoi(port)
	if err != nil || perr != nil {
		return nil, usageError{fmt.Errorf("--grpc-addr %q: write HOST:PORT, like %s", f.GRPCAddr, defaultAddr)}
	}
	adminHost, adminPort, adminErr := net.SplitHostPort(f.AdminAddr)
	firstAdmin, _ := strconv.Atoi(adminPort)
	if f.AdminAddr != "" && adminErr != nil {
		return nil, usageError{fmt.Errorf("--admin-addr %q: write HOST:PORT, like %s", f.AdminAddr, defaultAdminAddr)}
	}
	switch last := (n - 1) * devPortStep; {
	case f.MetricsAddr != "":
		return nil, usageError{errors.New("--metrics-addr: several nodes cannot share it; each serves its metrics at its admin address")}
	case f.HTTPAddr != autoAddr && f.HTTPAddr != "":
		return nil, usageError{errors.New("--http-addr: several nodes cannot share it; leave it out, and each serves HTTP 3 ports above its --grpc-addr")}
	case first+httpPortStep+last > maxPort:
		return nil, usageError{fmt.Errorf("--grpc-addr %q: the ports of %d nodes would go beyond %d", f.GRPCAddr, n, maxPort)}
	case firstAdmin+last > maxPort:
		return nil, usageError{fmt.Errorf("--admin-addr %q: the ports of %d nodes would go beyond %d", f.AdminAddr, n, maxPort)}
	}
	var nodes []*devNode
	var held []io.Closer // so that no port is picked twice
	defer func() {
		for _, l := range held {
			_ = l.Close()
		}
	}()
	for i := range n {
		d := &devNode{id: "n" + strconv.Itoa(i+1)}
		for _, p := range []struct {
			addr  *string
			host  string
			first int
		}{{&d.grpc, host, first}, {&d.raft, host, first + 1}, {&d.gossip, host, first + 2}, {&d.http, host, first + httpPortStep}, {&d.admin, adminHost, firstAdmin}} {
			switch {
			case p.addr == &d.admin && f.AdminAddr == "", p.addr == &d.http && f.HTTPAddr == "":
			case p.addr == &d.admin && firstAdmin == 0, p.addr != &d.admin && first == 0:
				l, err := net.Listen("tcp", net.JoinHostPort(p.host, "0"))
				if err != nil {
					return nil, err
				}
				held = append(held, l)
				*p.addr = l.Addr().String()
			default:
				*p.addr = net.JoinHostPort(p.host, strconv.Itoa(p.first+i*devPortStep))
			}
		}
		nodes = append(nodes, d)
	}
	return nodes, nil
}

// devCluster are the running processes.
type devCluster struct {
	nodes    []*devNode
	out, err io.Writer
	ended    chan string // how a node ended; room for all
	running  sync.WaitGroup
	up       atomic.Bool // all have been members: one that ends can come back
	dir      string      // removed at the end; "" = none
}

// ownDevFlags are settings that each node gets for itself, or that are dev's own.
var ownDevFlags = map[string]bool{"grpc-addr": true, "http-addr": true, "admin-addr": true, "nodes": true, "data-dir": true, "show-config": true, "log-level": true}

// args returns those of the node's process. join is the gossip address of a node
// that is there already; "" = it makes the cluster.
func (n *devNode) args(cmd *cobra.Command, join, dataDir string) []string {
	args := []string{"server", "--cluster-id", "dev", "--id", n.id, "--grpc-addr", n.grpc, "--http-addr", n.http, "--admin-addr", n.admin,
		"--raft-addr", n.raft, "--gossip-addr", n.gossip, "--gossip-profile", "local",
		"--log-level", cmd.Flags().Lookup("log-level").Value.String()}
	if join == "" {
		args = append(args, "--bootstrap")
	} else {
		args = append(args, "--join", join)
	}
	if dataDir != "" {
		args = append(args, "--data-dir", filepath.Join(dataDir, n.id))
	}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if ownDevFlags[f.Name] {
			return
		}
		value := f.Value.String()
		if list, ok := f.Value.(pflag.SliceValue); ok { // which prints itself in brackets
			value = strings.Join(list.GetSlice(), ",")
		}
		args = append(args, "--"+f.Name+"="+value)
	})
	return args
}

func (d *devCluster) start(cmd *cobra.Command, n *devNode, dataDir string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	join, others := "", d.nodes[len(d.nodes)-1].gossip // a node that comes back joins: a second cluster would not know of the first
	if n != d.nodes[0] {
		join, others = d.nodes[0].gossip, d.nodes[0].gossip
	}
	args, back := n.args(cmd, join, dataDir), n.args(cmd, others, dataDir)
	n.cmd = exec.Command(self, args...)
	n.cmd.Stdout, n.cmd.Stderr = d.err, d.err
	endWithParent(n.cmd)
	if err := n.cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", n.id, err)
	}
	d.running.Go(func() {
		err := n.cmd.Wait()
		how := fmt.Sprintf("%s ended: %s", n.id, n.cmd.ProcessState)
		if err != nil && d.up.Load() {
			how += "\n  bring it back with: " + shellCommand(append([]string{"keystead"}, back...))
		}
		d.ended <- how
	})
	return nil
}

// shellCommand writes a command so that it can be pasted.
func shellCommand(args []string) string {
	out := make([]string, len(args))
	for i, a := range args {
		if out[i] = a; a == "" || strings.ContainsAny(a, " \t\"'$&;|<>*?()[]{}\\`!#~") {
			out[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
	}
	return strings.Join(out, " ")
}

// await returns when every node is an active member and the right number of them vote.
func (d *devCluster) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, devReadyTime)
	defer cancel()
	r := remote{addr: d.nodes[0].grpc, timeout: devReadyTime}
	conn, err := r.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	client := clusterpb.NewClusterServiceClient(conn)
	voters := min(len(d.nodes), 5)
	if voters%2 == 0 {
		voters--
	}
	for {
		st, err := client.GetStatus(ctx, &clusterpb.GetStatusRequest{})
		if err == nil && int(st.Members) == len(d.nodes) && !st.Changing && st.Serving && st.RowsUnowned == 0 && len(st.Voters) == voters && d.allActive(ctx, client) {
			return nil
		}
		select {
		case how := <-d.ended:
			return hinted{errors.New("a node did not come up: " + how), "if its ports are in use, stop what uses them, such as another `keystead dev`, or choose others with --grpc-addr and --admin-addr"}
		case <-ctx.Done():
			return fmt.Errorf("the cluster was not ready within %s; --log-level info tells more", devReadyTime)
		case <-time.After(devReadyPause):
		}
	}
}

// awaitLevel returns when the cluster uses the formats that its nodes know: at once, if all of
// them were known to the one that made it.
func (d *devCluster) awaitLevel(ctx context.Context) error {
	return d.awaitStatus(ctx, "did not begin to use the formats that its nodes know", func(st *clusterpb.GetStatusResponse) bool { return st.Level == st.LevelKnown })
}

// awaitStatus returns when the status of the first node is as it should be. not says what the cluster did not do if it never is.
func (d *devCluster) awaitStatus(ctx context.Context, not string, is func(*clusterpb.GetStatusResponse) bool) error {
	ctx, cancel := context.WithTimeout(ctx, devReadyTime)
	defer cancel()
	r := remote{addr: d.nodes[0].grpc, timeout: devReadyTime}
	conn, err := r.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	client := clusterpb.NewClusterServiceClient(conn)
	for {
		st, err := client.GetStatus(ctx, &clusterpb.GetStatusRequest{})
		if err == nil && is(st) {
			return nil
		}
		select {
		case how := <-d.ended:
			return errors.New("a node is gone: " + how)
		case <-ctx.Done():
			return fmt.Errorf("the cluster %s within %s", not, devReadyTime)
		case <-time.After(devReadyPause):
		}
	}
}

func (d *devCluster) allActive(ctx context.Context, client clusterpb.ClusterServiceClient) bool {
	r, err := client.ListMembers(ctx, &clusterpb.ListMembersRequest{})
	if err != nil {
		return false
	}
	active := 0
	for _, m := range r.Members {
		if m.GetMember().GetPhase() == clusterpb.Phase_PHASE_ACTIVE {
			active++
		}
	}
	return active == len(d.nodes)
}

func (d *devCluster) announce(took time.Duration, dataDir string) {
	fmt.Fprintf(d.out, "A Keystead cluster of %d nodes is ready (%.1f s):\n\n", len(d.nodes), took.Seconds())
	w := tabwriter.NewWriter(d.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "  NODE\tAPI\tHTTP\tMETRICS, HEALTH\tPID")
	for _, n := range d.nodes {
		web, admin := "-", "-"
		if n.http != "" {
			web = n.http
		}
		if n.admin != "" {
			admin = "http://" + n.admin + "/"
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t%d\n", n.id, n.grpc, web, admin, n.cmd.Process.Pid)
	}
	_ = w.Flush()
	fmt.Fprint(d.out, "\nAny node takes any call. Try, in another terminal:\n\n")
	addr := ""
	if d.nodes[0].grpc != defaultAddr {
		addr = " --addr " + d.nodes[0].grpc
	}
	for _, c := range []string{"status", "ring", "owner"} {
		key := ""
		if c == "owner" {
			key = " tenant-42"
		}
		fmt.Fprintln(d.out, "  keystead "+c+addr+key)
	}
	suggest(d.out, addr)
	suggestHTTP(d.out, d.nodes[0].http)
	fmt.Fprintf(d.out, "  kill -9 %d     # %s dies; its keys get another owner in about 2 s\n\n", d.nodes[len(d.nodes)-1].cmd.Process.Pid, d.nodes[len(d.nodes)-1].id)
	if dataDir == "" {
		fmt.Fprintln(d.out, "Everything is forgotten when it stops (Ctrl-C).")
	} else {
		fmt.Fprintln(d.out, "Ctrl-C stops it; it goes on with all that it has when it is started again.")
	}
}

// end stops all nodes, the first one last: it leads, most of the time.
func (d *devCluster) end() {
	for i := len(d.nodes) - 1; i >= 0; i-- {
		if p := d.nodes[i].process(); p != nil {
			_ = p.Signal(syscall.SIGTERM)
		}
	}
	done := make(chan struct{})
	go func() { d.running.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(devStopTime):
		for _, n := range d.nodes {
			if p := n.process(); p != nil {
				_ = p.Kill()
			}
		}
		<-done
	}
	if d.dir != "" {
		_ = os.RemoveAll(d.dir)
	}
}

func (n *devNode) process() *os.Process {
	if n.cmd == nil {
		return nil
	}
	return n.cmd.Process
}
