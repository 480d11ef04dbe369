package replay

import (
	"context"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// server serves counters and limits, in memory and exact. A limit here never
// refills: of n checks, the first Limit are allowed. What goes wrong on the way
// is up to the hooks.
type server struct {
	// fault is asked before each call; nil = no faults.
	fault func(call int) fault
	// item may fail an item, before or after it was applied; nil = none do.
	item func(key string) (e *commonpb.Error, applied bool)

	mu      sync.Mutex // guards everything below
	calls   int
	spent   map[ref]uint64
	values  map[ref]int64
	clients map[ref]map[string]*client
	late    []func() // copies of calls that are still on their way
	names   map[string]bool
	most    int // ids held for one client on one object
}

// limits and counters are the two services of a server: both have a Reset.
type (
	limits struct {
		limitpb.UnimplementedLimitServiceServer
		*server
	}
	counters struct {
		counterpb.UnimplementedCounterServiceServer
		*server
	}
)

type ref struct{ key, name string }

// client is what is remembered of a client on an object.
type client struct {
	floor uint64
	done  map[uint64]remembered
}

type remembered struct {
	yes   bool
	value int64
}

// fault is what happens to a call.
type fault uint8

const (
	none     fault = iota
	lost           // the call does not arrive
	unheard        // it acts, but the answer is lost
	half           // it acts for half of its items, and the answer is lost
	silent         // it acts, and no answer comes
	repeated       // like unheard, and a copy of it arrives much later
)

// maxIDs is how many ids a node remembers for a client on an object.
const maxIDs = 1024

func newServer() *server {
	return &server{spent: map[ref]uint64{}, values: map[ref]int64{}, clients: map[ref]map[string]*client{}, names: map[string]bool{}}
}

// dial serves s and returns a connection to it. Both end with the test.
func (s *server) dial(t testing.TB) *grpc.ClientConn {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	g := grpc.NewServer()
	limitpb.RegisterLimitServiceServer(g, limits{server: s})
	counterpb.RegisterCounterServiceServer(g, counters{server: s})
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = g.Serve(l) // ends with Stop
	}()
	conn, err := grpc.NewClient("passthrough:///test", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		g.Stop()
		<-served
	})
	return conn
}

// handle runs apply on the first n of all items, under s.mu, as the faults have it.
func (s *server) handle(ctx context.Context, all int, apply func(n int), late func()) error {
	s.mu.Lock()
	s.calls++
	f := none
	if s.fault != nil {
		f = s.fault(s.calls)
	}
	if len(s.late) > 3 {
		s.late[0]()
		s.late = s.late[1:]
	}
	switch f {
	case none, unheard, silent, repeated:
		apply(all)
	case half:
		apply(all / 2)
	}
	if f == repeated {
		s.late = append(s.late, late)
	}
	s.mu.Unlock()
	switch f {
	case none:
		return nil
	case silent:
		<-ctx.Done()
		return ctx.Err()
	}
	return status.Error(codes.Unavailable, "the connection broke")
}

// once does an operation once for its request id.
func (s *server) once(r ref, id *commonpb.RequestId, do func() remembered) (remembered, *commonpb.Error) {
	if id.GetSequence() == 0 || len(id.Client) != 16 || id.Settled == 0 || id.Settled > id.Sequence || id.AgeNs < 0 {
		return remembered{}, &commonpb.Error{Code: int32(codes.InvalidArgument), Reason: commonpb.Reason_REASON_INVALID, Message: "a bad request id", Field: "request_id"}
	}
	s.names[r.name] = true
	byName := s.clients[r]
	if byName == nil {
		byName = map[string]*client{}
		s.clients[r] = byName
	}
	c := byName[string(id.Client)]
	if c == nil {
		c = &client{done: map[uint64]remembered{}}
		byName[string(id.Client)] = c
	}
	for seq := range c.done {
		if seq < id.Settled {
			delete(c.done, seq)
		}
	}
	c.floor = max(c.floor, id.Settled)
	if was, ok := c.done[id.Sequence]; ok {
		return was, nil
	}
	if id.Sequence < c.floor {
		return remembered{}, &commonpb.Error{Code: int32(codes.FailedPrecondition), Reason: commonpb.Reason_REASON_REQUEST_TOO_OLD, Message: "may be forgotten"}
	}
	now := do()
	c.done[id.Sequence] = now
	s.most = max(s.most, len(c.done))
	return now, nil
}

