package xds

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"pgregory.net/rapid"

	"github.com/keystead/keystead/ring"
)

var update = flag.Bool("update", false, "write what is built to testdata")

func at(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// three is a ring of three nodes, two of them with an application.
func three() View {
	return View{Epoch: 7, Nodes: []Node{
		{HashKey: "10.0.0.2:7400", GRPC: at("10.0.0.2:7400"), App: at("10.0.0.2:8080")},
		{HashKey: "rack-1", GRPC: at("[2001:db8::1]:7400"), App: at("[2001:db8::1]:8080")},
		{HashKey: "10.0.0.10:7400", GRPC: at("10.0.0.10:7400")},
	}}
}

// all returns the resources, in the order of their types and names.
func (r Resources) all() []proto.Message {
	var all []proto.Message
	for _, m := range r.Listeners {
		all = append(all, m)
	}
	for _, m := range r.Routes {
		all = append(all, m)
	}
	for _, m := range r.Clusters {
		all = append(all, m)
	}
	for _, m := range r.Endpoints {
		all = append(all, m)
	}
	return all
}

func TestBuild(t *testing.T) {
	one := View{Epoch: 1, Nodes: []Node{{HashKey: "n1", GRPC: at("127.0.0.1:7400")}}}
	for _, tc := range []struct {
		file     string
		view     View
		settings Settings
		client   Client
	}{
		{file: "one.envoy.json", view: one, settings: Settings{Listener: DefaultListener}, client: Envoy},
		{file: "one.grpc.json", view: one, settings: Settings{Listener: DefaultListener}, client: GRPC},
		{file: "three.envoy.json", view: three(), settings: Settings{Listener: "127.0.0.1:9000", KeyHeader: "tenant"}, client: Envoy},
		{file: "three.grpc.json", view: three(), settings: Settings{KeyHeader: "tenant"}, client: GRPC},
		{file: "split.envoy.json", view: splitting(), settings: Settings{Listener: "127.0.0.1:9000", KeyHeader: "tenant"}, client: Envoy},
		{file: "split.grpc-js.json", view: splitting(), settings: Settings{KeyHeader: "tenant"}, client: GRPCJS},
		{file: "split.grpc.json", view: splitting(), settings: Settings{KeyHeader: "tenant"}, client: GRPC},
	} {
		t.Run(tc.file, func(t *testing.T) {
			r := Build(tc.view, tc.settings, tc.client)
			var text bytes.Buffer
			for _, m := range r.all() {
				valid(t, m)
				b, err := protojson.MarshalOptions{}.Marshal(m)
				if err == nil {
					err = json.Indent(&text, b, "", "  ") // protojson spaces at random
				}
				if err != nil {
					t.Fatal(err)
				}
				text.WriteByte('\n')
			}
			path := filepath.Join("testdata", tc.file)
			if *update {
				if err := os.WriteFile(path, text.Bytes(), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if got := text.String(); got != string(want) {
				t.Errorf("%s is not what is built; compare with -update. Built:\n%s", path, got)
			}
		})
	}
}

// valid checks a message, and all that is packed in it, by the rules of its proto.
func valid(t *testing.T, m proto.Message) {
	t.Helper()
	v, ok := m.(interface{ ValidateAll() error })
	if !ok {
		t.Fatalf("%T has no rules", m)
	}
	if err := v.ValidateAll(); err != nil {
		t.Errorf("%T: %v", m, err)
	}
	packed(t, m.ProtoReflect())
}

func packed(t *testing.T, m protoreflect.Message) {
	t.Helper()
	if a, ok := m.Interface().(*anypb.Any); ok {
		inner, err := a.UnmarshalNew()
		if err != nil {
			t.Fatal(err)
		}
		valid(t, inner)
		return
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
			if f.MapValue().Message() != nil {
				v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool { packed(t, v.Message()); return true })
			}
		case f.Message() == nil:
		case f.IsList():
			for i := range v.List().Len() {
				packed(t, v.List().Get(i).Message())
			}
		default:
			packed(t, v.Message())
		}
		return true
	})
}

func cluster(t *testing.T, r Resources, name string) *clusterv3.Cluster {
	t.Helper()
	i := slices.IndexFunc(r.Clusters, func(c *clusterv3.Cluster) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("no cluster %s", name)
	}
	return r.Clusters[i]
}

func assignment(t *testing.T, r Resources, name string) *endpointv3.ClusterLoadAssignment {
	t.Helper()
	i := slices.IndexFunc(r.Endpoints, func(e *endpointv3.ClusterLoadAssignment) bool { return e.ClusterName == name })
	if i < 0 {
		t.Fatalf("no endpoints %s", name)
	}
	return r.Endpoints[i]
}

// hashKeys returns those of the endpoints, in their order.
func hashKeys(e *endpointv3.ClusterLoadAssignment) []string {
	var keys []string
	for _, h := range e.Endpoints[0].LbEndpoints {
		keys = append(keys, h.Metadata.FilterMetadata["envoy.lb"].Fields["hash_key"].GetStringValue())
	}
	return keys
}

