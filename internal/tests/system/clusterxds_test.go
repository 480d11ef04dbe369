//go:build system

package system

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/resolver"
	grpcxds "google.golang.org/grpc/xds"

	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
)

// xdsNodes is how far the ring grows in TestClusterXDS. gRPC's ring has room for 16.
var xdsNodes = flag.Int("xds-nodes", 3, "TestClusterXDS: how many nodes the ring grows to, 3 to 16")

// xdsChange asks for the drain and the death among many nodes, too: they want a machine
// that has nothing else to do.
var xdsChange = flag.Bool("xds-change", false, "TestClusterXDS: drain and kill one of many nodes, too")

// xdsKeys returns how many keys have to go to their owners, each time that the ring has
// settled: fewer with the race detector, with which each call costs many times more.
func xdsKeys() int {
	if len(raceFlags) > 0 {
		return 1000
	}
	return 5000
}

// listScheme is the scheme of a list of addresses, of which a client takes any that
// answers: gRPC has that for names in DNS alone.
const listScheme = "test-list"

func init() { resolver.Register(listResolver{}) }

type listResolver struct{}

func (listResolver) Scheme() string { return listScheme }

func (listResolver) Build(target resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	var s resolver.State
	for addr := range strings.SplitSeq(target.Endpoint(), ",") {
		s.Addresses = append(s.Addresses, resolver.Address{Addr: addr})
	}
	return listResolver{}, cc.UpdateState(s)
}

func (listResolver) ResolveNow(resolver.ResolveNowOptions) {}

func (listResolver) Close() {}

// stock is a client of grpc-go that knows of the cluster only where its nodes are.
func (c *testCluster) stock() *grpc.ClientConn {
	c.t.Helper()
	var addrs []string
	for _, n := range c.nodes {
		addrs = append(addrs, n.grpc)
	}
	r, err := grpcxds.NewXDSResolverWithConfigForTesting(fmt.Appendf(nil,
		`{"xds_servers": [{"server_uri": "%s:///%s", "channel_creds": [{"type": "insecure"}], "server_features": ["xds_v3"]}], "node": {"id": "test"}}`,
		listScheme, strings.Join(addrs, ",")))
	if err != nil {
		c.t.Fatal(err)
	}
	conn, err := grpc.NewClient("xds:///keystead", grpc.WithResolvers(r), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// counterOf is what a client knows of a counter that nobody else adds to: what was
// acknowledged, and how many calls more may have added to it.
type counterOf struct {
	key     string
	value   int64
	unknown int64
}

// add adds 1, by whichever node the ring sends the call to. The answer must be one
// that fits all answers before.
func (k *counterOf) add(ctx context.Context, conn *grpc.ClientConn) (at string, err error) {
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, "x-keystead-key", k.key), callTime)
	defer cancel()
	var p peer.Peer
	r, err := counterpb.NewCounterServiceClient(conn).Add(ctx, &counterpb.AddRequest{Key: k.key, Name: "xds", Delta: 1}, grpc.Peer(&p))
	if err != nil {
		k.unknown++
		return "", err
	}
	if r.Value <= k.value || r.Value > k.value+k.unknown+1 {
		return "", fmt.Errorf("%w: %s is %d after %d, with %d calls of unknown outcome", errWrongAnswer, k.key, r.Value, k.value, k.unknown)
	}
	k.value, k.unknown = r.Value, 0
	return p.Addr.String(), nil
}

var errWrongAnswer = errors.New("wrong answer")

// forwarded returns how many operations the nodes that run have passed on so far.
func (c *testCluster) forwarded() (sum float64) {
	c.t.Helper()
	for _, n := range c.nodes {
		if n.process == nil || !n.runs() {
			continue
		}
		for name, v := range n.scrape() {
			if strings.HasPrefix(name, "keystead_forwarded_total") {
				sum += v
			}
		}
	}
	return sum
}

