package xds

import (
	"net/netip"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	leastv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/least_request/v3"
	turnsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/round_robin/v3"
	localityv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/wrr_locality/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/keystead/keystead/ring"
)

// What clusters are made with.
const (
	// connectTimeout is how long a client tries to reach a node: on a network where
	// nodes agree within milliseconds, one that takes longer is not there.
	connectTimeout = time.Second
	// choices are two random nodes, of which the one with fewer requests is taken.
	choices = 2
	// maxRequests is what one client may have under way to a cluster. Envoy and gRPC
	// allow 1,024 by themselves, which callers that wait for locks use up; nodes have
	// a bound of their own (--max-calls). As many may be sent again, of which Envoy
	// allows 3 by itself: when a node dies, all that were about to be sent to it are.
	maxRequests = 1 << 20
	// A node whose machine died is noticed within 15 s. The node allows one ping in 5 s.
	keepaliveInterval = 10 * time.Second
	keepaliveTimeout  = 5 * time.Second
)

// host is an endpoint of a cluster.
type host struct {
	key  string // of its points on the ring
	addr netip.AddrPort
}

// ownersCluster sends a request to the owner of its hash. Nothing may divert it: no
// outlier detection, no bound on the load of a host, no panic that makes the dead
// count as alive.
func ownersCluster(name, endpoints string, nodes int, protocol *anypb.Any) *clusterv3.Cluster {
	c := edsCluster(name, endpoints, protocol)
	c.LbPolicy = clusterv3.Cluster_RING_HASH
	c.LbConfig = &clusterv3.Cluster_RingHashLbConfig_{RingHashLbConfig: &clusterv3.Cluster_RingHashLbConfig{
		HashFunction:    clusterv3.Cluster_RingHashLbConfig_XX_HASH,
		MinimumRingSize: wrapperspb.UInt64(uint64(nodes) * ring.PointsPerNode),
		MaximumRingSize: wrapperspb.UInt64(ring.MaxPoints),
	}}
	c.CommonLbConfig = &clusterv3.Cluster_CommonLbConfig{HealthyPanicThreshold: &typev3.Percent{Value: 0}}
	return c
}

// anyCluster sends a request to the less busy of two nodes. A gRPC client that does
// not know how (grpc-js) takes them in turn: of a list of policies it uses the first
// that it knows, while it refuses a cluster with a single one that it does not.
func anyCluster(name string, protocol *anypb.Any, to Client) *clusterv3.Cluster {
	c := edsCluster(name, "", protocol)
	if to != Envoy {
		c.LoadBalancingPolicy = policies(
			&leastv3.LeastRequest{ChoiceCount: wrapperspb.UInt32(choices)},
			&localityv3.WrrLocality{EndpointPickingPolicy: policies(&turnsv3.RoundRobin{})},
		)
		return c
	}
	c.LbPolicy = clusterv3.Cluster_LEAST_REQUEST
	c.LbConfig = &clusterv3.Cluster_LeastRequestLbConfig_{LeastRequestLbConfig: &clusterv3.Cluster_LeastRequestLbConfig{
		ChoiceCount: wrapperspb.UInt32(choices),
	}}
	return c
}

// policies are ways to choose an endpoint, the best first.
func policies(ways ...proto.Message) *clusterv3.LoadBalancingPolicy {
	p := &clusterv3.LoadBalancingPolicy{}
	for _, way := range ways {
		p.Policies = append(p.Policies, &clusterv3.LoadBalancingPolicy_Policy{
			TypedExtensionConfig: &corev3.TypedExtensionConfig{Name: string(way.ProtoReflect().Descriptor().FullName()), TypedConfig: pack(way)},
		})
	}
	return p
}

func edsCluster(name, endpoints string, protocol *anypb.Any) *clusterv3.Cluster {
	limit := wrapperspb.UInt32(maxRequests)
	return &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: overADS(), ServiceName: endpoints},
		ConnectTimeout:       durationpb.New(connectTimeout),
		CircuitBreakers: &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
			MaxConnections: limit, MaxPendingRequests: limit, MaxRequests: limit, MaxRetries: limit,
		}}},
		TypedExtensionProtocolOptions: map[string]*anypb.Any{protocolOptions: protocol},
	}
}

// protocolOptions is the name under which Envoy looks for the protocol of a cluster.
const protocolOptions = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

// http2 returns the protocol of gRPC.
func http2() *anypb.Any {
	return pack(&httpv3.HttpProtocolOptions{UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{
		ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
			ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{Http2ProtocolOptions: http2Options()},
		},
	}})
}

// downstreamProtocol has Envoy speak to an upstream the protocol in which the request came.
func downstreamProtocol() *anypb.Any {
	return pack(&httpv3.HttpProtocolOptions{UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_UseDownstreamProtocolConfig{
		UseDownstreamProtocolConfig: &httpv3.HttpProtocolOptions_UseDownstreamHttpConfig{
			HttpProtocolOptions: &corev3.Http1ProtocolOptions{}, Http2ProtocolOptions: http2Options(),
		},
	}})
}

func http2Options() *corev3.Http2ProtocolOptions {
	return &corev3.Http2ProtocolOptions{ConnectionKeepalive: &corev3.KeepaliveSettings{
		Interval: durationpb.New(keepaliveInterval), Timeout: durationpb.New(keepaliveTimeout),
	}}
}

// overADS has a resource come on the stream that named it.
func overADS() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ResourceApiVersion:    corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
	}
}

// endpoints are hosts of equal weight, in one locality: the ring is of all of them.
func endpoints(name string, hosts []host) *endpointv3.ClusterLoadAssignment {
	lb := make([]*endpointv3.LbEndpoint, len(hosts))
	for i, h := range hosts {
		lb[i] = &endpointv3.LbEndpoint{
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: socket(h.addr)}},
			Metadata: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
				"envoy.lb": {Fields: map[string]*structpb.Value{"hash_key": structpb.NewStringValue(h.key)}},
			}},
			LoadBalancingWeight: wrapperspb.UInt32(1),
		}
	}
	return &endpointv3.ClusterLoadAssignment{
		ClusterName: name,
		Endpoints: []*endpointv3.LocalityLbEndpoints{{
			Locality: &corev3.Locality{}, LbEndpoints: lb, LoadBalancingWeight: wrapperspb.UInt32(1),
		}},
	}
}

func socket(a netip.AddrPort) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: a.Addr().Unmap().String(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(a.Port())},
	}}}
}
