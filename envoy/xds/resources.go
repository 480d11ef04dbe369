package xds

import (
	"fmt"
	"net/netip"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// Client is a kind of clients, which take different resources: Envoy refuses the
// API listeners that gRPC wants, and gRPC has no use for ones that listen.
type Client uint8

// The kinds of clients.
const (
	Envoy Client = iota
	GRPC
	// GRPCJS is gRPC in JavaScript (@grpc/grpc-js-xds). Its ring takes no call to a
	// node to which another policy has connected before: see anyone.
	GRPCJS
)

// clients is the number of kinds.
const clients = 3

var clientNames = [clients]string{Envoy: "envoy", GRPC: "grpc", GRPCJS: "grpc-js"}

func (c Client) String() string { return clientNames[c] }

// anyone returns the cluster for calls that any node may take. A client of gRPC in
// JavaScript keeps its connections in a pool. When a pick makes its ring connect to a
// node that is in there already, the ring is ready within the pick, wakes the calls
// that wait, and has this one wait afterwards: nobody wakes it. Balancing by turns
// connects to all nodes, so such a client is never sent there. Without a hash policy
// its ring takes a random hash for each call.
func (c Client) anyone(owners, any string) string {
	//guard:xds-grpcjs
	if c == GRPCJS {
		return owners
	}
	return any
}

// Names of resources.
const (
	KeysteadOwners = "keystead-owners" // cluster
	KeysteadAny    = "keystead-any"    // cluster
	AppOwners      = "app-owners"      // cluster
	AppAny         = "app-any"         // cluster
	Keystead       = "keystead"        // listener and routes
	App            = "app"             // listener and routes
)

// Resources are what one kind of client is served, each list in the order of its
// names.
type Resources struct {
	Listeners []*listenerv3.Listener
	Routes    []*routev3.RouteConfiguration
	Clusters  []*clusterv3.Cluster
	Endpoints []*endpointv3.ClusterLoadAssignment
}

// Build makes the resources of a View for a kind of client. It is a function of its
// arguments: nodes that know the same serve the same. Without any node there are no
// resources. The View and the Settings must be valid.
func Build(v View, s Settings, c Client) Resources {
	s = s.withDefaults()
	nodes := v.ring()
	if len(nodes) == 0 {
		return Resources{}
	}
	var r Resources
	hosts := hostsOf(nodes, func(n Node) netip.AddrPort { return n.GRPC })
	apps := hostsOf(nodes, func(n Node) netip.AddrPort { return n.App })
	if len(apps) > 0 {
		// The application may speak HTTP/1.1 too: Envoy speaks to it what it is spoken to.
		r.service(apps, AppOwners, AppAny, downstreamProtocol(), c)
		r.Routes = append(r.Routes, routes(App, AppOwners, AppAny, s.KeyHeader, nil, c))
	}
	r.service(hosts, KeysteadOwners, KeysteadAny, http2(), c)
	r.Routes = append(r.Routes, routes(Keystead, KeysteadOwners, KeysteadAny, s.KeyHeader, spread(v.split(), s.KeyHeader, c), c))
	r.Listeners = listeners(s, c, len(apps) > 0)
	return r
}

// hostsOf returns the nodes that have an address. Of two with the same one, the first is
// taken: gRPC refuses all endpoints if one is there twice.
func hostsOf(nodes []Node, addr func(Node) netip.AddrPort) []host {
	var hosts []host
	taken := make(map[netip.AddrPort]bool, len(nodes))
	for _, n := range nodes {
		a := addr(n)
		if a = netip.AddrPortFrom(a.Addr().Unmap(), a.Port()); a.IsValid() && !taken[a] {
			taken[a] = true
			hosts = append(hosts, host{key: n.HashKey, addr: a})
		}
	}
	return hosts
}

// service adds the two clusters of some hosts, and their endpoints.
func (r *Resources) service(hosts []host, owners, any string, protocol *anypb.Any, to Client) {
	ring := ringName(owners, len(hosts))
	r.Clusters = append(r.Clusters, anyCluster(any, protocol, to), ownersCluster(owners, ring, len(hosts), protocol))
	r.Endpoints = append(r.Endpoints, endpoints(any, hosts), endpoints(ring, hosts))
}

// ringName returns the name of the endpoints of a ring of n nodes. A cluster of another
// size has others, so nobody takes the size of one ring with the nodes of another.
func ringName(cluster string, n int) string { return fmt.Sprintf("%s/%d", cluster, n) }

// pack wraps a message. It is written the same way each time, because the bytes are
// compared.
func pack(m proto.Message) *anypb.Any {
	a := &anypb.Any{}
	if err := anypb.MarshalFrom(a, m, proto.MarshalOptions{Deterministic: true}); err != nil {
		panic("xds: " + err.Error()) // a message of our own making is complete
	}
	return a
}
