package xds

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"pgregory.net/rapid"

	"github.com/keystead/keystead/ring"
)

// splitting is a ring of three nodes on which two keys are split.
func splitting() View {
	v := three()
	v.SplitKeys = []string{"tenant 7", "a,b:ü", "tenant 7", "\x00", "line\nbreak", " ", ""}
	return v
}

// matched returns the values of the header that have a route of their own, with the
// cluster that they go to.
func matched(t *testing.T, c *routev3.RouteConfiguration) (keys, clusters []string) {
	t.Helper()
	all := c.VirtualHosts[0].Routes
	if n := len(all); n < 2 || !all[n-2].Match.Headers[0].GetPresentMatch() || len(all[n-1].Match.Headers) != 0 {
		t.Fatalf("it does not end with the two for all keys: %v", c)
	}
	for _, r := range all[:len(all)-2] {
		if len(r.Match.Headers) != 1 || r.Match.GetPrefix() != "/" || r.GetRoute().HashPolicy != nil || r.GetRoute().Timeout.AsDuration() != 0 {
			t.Fatalf("a route %v", r)
		}
		h := r.Match.Headers[0]
		if m := h.GetStringMatch(); m != nil {
			keys = append(keys, "envoy "+m.GetExact())
		} else {
			//lint:ignore SA1019 as in exactly
			keys = append(keys, "grpc "+h.GetExactMatch())
		}
		clusters = append(clusters, h.Name+" "+r.GetRoute().GetCluster())
	}
	return keys, clusters
}

// Keys that are split have routes to any node; those of the applications stay.
func TestSplitRoutes(t *testing.T) {
	for c := range Client(clients) {
		r := Build(splitting(), Settings{KeyHeader: "tenant"}, c)
		for _, m := range r.all() {
			valid(t, m)
		}
		keys, to := matched(t, r.Routes[1])
		form, anyone := map[Client]string{Envoy: "envoy", GRPC: "grpc", GRPCJS: "grpc"}[c], map[Client]string{Envoy: "any", GRPC: "any", GRPCJS: "owners"}[c]
		equal(t, keys, form+" a,b:ü", form+" tenant 7")
		equal(t, to, "tenant keystead-"+anyone, "tenant keystead-"+anyone)
		if apps, _ := matched(t, r.Routes[0]); r.Routes[0].Name != App || apps != nil {
			t.Errorf("%s has routes for %q", r.Routes[0].Name, apps)
		}
		whole := Build(three(), Settings{KeyHeader: "tenant"}, c)
		if sumOf(list(r.Clusters)) != sumOf(list(whole.Clusters)) || sumOf(list(r.Endpoints)) != sumOf(list(whole.Endpoints)) || sumOf(list(r.Listeners)) != sumOf(list(whole.Listeners)) {
			t.Error("more than routes has changed")
		}
	}
}

// Whatever is split, there are resources that clients take, and they do not depend on
// the order in which the keys are named.
func TestSplitKeysOfAnyKind(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		v := three()
		v.SplitKeys = rapid.SliceOfN(rapid.String(), 0, 2*MaxSplitKeys).Draw(rt, "keys")
		if rapid.Bool().Draw(rt, "many") {
			for i := range 2 * MaxSplitKeys {
				v.SplitKeys = append(v.SplitKeys, "key-"+strconv.Itoa(i))
			}
		}
		v.SplitKeys = append(v.SplitKeys, "\xff is no UTF-8")
		shuffled := v
		shuffled.SplitKeys = rapid.Permutation(v.SplitKeys).Draw(rt, "order")
		for c := range Client(clients) {
			r := Build(v, Settings{}, c)
			if n := len(r.Routes[1].VirtualHosts[0].Routes); n > MaxSplitKeys+2 {
				rt.Fatalf("%d routes", n)
			}
			if sumOf(list(r.Routes)) != sumOf(list(Build(shuffled, Settings{}, c).Routes)) {
				rt.Fatal("another order makes other routes")
			}
			for _, m := range r.Routes {
				valid(t, m)
			}
		}
	})
}

func TestFitsHeader(t *testing.T) {
	for key, want := range map[string]bool{
		"tenant:7": true, "~": true, "!": true, "two words": true, "naïve": true, "a,b": true, strings.Repeat("k", 512): true,
		"": false, " a": false, "a ": false, "a\tb": false, "a\x00": false, "\x7f": false, "a\r\nb: c": false, "\xff": false,
	} {
		if got := fitsHeader(key); got != want {
			t.Errorf("%q: %v", key, got)
		}
	}
}

