package rpc

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/keystead/keystead/hotkey/home"
	"github.com/keystead/keystead/internal/chunk"
	"github.com/keystead/keystead/internal/clock"
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/fallback"
	"github.com/keystead/keystead/internal/forgo"
	"github.com/keystead/keystead/internal/forward"
	"github.com/keystead/keystead/internal/vtcodec"
	"github.com/keystead/keystead/owner"
	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	idpb "github.com/keystead/keystead/proto/keystead/id/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	sessionpb "github.com/keystead/keystead/proto/keystead/session/v1"
)

// Bounds of what a caller may send.
const (
	MaxRequest    = 64 << 10 // bytes of a message that is not a batch
	MaxBatch      = 1 << 20  // bytes of a batch or stream message
	MaxBatchItems = 10_000   // items of a batch or stream message

	maxFlushBytes = MaxBatch - MaxRequest // bytes of a message of calls to another node

	// maxReceive is where grpc itself cuts off, without a typed error: far
	// enough above MaxBatch that a caller that is a little over gets a good one.
	maxReceive = 2 << 20
	maxHeaders = 16 << 10 // bytes of a call's metadata
	// maxFields is where a message is refused before it is read whole, again
	// far enough above MaxBatchItems that a caller that is a little over gets a
	// typed error.
	maxFields = 2*MaxBatchItems + 16

	// Bytes under way to a stream that does not read, and to a connection. Left
	// to itself, grpc lets a stream grow to 16 MiB, and a caller that sends
	// without reading answers may have thousands of them.
	streamWindow = 256 << 10
	connWindow   = 4 << 20
)

// Config is what a Server needs.
type Config struct {
	Store *owner.Store // required
	Clock clock.Clock  // required
	// Metrics counts calls; required.
	Metrics *Metrics
	// MaxConns bounds open connections; more wait in the listen queue. Default 10,000.
	MaxConns int
	// MaxCalls bounds calls under way, streams and waiting ones included; more
	// are refused. Default 100,000, so that all callers that may wait for locks
	// can, and others still get through.
	MaxCalls int64
	// Cluster is what is known of the other nodes. nil = this node runs alone.
	Cluster Cluster
	// Copies are what answers wait for. nil = nothing.
	Copies Copies
	// Disk tells of the store on disk; nil = there is none.
	Disk func() *clusterpb.Disk
	// LostInPart says of a node that runs alone that what its last process lost, if anything, is what that had answered last.
	LostInPart bool
	// Untold returns the error of an operation that may have taken effect, and that Copies gave up to
	// wait for because of the disk; nil = it is that of a node which lost its lease. Default: nil.
	Untold func() *failure.Error
	// AckOwner are the kinds, of Kinds, whose answers do not wait for copies.
	AckOwner []string
	// Dial connects to other nodes. nil = TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Node is the id of this node.
	Node string
	// GRPCAddr is where others reach this node's API, host:port; "" = unknown.
	// Looked at only when Cluster is nil.
	GRPCAddr string
	// Alone is what is said of this node when Cluster is nil.
	Alone Alone
	// Warnings are what is wrong with this node, for people. nil = nothing is.
	Warnings func() []Warning
	// Register adds other services to the server, which may ask the limit service
	// in process. nil = none.
	Register func(r grpc.ServiceRegistrar, own limitpb.LimitServiceServer, admissions Admissions)
	// IDs are what IdService hands out. nil = it answers UNAVAILABLE.
	IDs IDs
	// Hot returns what the node saw of its busiest objects at its last look. nil = it
	// does not look, and ListHot answers UNAVAILABLE.
	Hot func() *home.HotKeys
	// Ready says why the node does not take requests, nil if it does: for health
	// checks. nil = it does while the server runs.
	Ready func() error
	// Forgo gives up disks that rows wait for. nil = nothing waits for any.
	Forgo func(context.Context, forgo.Order) (forgo.State, error)
	// Splits does what is decided about splits of objects. nil = nothing is split.
	Splits Splits
	// Backup sends what the node has on disk, in pieces, with about how many bytes there are. nil =
	// it keeps nothing there.
	Backup func(ctx context.Context, send func(data []byte, about int64) error) error
	// Policies are limits with names, which are this Store's, too. nil = there are none.
	Policies Policies

	maxHeld int // answers to other nodes that wait for one process; 0 = as many as forward has them
}

