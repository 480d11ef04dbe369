package system

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/internal/node"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

// testNode is a `keystead server` of a cluster, in whichever process it runs now.
type testNode struct {
	*process
	t                             *testing.T
	id, grpc, admin, raft, gossip string
	disk                          string   // "" = none
	flags                         []string // besides its name, its disk and its addresses
	points                        string   // where its fail points are set, "" = it has none
	conn                          *grpc.ClientConn
	prepare                       func(*exec.Cmd)
	// dial reaches the node's addresses; the tests' own network if it is nil.
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// newPort picks from these: below the ports that the system picks, so that a
// process that comes back finds its own ones free.
const firstPort, lastPort = 20_000, 30_000

// port0 and ports are where this run of the tests began to pick, and how far it
// has come.
var (
	port0 = rand.Int64N(lastPort - firstPort)
	ports atomic.Int64
)

// newPort returns an address of loopback at which nothing listens, and which no other
// test has.
func newPort(t *testing.T) string {
	t.Helper()
	for range lastPort - firstPort {
		addr := net.JoinHostPort("127.0.0.1", strconv.FormatInt(firstPort+(port0+ports.Add(1))%(lastPort-firstPort), 10))
		l, err := net.Listen("tcp", addr)
		if err != nil {
			continue
		}
		_ = l.Close()
		u, err := net.ListenPacket("udp", addr)
		if err != nil {
			continue
		}
		_ = u.Close()
		return addr
	}
	t.Fatal("no port is free")
	return ""
}

// newTestNode is a node on ports of its own that does not run yet.
func newTestNode(t *testing.T, id, disk string, flags ...string) *testNode {
	t.Helper()
	return &testNode{t: t, id: id, grpc: newPort(t), admin: newPort(t), raft: newPort(t), gossip: newPort(t), disk: disk, flags: flags}
}

// run starts the node's process, which ends with the test in whatever way.
func (n *testNode) run() {
	n.t.Helper()
	args := []string{"server", "--id", n.id, "--grpc-addr", n.grpc, "--admin-addr", n.admin, "--raft-addr", n.raft, "--gossip-addr", n.gossip,
		"--gossip-profile", "local"}
	if n.disk != "" {
		args = append(args, "--data-dir", n.disk)
	}
	n.process = start(n.t, n.prepare, append(args, n.flags...)...)
	p := n.process
	n.t.Cleanup(func() { // before the one of start, which waits for its end
		_ = p.cmd.Process.Kill()
		if n.t.Failed() {
			n.t.Logf("%s said:\n%s", n.id, p.err())
		}
	})
	if n.conn == nil {
		n.connect()
	}
}

func (n *testNode) connect() {
	n.t.Helper()
	if n.dial == nil {
		n.dial = (&net.Dialer{}).DialContext
	}
	conn, err := grpc.NewClient("passthrough:///"+n.grpc, append(oldNames(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return n.dial(ctx, "tcp", addr) }),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 100 * time.Millisecond},
			MinConnectTimeout: 5 * time.Second,
		}))...)
	if err != nil {
		n.t.Fatal(err)
	}
	n.conn = conn
	n.t.Cleanup(func() { _ = conn.Close() })
}

// kill ends the process as kill -9 does.
func (n *testNode) kill() {
	n.t.Helper()
	n.signal(n.t, syscall.SIGKILL)
	<-n.done
}

// runs reports whether its process does.
func (n *testNode) runs() bool {
	select {
	case <-n.done:
		return false
	default:
		return true
	}
}

// said waits until the node's log has a line with all of some words.
func (n *testNode) said(words ...string) {
	n.t.Helper()
	eventually(n.t, fmt.Sprintf("%s says %q", n.id, words), func() bool {
		for line := range strings.Lines(n.err()) {
			if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
				return true
			}
		}
		return false
	})
}

// get fetches a page of the admin server.
func (n *testNode) get(path string) (code int, body string, err error) {
	ctx, cancel := context.WithTimeout(n.t.Context(), callTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.admin+path, nil)
	if err != nil {
		return 0, "", err
	}
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: n.dial}}
	resp, err := c.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

