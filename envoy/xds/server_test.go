package xds

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/keystead/keystead/internal/vtcodec"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what has to come, silence for what must not.
const (
	patience = 30 * time.Second
	silence  = 50 * time.Millisecond
)

// world is a server of the ring, as a node has it.
type world struct {
	*Server
	conn *grpc.ClientConn
	reg  *prometheus.Registry
	mu   sync.Mutex // guards log
	log  bytes.Buffer
}

// Write implements io.Writer.
func (w *world) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(b)
}

func (w *world) said() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.String()
}

// serve runs a server behind a real port, with the codec of a node.
func serve(t *testing.T, cfg Config) *world {
	t.Helper()
	w := &world{reg: prometheus.NewRegistry()}
	cfg.Metrics, cfg.Log = w.reg, slog.New(slog.NewTextHandler(w, nil))
	var err error
	if w.Server, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(grpc.ForceServerCodecV2(vtcodec.Bounded(20_016)))
	w.Register(g)
	done := make(chan error, 1)
	go func() { done <- g.Serve(l) }()
	if w.conn, err = grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.Close()
		g.GracefulStop()
		_ = w.conn.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) publish(t *testing.T, v View) {
	t.Helper()
	if err := w.Publish(v); err != nil {
		t.Fatal(err)
	}
}

// metric waits until a metric with a label has a value.
func (w *world) metric(t *testing.T, name string, want float64, label string) {
	t.Helper()
	for over := time.After(patience); ; {
		families, err := w.reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := -1.0
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if l := m.GetLabel(); f.GetName() == name && (label == "" && len(l) == 0 || len(l) == 1 && l[0].GetValue() == label) {
					got = m.GetGauge().GetValue() + m.GetCounter().GetValue()
				}
			}
		}
		if got == want {
			return
		}
		select {
		case <-over:
			t.Fatalf("%s of %q is %v, want %v", name, label, got, want)
		case <-time.After(time.Millisecond):
		}
	}
}

// empty waits until no stream takes room.
func (w *world) empty(t *testing.T) {
	t.Helper()
	for over := time.After(patience); w.open.Load() != 0; {
		select {
		case <-over:
			t.Fatalf("%d streams take room", w.open.Load())
		case <-time.After(time.Millisecond):
		}
	}
}

// whole is a client that is told whole states.
type whole struct {
	t      *testing.T
	str    discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	got    chan *discoveryv3.DiscoveryResponse
	failed chan error
	node   *corev3.Node
	last   map[string]*discoveryv3.DiscoveryResponse // by type
}

func (w *world) whole(t *testing.T, agent string) *whole {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	str, err := discoveryv3.NewAggregatedDiscoveryServiceClient(w.conn).StreamAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	c := &whole{t: t, str: str, got: make(chan *discoveryv3.DiscoveryResponse, 100), failed: make(chan error, 1), last: map[string]*discoveryv3.DiscoveryResponse{},
		node: &corev3.Node{Id: "test-1", UserAgentName: agent}}
	go func() {
		for {
			r, err := str.Recv()
			if err != nil {
				c.failed <- err
				return
			}
			c.got <- r
		}
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case <-c.failed:
		case <-time.After(patience):
			t.Error("the stream does not end")
		}
	})
	return c
}

// ask asks for resources, or says to the last ones of the type that they are taken;
// or refused, if there is an error.
func (c *whole) ask(url string, refused error, names ...string) {
	c.t.Helper()
	last := c.last[url]
	req := &discoveryv3.DiscoveryRequest{TypeUrl: url, ResourceNames: names, ResponseNonce: last.GetNonce(), VersionInfo: last.GetVersionInfo(), Node: c.node}
	if refused != nil {
		req.VersionInfo = "" // nothing was taken before
		req.ErrorDetail = &statuspb.Status{Code: int32(codes.InvalidArgument), Message: refused.Error()}
	}
	c.node = nil // the first request has it
	if err := c.str.Send(req); err != nil {
		c.t.Fatal(err)
	}
}

