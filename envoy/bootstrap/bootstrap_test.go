package bootstrap

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
)

var update = flag.Bool("update", false, "write the golden files")

func percent(v float64) *typev3.Percent { return &typev3.Percent{Value: v} }

// three are nodes by address, in another order than the ring's.
var three = []Node{{Addr: "10.0.0.3:7400"}, {Addr: "10.0.0.1:7400"}, {Addr: "10.0.0.2:7400"}}

// writer is a Static or a Dynamic.
type writer interface{ YAML() ([]byte, error) }

// golden are configurations, one for each branch of the templates.
var golden = map[string]writer{
	"static": Static{Proxy: Proxy{Admin: DefaultAdmin, Made: "keystead envoy static …"}, Listener: Listener{Addr: DefaultListener}, Nodes: three},
	"static-names": Static{Proxy: Proxy{ID: "edge-7", Cluster: "edge"}, Listener: Listener{Addr: "[::]:10000", KeyHeader: "X-Tenant"},
		Nodes: []Node{{"n2.internal:7400", "n2"}, {"n1.internal:7400", `n1 "a" \ 1`}, {"[fd00::3]:7400", "3"}}},
	"static-limits": Static{Listener: Listener{Addr: "0.0.0.0:10000", RateLimit: &RateLimit{Domain: "web"}}, Nodes: three},
	"static-upstream": Static{Listener: Listener{Addr: "0.0.0.0:10000", Upstream: []string{"app.internal:8000"}, RateLimit: &RateLimit{Domain: "web", Deny: true,
		Timeout: 1500 * time.Millisecond, Descriptors: []Descriptor{{"api_key", "X-API-Key"}, {"remote_address", ""}}}}, Nodes: three},
	"dynamic":       Dynamic{Proxy: Proxy{Admin: DefaultAdmin}, Nodes: []string{"10.0.0.1:7400", "10.0.0.2:7400"}},
	"dynamic-names": Dynamic{Nodes: []string{"keystead.internal:7400"}, Listener: &Listener{Addr: "0.0.0.0:10000"}},
	"dynamic-app":   Dynamic{Nodes: []string{"10.0.0.1:7400"}, Listener: &Listener{Addr: "0.0.0.0:10000", KeyHeader: "x-api-key", App: true}},
	"dynamic-upstream": Dynamic{Nodes: []string{"10.0.0.1:7400"}, Listener: &Listener{Addr: "0.0.0.0:10000", Upstream: []string{"127.0.0.1:8000", "127.0.0.2:8000"},
		RateLimit: &RateLimit{Domain: "web"}}},
}

// As much is sent again as there may be under way: when a node dies, all that were
// about to be sent to it are. Envoy allows 3 by itself.
func TestRetries(t *testing.T) {
	for name, w := range golden {
		text, err := w.YAML()
		for _, c := range written(t, text, err).GetStaticResources().GetClusters() {
			for _, most := range c.GetCircuitBreakers().GetThresholds() {
				if most.MaxRetries.GetValue() != most.MaxRequests.GetValue() {
					t.Errorf("%s: %s: %v", name, c.Name, most)
				}
			}
		}
	}
}