// scrape returns what a node's metrics say, by name and labels.
func (n *testNode) scrape() map[string]float64 {
	n.t.Helper()
	_, body, err := n.get("/metrics")
	if err != nil {
		n.t.Fatal(err)
	}
	all := map[string]float64{}
	for line := range strings.Lines(body) {
		if i := strings.LastIndexByte(line, ' '); i > 0 && line[0] != '#' {
			if v, err := strconv.ParseFloat(strings.TrimSpace(line[i+1:]), 64); err == nil {
				all[line[:i]] = v
			}
		}
	}
	return all
}

// firstHop checks that stock gRPC sends all keys to their owners, when it has learnt
// of the ring. It fails when a call does, or when a single one is passed on, while
// the table stays as it is.
func (c *testCluster) firstHop(conn *grpc.ClientConn, keys []*counterOf, nodes ...*testNode) {
	c.t.Helper()
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = k.key
	}
	const tries = 3
	for range tries {
		before, _, err := nodes[0].status()
		owners := nodes[0].owners(names...)
		if err != nil || len(owners) != len(keys) {
			c.t.Fatalf("%s knows %d owners of %d keys: %v", nodes[0].id, len(owners), len(keys), err)
		}
		learnt, why := c.allFirst(conn, keys, owners)
		if why == nil {
			c.t.Logf("%d nodes: all of %d keys on the first hop; the client knew the ring after %s", len(nodes), len(keys), learnt.Round(time.Millisecond))
			return
		}
		after, _, err := nodes[0].status()
		if errors.Is(why, errWrongAnswer) || err == nil && after.Epoch == before.Epoch {
			c.t.Fatal(why)
		}
		c.t.Logf("once more, because the table has changed meanwhile: %v", why)
		c.awaitMembers(nodes...)
	}
	c.t.Fatal("the table does not stay as it is")
}

// allFirst calls for all keys, when the client has learnt who owns the first of them,
// and how long that took.
func (c *testCluster) allFirst(conn *grpc.ClientConn, keys []*counterOf, owners []*clusterpb.KeyOwner) (learnt time.Duration, why error) {
	c.t.Helper()
	began := time.Now()
	if !poll(func() bool {
		for i, k := range keys[:200] {
			at, err := k.add(c.t.Context(), conn)
			if errors.Is(err, errWrongAnswer) {
				c.t.Fatal(err)
			}
			if err != nil || at != owners[i].OwnerAddr {
				return false
			}
		}
		return true
	}) {
		return 0, fmt.Errorf("in %s, the client did not learn the ring", patience)
	}
	learnt = time.Since(began)
	before := c.forwarded()
	const callers = 8
	failures := make([]error, callers)
	var wait sync.WaitGroup
	for w := range callers {
		wait.Go(func() {
			for i := w; i < len(keys) && failures[w] == nil; i += callers {
				if at, err := keys[i].add(c.t.Context(), conn); err != nil || at != owners[i].OwnerAddr {
					failures[w] = errors.Join(fmt.Errorf("%s goes to %q, and its owner is at %s", keys[i].key, at, owners[i].OwnerAddr), err)
				}
			}
		})
	}
	wait.Wait()
	if err := errors.Join(failures...); err != nil {
		return 0, err
	}
	if passed := c.forwarded() - before; passed != 0 {
		return 0, fmt.Errorf("%v of %d calls were passed on", passed, len(keys))
	}
	return learnt, nil
}

// manyNodes are more processes than a machine for tests runs in time: of so many, the
// ring only grows unless -xds-change says more, and leases are longer.
const manyNodes = 7