// receive waits for resources of a type, and returns their names.
func (c *whole) receive(url string) []string {
	c.t.Helper()
	select {
	case r := <-c.got:
		return c.take(r, url)
	case err := <-c.failed:
		c.failed <- err // for the end of the test
		select {
		case r := <-c.got: // what came before the end
			return c.take(r, url)
		default:
			c.t.Fatalf("no %s: %v", url, err)
		}
	case <-time.After(patience):
		c.t.Fatalf("no %s", url)
	}
	return nil
}

// take keeps a response of a type, and returns its names.
func (c *whole) take(r *discoveryv3.DiscoveryResponse, url string) []string {
	c.t.Helper()
	if r.TypeUrl != url {
		c.t.Fatalf("got %s, want %s", r.TypeUrl, url)
	}
	c.last[url] = r
	return names(c.t, r.Resources)
}

func (c *whole) quiet() {
	c.t.Helper()
	select {
	case r := <-c.got:
		c.t.Fatalf("got %s, version %s", r.TypeUrl, r.VersionInfo)
	case <-time.After(silence):
	}
}

// ends waits for the end of the stream.
func (c *whole) ends(code codes.Code, says string) {
	c.t.Helper()
	select {
	case err := <-c.failed:
		c.failed <- err // for the end of the test
		if s := status.Convert(err); s.Code() != code || !strings.Contains(s.Message(), says) {
			c.t.Fatalf("it ends with %v, want %v, %q", err, code, says)
		}
	case <-time.After(patience):
		c.t.Fatal("the stream does not end")
	}
}

func names(t *testing.T, packed []*anypb.Any) []string {
	t.Helper()
	var all []string
	for _, a := range packed {
		m, err := a.UnmarshalNew()
		if err != nil {
			t.Fatal(err)
		}
		switch m := m.(type) {
		case interface{ GetName() string }:
			all = append(all, m.GetName())
		case interface{ GetClusterName() string }:
			all = append(all, m.GetClusterName())
		}
	}
	slices.Sort(all)
	return all
}

func equal(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("got %q, want %q", got, want)
	}
}

// two returns the ring of three with a node less, and no applications.
func two() View {
	v := three()
	v.Epoch, v.Nodes = 8, v.Nodes[:2]
	for i := range v.Nodes {
		v.Nodes[i].App = netip.AddrPort{}
	}
	return v
}

// An Envoy asks for all clusters and listeners, and then for what they name.
func TestWholeStates(t *testing.T) {
	w := serve(t, Config{Settings: Settings{Listener: DefaultListener}})
	c := w.whole(t, "envoy")
	c.ask(resource.ClusterType, nil)
	c.quiet() // nothing is known yet
	w.publish(t, three())
	equal(t, c.receive(resource.ClusterType), AppAny, AppOwners, KeysteadAny, KeysteadOwners)
	c.ask(resource.ClusterType, nil)
	c.ask(resource.EndpointType, nil, AppAny, AppOwners+"/2", KeysteadAny, KeysteadOwners+"/3")
	equal(t, c.receive(resource.EndpointType), AppAny, AppOwners+"/2", KeysteadAny, KeysteadOwners+"/3")
	c.ask(resource.EndpointType, nil, AppAny, AppOwners+"/2", KeysteadAny, KeysteadOwners+"/3")
	c.ask(resource.ListenerType, nil)
	equal(t, c.receive(resource.ListenerType), Keystead)
	c.ask(resource.ListenerType, nil)
	c.ask(resource.RouteType, nil, Keystead)
	equal(t, c.receive(resource.RouteType), Keystead)
	c.ask(resource.RouteType, nil, Keystead)
	w.metric(t, "keystead_xds_clients", 1, "envoy")
	w.metric(t, "keystead_xds_epoch", 7, "")

	again := three()
	again.Epoch = 8
	w.publish(t, again)
	c.quiet() // an epoch alone is nothing new
	w.metric(t, "keystead_xds_epoch", 8, "")

	v := two()
	v.Epoch = 9
	w.publish(t, v)
	// Clusters, endpoints and routes have changed, the listener has not.
	got := map[string][]string{}
	for range 3 {
		select {
		case r := <-c.got:
			c.last[r.TypeUrl], got[r.TypeUrl] = r, names(t, r.Resources)
			if !strings.HasPrefix(r.VersionInfo, "9-") {
				t.Errorf("%s: version %q", r.TypeUrl, r.VersionInfo)
			}
		case <-time.After(patience):
			t.Fatalf("got only %v", got)
		}
	}
	equal(t, got[resource.ClusterType], KeysteadAny, KeysteadOwners)
	equal(t, got[resource.EndpointType], KeysteadAny) // the ring has another name now
	c.ask(resource.EndpointType, nil, KeysteadAny, KeysteadOwners+"/2")
	equal(t, c.receive(resource.EndpointType), KeysteadAny, KeysteadOwners+"/2")
	c.quiet()
	if n := testutil.CollectAndCount(w.reg, "keystead_xds_nacks_total"); n != 5 {
		t.Errorf("%d series of refusals", n)
	}
}

