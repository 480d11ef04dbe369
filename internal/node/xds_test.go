package node

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/envoy/xds"
	"github.com/keystead/keystead/internal/tests/agreed"
	"github.com/keystead/keystead/ring/epoch/table"
	"github.com/keystead/keystead/ring/member"
)

// history applies commands, and asks after each who is on the ring: of a node that
// has seen all of it, and of one that has just been started.
type history struct {
	t       *testing.T
	table   *table.Table
	settled map[table.Holder]bool
}

func holder(i int) table.Holder { return table.Holder{Node: fmt.Sprint("n", i), Incarnation: 1} }

func holders(is ...int) (all []table.Holder) {
	for _, i := range is {
		all = append(all, holder(i))
	}
	return all
}

// do applies a command. seen are those on the ring by the word of the one that has
// seen all, fresh by that of the other.
func (h *history) do(c table.Command, seen, fresh string) {
	h.t.Helper()
	next, err := h.table.Apply(c)
	if err != nil {
		h.t.Fatal(c.Kind(), err)
	}
	h.table = next
	names := func(settled map[table.Holder]bool) string {
		var all []string
		for _, m := range onRing(next, settled) {
			all = append(all, m.Node)
		}
		return strings.Join(all, " ")
	}
	if got := names(h.settled); got != seen {
		h.t.Errorf("%s at %d: on the ring are %q, want %q", c.Kind(), next.Epoch, got, seen)
	}
	if got := names(nil); got != fresh {
		h.t.Errorf("%s at %d: after a start, on the ring are %q, want %q", c.Kind(), next.Epoch, got, fresh)
	}
	if next.Transition == nil {
		h.settled = map[table.Holder]bool{}
		for _, m := range onRing(next, h.settled) {
			h.settled[m.Holder()] = true
		}
	}
}

func (h *history) admit(i int, seen string) {
	h.t.Helper()
	h.do(table.Command{Admit: &table.Admit{Member: table.Member{Node: holder(i).Node, Incarnation: 1, HashKey: fmt.Sprint("k", i)}}}, seen, seen)
}

// flips moves all rows to where the ring wants them.
func (h *history) flips(seen, fresh string) {
	h.t.Helper()
	for moves := h.table.Moves(); len(moves) > 0; moves = h.table.Moves() {
		f := &table.Flip{Transition: h.table.Transition.ID, From: moves[0].From, To: moves[0].To, WantSince: h.table.WantSince}
		for _, m := range moves {
			if m.From == f.From && m.To == f.To {
				f.Ends = append(f.Ends, m.End)
			}
		}
		h.do(table.Command{Flip: f}, seen, fresh)
	}
}

func (h *history) end(seen string) {
	h.t.Helper()
	h.do(table.Command{End: &table.End{Transition: h.table.Transition.ID}}, seen, seen)
}

// The ring that clients are told of changes when a transition has ended, and when
// somebody is removed; never in between.
func TestOnRing(t *testing.T) {
	h := &history{t: t, table: &table.Table{}}
	h.do(table.Command{Init: &table.Init{Cluster: "c", Epoch: 1}}, "", "")
	h.admit(1, "")
	h.do(table.Command{Begin: &table.Begin{Want: holders(1)}}, "n1", "n1")
	h.end("n1")
	h.admit(2, "n1")
	h.admit(3, "n1")
	h.do(table.Command{Begin: &table.Begin{Want: holders(1, 2, 3)}}, "n1", "n1")
	h.flips("n1", "n1")
	h.end("n1 n2 n3")

	h.do(table.Command{Drain: &table.Drain{Member: holder(1)}}, "n1 n2 n3", "n1 n2 n3")
	h.do(table.Command{Begin: &table.Begin{Want: holders(2, 3)}}, "n1 n2 n3", "n1 n2 n3")
	h.flips("n1 n2 n3", "n1 n2 n3")
	// Taken back too late: it goes, and comes again. Who was started in between takes
	// it for one that joins.
	h.do(table.Command{Drain: &table.Drain{Member: holder(1), Undo: true}}, "n1 n2 n3", "n2 n3")
	h.end("n2 n3")
	h.do(table.Command{Begin: &table.Begin{Want: holders(1, 2, 3)}}, "n2 n3", "n2 n3")
	h.flips("n2 n3", "n2 n3")
	h.end("n1 n2 n3")

	h.admit(4, "n1 n2 n3")
	h.do(table.Command{Begin: &table.Begin{Want: holders(1, 2, 3, 4)}}, "n1 n2 n3", "n1 n2 n3")
	h.do(table.Command{Remove: &table.Remove{Members: holders(2)}}, "n1 n3", "n1 n3")
	h.do(table.Command{Remove: &table.Remove{Members: holders(1, 3)}}, "n4", "n4")
	h.end("n4")
}