// TestClusterXDS has stock gRPC call a cluster by xDS alone, while nodes join, are
// drained and are killed, the one that tells it of the ring too. No answer is ever
// wrong, and each time that the ring has settled all keys go straight to their owners.
func TestClusterXDS(t *testing.T) {
	t.Parallel()
	if *xdsNodes < 3 || *xdsNodes > 16 {
		t.Fatalf("-xds-nodes %d", *xdsNodes)
	}
	var flags []string
	if *xdsNodes >= manyNodes {
		flags = []string{"--lease-ttl", "10s"}
	}
	c := layOut(t, *xdsNodes, false, flags...)
	c.nodes[0].run()
	c.awaitMembers(c.nodes[:1]...)
	conn := c.stock()
	keys := make([]*counterOf, xdsKeys())
	for i := range keys {
		keys[i] = &counterOf{key: "xds-" + strconv.Itoa(i)}
	}
	load := c.load(conn)
	c.firstHop(conn, keys, c.nodes[:1]...)
	for i := range c.nodes[1:] {
		c.nodes[i+1].run()
		c.awaitMembers(c.nodes[:i+2]...)
		c.quiet(load, func() { c.firstHop(conn, keys, c.nodes[:i+2]...) })
	}

	if *xdsNodes >= manyNodes && !*xdsChange {
		load.stop()
		t.Logf("beside it %d calls, %d of which failed", load.calls.Load(), load.failed.Load())
		return
	}
	last := c.nodes[len(c.nodes)-1]
	succeeds(t, "drain", last.id, "--force", "--addr", last.grpc)
	c.drains(last)
	c.quiet(load, func() { c.firstHop(conn, keys, c.nodes[:len(c.nodes)-1]...) })
	succeeds(t, "undrain", last.id, "--addr", last.grpc)
	c.awaitMembers(c.nodes...)
	c.quiet(load, func() { c.firstHop(conn, keys, c.nodes...) })

	c.killsTeller(conn, keys, load)
	load.stop()
	t.Logf("beside it %d calls, %d of which failed", load.calls.Load(), load.failed.Load())
}

// killsTeller kills the node that tells the client of the ring, and starts it again.
func (c *testCluster) killsTeller(conn *grpc.ClientConn, keys []*counterOf, load *xdsLoad) {
	t := c.t
	t.Helper()
	var told *testNode
	for _, n := range c.nodes {
		if n.scrape()[`keystead_xds_clients{client="grpc"}`] == 1 {
			told = n
		}
	}
	if told == nil {
		t.Fatal("no node tells the client of the ring")
	}
	t.Logf("beside it %d calls, %d of which failed; now %s is killed, which tells the client of the ring", load.calls.Load(), load.failed.Load(), told.id)
	told.kill()
	left := slices.DeleteFunc(slices.Clone(c.nodes), func(n *testNode) bool { return n == told })
	c.awaitMembers(left...)
	eventually(t, "another node tells it", func() bool {
		return slices.ContainsFunc(left, func(n *testNode) bool { return n.scrape()[`keystead_xds_clients{client="grpc"}`] == 1 })
	})
	c.quiet(load, func() { c.firstHop(conn, keys, left...) })
	// And a node that comes then is told of by another one than those before.
	told.flags = slices.DeleteFunc(told.flags, func(f string) bool { return f == "--bootstrap" })
	if !slices.Contains(told.flags, "--join") {
		told.flags = append(told.flags, "--join", c.addrs(told))
	}
	told.run()
	c.awaitMembers(c.nodes...)
	c.quiet(load, func() { c.firstHop(conn, keys, c.nodes...) })
}

// loadEvery is how often each caller calls: the machine has the nodes to run, too.
const loadEvery = 2 * time.Millisecond

// xdsLoad is callers that never stop to add to counters of their own.
type xdsLoad struct {
	calls, failed atomic.Int64
	pause         sync.RWMutex // held for reading by a caller during a call
	stop          func()
}

func (c *testCluster) load(conn *grpc.ClientConn) *xdsLoad {
	l := &xdsLoad{}
	ctx, cancel := context.WithCancel(c.t.Context())
	var wait sync.WaitGroup
	for w := range 4 {
		wait.Go(func() {
			keys := make([]*counterOf, 50)
			for i := range keys {
				keys[i] = &counterOf{key: fmt.Sprintf("load-%d-%d", w, i)}
			}
			tick := time.NewTicker(loadEvery)
			defer tick.Stop()
			for i := 0; ctx.Err() == nil; i++ {
				<-tick.C
				l.pause.RLock()
				_, err := keys[i%len(keys)].add(ctx, conn)
				l.pause.RUnlock()
				if l.calls.Add(1); err != nil && ctx.Err() == nil {
					l.failed.Add(1)
				}
				if errors.Is(err, errWrongAnswer) {
					c.t.Error(err)
					return
				}
			}
		})
	}
	l.stop = func() { cancel(); wait.Wait() }
	c.t.Cleanup(l.stop)
	return l
}

