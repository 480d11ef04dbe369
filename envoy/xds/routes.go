package xds

import (
	"net/netip"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	previousv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// routes sends a request with the key's header to the owners, by its hash alone, and
// any other one to any node; before that, what first says.
func routes(name, owners, any, header string, first []*routev3.Route, c Client) *routev3.RouteConfiguration {
	keyed := route(owners, c)
	keyed.Match.Headers = []*routev3.HeaderMatcher{{
		Name: header, HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true},
	}}
	keyed.GetRoute().HashPolicy = []*routev3.RouteAction_HashPolicy{{
		PolicySpecifier: &routev3.RouteAction_HashPolicy_Header_{Header: &routev3.RouteAction_HashPolicy_Header{HeaderName: header}},
		Terminal:        true,
	}}
	return &routev3.RouteConfiguration{
		Name: name,
		VirtualHosts: []*routev3.VirtualHost{{
			Name: name, Domains: []string{"*"}, Routes: append(first, keyed, route(c.anyone(owners, any), c)),
		}},
	}
}

// route is one to a cluster. It sets no time: the caller's deadline is the one that
// counts, and a call that waits for a lock or watches the table takes longer than
// Envoy's 15 s, and says nothing for longer than its 5 min.
func route(cluster string, c Client) *routev3.Route {
	to := &routev3.RouteAction{
		ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster}, Timeout: durationpb.New(0), IdleTimeout: durationpb.New(0),
	}
	//guard:xds-retry
	if c == Envoy {
		to.RetryPolicy = unsent()
	}
	return &routev3.Route{
		Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
		Action: &routev3.Route_Route{Route: to},
	}
}

// What is sent again.
const (
	maxRetries = 2
	// maxReselections is how often another host is looked for when one was tried
	// before.
	maxReselections = 16
)

// unsent has Envoy send again, to another host, what was never sent: nothing is done
// twice. gRPC clients do so by themselves.
func unsent() *routev3.RetryPolicy {
	return &routev3.RetryPolicy{
		RetryOn: "connect-failure,refused-stream", NumRetries: wrapperspb.UInt32(maxRetries),
		RetryHostPredicate: []*routev3.RetryPolicy_RetryHostPredicate{{
			Name:       "envoy.retry_host_predicates.previous_hosts",
			ConfigType: &routev3.RetryPolicy_RetryHostPredicate_TypedConfig{TypedConfig: pack(&previousv3.PreviousHostsPredicate{})},
		}},
		HostSelectionRetryMaxAttempts: maxReselections,
	}
}

// listeners returns where a kind of client begins.
func listeners(s Settings, c Client, app bool) []*listenerv3.Listener {
	if c != Envoy {
		l := []*listenerv3.Listener{apiListener(Keystead)}
		if app {
			l = append([]*listenerv3.Listener{apiListener(App)}, l...)
		}
		return l
	}
	if s.Listener == "" {
		return nil
	}
	return []*listenerv3.Listener{{
		Name: Keystead, Address: socket(netip.MustParseAddrPort(s.Listener)),
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
			Name:       "envoy.filters.network.http_connection_manager",
			ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: connections(Keystead)},
		}}}},
	}}
}

// apiListener returns what a gRPC client asks for by the name of its target.
func apiListener(name string) *listenerv3.Listener {
	return &listenerv3.Listener{Name: name, ApiListener: &listenerv3.ApiListener{ApiListener: connections(name)}}
}

// connections returns what becomes of connections: their requests go where the routes of
// a name have them. Streams may be idle, as a watch is while nothing changes.
func connections(name string) *anypb.Any {
	return pack(&hcmv3.HttpConnectionManager{
		StatPrefix:        name,
		StreamIdleTimeout: durationpb.New(0),
		RouteSpecifier:    &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{ConfigSource: overADS(), RouteConfigName: name}},
		HttpFilters: []*hcmv3.HttpFilter{{
			Name:       "envoy.filters.http.router",
			ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: pack(&routerv3.Router{})},
		}},
	})
}
