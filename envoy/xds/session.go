package xds

import (
	"errors"
	"io"
	"strings"
	"sync"
	"time"

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
	// MaxName is the longest name of a resource, and of a type, a version or a nonce,
	// in bytes.
	MaxName = 512
	// MaxHeld bounds what is kept of the names and versions that a stream has sent, of
	// all types together: their bytes, and heldAside for each. A client's take some
	// hundreds, and all streams that are allowed together 128 MiB.
	MaxHeld = 32 << 10
	// heldAside is what a string costs beside its bytes in lists and maps, in bytes.
	heldAside = 64
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
	held   int   // of all types
	err    error // why it was ended
}

// typeState is what a stream has to do with one type.
type typeState struct {
	version string              // of the last response
	names   map[string]struct{} // asked for in deltas
	first   int                 // what its first versions in deltas take, as MaxHeld counts
	held    int                 // what all takes that is kept of it
}

// held returns what texts take, as MaxHeld counts.
func held(texts ...string) int {
	n := 0
	for _, t := range texts {
		n += len(t) + heldAside
	}
	return n
}

// clientOf returns the kind of a client: gRPC's say so, and all others are taken for
// proxies.
func clientOf(n *corev3.Node) Client {
	switch name := strings.ToLower(n.GetUserAgentName()); {
	case strings.HasPrefix(name, "grpc node"): // "gRPC Node Pure JS"
		return GRPCJS
	case strings.HasPrefix(name, "grpc"):
		return GRPC
	}
	return Envoy
}

// word is what a request says: a DiscoveryRequest or a DeltaDiscoveryRequest.
type word interface {
	GetNode() *corev3.Node
	GetTypeUrl() string
	GetResponseNonce() string
}

// arrived takes in which client sent a request and what it asks for. names are those that it
// has now, or adds; version is that of the resources, if it says one.
func (x *session) arrived(req word, names []string, version string) (*corev3.Node, *typeState, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	url := req.GetTypeUrl()
	if node := req.GetNode(); node != nil && x.node == nil {
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
	for what, text := range map[string]string{"type": url, "version": version, "nonce": req.GetResponseNonce()} {
		if len(text) > MaxName {
			return nil, nil, x.refuseLocked("has a "+what+" of %d bytes; at most %d are allowed", len(text), MaxName)
		}
	}
	if err := x.shortLocked(names); err != nil {
		return nil, nil, err
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

// shortLocked refuses names that are too long.
func (x *session) shortLocked(names []string) error {
	for _, n := range names {
		if len(n) > MaxName {
			return x.refuseLocked("names a resource with %d bytes; at most %d are allowed", len(n), MaxName)
		}
	}
	return nil
}

// holdLocked counts what is kept of a type from now on.
func (x *session) holdLocked(t *typeState, n int) error {
	x.held += n - t.held
	t.held = n
	if x.held > MaxHeld {
		return x.refuseLocked("brings what the stream names to %d bytes, %d for each name beside its own; at most %d are allowed", x.held, heldAside, MaxHeld)
	}
	return nil
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
	if left, now := x.s.nacks.allow(time.Now()); now {
		x.s.cfg.Log.Warn("an xDS client refuses what it was sent, and goes on with what it has",
			"client", client, "node", id, "type", typeName(url), "version", version, "error", clip(why.GetMessage()), "left_out", left)
	}
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

// outcome returns how the stream has ended, as its client is told.
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

// Recv returns the next request: one of our own making, of what was looked at and is
// bounded. The library keeps it for as long as the client is interested in the type.
func (w *wholeStream) Recv() (*discoveryv3.DiscoveryRequest, error) {
	came, err := w.AggregatedDiscoveryService_StreamAggregatedResourcesServer.Recv()
	if err != nil {
		return nil, w.x.broke(err)
	}
	node, t, err := w.x.arrived(came, came.ResourceNames, came.VersionInfo)
	if err == nil {
		err = w.x.name(t, came.ResourceNames)
	}
	if err != nil {
		return nil, err
	}
	req := &discoveryv3.DiscoveryRequest{Node: node, TypeUrl: came.TypeUrl, ResourceNames: came.ResourceNames,
		VersionInfo: came.VersionInfo, ResponseNonce: came.ResponseNonce}
	if why := came.ErrorDetail; why != nil {
		w.x.refused(req.TypeUrl, why)
		// It names the version that it has. The library would take that for one that
		// is behind, and send the refused one again, and so on for ever.
		w.x.mu.Lock()
		req.VersionInfo = t.version
		w.x.mu.Unlock()
	}
	return req, nil
}

// name bounds what a stream of whole states names: all of a type, each time. The
// library passes over requests that come too late, and keeps the one before: what
// counts is the most that was named.
func (x *session) name(t *typeState, names []string) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.holdLocked(t, max(t.held, held(names...)))
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

// Recv returns the next request: one of our own making, as for whole states.
func (d *deltaStream) Recv() (*discoveryv3.DeltaDiscoveryRequest, error) {
	came, err := d.AggregatedDiscoveryService_DeltaAggregatedResourcesServer.Recv()
	if err != nil {
		return nil, d.x.broke(err)
	}
	node, t, err := d.x.arrived(came, came.ResourceNamesSubscribe, "")
	if err == nil {
		err = d.x.subscribe(t, came)
	}
	if err != nil {
		return nil, err
	}
	if why := came.ErrorDetail; why != nil {
		d.x.refused(came.TypeUrl, why)
	}
	return &discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: came.TypeUrl, ResourceNamesSubscribe: came.ResourceNamesSubscribe,
		ResourceNamesUnsubscribe: came.ResourceNamesUnsubscribe, InitialResourceVersions: came.InitialResourceVersions, ResponseNonce: came.ResponseNonce}, nil
}

// subscribe bounds what a stream of deltas names, which adds up.
func (x *session) subscribe(t *typeState, req *discoveryv3.DeltaDiscoveryRequest) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if n := max(len(req.ResourceNamesUnsubscribe), len(req.InitialResourceVersions)); n > MaxNames {
		return x.refuseLocked("names %d resources; at most %d are allowed", n, MaxNames)
	}
	if err := x.shortLocked(req.ResourceNamesUnsubscribe); err != nil {
		return err
	}
	versions := 0
	for n, version := range req.InitialResourceVersions {
		if err := x.shortLocked([]string{n, version}); err != nil {
			return err
		}
		versions += held(n, version)
	}
	t.first = max(t.first, versions)
	keeps := t.first + held(req.ResourceNamesUnsubscribe...)
	for _, n := range req.ResourceNamesSubscribe {
		t.names[n] = struct{}{}
	}
	for _, n := range req.ResourceNamesUnsubscribe {
		delete(t.names, n)
	}
	if len(t.names) > MaxNames {
		return x.refuseLocked("brings the resources of one type that the stream names to %d; at most %d are allowed", len(t.names), MaxNames)
	}
	for n := range t.names {
		keeps += held(n)
	}
	return x.holdLocked(t, keeps)
}

// Send sends a response.
func (d *deltaStream) Send(r *discoveryv3.DeltaDiscoveryResponse) error {
	d.x.sending(r.TypeUrl, r.SystemVersionInfo)
	return d.AggregatedDiscoveryService_DeltaAggregatedResourcesServer.Send(r)
}