func TestGolden(t *testing.T) {
	for name, w := range golden {
		t.Run(name, func(t *testing.T) {
			got, err := w.YAML()
			written(t, got, err)
			path := filepath.Join("testdata", name+".yaml")
			if *update {
				if err := os.WriteFile(path, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("-update writes the golden file anew; got\n%swant\n%s", got, want)
			}
			for i, line := range bytes.Split(got, []byte("\n")) {
				if len(line) > 140 || len(bytes.TrimRight(line, " ")) != len(line) {
					t.Errorf("line %d is long or ends with a space: %q", i+1, line)
				}
			}
		})
	}
}

// The examples that stand in deploy are right by Envoy's API, too.
func TestExamplesParse(t *testing.T) {
	paths, err := filepath.Glob("../../deploy/envoy/*.yaml")
	if err != nil || len(paths) < 4 {
		t.Fatalf("%q, %v", paths, err)
	}
	for _, p := range paths {
		text, err := os.ReadFile(p)
		b := written(t, text, err)
		if filepath.Base(p) != "ratelimit.yaml" {
			continue
		}
		// As the README beside it says.
		if f := limitFilter(t, b); f.FailureModeDeny || f.Timeout.AsDuration() != 100*time.Millisecond || f.Domain != "web" {
			t.Errorf("%s: %v", p, f)
		}
		if !connections(t, b).GetUseRemoteAddress().GetValue() {
			t.Errorf("%s: callers choose their remote address", p)
		}
	}
}

// What the harness takes for right has to be able to be wrong.
func TestParseRefuses(t *testing.T) {
	good, err := golden["static-upstream"].YAML()
	written(t, good, err)
	for name, c := range map[string]struct{ old, new, says string }{
		"an unknown field":        {"stat_prefix: keystead", "stat_prefix: keystead\n          no_such_field: 1", "no_such_field"},
		"an unknown packed field": {"domain: \"web\"", "domains: \"web\"", "domains"},
		"a packed rule":           {"domain: \"web\"", "domain: \"\"", "RateLimit.Domain"},
		"a type":                  {"filters.http.router.v3.Router", "filters.http.router.v3.Ruter", "Ruter"},
		"a value":                 {"LEAST_REQUEST", "LEAST", "LEAST"},
		"a key twice":             {"stat_prefix: keystead", "stat_prefix: keystead\n          stat_prefix: b", "already defined"},
		"a deprecated field":      {"lb_policy: LEAST", "http2_protocol_options: {}\n    lb_policy: LEAST", "deprecated"},
		"a port":                  {"port_value: 7400", "port_value: 74000", "PortValue"},
		"two documents":           {"\nstatic_resources:", "\n---\nstatic_resources:", "document"},
	} {
		bad := strings.Replace(string(good), c.old, c.new, 1)
		if bad == string(good) {
			t.Fatalf("%s: %q is not there", name, c.old)
		}
		if _, err := parse([]byte(bad)); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The ring that Envoy makes of what is printed is the ring of the nodes.
func TestStaticRing(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 2, 3, 5, 16, 17} {
		for _, named := range []bool{false, true} {
			var nodes []Node
			var keys []string
			for i := range n {
				node := Node{Addr: fmt.Sprintf("10.0.%d.%d:7400", i%3, 200-i)}
				keys = append(keys, node.Addr)
				if named {
					node.HashKey = fmt.Sprintf("node %d, \"ü\"", i*37%101)
					keys[i] = node.HashKey
				}
				nodes = append(nodes, node)
			}
			random.Shuffle(n, func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
			text, err := Static{Listener: Listener{Addr: DefaultListener}, Nodes: nodes}.YAML()
			b := written(t, text, err)
			got, err := envoyRing(clusterNamed(b, "keystead-owners"))
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, ours(t, keys)) {
				t.Errorf("%d nodes, named %v: another ring", n, named)
			}
		}
	}
}

// The order of the nodes does not matter to what is written.
func TestOrder(t *testing.T) {
	other := Static{Proxy: Proxy{Admin: DefaultAdmin, Made: "keystead envoy static …"}, Listener: Listener{Addr: DefaultListener}, Nodes: slices.Clone(three)}
	slices.Reverse(other.Nodes)
	a, err := golden["static"].YAML()
	if err != nil {
		t.Fatal(err)
	}
	if b, err := other.YAML(); err != nil || !bytes.Equal(a, b) {
		t.Errorf("%v, another configuration:\n%s", err, b)
	}
}

func TestStaticClusters(t *testing.T) {
	text, err := golden["static-names"].YAML()
	b := written(t, text, err)
	owners, others := clusterNamed(b, "keystead-owners"), clusterNamed(b, "keystead-any")
	if others.LbPolicy != clusterv3.Cluster_LEAST_REQUEST || others.GetLeastRequestLbConfig().GetChoiceCount().GetValue() != 2 {
		t.Errorf("keystead-any is balanced by %s, %v", others.LbPolicy, others.LbConfig)
	}
	if min := owners.GetRingHashLbConfig().GetMinimumRingSize().GetValue(); min != 768 {
		t.Errorf("minimum_ring_size %d", min)
	}
	for _, c := range []*clusterv3.Cluster{owners, others} {
		if c.GetType() != clusterv3.Cluster_STRICT_DNS || !speaksHTTP2(t, c) {
			t.Errorf("%s: type %s, protocol %v", c.Name, c.GetType(), c.TypedExtensionProtocolOptions)
		}
		var addrs []string
		for _, h := range c.LoadAssignment.Endpoints[0].LbEndpoints {
			a := h.GetEndpoint().Address.GetSocketAddress()
			addrs = append(addrs, fmt.Sprintf("%s %d %s %d", a.Address, a.GetPortValue(), hashKey(h), h.GetLoadBalancingWeight().GetValue()))
		}
		want := []string{"fd00::3 7400 3 1", `n1.internal 7400 n1 "a" \ 1 1`, "n2.internal 7400 n2 1"}
		if !slices.Equal(addrs, want) {
			t.Errorf("%s: hosts %q, want %q", c.Name, addrs, want)
		}
	}
	if b.Admin != nil || b.Node.Id != "edge-7" || b.Node.Cluster != "edge" {
		t.Errorf("node %v, admin %v", b.Node, b.Admin)
	}
}

// Requests with the header go to the owners by it alone, the others to any.
func TestRoutes(t *testing.T) {
	for name, want := range map[string]struct {
		header, keyed, other string
		waits                bool // for locks
	}{
		"static":           {DefaultKeyHeader, "keystead-owners", "keystead-any", true},
		"static-names":     {"x-tenant", "keystead-owners", "keystead-any", true},
		"static-limits":    {DefaultKeyHeader, "keystead-owners", "keystead-any", true},
		"static-upstream":  {"", "", "upstream", false},
		"dynamic-names":    {DefaultKeyHeader, "keystead-owners", "keystead-any", true},
		"dynamic-app":      {"x-api-key", "app-owners", "app-any", false},
		"dynamic-upstream": {"", "", "upstream", false},
	} {
		text, err := golden[name].YAML()
		rs := routes(t, written(t, text, err))
		last := rs[len(rs)-1]
		if last.Match.GetPrefix() != "/" || len(last.Match.Headers) != 0 || last.GetRoute().GetCluster() != want.other || len(last.GetRoute().HashPolicy) != 0 {
			t.Errorf("%s: keyless requests: %v", name, last)
		}
		for _, r := range rs {
			if waits := r.GetRoute().Timeout != nil && r.GetRoute().Timeout.AsDuration() == 0 && r.GetRoute().IdleTimeout.AsDuration() == 0; waits != want.waits {
				t.Errorf("%s: times %v", name, r.GetRoute())
			}
			// What may have been done is not sent again.
			again := r.GetRoute().RetryPolicy
			if want.keyed == "" && again != nil || want.keyed != "" && (again.GetRetryOn() != "connect-failure,refused-stream" || len(again.RetryHostPredicate) != 1) {
				t.Errorf("%s: retries %v", name, again)
			}
		}
		if want.keyed == "" {
			if len(rs) != 1 {
				t.Errorf("%s: routes %v", name, rs)
			}
			continue
		}
		m, a := rs[0].Match, rs[0].GetRoute()
		if len(rs) != 2 || m.GetPrefix() != "/" || len(m.Headers) != 1 || m.Headers[0].Name != want.header || !m.Headers[0].GetPresentMatch() || a.GetCluster() != want.keyed {
			t.Errorf("%s: requests with a key: %v", name, rs[0])
		}
		if len(a.HashPolicy) != 1 || a.HashPolicy[0].GetHeader().GetHeaderName() != want.header || !a.HashPolicy[0].Terminal || a.HashPolicy[0].GetHeader().RegexRewrite != nil {
			t.Errorf("%s: hash policy %v", name, a.HashPolicy)
		}
	}
}

func TestLimits(t *testing.T) {
	for name, want := range map[string]struct {
		deny    bool
		timeout time.Duration
		asks    []string
	}{
		"static": {}, "dynamic-app": {},
		"static-limits":    {false, DefaultRateLimitTimeout, []string{"key=" + DefaultKeyHeader}},
		"static-upstream":  {true, 1500 * time.Millisecond, []string{"api_key=x-api-key", "remote_address"}},
		"dynamic-upstream": {false, DefaultRateLimitTimeout, []string{"key=" + DefaultKeyHeader}},
	} {
		text, err := golden[name].YAML()
		b := written(t, text, err)
		var asks []string
		for _, l := range connections(t, b).GetRouteConfig().VirtualHosts[0].RateLimits {
			if len(l.Actions) != 1 {
				t.Fatalf("%s: %v", name, l)
			}
			if h := l.Actions[0].GetRequestHeaders(); h != nil {
				asks = append(asks, h.DescriptorKey+"="+h.HeaderName)
			} else if l.Actions[0].GetRemoteAddress() != nil {
				asks = append(asks, "remote_address")
			}
		}
		if !slices.Equal(asks, want.asks) {
			t.Errorf("%s: asks %q, want %q", name, asks, want.asks)
		}
		// Otherwise a caller chooses its own, by X-Forwarded-For.
		if own := connections(t, b).GetUseRemoteAddress().GetValue(); own != slices.Contains(want.asks, "remote_address") {
			t.Errorf("%s: the remote address is that of the connection: %v", name, own)
		}
		f := limitFilter(t, b)
		if f == nil || want.asks == nil {
			if f != nil || want.asks != nil {
				t.Errorf("%s: filter %v", name, f)
			}
			continue
		}
		service := f.RateLimitService.GrpcService.GetEnvoyGrpc().GetClusterName()
		if f.Domain != "web" || f.FailureModeDeny != want.deny || f.Timeout.AsDuration() != want.timeout || service != "keystead-any" {
			t.Errorf("%s: %v", name, f)
		}
		if b.DynamicResources == nil && clusterNamed(b, service) == nil {
			t.Errorf("%s: there is no cluster %s", name, service)
		}
	}
}

// Everything comes by one ADS stream, from a cluster that is there.
func TestDynamic(t *testing.T) {
	for name, lds := range map[string]bool{"dynamic": true, "dynamic-names": false, "dynamic-app": false, "dynamic-upstream": false} {
		text, err := golden[name].YAML()
		b := written(t, text, err)
		d := b.DynamicResources
		if d.GetCdsConfig().GetAds() == nil || (d.GetLdsConfig().GetAds() != nil) != lds || len(d.AdsConfig.GrpcServices) != 1 {
			t.Errorf("%s: %v", name, d)
		}
		ask := clusterNamed(b, d.AdsConfig.GrpcServices[0].GetEnvoyGrpc().ClusterName)
		if ask == nil || !speaksHTTP2(t, ask) {
			t.Errorf("%s: asks %v", name, ask)
		}
		if lds {
			if len(b.StaticResources.Listeners) != 0 {
				t.Errorf("%s: listeners %v", name, b.StaticResources.Listeners)
			}
			continue
		}
		// Envoy refuses static routes to clusters that it does not know yet.
		if v := connections(t, b).GetRouteConfig().ValidateClusters; v == nil || v.Value {
			t.Errorf("%s: validate_clusters %v", name, v)
		}
	}
}

func TestRefusals(t *testing.T) {
	static := func(f func(*Static)) Static {
		s := Static{Listener: Listener{Addr: DefaultListener}, Nodes: slices.Clone(three)}
		f(&s)
		return s
	}
	limited := func(f func(*RateLimit)) Static {
		return static(func(s *Static) { s.Listener.RateLimit = &RateLimit{Domain: "web"}; f(s.Listener.RateLimit) })
	}
	long := strings.Repeat("x", MaxText+1)
	for name, c := range map[string]struct {
		w           writer
		field, says string
	}{
		"no nodes":            {static(func(s *Static) { s.Nodes = nil }), "Nodes", "there are none"},
		"too many nodes":      {static(func(s *Static) { s.Nodes = make([]Node, MaxNodes+1) }), "Nodes", "32769"},
		"no port":             {static(func(s *Static) { s.Nodes[0].Addr = "10.0.0.1" }), "Nodes", "port"},
		"port 0":              {static(func(s *Static) { s.Nodes[0].Addr = "10.0.0.1:0" }), "Nodes", "1 to 65535"},
		"a named port":        {static(func(s *Static) { s.Nodes[0].Addr = "10.0.0.1:http" }), "Nodes", "1 to 65535"},
		"a large port":        {static(func(s *Static) { s.Nodes[0].Addr = "10.0.0.1:65536" }), "Nodes", "1 to 65535"},
		"no host":             {static(func(s *Static) { s.Nodes[0].Addr = ":7400" }), "Nodes", "host"},
		"a wrong IP":          {static(func(s *Static) { s.Nodes[0].Addr = "10.0.0.256:7400" }), "Nodes", "host"},
		"a wrong name":        {static(func(s *Static) { s.Nodes[0].Addr = "-a\nb:7400" }), "Nodes", "host"},
		"a zone":              {static(func(s *Static) { s.Nodes[0].Addr = "[fe80::1%eth0]:7400" }), "Nodes", "zone"},
		"all addresses":       {static(func(s *Static) { s.Nodes[0].Addr = "0.0.0.0:7400" }), "Nodes", "listens"},
		"an address twice":    {static(func(s *Static) { s.Nodes[0] = Node{"10.0.0.1:7400", "x"} }), "Nodes", "twice"},
		"a hash key twice":    {static(func(s *Static) { s.Nodes[0].HashKey = "10.0.0.1:7400" }), "Nodes", "hash key"},
		"a long hash key":     {static(func(s *Static) { s.Nodes[0].HashKey = long }), "Nodes", "513 bytes"},
		"a broken hash key":   {static(func(s *Static) { s.Nodes[0].HashKey = "a\xff" }), "Nodes", "UTF-8"},
		"a hidden character":  {static(func(s *Static) { s.Nodes[0].HashKey = "a\u2028b" }), "Nodes", "printed"},
		"no listener":         {static(func(s *Static) { s.Listener.Addr = "" }), "Listener.Addr", "port"},
		"a listener's name":   {static(func(s *Static) { s.Listener.Addr = "localhost:10000" }), "Listener.Addr", "IP address"},
		"an admin's name":     {static(func(s *Static) { s.Admin = "localhost:9901" }), "Admin", "IP address"},
		"a header":            {static(func(s *Static) { s.Listener.KeyHeader = "x key" }), "Listener.KeyHeader", "header name"},
		"a pseudo header":     {static(func(s *Static) { s.Listener.KeyHeader = ":path" }), "Listener.KeyHeader", "header name"},
		"a binary header":     {static(func(s *Static) { s.Listener.KeyHeader = "X-Key-Bin" }), "Listener.KeyHeader", "base64"},
		"an id":               {static(func(s *Static) { s.ID = "a\nb" }), "ID", "printed"},
		"a cluster":           {static(func(s *Static) { s.Cluster = long }), "Cluster", "513 bytes"},
		"an application":      {static(func(s *Static) { s.Listener.App = true }), "Listener.App", "dynamic"},
		"upstream, no limits": {static(func(s *Static) { s.Listener.Upstream = []string{"127.0.0.1:8000"} }), "Listener.Upstream", "rate limit"},
		"no domain":           {limited(func(r *RateLimit) { r.Domain = "" }), "Listener.RateLimit.Domain", "0 bytes"},
		"a short time":        {limited(func(r *RateLimit) { r.Timeout = time.Microsecond }), "Listener.RateLimit.Timeout", "1ms"},
		"a long time":         {limited(func(r *RateLimit) { r.Timeout = time.Hour }), "Listener.RateLimit.Timeout", "1ms"},
		"a negative time":     {limited(func(r *RateLimit) { r.Timeout = -1 }), "Listener.RateLimit.Timeout", "1ms"},
		"many descriptors":    {limited(func(r *RateLimit) { r.Descriptors = make([]Descriptor, MaxDescriptors+1) }), "Listener.RateLimit.Descriptors", "17"},
		"a descriptor's header": {limited(func(r *RateLimit) { r.Descriptors = []Descriptor{{"a", "b c"}} }),
			"Listener.RateLimit.Descriptors", "header name"},
		"a descriptor's key": {limited(func(r *RateLimit) { r.Descriptors = []Descriptor{{"", "b"}} }),
			"Listener.RateLimit.Descriptors", "0 bytes"},
		"nobody to ask":     {Dynamic{}, "Nodes", "there are none"},
		"somebody twice":    {Dynamic{Nodes: []string{"[::1]:1", "[::1]:1"}}, "Nodes", "twice"},
		"a dynamic's admin": {Dynamic{Nodes: []string{"a:1"}, Proxy: Proxy{Admin: "a"}}, "Admin", "port"},
		"two applications": {Dynamic{Nodes: []string{"a:1"}, Listener: &Listener{Addr: "[::]:1", App: true, Upstream: []string{"b:1"}}},
			"Listener.Upstream", "beside the owner"},
		"a dynamic's listener": {Dynamic{Nodes: []string{"a:1"}, Listener: &Listener{}}, "Listener.Addr", "port"},
	} {
		text, err := c.w.YAML()
		var bad *Error
		if text != nil || !errors.As(err, &bad) || bad.Field != c.field || !strings.Contains(err.Error(), c.says) || bad.Hint == "" {
			t.Errorf("%s: %v, want %s … %s", name, err, c.field, c.says)
		}
		if err != nil && len(err.Error()) > 300 {
			t.Errorf("%s: an error of %d characters", name, len(err.Error()))
		}
	}
}

// A command that cannot stand in a comment is left out, not written into it.
func TestMade(t *testing.T) {
	for made, there := range map[string]bool{"keystead x": true, "a\nadmin: {}": false, strings.Repeat("x", MaxMade+1): false} {
		text, err := Static{Proxy: Proxy{Made: made}, Listener: Listener{Addr: DefaultListener}, Nodes: three}.YAML()
		if b := written(t, text, err); b.Admin != nil || bytes.Contains(text, []byte("# Made by")) != there {
			t.Errorf("%.20q: %.300s", made, text)
		}
	}
}

// Whatever is taken comes out right.
func FuzzStatic(f *testing.F) {
	f.Add("10.0.0.1:7400", "a", "n2.internal:7400", "b: [c", "127.0.0.1:1", "X-Key", "{{.}}", "id", "k=#")
	f.Add("[::1]:7400", "0x10", "a_b:1", "null", "[::]:65535", "h", "web # x", "\"", "%s")
	f.Fuzz(func(t *testing.T, addr1, key1, addr2, key2, listen, header, domain, id, descriptor string) {
		s := Static{Proxy: Proxy{ID: id, Admin: listen, Made: domain}, Nodes: []Node{{addr1, key1}, {addr2, key2}},
			Listener: Listener{Addr: listen, KeyHeader: header, RateLimit: &RateLimit{Domain: domain, Descriptors: []Descriptor{{descriptor, header}}}}}
		text, err := s.YAML()
		if err != nil {
			if !errors.As(err, new(*Error)) {
				t.Fatalf("%T %v", err, err)
			}
			return
		}
		b := written(t, text, nil)
		got, err := envoyRing(clusterNamed(b, "keystead-owners"))
		if err != nil {
			t.Fatal(err)
		}
		keys := []string{key1, key2}
		for i, addr := range []string{addr1, addr2} {
			if keys[i] == "" {
				keys[i] = addr
			}
		}
		if !slices.Equal(got, ours(t, keys)) {
			t.Error("another ring")
		}
		if l := limitFilter(t, b); l.GetDomain() != domain {
			t.Errorf("domain %q, want %q", l.GetDomain(), domain)
		}
		d := Dynamic{Proxy: s.Proxy, Nodes: []string{addr1, addr2}, Listener: &s.Listener}
		text, err = d.YAML()
		if again := written(t, text, err); !proto.Equal(again.Node, b.Node) || !same(t, again, b) {
			t.Errorf("another listener:\n%s", text)
		}
	})
}

// same reports whether two configurations route alike.
func same(t *testing.T, a, b *bootstrapv3.Bootstrap) bool {
	t.Helper()
	return slices.EqualFunc(routes(t, a), routes(t, b), func(x, y *routev3.Route) bool { return proto.Equal(x, y) })
}

// The bootstrap for gRPC clients has what the pickiest of them wants.
func TestGRPCExample(t *testing.T) {
	text, err := os.ReadFile("../../deploy/envoy/grpc.json")
	if err != nil {
		t.Fatal(err)
	}
	var b struct {
		XDSServers []struct {
			ServerURI      string                  `json:"server_uri"`
			ChannelCreds   []struct{ Type string } `json:"channel_creds"`
			ServerFeatures []string                `json:"server_features"`
		} `json:"xds_servers"`
		Node struct {
			ID       string
			Cluster  string
			Locality *struct{}
		}
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&b); err != nil {
		t.Fatal(err)
	}
	if len(b.XDSServers) != 1 || len(b.XDSServers[0].ChannelCreds) != 1 || b.XDSServers[0].ChannelCreds[0].Type != "insecure" || b.Node.ID == "" || b.Node.Locality == nil {
		t.Errorf("%s", text)
	}
}
