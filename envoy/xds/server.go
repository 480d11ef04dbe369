package xds

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	cplog "github.com/envoyproxy/go-control-plane/pkg/log"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/delta/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/sotw/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// DefaultMaxStreams is how many clients a node tells of the ring at most, if nothing
// else is said: as many as may watch its table.
const DefaultMaxStreams = 4096

// Config is what a Server needs.
type Config struct {
	// Settings are what resources depend on beside the ring.
	Settings Settings
	// MaxStreams bounds the streams that are open; more are refused. Default
	// DefaultMaxStreams.
	MaxStreams int
	// Metrics is where the server's metrics go; required.
	Metrics prometheus.Registerer
	// Log is where it says what clients refuse. Default: nowhere.
	Log *slog.Logger
}

// Server tells clients of the ring. It serves nothing before the first Publish:
// until then clients wait.
type Server struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer

	cfg     Config
	metrics *metrics
	cache   *orderly // a snapshot for each kind of client, by its name
	whole   sotw.Server
	delta   delta.Server
	open    atomic.Int64 // streams
	nacks   logLimiter   // of the log
	ctx     context.Context
	stop    context.CancelFunc

	mu        sync.Mutex // guards what follows, and the order of Publish
	announced []Node     // of the last View, in the order of the ring
	keys      []string   // … and its keys that are split
	last      [clients]*cache.Snapshot
	sums      [clients][types.UnknownType]uint64 // of the resources in last
}

// New returns a server. Its errors are those of Settings.
func New(cfg Config) (*Server, error) {
	if err := cfg.Settings.Validate(); err != nil {
		return nil, err
	}
	if cfg.MaxStreams == 0 {
		cfg.MaxStreams = DefaultMaxStreams
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{cfg: cfg, metrics: newMetrics(cfg.Metrics)}
	s.ctx, s.stop = context.WithCancel(context.Background())
	log := quiet(cfg.Log)
	s.cache = newOrderly(log)
	//guard:xds-order-whole sotw.WithOrderedADS() -> sotw.WithLogger(log)
	s.whole = sotw.NewServer(s.ctx, s.cache, nil, sotw.WithLogger(log), sotw.WithOrderedADS())
	s.delta = delta.NewServer(s.ctx, s.cache, nil, delta.WithLogger(log))
	return s, nil
}

// quiet passes on what the library cannot do; what it does, nobody asked.
func quiet(log *slog.Logger) cplog.Logger {
	return cplog.LoggerFuncs{
		WarnFunc:  func(format string, args ...any) { log.Warn("xds: " + fmt.Sprintf(format, args...)) },
		ErrorFunc: func(format string, args ...any) { log.Warn("xds: " + fmt.Sprintf(format, args...)) },
	}
}

// byClient has clients of a kind share a snapshot.
type byClient struct{}

// ID implements cache.NodeHash.
func (byClient) ID(n *corev3.Node) string { return clientOf(n).String() }

// Register adds the service to a gRPC server.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(r, s)
}

// Publish tells all clients of a View, now and when they come. Of resources that are
// as they were nothing is sent. A View without nodes changes nothing: what was known
// is better than nothing. The error says what is wrong with the View; then nothing
// changes either.
func (s *Server) Publish(v View) error {
	if err := v.validate(); err != nil || len(v.Nodes) == 0 {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	nodes, keys := v.ring(), v.split()
	if slices.Equal(nodes, s.announced) && slices.Equal(keys, s.keys) { // as with most epochs
		s.metrics.epoch.Set(float64(v.Epoch))
		return nil
	}
	var failed error
	for c := range Client(clients) {
		next, changed := s.snapshot(v, c)
		if !changed {
			continue
		}
		if err := s.cache.publish(c.String(), next); err != nil {
			failed = errors.Join(failed, fmt.Errorf("xds: %w", err))
		}
	}
	if failed == nil {
		s.announced, s.keys = nodes, keys
		s.metrics.epoch.Set(float64(v.Epoch))
	}
	return failed
}

// snapshot returns the resources of a View, and whether they differ from the last ones.
// Resources that do not keep their version: it is the epoch in which they became
// what they are, and a sum, because the address of an application can change without
// an epoch.
func (s *Server) snapshot(v View, c Client) (*cache.Snapshot, bool) {
	built := Build(v, s.cfg.Settings, c)
	next, changed := &cache.Snapshot{}, s.last[c] == nil
	for t, items := range map[types.ResponseType][]types.Resource{
		types.Listener: list(built.Listeners), types.Route: list(built.Routes),
		types.Cluster: list(built.Clusters), types.Endpoint: list(built.Endpoints),
	} {
		sum := sumOf(items)
		if s.last[c] != nil && sum == s.sums[c][t] {
			next.Resources[t] = s.last[c].Resources[t]
			continue
		}
		next.Resources[t] = cache.NewResources(fmt.Sprintf("%d-%08x", v.Epoch, uint32(sum)), items)
		s.sums[c][t], changed = sum, true
	}
	s.last[c] = next
	return next, changed
}

func list[T types.Resource](items []T) []types.Resource {
	all := make([]types.Resource, len(items))
	for i, m := range items {
		all[i] = m
	}
	return all
}

// sumOf is equal for equal resources in the same order.
func sumOf(items []types.Resource) uint64 {
	d := xxhash.New()
	for _, m := range items {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			panic("xds: " + err.Error()) // a message of our own making is complete
		}
		_, _ = d.Write(binary.AppendUvarint(nil, uint64(len(b)))) // never fails
		_, _ = d.Write(b)
	}
	return d.Sum64()
}

// Close ends all streams; clients go to another node. It does not wait for them: the
// gRPC server does.
func (s *Server) Close() { s.stop() }

// StreamAggregatedResources implements ADS: the state of the world.
func (s *Server) StreamAggregatedResources(str discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	x, err := s.begin()
	if err != nil {
		return err
	}
	defer x.end()
	return x.outcome(s.whole.StreamHandler(&wholeStream{str, x}, resource.AnyType))
}

// DeltaAggregatedResources implements ADS: deltas.
func (s *Server) DeltaAggregatedResources(str discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	x, err := s.begin()
	if err != nil {
		return err
	}
	defer x.end()
	return x.outcome(s.delta.DeltaStreamHandler(&deltaStream{str, x}, resource.AnyType))
}

// begin makes room for a stream.
func (s *Server) begin() (*session, error) {
	if s.ctx.Err() != nil {
		return nil, errStopping
	}
	if s.open.Add(1) > int64(s.cfg.MaxStreams) {
		s.open.Add(-1)
		s.metrics.cut.Inc()
		return nil, status.Errorf(codes.ResourceExhausted, "this node tells %d clients of the ring, as many as it may; ask another one", s.cfg.MaxStreams)
	}
	return &session{s: s, types: map[string]*typeState{}}, nil
}

var errStopping = status.Error(codes.Unavailable, "the node stops; ask another one")