// quiet does something while nobody else calls.
func (c *testCluster) quiet(l *xdsLoad, do func()) {
	l.pause.Lock()
	defer l.pause.Unlock()
	do()
}

// watchRing is a client that is told of the endpoints of a ring of each size, and says
// when they came.
func (n *testNode) watchRing(sizes int) <-chan ringTold {
	n.t.Helper()
	str, err := discoveryv3.NewAggregatedDiscoveryServiceClient(n.conn).StreamAggregatedResources(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	var names []string
	for i := range sizes {
		names = append(names, "keystead-owners/"+strconv.Itoa(i+1))
	}
	req := &discoveryv3.DiscoveryRequest{
		TypeUrl: "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment", ResourceNames: names, Node: &corev3.Node{UserAgentName: "envoy"},
	}
	if err := str.Send(req); err != nil {
		n.t.Fatal(err)
	}
	told := make(chan ringTold, 100)
	go func() {
		for {
			r, err := str.Recv()
			if err != nil {
				return
			}
			at := time.Now()
			for _, a := range r.Resources {
				var e endpointv3.ClusterLoadAssignment
				if a.UnmarshalTo(&e) == nil {
					told <- ringTold{nodes: len(e.Endpoints[0].LbEndpoints), at: at}
				}
			}
			if str.Send(&discoveryv3.DiscoveryRequest{TypeUrl: r.TypeUrl, ResourceNames: names, VersionInfo: r.VersionInfo, ResponseNonce: r.Nonce}) != nil {
				return
			}
		}
	}()
	return told
}

// ringTold is when a client was told of a ring of so many nodes.
type ringTold struct {
	nodes int
	at    time.Time
}

// maxTold is how long after the leader has shown a table the clients of all nodes are
// told of it, at most.
const maxTold = 200 * time.Millisecond

// TestClusterXDSPush measures how long after the leader shows a table without a change
// under way the clients of all nodes are told of its ring.
func TestClusterXDSPush(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, false)
	leads, others := c.leader()
	watch, err := clusterpb.NewClusterServiceClient(leads.conn).Watch(t.Context(), &clusterpb.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	shown := make(chan time.Time, 1000)
	go func() {
		changing := false
		for {
			r, err := watch.Recv()
			if err != nil {
				return
			}
			transition := r.GetSnapshot().GetTransition()
			if ch := r.GetChange(); ch != nil {
				transition = ch.Transition
			}
			if changing && transition == 0 {
				shown <- time.Now()
			}
			changing = transition != 0
		}
	}()
	var told []<-chan ringTold
	for _, n := range c.nodes {
		told = append(told, n.watchRing(3))
	}
	expect := func(nodes int) (last time.Time) {
		t.Helper()
		for i, ch := range told {
			select {
			case r := <-ch:
				if r.nodes != nodes {
					t.Fatalf("a client of %s is told of %d nodes, not %d", c.nodes[i].id, r.nodes, nodes)
				}
				if r.at.After(last) {
					last = r.at
				}
			case <-time.After(patience):
				t.Fatalf("a client of %s is told nothing", c.nodes[i].id)
			}
		}
		return last
	}
	expect(3)
	var took []time.Duration
	for range 5 {
		for _, step := range []struct {
			command string
			nodes   int
		}{{"drain", 2}, {"undrain", 3}} {
			succeeds(t, step.command, others[0].id, "--addr", leads.grpc)
			last := expect(step.nodes)
			at := <-shown
			took = append(took, max(last.Sub(at), 0))
			c.awaitMembers(slices.DeleteFunc(slices.Clone(c.nodes), func(n *testNode) bool { return step.nodes == 2 && n == others[0] })...)
		}
	}
	slices.Sort(took)
	t.Logf("from the leader's table to the last of the clients of three nodes: median %s, most %s of %d", took[len(took)/2], took[len(took)-1], len(took))
	if median := took[len(took)/2]; median > maxTold { // other tests may hold up one of them
		t.Errorf("%s after the commit clients were told, more than %s", median, maxTold)
	}
}

// patiently waits longer than others do when there are more nodes.
func patiently(cond func() bool) bool {
	return slices.ContainsFunc(make([]bool, max(*xdsNodes/3, 1)), func(bool) bool { return poll(cond) })
}

// drains waits until a node is drained, and the ring is that of the others.
func (c *testCluster) drains(n *testNode) {
	c.t.Helper()
	if !patiently(func() bool {
		return n.stands(n).GetMember().GetPhase() == clusterpb.Phase_PHASE_DRAINED
	}) {
		c.t.Fatalf("%s is not drained: %v", n.id, n.stands(n))
	}
}

// awaitMembers waits until these are the active members, nothing changes any more, and all
// of them know it. There may be more of them than voters.
func (c *testCluster) awaitMembers(nodes ...*testNode) {
	c.t.Helper()
	var why string
	if !patiently(func() bool { why = c.unsettled(nodes); return why == "" }) {
		c.t.Fatalf("not settled: %s", why)
	}
}

func (c *testCluster) unsettled(nodes []*testNode) string {
	var epoch uint64
	for _, n := range nodes {
		st, members, err := n.status()
		if err != nil {
			return err.Error()
		}
		active := 0
		for _, m := range members {
			if m.Member.GetPhase() == clusterpb.Phase_PHASE_ACTIVE {
				active++
			}
		}
		if st.Changing || active != len(nodes) || epoch != 0 && st.Epoch != epoch {
			return fmt.Sprintf("%s knows %d active of %d, epoch %d and not %d, changing %v", n.id, active, len(nodes), st.Epoch, epoch, st.Changing)
		}
		epoch = st.Epoch
	}
	return ""
}

// A node that is cut off from all others goes on telling what it knows, and the
// application beside a node is where keys of that node go.
func TestClusterXDSApplications(t *testing.T) {
	t.Parallel()
	c := layOut(t, 3, false)
	apps := map[string]string{}
	for _, n := range c.nodes[:2] {
		apps[n.id] = newPort(t)
		n.flags = append(n.flags, "--app-addr", apps[n.id])
	}
	for _, n := range c.nodes {
		n.run()
	}
	c.ready(c.nodes...)
	text := succeeds(t, "members", "--addr", c.nodes[2].grpc)
	for id, addr := range apps {
		if !strings.Contains(text, addr) {
			t.Errorf("members does not show the application of %s: %s", id, text)
		}
	}
	last := c.nodes[2]
	ask := func() map[string][]string {
		str, err := discoveryv3.NewAggregatedDiscoveryServiceClient(last.conn).StreamAggregatedResources(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := str.Send(&discoveryv3.DiscoveryRequest{
			TypeUrl: "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment", ResourceNames: []string{"keystead-owners/3", "app-owners/2"},
			Node: &corev3.Node{UserAgentName: "envoy"},
		}); err != nil {
			t.Fatal(err)
		}
		r, err := str.Recv()
		if err != nil {
			t.Fatal(err)
		}
		found := map[string][]string{}
		for _, a := range r.Resources {
			var e endpointv3.ClusterLoadAssignment
			if err := a.UnmarshalTo(&e); err != nil {
				t.Fatal(err)
			}
			for _, h := range e.Endpoints[0].LbEndpoints {
				s := h.GetEndpoint().Address.GetSocketAddress()
				found[e.ClusterName] = append(found[e.ClusterName], net.JoinHostPort(s.Address, strconv.Itoa(int(s.GetPortValue()))))
			}
		}
		return found
	}
	check := func(when string) {
		t.Helper()
		found := ask()
		slices.Sort(found["app-owners/2"])
		want := []string{apps["n1"], apps["n2"]}
		slices.Sort(want)
		if !slices.Equal(found["app-owners/2"], want) || len(found["keystead-owners/3"]) != 3 {
			t.Errorf("%s: %v, want applications at %v", when, found, want)
		}
	}
	check("at first")
	c.nodes[0].kill()
	c.nodes[1].kill()
	eventually(t, "it has no lease", func() bool { code, _, err := last.get("/readyz"); return err == nil && code != 200 })
	check("alone")
}