// Server serves the API over gRPC.
type Server struct {
	cfg       Config
	grpc      *grpc.Server
	sent      [maxOperation + 1]*operation // that nodes send each other, by number
	parts     parts                        // of split objects
	router    *forward.Router              // to other nodes; nil = this node runs alone
	forwards  *forward.Service[decision]   // from other nodes; nil = this node runs alone
	chunks    *chunk.Cache                 // of limits of other nodes; nil = this node runs alone
	without   *fallback.Table              // of limits whose owners cannot be asked
	offered   offered                      // to Call
	process   uint64                       // drawn when it is made: page tokens name it
	stopping  chan struct{}                // closed when the server stops
	hurried   chan struct{}                // closed by Hurry
	hurry     sync.Once
	stopped   atomic.Bool
	registers *registers
	keepers   keepers
	outboxes  outboxes                 // of admissions of several keys
	numbers   numbers                  // of those whose requests have no id
	topics    []interface{ stopped() } // of watches of objects, by kind
	watching  atomic.Int64             // watches of objects
	watched   atomic.Int64             // bytes of the latest states of these
	awaits    atomic.Int64             // of nodes that watch objects of this one
	values    atomic.Int64             // bytes of long values that are being written
	calls     atomic.Int64             // under way
	busy      atomic.Int64             // … less the streams that await their caller
}

// Options returns the grpc options that make up Keystead's speed: worker goroutines
// that keep their stacks, and a codec without reflection.
func Options() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.NumStreamWorkers(64),
		grpc.ForceServerCodecV2(vtcodec.Bounded(maxFields)),
	}
}

// NewServer returns a server that takes calls once Serve is called.
func NewServer(cfg Config) *Server {
	if cfg.MaxConns == 0 {
		cfg.MaxConns = 10_000
	}
	if cfg.MaxCalls == 0 {
		cfg.MaxCalls = 100_000
	}
	for _, k := range catalog {
		for _, o := range k.ops {
			cfg.Metrics.ops[o.Number].alone = slices.Contains(cfg.AckOwner, k.setting)
		}
	}
	s := &Server{cfg: cfg, sent: sentOperations(), without: fallback.New(), offered: offered{}, process: rand.Uint64(), stopping: make(chan struct{}), hurried: make(chan struct{})}
	opts := append(Options(),
		grpc.MaxRecvMsgSize(maxReceive),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.MaxHeaderListSize(maxHeaders),
		// Not less for one connection: if its waiters used it up, the holder's
		// release could not come through on it.
		grpc.MaxConcurrentStreams(uint32(min(cfg.MaxCalls, math.MaxUint32))),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
		grpc.ConnectionTimeout(10*time.Second),
		// A holder or waiter whose machine died is noticed within 15 s.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream),
		grpc.UnknownServiceHandler(s.unknown),
	)
	s.outboxes.s = s
	s.grpc = grpc.NewServer(opts...)
	own := &limits{s: s}
	s.registers = newRegisters(s)
	impls := map[owner.Kind]any{owner.KindLimit: own, owner.KindCounter: &counters{s: s}, owner.KindRegister: s.registers}
	observers, groups, semaphores, locks := newElections(s), newGroups(s), newSemaphores(s), newLocks(s)
	impls[owner.KindElection], impls[owner.KindGroup], impls[owner.KindSemaphore], impls[owner.KindLock] = observers, groups, semaphores, locks
	s.topics = append(s.topics, s.registers, observers, groups, semaphores, locks)
	for _, k := range catalog {
		if k.service != nil {
			s.register(k, impls[k.of])
		}
	}
	s.offer(&idpb.IdService_ServiceDesc, &idService{s: s})
	s.offer(&sessionpb.SessionService_ServiceDesc, &sessions{s: s})
	if cfg.Cluster != nil {
		s.router, s.chunks = forward.New(s.routing()), newChunks(s)
		s.forwards = newForwards(s)
		peerv1.RegisterForwardServiceServer(s.grpc, s.forwards)
	}
	cluster := newCluster(s)
	s.offer(&clusterpb.ClusterService_ServiceDesc, cluster)
	s.offer(&adminpb.AdminService_ServiceDesc, &admin{s: s, c: cluster.c})
	if cfg.Register != nil {
		cfg.Register(s.grpc, own, Admissions{s})
	}
	healthpb.RegisterHealthServer(s.grpc, newHealth(s))
	reflection.Register(s.grpc)
	return s
}

// Serve serves until Stop.
func (s *Server) Serve(l net.Listener) error {
	return s.grpc.Serve(netutil.LimitListener(l, s.cfg.MaxConns))
}

