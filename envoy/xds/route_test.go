package xds

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	grpcxds "google.golang.org/grpc/xds"

	"github.com/keystead/keystead/ring"
)

// backend is a gRPC server of which it matters only that it was the one that was
// called.
func backend(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	healthpb.RegisterHealthServer(g, health.NewServer())
	done := make(chan error, 1)
	go func() { done <- g.Serve(l) }()
	t.Cleanup(func() { g.Stop(); <-done })
	return at(l.Addr().String())
}

// stock is a client of grpc-go, configured by the node at an address alone.
func stock(t *testing.T, node, target string) *grpc.ClientConn {
	t.Helper()
	r, err := grpcxds.NewXDSResolverWithConfigForTesting(fmt.Appendf(nil,
		`{"xds_servers": [{"server_uri": "passthrough:///%s", "channel_creds": [{"type": "insecure"}], "server_features": ["xds_v3"]}], "node": {"id": %q}}`, node, t.Name()))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(target, grpc.WithResolvers(r), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// served returns the address that a call with some metadata came to.
func served(t *testing.T, conn *grpc.ClientConn, md ...string) netip.AddrPort {
	t.Helper()
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), md...), patience)
	defer cancel()
	var p peer.Peer
	if _, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true), grpc.Peer(&p)); err != nil {
		t.Fatal(err)
	}
	return at(p.Addr.String())
}

// Stock gRPC sends each key to its owner, of the API and of the applications, and
// what has no key to anybody.
func TestStockGRPCRoutes(t *testing.T) {
	const keys = 600
	for _, n := range []int{1, 3, 16} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			w := serve(t, Config{Settings: Settings{KeyHeader: "tenant"}})
			var hashKeys []string
			grpcs, apps := map[string]netip.AddrPort{}, map[string]netip.AddrPort{}
			for i := range n {
				key := "node-" + strconv.Itoa(i)
				hashKeys = append(hashKeys, key)
				grpcs[key], apps[key] = backend(t), backend(t)
			}
			view := func(n int) View {
				v := View{Epoch: uint64(n)}
				for _, k := range hashKeys[:n] {
					v.Nodes = append(v.Nodes, Node{HashKey: k, GRPC: grpcs[k], App: apps[k]})
				}
				return v
			}
			w.publish(t, view(n))
			want, err := ring.New(hashKeys)
			if err != nil {
				t.Fatal(err)
			}
			for name, hosts := range map[string]map[string]netip.AddrPort{Keystead: grpcs, App: apps} {
				conn := stock(t, w.conn.Target(), "xds:///"+name)
				for i := range keys / 2 {
					key := name + "-" + strconv.Itoa(i)
					if got := served(t, conn, "tenant", key); got != hosts[want.Owner(ring.Hash(key))] {
						t.Fatalf("%s goes to %s, and its owner is at %s", key, got, hosts[want.Owner(ring.Hash(key))])
					}
				}
				var all []netip.AddrPort
				for over := time.Now().Add(patience); len(all) < n && time.Now().Before(over); {
					if got := served(t, conn); !slices.Contains(all, got) {
						all = append(all, got)
					}
				}
				if len(all) != n {
					t.Errorf("%s: without a key, only %v are called", name, all)
				}
			}
		})
	}
}

// A ring that grows or shrinks is taken over whole: each key goes to its owner by the
// old ring or to that by the new one, and to the latter soon.
func TestStockGRPCFollows(t *testing.T) {
	w := serve(t, Config{})
	var nodes []Node
	var keys []string
	for i := range 5 {
		nodes = append(nodes, Node{HashKey: "node-" + strconv.Itoa(i), GRPC: backend(t)})
		keys = append(keys, nodes[i].HashKey)
	}
	owner := func(n int, key string) netip.AddrPort {
		r, err := ring.New(keys[:n])
		if err != nil {
			t.Fatal(err)
		}
		return nodes[slices.Index(keys, r.Owner(ring.Hash(key)))].GRPC
	}
	w.publish(t, View{Epoch: 1, Nodes: nodes[:1]})
	conn := stock(t, w.conn.Target(), "xds:///keystead")
	served(t, conn, DefaultKeyHeader, "warm")
	before := 1
	for epoch, n := range []int{2, 5, 4, 1, 3} {
		w.publish(t, View{Epoch: uint64(epoch + 2), Nodes: nodes[:n]})
		began, moved := time.Now(), false
		for i := 0; !moved || i < 100; i++ {
			key := "key-" + strconv.Itoa(i)
			was, is := owner(before, key), owner(n, key)
			switch got := served(t, conn, DefaultKeyHeader, key); {
			case got == is && was != is:
				moved = true
			case got == is:
			case got == was && !moved:
			default:
				t.Fatalf("%d to %d nodes: %s goes to %s, of neither ring, or of the old one again", before, n, key, got)
			}
			if took := time.Since(began); took > patience {
				t.Fatalf("%d to %d nodes: not in %s", before, n, took)
			}
		}
		before = n
	}
}

// While a ring changes to and fro, no key goes to a node that is its owner by neither
// of the two: the points of one ring are never taken with the nodes of the other.
func TestStockGRPCTakesRingsWhole(t *testing.T) {
	w := serve(t, Config{})
	var nodes []Node
	var hashKeys []string
	for i := range 4 {
		nodes = append(nodes, Node{HashKey: "node-" + strconv.Itoa(i), GRPC: backend(t)})
		hashKeys = append(hashKeys, nodes[i].HashKey)
	}
	var rings []*ring.Ring
	for _, n := range []int{3, 4} {
		r, err := ring.New(hashKeys[:n])
		if err != nil {
			t.Fatal(err)
		}
		rings = append(rings, r)
	}
	w.publish(t, View{Epoch: 1, Nodes: nodes[:3]})
	conn := stock(t, w.conn.Target(), "xds:///keystead")
	served(t, conn, DefaultKeyHeader, "warm")
	ctx, cancel := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	defer callers.Wait()
	defer cancel()
	var calls atomic.Int64
	for c := range 4 {
		callers.Go(func() {
			for i := 0; ctx.Err() == nil && !t.Failed(); i++ {
				key := fmt.Sprint("key-", c, "-", i%1000)
				at := served(t, conn, DefaultKeyHeader, key)
				got := nodes[slices.IndexFunc(nodes, func(n Node) bool { return n.GRPC == at })].HashKey
				if h := ring.Hash(key); got != rings[0].Owner(h) && got != rings[1].Owner(h) {
					t.Errorf("%s goes to %s, of neither ring", key, got)
				}
				calls.Add(1)
			}
		})
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for epoch := range 8 {
		before := calls.Load()
		w.publish(t, View{Epoch: uint64(epoch + 2), Nodes: nodes[:3+(epoch+1)%2]})
		for over := time.Now().Add(patience); calls.Load() < before+120 && time.Now().Before(over) && !t.Failed(); {
			<-tick.C
		}
	}
}