// clusterStatus returns what the node says at /status of its part in the cluster.
func (n *testNode) clusterStatus() (node.ClusterStatus, bool) {
	var s node.Status
	_, text, err := n.get("/status")
	if err != nil || json.Unmarshal([]byte(text), &s) != nil || s.Cluster == nil {
		return node.ClusterStatus{}, false
	}
	return *s.Cluster, true
}

// unready checks that the node is not ready, and no member as another one sees it.
func (n *testNode) unready(as *testNode) {
	n.t.Helper()
	if code, body, err := n.get("/readyz"); err != nil || code != http.StatusServiceUnavailable {
		n.t.Errorf("%s: /readyz %d %s %v", n.id, code, body, err)
	}
	st, ok := as.clusterStatus()
	own, _ := n.clusterStatus()
	if !ok || slices.Contains(st.Members, n.id) && n.id != as.id || slices.Contains(st.Voters, n.id) && n.id != as.id || own.RowsOwned != 0 {
		n.t.Errorf("%s knows members %v, voters %v; %s owns %d rows", as.id, st.Members, st.Voters, n.id, own.RowsOwned)
	}
}

// callTime bounds one call.
const callTime = 2 * time.Second

// status asks the node for its status and members.
func (n *testNode) status() (*clusterpb.GetStatusResponse, []*clusterpb.MemberStatus, error) {
	ctx, cancel := context.WithTimeout(n.t.Context(), callTime)
	defer cancel()
	c := clusterpb.NewClusterServiceClient(n.conn)
	st, err := c.GetStatus(ctx, &clusterpb.GetStatusRequest{})
	if err != nil {
		return nil, nil, err
	}
	m, err := c.ListMembers(ctx, &clusterpb.ListMembersRequest{})
	return st, m.GetMembers(), err
}

// owners returns the owners of keys, as the node knows them; nil if it does not answer.
func (n *testNode) owners(keys ...string) []*clusterpb.KeyOwner {
	ctx, cancel := context.WithTimeout(n.t.Context(), callTime)
	defer cancel()
	r, err := clusterpb.NewClusterServiceClient(n.conn).GetOwners(ctx, &clusterpb.GetOwnersRequest{Keys: keys})
	if err != nil {
		return nil
	}
	return r.Owners
}

// grant is a lock that was taken, and given back.
type grant struct {
	owner string
	token uint64
	epoch uint64
}

// acquire takes a lock at a node, which forwards the call or not.
func (n *testNode) acquire(ctx context.Context, key string, forward bool) (grant, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	if !forward {
		ctx = metadata.AppendToOutgoingContext(ctx, "x-keystead-no-forward", "1")
	}
	c := lockpb.NewLockServiceClient(n.conn)
	r, err := c.Acquire(ctx, &lockpb.AcquireRequest{Key: key, Holder: "test", TtlNs: int64(10 * time.Millisecond), WaitNs: int64(time.Second)})
	if err != nil {
		return grant{}, err
	}
	if !r.Acquired {
		return grant{}, errors.New("held by another")
	}
	// It is free within its TTL, whatever becomes of this.
	_, _ = c.Release(ctx, &lockpb.ReleaseRequest{Key: key, Token: r.Token})
	return grant{r.Owner, r.Token, r.Epoch}, nil
}

// mustAcquire takes a lock at a node as soon as that works.
func (n *testNode) mustAcquire(key string) (g grant) {
	n.t.Helper()
	var err error
	if !poll(func() bool { g, err = n.acquire(n.t.Context(), key, true); return err == nil }) {
		n.t.Fatalf("%s does not answer for %q: %v", n.id, key, err)
	}
	return g
}

// add adds to a counter of a key at a node.
func (n *testNode) add(key string, delta int64) (*counterpb.AddResponse, error) {
	ctx, cancel := context.WithTimeout(n.t.Context(), callTime)
	defer cancel()
	return counterpb.NewCounterServiceClient(n.conn).Add(ctx, &counterpb.AddRequest{Key: key, Name: "n", Delta: delta})
}

// reason returns that of a refusal, with the node that it names.
func reason(err error) (reason, owner string) {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.Reason, info.Metadata["owner"]
		}
	}
	return "", ""
}

// testCluster are nodes of one cluster.
type testCluster struct {
	t     *testing.T
	nodes []*testNode
}