// Clients are told of keys when they are split and when they are whole again: by their
// routes alone, and not when nothing of that changes.
func TestSplitIsPushed(t *testing.T) {
	w := serve(t, Config{})
	w.publish(t, three())
	c := w.whole(t, "envoy")
	for _, url := range []string{resource.ClusterType, resource.EndpointType, resource.RouteType} {
		var names []string
		if url != resource.ClusterType {
			names = []string{Keystead, KeysteadAny}
		}
		c.ask(url, nil, names...)
		c.receive(url)
		c.ask(url, nil, names...)
	}
	routes := func() (keys []string) {
		t.Helper()
		c.receive(resource.RouteType)
		var r routev3.RouteConfiguration
		if err := c.last[resource.RouteType].Resources[0].UnmarshalTo(&r); err != nil {
			t.Fatal(err)
		}
		keys, _ = matched(t, &r)
		c.ask(resource.RouteType, nil, Keystead, KeysteadAny)
		return keys
	}
	publish := func(epoch uint64, keys ...string) {
		t.Helper()
		v := three()
		v.Epoch, v.SplitKeys = epoch, keys
		w.publish(t, v)
	}
	publish(8, "hot")
	equal(t, routes(), "envoy hot")
	if v := c.last[resource.RouteType].VersionInfo; !strings.HasPrefix(v, "8-") {
		t.Errorf("version %q", v)
	}
	publish(9, "hot") // other weights
	publish(10, "hot", "hot", "\x00")
	c.quiet()
	w.metric(t, "keystead_xds_epoch", 10, "")
	publish(11, "warm", "hot")
	equal(t, routes(), "envoy hot", "envoy warm")
	publish(12, "hot", "warm")
	c.quiet()
	publish(13)
	equal(t, routes())
	c.quiet()
	w.metric(t, "keystead_xds_nacks_total", 0, "route")

	publish(14, "hot")
	late := w.whole(t, "gRPC Go")
	late.ask(resource.RouteType, nil, Keystead)
	c = late
	equal(t, routes(), "grpc hot")
}

// Stock gRPC spreads the calls of keys that are split over all nodes, and sends all
// others to their owner; a key that is whole again goes to its owner alone.
func TestStockGRPCSpreads(t *testing.T) {
	w := serve(t, Config{})
	v := View{Epoch: 1}
	var hashKeys []string
	for i := range 4 {
		v.Nodes = append(v.Nodes, Node{HashKey: "node-" + strconv.Itoa(i), GRPC: backend(t), App: backend(t)})
		hashKeys = append(hashKeys, v.Nodes[i].HashKey)
	}
	points, err := ring.New(hashKeys)
	if err != nil {
		t.Fatal(err)
	}
	owner := func(key string) netip.AddrPort {
		return v.Nodes[slices.Index(hashKeys, points.Owner(ring.Hash(key)))].GRPC
	}
	const hot = "tenant 7: hot, very"
	w.publish(t, v)
	conn := stock(t, w.conn.Target(), "xds:///keystead")
	others := func() {
		t.Helper()
		for i := range 100 {
			key := fmt.Sprint("key-", i)
			if got := served(t, conn, DefaultKeyHeader, key); got != owner(key) {
				t.Fatalf("%s goes to %s, and its owner is at %s", key, got, owner(key))
			}
		}
		if got := served(t, conn, DefaultKeyHeader, hot+"!"); got != owner(hot+"!") {
			t.Fatal("a key that is nearly the same goes to another")
		}
	}
	others()
	if got := served(t, conn, DefaultKeyHeader, hot); got != owner(hot) {
		t.Fatalf("the key goes to %s before it is split", got)
	}
	v.Epoch, v.SplitKeys = 2, []string{hot, "\x00", "ü"}
	w.publish(t, v)
	seen := map[netip.AddrPort]int{}
	for over := time.Now().Add(patience); len(seen) < 4 && time.Now().Before(over); {
		seen[served(t, conn, DefaultKeyHeader, hot)]++
	}
	for range 400 {
		seen[served(t, conn, DefaultKeyHeader, hot)]++
	}
	for _, n := range v.Nodes {
		if seen[n.GRPC] < 40 {
			t.Errorf("%s has %d of 400 calls: %v", n.HashKey, seen[n.GRPC], seen)
		}
	}
	others()
	v.Epoch, v.SplitKeys = 3, nil
	w.publish(t, v)
	for over, row := time.Now().Add(patience), 0; row < 50; row++ {
		if served(t, conn, DefaultKeyHeader, hot) != owner(hot) {
			row = -1
		}
		if time.Now().After(over) {
			t.Fatal("the key still goes to all")
		}
	}
}
