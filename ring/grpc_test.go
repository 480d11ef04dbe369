package ring_test

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	_ "google.golang.org/grpc/balancer/ringhash" // the policy under test
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/resolver/ringhash"

	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	"github.com/keystead/keystead/ring"
)

const keyHeader = "x-keystead-key"

// node is a server that says which one it is.
type node struct {
	limitpb.UnimplementedLimitServiceServer
	index uint64
}

func (n node) Check(context.Context, *limitpb.CheckRequest) (*limitpb.CheckResponse, error) {
	return &limitpb.CheckResponse{Capacity: n.index}, nil
}

func startNodes(t *testing.T, n int) (addrs []string) {
	t.Helper()
	for i := range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := grpc.NewServer()
		limitpb.RegisterLimitServiceServer(s, node{index: uint64(i)})
		go func() { _ = s.Serve(l) }() // until Stop
		t.Cleanup(s.Stop)
		addrs = append(addrs, l.Addr().String())
	}
	return addrs
}

// grpc-go's own ring_hash sends every request to the node that the ring names:
// by addresses, and by hash keys that have nothing to do with them.
func TestStockGRPCRingHashAgrees(t *testing.T) {
	for _, n := range []int{1, 2, 3, 7, 16} {
		addrs := startNodes(t, n)
		for _, named := range []bool{false, true} {
			t.Run(fmt.Sprintf("nodes=%d/named=%v", n, named), func(t *testing.T) {
				agree(t, addrs, named)
			})
		}
	}
}

func agree(t *testing.T, addrs []string, named bool) {
	index, keys := map[string]uint64{}, []string{}
	endpoints := []resolver.Endpoint{}
	for i, addr := range addrs {
		key, e := addr, resolver.Endpoint{Addresses: []resolver.Address{{Addr: addr}}}
		if named {
			key = fmt.Sprintf("node-%d", i)
			e = ringhash.SetHashKey(e, key)
		}
		index[key], keys, endpoints = uint64(i), append(keys, key), append(endpoints, e)
	}
	r, err := ring.New(keys)
	if err != nil {
		t.Fatal(err)
	}
	res := manual.NewBuilderWithScheme("ring")
	res.InitialState(resolver.State{Endpoints: endpoints})
	conn, err := grpc.NewClient("ring:///nodes", grpc.WithResolvers(res),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(fmt.Sprintf(
			`{"loadBalancingConfig":[{"ring_hash_experimental":{"minRingSize":%d,"maxRingSize":%d,"requestHashHeader":%q}}]}`,
			r.Size(), r.Size(), keyHeader)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := limitpb.NewLimitServiceClient(conn)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	reached := map[uint64]bool{}
	for i := range 2000 {
		key := fmt.Sprintf("tenant/%d/key", i)
		want := index[r.Owner(ring.Hash(key))]
		got, err := client.Check(metadata.AppendToOutgoingContext(ctx, keyHeader, key), &limitpb.CheckRequest{}, grpc.WaitForReady(true))
		if err != nil {
			t.Fatal(err)
		}
		if got.Capacity != want {
			t.Fatalf("%q went to node %d, the ring says %d", key, got.Capacity, want)
		}
		reached[got.Capacity] = true
	}
	if len(reached) != len(addrs) {
		t.Errorf("%d of %d nodes were reached", len(reached), len(addrs))
	}
}
