package xds

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
)

// rightOrder is that in which types are told of.
var rightOrder = []string{resource.ClusterType, resource.EndpointType, resource.ListenerType, resource.RouteType}

// changing are Views in turn, of which each changes all types but the listener.
func changing(round int) View {
	v := three()
	if round%2 == 1 {
		v = two()
	}
	v.Epoch = uint64(100 + round)
	return v
}

// rounds is how often a test of the order publishes: a wrong one is right by chance in
// a sixth of them.
const rounds = 20

// A client is told of clusters before the endpoints that they name, and of routes
// last, by whole states …
func TestOrderOfWholeStates(t *testing.T) {
	w := serve(t, Config{Settings: Settings{Listener: DefaultListener}})
	w.publish(t, changing(0))
	c := w.whole(t, "envoy")
	wanted := map[string][]string{resource.EndpointType: {AppAny, KeysteadAny, KeysteadOwners + "/3"}, resource.RouteType: {App, Keystead}}
	for _, url := range rightOrder {
		c.ask(url, nil, wanted[url]...)
		c.receive(url)
		c.ask(url, nil, wanted[url]...)
	}
	c.quiet() // all is taken before anything changes
	for round := 1; round <= rounds; round++ {
		w.publish(t, changing(round))
		var got []string
		for range 3 {
			select {
			case r := <-c.got:
				c.last[r.TypeUrl], got = r, append(got, r.TypeUrl)
			case <-time.After(patience):
				t.Fatalf("round %d: got only %v", round, got)
			}
		}
		equal(t, got, resource.ClusterType, resource.EndpointType, resource.RouteType)
		for _, url := range got {
			c.ask(url, nil, wanted[url]...)
		}
		c.quiet()
	}
}

// deltas is a client that is told deltas.
type deltas struct {
	t    *testing.T
	str  discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	got  chan *discoveryv3.DeltaDiscoveryResponse
	node *corev3.Node
}

func (w *world) deltas(t *testing.T, agent string) *deltas {
	t.Helper()
	str, err := discoveryv3.NewAggregatedDiscoveryServiceClient(w.conn).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	d := &deltas{t: t, str: str, got: make(chan *discoveryv3.DeltaDiscoveryResponse, 100), node: &corev3.Node{Id: "test-1", UserAgentName: agent}}
	go func() {
		defer close(d.got)
		for {
			r, err := str.Recv()
			if err != nil {
				return
			}
			d.got <- r
		}
	}()
	return d
}

func (d *deltas) ask(url, nonce string, names ...string) {
	d.t.Helper()
	if err := d.str.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: url, ResponseNonce: nonce, ResourceNamesSubscribe: names, Node: d.node}); err != nil {
		d.t.Fatal(err)
	}
	d.node = nil
}

// receive waits for a response, takes it, and returns the names in it.
func (d *deltas) receive() (url string, changed, gone []string) {
	d.t.Helper()
	select {
	case r, ok := <-d.got:
		if !ok {
			d.t.Fatal("the stream has ended")
		}
		d.ask(r.TypeUrl, r.Nonce)
		for _, x := range r.Resources {
			changed = append(changed, x.Name)
		}
		slices.Sort(changed)
		slices.Sort(r.RemovedResources)
		return r.TypeUrl, changed, r.RemovedResources
	case <-time.After(patience):
		d.t.Fatal("nothing is said")
	}
	return "", nil, nil
}

func (d *deltas) quiet() {
	d.t.Helper()
	select {
	case r := <-d.got:
		d.t.Fatalf("got %v", r)
	case <-time.After(silence):
	}
}

// … and by deltas.
func TestOrderOfDeltas(t *testing.T) {
	w := serve(t, Config{Settings: Settings{Listener: DefaultListener}})
	w.publish(t, changing(0))
	d := w.deltas(t, "envoy")
	for _, url := range rightOrder {
		d.ask(url, "") // all there are
		if got, _, _ := d.receive(); got != url {
			t.Fatalf("got %s, want %s", got, url)
		}
	}
	d.quiet()
	for round := 1; round <= rounds; round++ {
		w.publish(t, changing(round))
		var got []string
		for range 3 {
			url, _, _ := d.receive()
			got = append(got, url)
		}
		equal(t, got, resource.ClusterType, resource.EndpointType, resource.RouteType)
		d.quiet()
	}
}

// A name that nobody has is answered at once, also in deltas: it is gone. When it is
// there one day, the client is told.
func TestUnknownNames(t *testing.T) {
	w := serve(t, Config{Settings: Settings{Listener: DefaultListener}})
	d := w.deltas(t, "envoy")
	d.ask(resource.RouteType, "", "nope", Keystead)
	d.quiet() // nothing is known yet
	w.publish(t, two())
	url, changed, gone := d.receive()
	equal(t, []string{url}, resource.RouteType)
	equal(t, changed, Keystead)
	equal(t, gone, "nope")
	d.quiet()
	d.ask(resource.EndpointType, "", AppAny, "xdstp://keystead/envoy.config.endpoint.v3.ClusterLoadAssignment/a")
	_, changed, gone = d.receive()
	equal(t, changed)
	equal(t, gone, AppAny, "xdstp://keystead/envoy.config.endpoint.v3.ClusterLoadAssignment/a")
	d.ask(resource.EndpointType, "", KeysteadAny)
	_, changed, gone = d.receive()
	equal(t, changed, KeysteadAny)
	equal(t, gone)
	v := three()
	v.Epoch = 9
	w.publish(t, v)
	if _, changed, gone = d.receive(); len(gone) != 0 || !slices.Contains(changed, AppAny) {
		t.Errorf("%v, gone %v", changed, gone)
	}
	d.quiet()
}