// A node may miss tables when many come at once: who has become active meanwhile is
// on the ring, whether it was there in another incarnation or not at all.
func TestOnRingThatWasNotSeen(t *testing.T) {
	tab := agreed.Ring(t, 3)
	apply := func(c table.Command) {
		t.Helper()
		next, err := tab.Apply(c)
		if err != nil {
			t.Fatal(err)
		}
		tab = next
	}
	apply(table.Command{Admit: &table.Admit{Member: table.Member{Node: "n4", Incarnation: 1, HashKey: "k4"}}})
	apply(table.Command{Begin: &table.Begin{Want: holders(1, 2, 3, 4)}})
	got := onRing(tab, map[table.Holder]bool{holder(1): true, {Node: "n2", Incarnation: 9}: true, holder(9): true})
	if len(got) != 3 {
		t.Errorf("on the ring are %v", got)
	}
}

func TestReached(t *testing.T) {
	for _, tc := range []struct{ addr, gossips, want string }{
		{"10.0.0.1:7400", "10.9.9.9:7402", "10.0.0.1:7400"},
		{"[2001:db8::1]:7400", "", "[2001:db8::1]:7400"},
		{"n1.example.org:7400", "10.0.0.1:7402", "10.0.0.1:7400"},
		{"n1.example.org:7400", "", ""},
		{"n1.example.org", "10.0.0.1:7402", ""},
	} {
		got, ok := reached(tc.addr, tc.gossips)
		if want, err := netip.ParseAddrPort(tc.want); got != want || ok != (err == nil) {
			t.Errorf("%s, gossiping at %q: %v, %v", tc.addr, tc.gossips, got, ok)
		}
	}
}