// A gRPC client names what it needs, and is told that much of its own.
func TestGRPCNamesWhatItNeeds(t *testing.T) {
	w := serve(t, Config{Settings: Settings{Listener: DefaultListener}})
	w.publish(t, three())
	c := w.whole(t, "gRPC Go")
	c.ask(resource.ListenerType, nil, App)
	equal(t, c.receive(resource.ListenerType), App)
	c.ask(resource.EndpointType, nil, KeysteadOwners+"/3")
	equal(t, c.receive(resource.EndpointType), KeysteadOwners+"/3")
	w.metric(t, "keystead_xds_clients", 1, "grpc")
	w.metric(t, "keystead_xds_responses_total", 1, "listener")
}

// What is refused is not sent again, and what comes after it is.
func TestRefusal(t *testing.T) {
	w := serve(t, Config{})
	w.publish(t, three())
	c := w.whole(t, "envoy")
	c.ask(resource.ClusterType, nil)
	c.receive(resource.ClusterType)
	refused := c.last[resource.ClusterType].VersionInfo
	c.ask(resource.ClusterType, fmt.Errorf("no such %s", "thing"))
	c.quiet()
	w.metric(t, "keystead_xds_nacks_total", 1, "cluster")
	for _, want := range []string{"client=envoy", "node=test-1", "type=cluster", "version=" + refused, `error="no such thing"`} {
		if !strings.Contains(w.said(), want) {
			t.Errorf("the log has no %s: %s", want, w.said())
		}
	}
	w.publish(t, two())
	equal(t, c.receive(resource.ClusterType), KeysteadAny, KeysteadOwners)
}

// Deltas hold what has changed, and what is gone.
func TestDeltas(t *testing.T) {
	w := serve(t, Config{Settings: Settings{Listener: DefaultListener}})
	w.publish(t, three())
	str, err := discoveryv3.NewAggregatedDiscoveryServiceClient(w.conn).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ask := func(req *discoveryv3.DeltaDiscoveryRequest) {
		t.Helper()
		if err := str.Send(req); err != nil {
			t.Fatal(err)
		}
	}
	told := func(url string) (changed, gone []string, nonce string) {
		t.Helper()
		r, err := str.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if r.TypeUrl != url {
			t.Fatalf("got %s", r.TypeUrl)
		}
		for _, x := range r.Resources {
			changed = append(changed, x.Name)
		}
		slices.Sort(changed)
		slices.Sort(r.RemovedResources)
		return changed, r.RemovedResources, r.Nonce
	}
	ask(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resource.ClusterType, Node: &corev3.Node{UserAgentName: "envoy"}})
	changed, gone, nonce := told(resource.ClusterType)
	equal(t, changed, AppAny, AppOwners, KeysteadAny, KeysteadOwners)
	equal(t, gone)
	ask(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resource.ClusterType, ResponseNonce: nonce, ErrorDetail: &statuspb.Status{Message: "no"}})
	w.metric(t, "keystead_xds_nacks_total", 1, "cluster")
	w.publish(t, two())
	changed, gone, _ = told(resource.ClusterType)
	equal(t, changed, KeysteadOwners) // keystead-any is as it was
	equal(t, gone, AppAny, AppOwners)
	ask(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resource.EndpointType, ResourceNamesSubscribe: []string{KeysteadOwners + "/2"}})
	changed, _, _ = told(resource.EndpointType)
	equal(t, changed, KeysteadOwners+"/2")
	many := make([]string, MaxNames)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	ask(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resource.EndpointType, ResourceNamesSubscribe: many})
	if _, err := str.Recv(); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "to 257; at most 256") {
		t.Errorf("it ends with %v", err)
	}
}

