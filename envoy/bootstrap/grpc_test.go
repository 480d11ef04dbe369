package bootstrap

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/balancer/ringhash" // the policy that is tried
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/resolver/ringhash"

	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	"github.com/keystead/keystead/ring"
)

// numbered is a server that says which one it is.
type numbered struct {
	limitpb.UnimplementedLimitServiceServer
	index uint64
}

func (n numbered) Check(context.Context, *limitpb.CheckRequest) (*limitpb.CheckResponse, error) {
	return &limitpb.CheckResponse{Capacity: n.index}, nil
}

// grpc-go's ring_hash, given the hosts, hash keys, sizes and header that are printed
// for Envoy, sends each request to the node that the ring names.
func TestStockGRPCOnWhatIsPrinted(t *testing.T) {
	index, keys, nodes := map[string]uint64{}, []string{}, []Node{}
	for i := range 5 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := grpc.NewServer()
		limitpb.RegisterLimitServiceServer(s, numbered{index: uint64(i)})
		go func() { _ = s.Serve(l) }() // until Stop
		t.Cleanup(s.Stop)
		n := Node{Addr: l.Addr().String()}
		if i > 0 { // the first one has none but its address
			n.HashKey = fmt.Sprintf("node %d", 10-i)
		}
		key := n.Addr
		if i > 0 {
			key = n.HashKey
		}
		index[key], keys, nodes = uint64(i), append(keys, key), append(nodes, n)
	}
	r, err := ring.New(keys)
	if err != nil {
		t.Fatal(err)
	}
	text, err := Static{Listener: Listener{Addr: DefaultListener}, Nodes: nodes}.YAML()
	b := written(t, text, err)
	header := routes(t, b)[0].GetRoute().HashPolicy[0].GetHeader().HeaderName
	client := limitpb.NewLimitServiceClient(dialRing(t, clusterNamed(b, "keystead-owners"), header))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	reached := map[uint64]bool{}
	for i := range 1000 {
		key := fmt.Sprintf("tenant/%d", i)
		got, err := client.Check(metadata.AppendToOutgoingContext(ctx, header, key), &limitpb.CheckRequest{}, grpc.WaitForReady(true))
		if err != nil {
			t.Fatal(err)
		}
		if want := index[r.Owner(ring.Hash(key))]; got.Capacity != want {
			t.Fatalf("%q went to node %d, the ring says %d", key, got.Capacity, want)
		}
		reached[got.Capacity] = true
	}
	if len(reached) != len(nodes) {
		t.Errorf("%d of %d nodes were reached", len(reached), len(nodes))
	}
}

// dialRing is a connection by ring_hash to the hosts of a cluster.
func dialRing(t *testing.T, c *clusterv3.Cluster, header string) *grpc.ClientConn {
	t.Helper()
	var endpoints []resolver.Endpoint
	for _, h := range c.LoadAssignment.Endpoints[0].LbEndpoints {
		a := h.GetEndpoint().Address.GetSocketAddress()
		addr := net.JoinHostPort(a.Address, strconv.Itoa(int(a.GetPortValue())))
		e := resolver.Endpoint{Addresses: []resolver.Address{{Addr: addr}}}
		endpoints = append(endpoints, ringhash.SetHashKey(e, h.Metadata.FilterMetadata["envoy.lb"].Fields["hash_key"].GetStringValue()))
	}
	hosts := manual.NewBuilderWithScheme("printed")
	hosts.InitialState(resolver.State{Endpoints: endpoints})
	size := c.GetRingHashLbConfig()
	conn, err := grpc.NewClient("printed:///hosts", grpc.WithResolvers(hosts), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(fmt.Sprintf(
			`{"loadBalancingConfig":[{"ring_hash_experimental":{"minRingSize":%d,"maxRingSize":%d,"requestHashHeader":%q}}]}`,
			size.MinimumRingSize.Value, size.MaximumRingSize.Value, header)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}