// What gossip does not say any more stays as it was; whom it never knew, and who has
// a name, is left out.
func TestView(t *testing.T) {
	var log bytes.Buffer
	r := &ringAnnouncer{n: &Node{cfg: Config{Log: slog.New(slog.NewTextHandler(&log, nil))}}}
	members := []table.Member{
		{Node: "n1", Incarnation: 1, HashKey: "k1", GRPCAddr: "10.0.0.1:7400"},
		{Node: "n2", Incarnation: 1, HashKey: "k2", GRPCAddr: "two:7400"},
		{Node: "n3", Incarnation: 1, HashKey: "k3", GRPCAddr: "three:7400"},
	}
	fact := func(node, addr, app string) member.Fact {
		return member.Fact{Name: node, Ours: true, Addr: addr, Self: member.Self{Node: node, AppAddr: app}}
	}
	at := netip.MustParseAddrPort
	full := []xds.Node{
		{HashKey: "k1", GRPC: at("10.0.0.1:7400"), App: at("10.0.0.1:80")},
		{HashKey: "k2", GRPC: at("10.0.0.2:7400")},
	}
	for _, tc := range []struct {
		name  string
		facts []member.Fact
		want  []xds.Node
	}{
		{"known", []member.Fact{fact("n1", "10.0.0.1:7402", "10.0.0.1:80"), fact("n2", "10.0.0.2:7402", ""), {Name: "n3", Addr: "10.0.0.3:7402"}}, full},
		{"gone from gossip", nil, full},
		{"without its application", []member.Fact{fact("n1", "10.0.0.1:7402", "")}, []xds.Node{{HashKey: "k1", GRPC: at("10.0.0.1:7400")}, full[1]}},
	} {
		if got := r.view(5, members, tc.facts); got.Epoch != 5 || !slices.Equal(got.Nodes, tc.want) {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
	if n := strings.Count(log.String(), "not told of a node"); n != 1 || !strings.Contains(log.String(), "node=n3 addr=three:7400") {
		t.Errorf("it logs %s", log.String())
	}
}

// One address that is no use to clients is left out, and said once; clients are told of
// all others, of the same node too.
func TestViewWithoutUselessAddresses(t *testing.T) {
	var log bytes.Buffer
	r := &ringAnnouncer{n: &Node{cfg: Config{Log: slog.New(slog.NewTextHandler(&log, nil))}}}
	server, err := xds.New(xds.Config{Metrics: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	members := []table.Member{
		{Node: "n1", Incarnation: 1, HashKey: "k1", GRPCAddr: "10.0.0.1:7400"},
		{Node: "n2", Incarnation: 1, HashKey: "k2", GRPCAddr: "10.0.0.2:7400"},
		{Node: "n3", Incarnation: 1, HashKey: "k3", GRPCAddr: "three:7400"},
	}
	fact := func(node, addr, app string) member.Fact {
		return member.Fact{Name: node, Ours: true, Addr: addr, Self: member.Self{Node: node, AppAddr: app}}
	}
	at := netip.MustParseAddrPort
	full := []xds.Node{{HashKey: "k1", GRPC: at("10.0.0.1:7400"), App: at("10.0.0.1:80")}, {HashKey: "k2", GRPC: at("10.0.0.2:7400")}}
	n1 := fact("n1", "10.0.0.1:7402", "10.0.0.1:80")
	for i, st := range []struct {
		facts []member.Fact
		lines int // in the log, in all
		says  string
	}{
		{[]member.Fact{n1, fact("n2", "10.0.0.2:7402", "0.0.0.0:80"), fact("n3", "[fe80::3%eth0]:7402", "")}, 2, "node=n2 error=\"that of its application: 0.0.0.0:80 is where one listens"},
		{[]member.Fact{n1, fact("n2", "10.0.0.2:7402", "0.0.0.0:80"), fact("n3", "[fe80::3%eth0]:7402", "")}, 2, "node=n3 error=\"that of its API: [fe80::3%eth0]:7400 has a zone"},
		{[]member.Fact{n1}, 2, ""}, // gossip has forgotten them for a moment
		{[]member.Fact{n1, fact("n2", "10.0.0.2:7402", "[fe80::2%eth0]:80"), fact("n3", "[fe80::3%eth0]:7402", "")}, 3, "application: [fe80::2%eth0]:80 has a zone"},
		{[]member.Fact{n1, fact("n2", "10.0.0.2:7402", ""), fact("n3", "[fe80::3%eth0]:7402", "")}, 3, ""},
	} {
		v := r.view(uint64(i+1), members, st.facts)
		if !slices.Equal(v.Nodes, full) {
			t.Errorf("view %d: %v", i+1, v.Nodes)
		}
		if err := server.Publish(v); err != nil {
			t.Errorf("view %d: %v", i+1, err)
		}
		if n := strings.Count(log.String(), "level=ERROR"); n != st.lines || !strings.Contains(log.String(), st.says) {
			t.Errorf("view %d: %d lines in\n%s", i+1, n, log.String())
		}
	}
}

func TestAppAddr(t *testing.T) {
	for _, bad := range []string{"10.0.0.1", ":80", "10.0.0.1:0", "0.0.0.0:80", "[::]:80", "[::ffff:0.0.0.0]:80", "[fe80::1%eth0]:80", "10.0.0.1:http", "10.0.0.1:65536"} {
		err := (Config{ID: "n", AppAddr: bad}).Validate()
		if !errors.Is(err, ErrAppAddr) || !strings.Contains(err.Error(), bad) || !strings.Contains(err.Error(), "like 10.0.0.1:8080") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if got, err := (Config{ID: "n", AppAddr: "[fe80::1%eth0]:80"}).appAddr(); !errors.Is(err, xds.ErrAddr) {
		t.Errorf("where a name with a zone leads: %q, %v", got, err)
	}
	for given, want := range map[string]string{"": "", "10.0.0.1:80": "10.0.0.1:80", "[::1]:80": "[::1]:80", "localhost:80": "127.0.0.1:80"} {
		c := Config{ID: "n", AppAddr: given}
		if err := c.Validate(); err != nil {
			t.Error(err)
		}
		if got, err := c.appAddr(); got != want || err != nil {
			t.Errorf("%q is %q, %v", given, got, err)
		}
	}
	if err := (Config{ID: "n", XDS: xds.Settings{Listener: "x"}}).Validate(); !errors.Is(err, xds.ErrListener) {
		t.Error(err)
	}
}

// A name that is not found keeps no node from starting: its clients wait.
func TestLoneNodeThatHasNoAddress(t *testing.T) {
	var log bytes.Buffer
	n := start(t, func(c *Config) {
		c.Cluster.Advertise, c.Log = "no-such-host.invalid", slog.New(slog.NewTextHandler(&log, nil))
	})
	if _, page := get(t, n, "/metrics"); !strings.Contains(page, "keystead_xds_epoch 0\n") || !strings.Contains(log.String(), "set --advertise") {
		t.Errorf("it logs %s", log.String())
	}
	if _, err := Start(Config{ID: "n1", GRPCAddr: "127.0.0.1:0", AppAddr: "no-such-host.invalid:80"}); err == nil || !strings.Contains(err.Error(), "--app-addr") {
		t.Errorf("an application that is nowhere: %v", err)
	}
}

// A node that runs alone is the whole ring; its streams end when it stops.
func TestLoneNodeServesXDS(t *testing.T) {
	n := start(t, func(c *Config) { c.AppAddr = "127.0.0.1:9" })
	str, err := discoveryv3.NewAggregatedDiscoveryServiceClient(dial(t, n)).StreamAggregatedResources(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := str.Send(&discoveryv3.DiscoveryRequest{
		Node: &corev3.Node{UserAgentName: "envoy"}, TypeUrl: "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
		ResourceNames: []string{"keystead-owners/1", "app-owners/1"},
	}); err != nil {
		t.Fatal(err)
	}
	r, err := str.Recv()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, a := range r.Resources {
		var e endpointv3.ClusterLoadAssignment
		if err := a.UnmarshalTo(&e); err != nil {
			t.Fatal(err)
		}
		s := e.Endpoints[0].LbEndpoints[0].GetEndpoint().Address.GetSocketAddress()
		got[e.ClusterName] = fmt.Sprintf("%s:%d", s.Address, s.GetPortValue())
	}
	if len(got) != 2 || got["keystead-owners/1"] != n.GRPCAddr() || got["app-owners/1"] != "127.0.0.1:9" {
		t.Errorf("endpoints %v, and the node is at %s", got, n.GRPCAddr())
	}
	if _, page := get(t, n, "/metrics"); !strings.Contains(page, fmt.Sprintf("keystead_xds_epoch %v\n", float64(n.epoch()))) ||
		!strings.Contains(page, `keystead_xds_clients{client="envoy"} 1`) {
		t.Error(page)
	}
	n.Stop()
	if _, err := str.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the stream ends with %v", err)
	}
}