// Stop refuses new calls, sends those away that wait for locks, lets the others
// finish for at most grace and then cuts them off.
func (s *Server) Stop(grace time.Duration) {
	if s.stopped.Swap(true) {
		return
	}
	close(s.stopping)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.grpc.GracefulStop()
	}()
	s.awaitCalls(done, grace)
	s.grpc.Stop()
	<-done
	for _, t := range s.topics {
		t.stopped()
	}
	if s.router != nil {
		s.chunks.Close()
		s.router.Close()
		s.forwards.Close()
	}
}

// Hurry has a Stop wait for no call any more.
func (s *Server) Hurry() { s.hurry.Do(func() { close(s.hurried) }) }

// awaitCalls waits until all calls are done, or grace is over. Streams whose caller
// sends nothing are not waited for, beyond the time that the last answers need
// to be written.
func (s *Server) awaitCalls(done <-chan struct{}, grace time.Duration) {
	over := time.NewTimer(grace)
	defer over.Stop()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for s.busy.Load() > 0 {
		select {
		case <-done:
			return
		case <-over.C:
			return
		case <-s.hurried:
			return
		case <-tick.C:
		}
	}
	last := time.NewTimer(min(lastAnswers, grace))
	defer last.Stop()
	select {
	case <-done:
	case <-last.C:
	}
}

const (
	pollEvery   = 5 * time.Millisecond
	lastAnswers = 500 * time.Millisecond
)

type sized interface{ SizeVT() int }

// unary bounds, times and counts every unary call.
func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	m := s.cfg.Metrics.method(info.FullMethod)
	start := time.Now()
	if err := s.begin(); err != nil {
		m.done(err, time.Since(start))
		return nil, err
	}
	defer s.calls.Add(-1)
	s.busy.Add(1)
	defer s.busy.Add(-1)
	resp, err := s.bounded(ctx, req, m, handler)
	if err != nil {
		_ = grpc.SetTrailer(ctx, plain(err)) // fails for calls that do not come by gRPC
	}
	m.done(err, time.Since(start))
	return resp, err
}

// stream bounds, times and counts every stream. Its time is that of its life.
func (s *Server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	m := s.cfg.Metrics.method(info.FullMethod)
	start := time.Now()
	err := s.begin()
	if err == nil {
		defer s.calls.Add(-1)
		err = handler(srv, ss)
	}
	if err != nil {
		ss.SetTrailer(plain(err))
	}
	m.done(err, time.Since(start))
	return err
}

// begin counts a call in, if there is room for it.
func (s *Server) begin() error {
	if s.calls.Add(1) <= s.cfg.MaxCalls {
		return nil
	}
	s.calls.Add(-1)
	return s.refuse(errOverloaded)
}

// refuse counts a call that is turned away before it comes to any operation.
func (s *Server) refuse(err error) error {
	s.cfg.Metrics.failed[wire(err).Reason].Inc()
	return Status(err)
}

func (s *Server) bounded(ctx context.Context, req any, m *method, handler grpc.UnaryHandler) (any, error) {
	if r, ok := req.(sized); ok {
		if err := checkSize(r, m.most()); err != nil {
			return nil, s.refuse(err)
		}
	}
	if ctx.Err() != nil {
		return nil, s.refuse(gaveUp(ctx))
	}
	return handler(ctx, req)
}

// checkSize bounds the size of a message, in bytes.
func checkSize(r sized, limit int) error {
	n := r.SizeVT()
	if n <= limit {
		return nil
	}
	return &failure.Error{Reason: failure.TooLarge,
		Message: fmt.Sprintf("the message has %d bytes; at most %d are allowed", n, limit),
		Hint:    "send less at once"}
}

// checkItems bounds the number of items in a batch.
func checkItems(n int) error {
	if n <= MaxBatchItems {
		return nil
	}
	return &failure.Error{Reason: failure.TooLarge,
		Message: fmt.Sprintf("the batch has %d items; at most %d are allowed", n, MaxBatchItems),
		Hint:    "send several batches"}
}

// ctxEvery is how many items of a batch are done between looks at the caller's
// deadline.
const ctxEvery = 256

// leftAt says, every ctxEvery items, whether the caller has left.
func leftAt(ctx context.Context, i int) error {
	if i%ctxEvery == 0 && ctx.Err() != nil {
		return gaveUp(ctx)
	}
	return nil
}