func TestBounds(t *testing.T) {
	w := serve(t, Config{MaxStreams: 1})
	w.publish(t, three())
	many := make([]string, MaxNames+1)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	for _, tc := range []struct {
		says string
		code codes.Code
		do   func(c *whole)
	}{
		{"names 257 resources", codes.InvalidArgument, func(c *whole) { c.ask(resource.EndpointType, nil, many...) }},
		{"names a resource with 513 bytes", codes.InvalidArgument, func(c *whole) { c.ask(resource.EndpointType, nil, strings.Repeat("a", MaxName+1)) }},
		{"asks for more than 10 types", codes.InvalidArgument, func(c *whole) {
			for i := range maxTypes + 1 {
				c.ask(fmt.Sprintf("type.googleapis.com/t%d", i), nil, "x")
			}
		}},
		{"has a type of 513 bytes", codes.InvalidArgument, func(c *whole) { c.ask(strings.Repeat("t", MaxName+1), nil) }},
		{"has a version of 513 bytes", codes.InvalidArgument, func(c *whole) {
			c.last[resource.ClusterType] = &discoveryv3.DiscoveryResponse{VersionInfo: strings.Repeat("v", MaxName+1)}
			c.ask(resource.ClusterType, nil)
		}},
		{"has a nonce of 513 bytes", codes.InvalidArgument, func(c *whole) {
			c.last[resource.ClusterType] = &discoveryv3.DiscoveryResponse{Nonce: strings.Repeat("n", MaxName+1)}
			c.ask(resource.ClusterType, nil)
		}},
		{"brings what the stream names to 34560 bytes", codes.InvalidArgument, func(c *whole) {
			long := make([]string, 20)
			for i := range long {
				long[i] = strings.Repeat("n", MaxName)
			}
			for i := range 3 { // each of them would do
				c.ask(fmt.Sprintf("type.googleapis.com/t%d", i), nil, long...)
			}
		}},
		{"type URL is required", codes.InvalidArgument, func(c *whole) { c.ask("", nil) }},
		{"the message has 300", codes.Internal, func(c *whole) {
			c.node.Id = strings.Repeat("x", 300_000)
			c.ask(resource.ClusterType, nil)
		}},
	} {
		t.Run(tc.says, func(t *testing.T) {
			c := w.whole(t, "envoy")
			tc.do(c)
			c.ends(tc.code, tc.says)
		})
		w.metric(t, "keystead_xds_clients", 0, "envoy")
		w.empty(t) // what is no message counts for no agent, and its end is told before its room is free
	}
	first := w.whole(t, "envoy")
	first.ask(resource.ClusterType, nil)
	first.receive(resource.ClusterType)
	w.whole(t, "envoy").ends(codes.ResourceExhausted, "ask another one")
	w.metric(t, "keystead_xds_turned_away_total", 8, "")
}

func TestClose(t *testing.T) {
	w := serve(t, Config{})
	w.publish(t, three())
	c := w.whole(t, "envoy")
	c.ask(resource.ClusterType, nil)
	c.receive(resource.ClusterType)
	w.Close()
	c.ends(codes.Unavailable, "the node stops")
	w.whole(t, "envoy").ends(codes.Unavailable, "the node stops")
	w.metric(t, "keystead_xds_clients", 0, "envoy")
}

// What was published stays when there is nothing better.
func TestPublishMisuse(t *testing.T) {
	w := serve(t, Config{})
	w.publish(t, three())
	w.publish(t, View{Epoch: 9})
	if err := w.Publish(View{Epoch: 9, Nodes: []Node{{HashKey: "n"}}}); err == nil {
		t.Error("a node without an address is published")
	}
	w.metric(t, "keystead_xds_epoch", 7, "")
	c := w.whole(t, "")
	c.ask(resource.ClusterType, nil)
	equal(t, c.receive(resource.ClusterType), AppAny, AppOwners, KeysteadAny, KeysteadOwners)
	if _, err := New(Config{Settings: Settings{Listener: "x"}, Metrics: prometheus.NewRegistry()}); err == nil {
		t.Error("made with a listener at x")
	}
}
