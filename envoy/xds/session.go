package xds

import (
	"errors"
	"io"
	"strings"
	"sync"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Bounds of what a stream may ask for. A client needs a few of each.
const (
	// MaxNames is how many resources of one type a stream may name at a time.
	MaxNames = 256
	// MaxName is the longest name of a resource, in bytes.
	MaxName = 512
	// maxTypes is how many types a stream may ask for: as many as the library knows,
	// and has room for in the queue of a stream.
	maxTypes = int(types.UnknownType)
	// maxQuoted bounds what the log quotes from clients, in bytes.
	maxQuoted = 512
)

// session is one stream: what it asks for, and what it was sent. It stands between
// the stream and the library, which bounds nothing.
type session struct {
	s *Server

	mu     sync.Mutex // guards what follows: one goroutine receives, another one sends
	known  bool       // its first request has come, and it is counted as of client
	ended  bool
	client Client
	node   *corev3.Node // what is kept of the client's own word
	types  map[string]*typeState
	err    error // why it was ended
}

// typeState is what a stream has to do with one type.
type typeState struct {
	version string              // of the last response
	names   map[string]struct{} // asked for in deltas
}

// clientOf is the kind of a client: gRPC's say so, and all others are taken for
// proxies.
func clientOf(n *corev3.Node) Client {
	if strings.HasPrefix(strings.ToLower(n.GetUserAgentName()), "grpc") {
		return GRPC
	}
	return Envoy
}

// arrived takes in who sent a request and what it asks for. names are those that it
// has now, or adds.
func (x *session) arrived(node *corev3.Node, url string, names []string) (*corev3.Node, *typeState, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if node != nil && x.node == nil {
		// An Envoy's list of its extensions alone has many KiB. A client does not
		// change during a stream.
		x.node = &corev3.Node{Id: clip(node.Id), UserAgentName: clip(node.UserAgentName)}
	}
	if !x.known && !x.ended {
		x.known, x.client = true, clientOf(x.node)
		x.s.metrics.clients[x.client].Inc()
	}
	if len(names) > MaxNames {
		return nil, nil, x.refuseLocked("names %d resources of type %s; at most %d are allowed", len(names), clip(url), MaxNames)
	}
	for _, n := range names {
		if len(n) > MaxName {
			return nil, nil, x.refuseLocked("names a resource with %d bytes; at most %d are allowed", len(n), MaxName)
		}
	}
	t := x.types[url]
	if t == nil {
		if len(x.types) == maxTypes {
			return nil, nil, x.refuseLocked("asks for more than %d types of resources", maxTypes)
		}
		t = &typeState{names: map[string]struct{}{}}
		x.types[url] = t
	}
	return x.node, t, nil
}

// refuseLocked ends the stream, because of what a request does.
func (x *session) refuseLocked(what string, args ...any) error {
	x.err = status.Errorf(codes.InvalidArgument, "the request "+what+"; this node serves listeners, routes, clusters and endpoints, a few of each", args...)
	x.s.metrics.cut.Inc()
	return x.err
}

// refused tells people that a client does not take what it was sent.
func (x *session) refused(url string, why *statuspb.Status) {
	x.mu.Lock()
	version, client, id := x.types[url].version, x.client, x.node.GetId()
	x.mu.Unlock()
	x.s.metrics.refused[typeName(url)].Inc()
	x.s.cfg.Log.Warn("an xDS client refuses what it was sent, and goes on with what it has",
		"client", client, "node", id, "type", typeName(url), "version", version, "error", clip(why.GetMessage()))
}

// sending takes in what is about to be sent.
func (x *session) sending(url, version string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if t := x.types[url]; t != nil {
		t.version = version
	}
	x.s.metrics.sent[typeName(url)].Inc()
}

// broke takes in why nothing more arrives; io.EOF is the client's own end. The library
// does not tell.
func (x *session) broke(err error) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.err == nil && !errors.Is(err, io.EOF) {
		x.err = err
	}
	return err
}

// outcome is how the stream has ended, as its client is told.
func (x *session) outcome(err error) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.err != nil:
		return x.err
	case err == nil && x.s.ctx.Err() != nil:
		return errStopping
	}
	return err
}

func (x *session) end() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ended = true
	if x.known {
		x.s.metrics.clients[x.client].Dec()
	}
	x.s.open.Add(-1)
}

func clip(s string) string {
	if len(s) > maxQuoted {
		return s[:maxQuoted] + "…"
	}
	return s
}

// wholeStream is a stream of whole states.
type wholeStream struct {
	discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer
	x *session
}

// Recv returns the next request.
func (w *wholeStream) Recv() (*discoveryv3.DiscoveryRequest, error) {
	req, err := w.AggregatedDiscoveryService_StreamAggregatedResourcesServer.Recv()
	if err != nil {
		return nil, w.x.broke(err)
	}
	node, t, err := w.x.arrived(req.Node, req.TypeUrl, req.ResourceNames)
	if err != nil {
		return nil, err
	}
	req.Node = node
	if why := req.ErrorDetail; why != nil {
		w.x.refused(req.TypeUrl, why)
		// It names the version that it has. The library would take that for one that
		// is behind, and send the refused one again, and so on for ever.
		w.x.mu.Lock()
		req.VersionInfo = t.version
		w.x.mu.Unlock()
	}
	return req, nil
}

// Send sends a response.
func (w *wholeStream) Send(r *discoveryv3.DiscoveryResponse) error {
	w.x.sending(r.TypeUrl, r.VersionInfo)
	return w.AggregatedDiscoveryService_StreamAggregatedResourcesServer.Send(r)
}

// deltaStream is a stream of deltas.
type deltaStream struct {
	discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer
	x *session
}

// Recv returns the next request.
func (d *deltaStream) Recv() (*discoveryv3.DeltaDiscoveryRequest, error) {
	req, err := d.AggregatedDiscoveryService_DeltaAggregatedResourcesServer.Recv()
	if err != nil {
		return nil, d.x.broke(err)
	}
	node, t, err := d.x.arrived(req.Node, req.TypeUrl, req.ResourceNamesSubscribe)
	if err == nil {
		err = d.x.subscribe(t, req)
	}
	if err != nil {
		return nil, err
	}
	req.Node = node
	if why := req.ErrorDetail; why != nil {
		d.x.refused(req.TypeUrl, why)
	}
	return req, nil
}

// subscribe bounds what a stream of deltas names, which adds up.
func (x *session) subscribe(t *typeState, req *discoveryv3.DeltaDiscoveryRequest) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if n := max(len(req.ResourceNamesUnsubscribe), len(req.InitialResourceVersions)); n > MaxNames {
		return x.refuseLocked("names %d resources; at most %d are allowed", n, MaxNames)
	}
	for _, n := range req.ResourceNamesSubscribe {
		t.names[n] = struct{}{}
	}
	for _, n := range req.ResourceNamesUnsubscribe {
		delete(t.names, n)
	}
	if len(t.names) > MaxNames {
		return x.refuseLocked("brings the resources of one type that the stream names to %d; at most %d are allowed", len(t.names), MaxNames)
	}
	return nil
}

// Send sends a response.
func (d *deltaStream) Send(r *discoveryv3.DeltaDiscoveryResponse) error {
	d.x.sending(r.TypeUrl, r.SystemVersionInfo)
	return d.AggregatedDiscoveryService_DeltaAggregatedResourcesServer.Send(r)
}