// newCluster starts a cluster of n nodes, and waits until all of it is ready. What
// was lost is waited for a second.
func newCluster(t *testing.T, n int, disks bool, flags ...string) *testCluster {
	t.Helper()
	c := layOut(t, n, disks, flags...)
	for _, n := range c.nodes {
		n.run()
	}
	c.ready(c.nodes...)
	return c
}

// layOut is a cluster of n nodes that do not run yet.
func layOut(t *testing.T, n int, disks bool, flags ...string) *testCluster {
	t.Helper()
	c := &testCluster{t: t}
	root := t.TempDir()
	for i := range n {
		id, disk := "n"+strconv.Itoa(i+1), ""
		if disks {
			disk = filepath.Join(root, id)
		}
		c.nodes = append(c.nodes, newTestNode(t, id, disk, append([]string{"--cluster-id", "c", "--max-lock-ttl", "1s"}, flags...)...))
	}
	c.nodes[0].flags = append(c.nodes[0].flags, "--bootstrap")
	for _, n := range c.nodes[1:] {
		n.flags = append(n.flags, "--join", c.addrs(n))
	}
	return c
}

// addrs returns the gossip addresses of all nodes but one.
func (c *testCluster) addrs(but *testNode) string {
	var addrs []string
	for _, n := range c.nodes {
		if n != but {
			addrs = append(addrs, n.gossip)
		}
	}
	return strings.Join(addrs, ",")
}

// ready waits until these are the members, all of them active, ready and agreed
// about it, and as many vote as shall.
func (c *testCluster) ready(nodes ...*testNode) {
	c.t.Helper()
	why := ""
	if !poll(func() bool { why = c.unready(nodes); return why == "" }) {
		c.t.Fatalf("the cluster is not ready: %s", why)
	}
}

// unready says why the cluster of these nodes is not ready, "" if it is.
func (c *testCluster) unready(nodes []*testNode) string {
	var ids []string
	for _, n := range nodes {
		ids = append(ids, n.id)
	}
	voters := len(nodes) - (len(nodes)+1)%2
	var epoch uint64
	for _, n := range nodes {
		if !n.runs() {
			c.t.Fatalf("%s has ended: %s", n.id, n.err())
		}
		st, members, err := n.status()
		if err != nil {
			return err.Error()
		}
		var active []string
		for _, m := range members {
			if m.Member.GetPhase() == clusterpb.Phase_PHASE_ACTIVE {
				active = append(active, m.Id)
			}
		}
		code, body, _ := n.get("/readyz")
		if slices.Compare(active, ids) != 0 || int(st.Members) != len(ids) || len(st.Voters) != voters || st.Changing || st.RowsUnowned > 0 || code != http.StatusOK {
			return fmt.Sprintf("%s knows %v and of them active %v; readyz %q", n.id, st, active, body)
		}
		if slices.Sort(st.Voters); len(slices.Compact(st.Voters)) != voters {
			return fmt.Sprintf("voters %v", st.Voters)
		}
		if epoch == 0 {
			epoch = st.Epoch
		}
		if st.Epoch != epoch {
			return fmt.Sprintf("epochs %d and %d", epoch, st.Epoch)
		}
	}
	return ""
}

// leader returns the raft leader's node, and the others.
func (c *testCluster) leader() (leads *testNode, others []*testNode) {
	c.t.Helper()
	eventually(c.t, "somebody leads", func() bool {
		st, _, err := c.nodes[0].status()
		if err != nil {
			return false
		}
		leads, others = nil, nil
		for _, n := range c.nodes {
			if n.id == st.Leader {
				leads = n
			} else {
				others = append(others, n)
			}
		}
		return leads != nil
	})
	return leads, others
}

// keys are some keys of each node.
func (c *testCluster) keys(each int) map[string][]string {
	c.t.Helper()
	all := make([]string, 100*each)
	for i := range all {
		all[i] = "key-" + strconv.Itoa(i)
	}
	found := map[string][]string{}
	owners := c.nodes[0].owners(all...)
	for i, o := range owners {
		if len(found[o.Owner]) < each {
			found[o.Owner] = append(found[o.Owner], all[i])
		}
	}
	for _, n := range c.nodes {
		if len(found[n.id]) < each {
			c.t.Fatalf("of %d keys %s owns %v", len(all), n.id, found[n.id])
		}
	}
	return found
}