// guarded does an operation unless the item fails before or after it.
func (s *server) guarded(r ref, id *commonpb.RequestId, do func() remembered) (remembered, *commonpb.Error) {
	var fail *commonpb.Error
	applied := false
	if s.item != nil {
		fail, applied = s.item(r.key)
	}
	if fail != nil && !applied {
		return remembered{}, fail
	}
	out, err := s.once(r, id, do)
	if fail != nil {
		err = fail
	}
	return out, err
}

func (s limits) BatchCheck(ctx context.Context, req *limitpb.BatchCheckRequest) (*limitpb.BatchCheckResponse, error) {
	resp := &limitpb.BatchCheckResponse{}
	apply := func(req *limitpb.BatchCheckRequest, n int) {
		for _, m := range req.Checks[:n] {
			r := ref{m.Key, m.Name}
			out, err := s.guarded(r, m.RequestId, func() remembered {
				yes := s.spent[r] < m.Limit
				if yes {
					s.spent[r]++
				}
				return remembered{yes: yes}
			})
			result := &limitpb.CheckResult{Error: err}
			if err == nil {
				result.Response = &limitpb.CheckResponse{Allowed: out.yes}
			}
			resp.Results = append(resp.Results, result)
		}
	}
	sent := proto.CloneOf(req)
	err := s.handle(ctx, len(req.Checks), func(n int) { apply(req, n) }, func() { apply(sent, len(sent.Checks)) })
	if err != nil {
		return nil, err
	}
	return resp, nil
}

func (s counters) BatchAdd(ctx context.Context, req *counterpb.BatchAddRequest) (*counterpb.BatchAddResponse, error) {
	resp := &counterpb.BatchAddResponse{}
	apply := func(req *counterpb.BatchAddRequest, n int) {
		for _, m := range req.Adds[:n] {
			r := ref{m.Key, m.Name}
			out, err := s.guarded(r, m.RequestId, func() remembered {
				s.values[r] += m.Delta
				return remembered{value: s.values[r]}
			})
			result := &counterpb.AddResult{Error: err}
			if err == nil {
				result.Response = &counterpb.AddResponse{Applied: true, Value: out.value, Current: s.values[r]}
			}
			resp.Results = append(resp.Results, result)
		}
	}
	sent := proto.CloneOf(req)
	err := s.handle(ctx, len(req.Adds), func(n int) { apply(req, n) }, func() { apply(sent, len(sent.Adds)) })
	if err != nil {
		return nil, err
	}
	return resp, nil
}

func (s counters) BatchGet(ctx context.Context, req *counterpb.BatchGetRequest) (*counterpb.BatchGetResponse, error) {
	resp := &counterpb.BatchGetResponse{}
	err := s.handle(ctx, len(req.Gets), func(n int) {
		for _, m := range req.Gets[:n] {
			var fail *commonpb.Error
			if s.item != nil {
				fail, _ = s.item(m.Key)
			}
			result := &counterpb.GetResult{Error: fail}
			if fail == nil {
				result.Response = &counterpb.GetResponse{Value: s.values[ref{m.Key, m.Name}]}
			}
			resp.Results = append(resp.Results, result)
		}
	}, func() {})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// lossy makes about every third call fail, in every way.
func (s *server) lossy(seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	s.fault = func(int) fault {
		if rng.IntN(3) > 0 {
			return none
		}
		return fault(rng.IntN(int(repeated)) + 1)
	}
	s.item = func(string) (*commonpb.Error, bool) {
		switch rng.IntN(40) {
		case 0:
			return &commonpb.Error{Code: int32(codes.ResourceExhausted), Reason: commonpb.Reason_REASON_STORE_FULL,
				Message: "no room", RetryAfterNs: int64(30 * time.Millisecond)}, false
		case 1:
			return &commonpb.Error{Code: int32(codes.Unknown), Reason: commonpb.Reason_REASON_OUTCOME_UNKNOWN, Message: "who knows"}, true
		case 2:
			return &commonpb.Error{Code: int32(codes.Unavailable), Reason: commonpb.Reason_REASON_UNAVAILABLE, Message: "not mine"}, false
		}
		return nil, false
	}
}