// What a client makes of the resources by Envoy's arithmetic is the ring of the nodes,
// and it does not matter in which order they were named.
func TestRing(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(rt, "nodes")
		v := View{Epoch: rapid.Uint64().Draw(rt, "epoch")}
		var keys, apps []string
		for i := range n {
			node := Node{HashKey: rapid.StringMatching(`[a-z0-9.:]{1,12}`).Draw(rt, "key") + "#" + strconv.Itoa(i), GRPC: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 7400)}
			keys = append(keys, node.HashKey)
			if rapid.Bool().Draw(rt, "app") {
				node.App = netip.AddrPortFrom(node.GRPC.Addr(), 8080)
				apps = append(apps, node.HashKey)
			}
			v.Nodes = append(v.Nodes, node)
		}
		for c := range Client(clients) {
			r := Build(v, Settings{}, c)
			shuffled := View{Epoch: v.Epoch, Nodes: rapid.Permutation(v.Nodes).Draw(rt, "order")}
			if sumOf(list(r.Endpoints)) != sumOf(list(Build(shuffled, Settings{}, c).Endpoints)) {
				rt.Fatal("another order makes other endpoints")
			}
			for name, of := range map[string][]string{KeysteadOwners: keys, AppOwners: apps} {
				if len(of) == 0 {
					if slices.ContainsFunc(r.Clusters, func(c *clusterv3.Cluster) bool { return c.Name == name }) {
						rt.Fatalf("there is a cluster %s of nobody", name)
					}
					continue
				}
				cl := cluster(t, r, name)
				got := hashKeys(assignment(t, r, cl.EdsClusterConfig.ServiceName))
				// What package ring makes of these is New of the same keys.
				size := cl.GetRingHashLbConfig()
				if n := uint64(len(of)); size.MinimumRingSize.Value != n*ring.PointsPerNode || size.MaximumRingSize.Value != ring.MaxPoints {
					rt.Fatalf("%s: %d nodes, and a ring of %v", name, n, size)
				}
				if slices.Sort(of); !slices.Equal(got, of) {
					rt.Fatalf("%s: of %q, want %q", name, got, of)
				}
			}
		}
	})
}

// Two nodes may name one application; it is there once, and gRPC takes the endpoints.
func TestOneApplicationForTwo(t *testing.T) {
	v := three()
	v.Nodes[1].App = v.Nodes[0].App
	if got := hashKeys(assignment(t, Build(v, Settings{}, GRPC), AppOwners+"/1")); !slices.Equal(got, []string{"10.0.0.2:7400"}) {
		t.Errorf("endpoints of %q", got)
	}
}

func TestNoNodes(t *testing.T) {
	if r := Build(View{Epoch: 3}, Settings{Listener: DefaultListener}, Envoy); len(r.all()) != 0 {
		t.Errorf("made of nothing: %v", r)
	}
}

func TestViewMisuse(t *testing.T) {
	many := View{}
	for i := range MaxNodes + 1 {
		many.Nodes = append(many.Nodes, Node{HashKey: strconv.Itoa(i), GRPC: at("10.0.0.1:1")})
	}
	for says, v := range map[string]View{
		"1025 nodes":             many,
		`"" is empty`:            {Nodes: []Node{{GRPC: at("10.0.0.1:1")}}},
		`"n" is empty, or`:       {Nodes: []Node{{HashKey: "n", GRPC: at("10.0.0.1:1")}, {HashKey: "n", GRPC: at("10.0.0.2:1")}}},
		"is no address":          {Nodes: []Node{{HashKey: "n"}}},
		"0.0.0.0:1 is where one": {Nodes: []Node{{HashKey: "n", GRPC: at("0.0.0.0:1")}}},
		"10.0.0.1:0 has no port": {Nodes: []Node{{HashKey: "n", GRPC: at("10.0.0.1:0")}}},
		"the application of":     {Nodes: []Node{{HashKey: "n", GRPC: at("10.0.0.1:1"), App: at("[::]:1")}}},
		"has a zone":             {Nodes: []Node{{HashKey: "n", GRPC: at("[fe80::1%eth0]:1")}}},
		"0.0.0.0]:1 is where":    {Nodes: []Node{{HashKey: "n", GRPC: at("[::ffff:0.0.0.0]:1")}}},
	} {
		if err := v.validate(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
	if err := three().validate(); err != nil {
		t.Error(err)
	}
}

func TestSettingsValidate(t *testing.T) {
	for _, tc := range []struct {
		s    Settings
		want error
	}{
		{Settings{}, nil},
		{Settings{Listener: DefaultListener, KeyHeader: DefaultKeyHeader}, nil},
		{Settings{Listener: "[::1]:1", KeyHeader: strings.Repeat("a", MaxHeader)}, nil},
		{Settings{Listener: "localhost:10000"}, ErrListener},
		{Settings{Listener: "0.0.0.0"}, ErrListener},
		{Settings{Listener: "0.0.0.0:0"}, ErrListener},
		{Settings{KeyHeader: "X-Key"}, ErrKeyHeader},
		{Settings{KeyHeader: ":path"}, ErrKeyHeader},
		{Settings{KeyHeader: "key-bin"}, ErrKeyHeader},
		{Settings{KeyHeader: "grpc-key"}, ErrKeyHeader},
		{Settings{KeyHeader: strings.Repeat("a", MaxHeader+1)}, ErrKeyHeader},
	} {
		t.Run(fmt.Sprintf("%.40q", tc.s), func(t *testing.T) {
			err := tc.s.Validate()
			if !errors.Is(err, tc.want) {
				t.Errorf("%v, want %v", err, tc.want)
			}
			if tc.want == nil {
				for c := range Client(clients) {
					for _, m := range Build(three(), tc.s, c).all() {
						valid(t, m)
					}
				}
			}
		})
	}
}