// Envoy sends what was never sent again, to another host, and cuts nobody off who
// waits. gRPC clients do the first by themselves.
func TestRoutesRetry(t *testing.T) {
	for c := range Client(clients) {
		r := Build(splitting(), Settings{}, c)
		for _, rc := range r.Routes {
			for _, route := range rc.VirtualHosts[0].Routes {
				a := route.GetRoute()
				if a.Timeout.AsDuration() != 0 || a.IdleTimeout == nil || a.IdleTimeout.AsDuration() != 0 {
					t.Errorf("%s: a route ends calls: %v", c, a)
				}
				if got := retries(a.RetryPolicy); c == Envoy && got != "connect-failure,refused-stream 2 envoy.retry_host_predicates.previous_hosts 16" || c != Envoy && got != "" {
					t.Errorf("%s: %q", c, got)
				}
			}
		}
		for _, cl := range r.Clusters {
			if most := cl.CircuitBreakers.Thresholds[0]; most.MaxRetries.GetValue() != most.MaxRequests.GetValue() {
				t.Errorf("%s: %s: %v", c, cl.Name, most)
			}
		}
	}
}

func retries(p *routev3.RetryPolicy) string {
	if p == nil {
		return ""
	}
	text := fmt.Sprint(p.RetryOn, " ", p.NumRetries.GetValue())
	for _, h := range p.RetryHostPredicate {
		text += " " + h.Name
	}
	return fmt.Sprint(text, " ", p.HostSelectionRetryMaxAttempts)
}

// Those that ask before there is anything to say are told in that order, too, and
// nobody is told that there is nothing: neither a client that held something of
// another node, nor one that wants all there is.
func TestOrderAtTheStart(t *testing.T) {
	w := serve(t, Config{Settings: Settings{Listener: DefaultListener}})
	d, c := w.deltas(t, "envoy"), w.whole(t, "envoy")
	backwards := slices.Clone(rightOrder)
	slices.Reverse(backwards)
	for _, url := range backwards {
		d.ask(url, "")
		c.last[url] = &discoveryv3.DiscoveryResponse{VersionInfo: "6-0000000a"}
		c.ask(url, nil)
		delete(c.last, url)
	}
	gone := w.whole(t, "envoy")
	gone.ask(resource.ClusterType, nil)
	w.asking(t, 9)
	if err := gone.str.CloseSend(); err != nil {
		t.Fatal(err)
	}
	w.asking(t, 8)
	d.quiet()
	c.quiet()
	w.publish(t, changing(0))
	for _, url := range rightOrder {
		got, changed, removed := d.receive()
		equal(t, []string{got}, url)
		if len(changed) == 0 || len(removed) != 0 {
			t.Errorf("%s: %v, gone %v", url, changed, removed)
		}
		if len(c.receive(url)) == 0 {
			t.Errorf("%s: nothing", url)
		}
	}
	w.asking(t, 0)
}

// asking waits until so many wait for the first View.
func (w *world) asking(t *testing.T, want int) {
	t.Helper()
	for over := time.After(patience); ; {
		w.cache.mu.Lock()
		got := len(w.cache.asking)
		w.cache.mu.Unlock()
		if got == want {
			return
		}
		select {
		case <-over:
			t.Fatalf("%d ask, want %d", got, want)
		case <-time.After(time.Millisecond):
		}
	}
}

// A client of gRPC in JavaScript is sent nowhere but to rings: calls that any node may
// take go to a random one. Connections that were made for others would have the first
// call to each node by the ring wait for ever.
func TestGRPCJSTakesRings(t *testing.T) {
	if got := clientOf(&corev3.Node{UserAgentName: "gRPC Node Pure JS"}); got != GRPCJS {
		t.Errorf("it is taken for %s", got)
	}
	r := Build(splitting(), Settings{}, GRPCJS)
	for _, rc := range r.Routes {
		for _, route := range rc.VirtualHosts[0].Routes {
			if to := route.GetRoute().GetCluster(); to != KeysteadOwners && to != AppOwners {
				t.Errorf("%s: a route to %s", rc.Name, to)
			}
			keyed := len(route.Match.Headers) == 1 && route.Match.Headers[0].GetPresentMatch()
			if policies := route.GetRoute().HashPolicy; (len(policies) == 1) != keyed {
				t.Errorf("%s: %v hashes by %v", rc.Name, route.Match, policies)
			}
		}
	}
}
