package bench

import (
	"context"
	"errors"
	"io"
	"net"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"

	"github.com/keystead/keystead/internal/rpc"
	admissionpb "github.com/keystead/keystead/proto/keystead/admission/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	idpb "github.com/keystead/keystead/proto/keystead/id/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
	oncepb "github.com/keystead/keystead/proto/keystead/once/v1"
	registerpb "github.com/keystead/keystead/proto/keystead/register/v1"
	semaphorepb "github.com/keystead/keystead/proto/keystead/semaphore/v1"
)

// epoch is as long on the wire as a real one.
const epoch = 23_000_000_000

// ServeEcho answers every call that a workload makes with constants, until the
// listener is closed. tuned gives it the options of a node.
func ServeEcho(l net.Listener, tuned bool) error {
	var opts []grpc.ServerOption
	if tuned {
		opts = rpc.Options()
	}
	s := grpc.NewServer(opts...)
	defer s.Stop()
	limitpb.RegisterLimitServiceServer(s, echoLimits{})
	counterpb.RegisterCounterServiceServer(s, echoCounters{})
	lockpb.RegisterLockServiceServer(s, echoLocks{})
	semaphorepb.RegisterSemaphoreServiceServer(s, echoSemaphores{})
	oncepb.RegisterOnceServiceServer(s, echoOnces{})
	admissionpb.RegisterAdmissionServiceServer(s, echoAdmissions{})
	registerpb.RegisterRegisterServiceServer(s, echoRegisters{})
	rlspb.RegisterRateLimitServiceServer(s, echoRLS{})
	idpb.RegisterIdServiceServer(s, echoIDs{})
	return s.Serve(l)
}

type echoLimits struct {
	limitpb.UnimplementedLimitServiceServer
}

func echoCheck() *limitpb.CheckResponse {
	return &limitpb.CheckResponse{Allowed: true, Capacity: 1_000_000, Limit: 1_000_000, Remaining: 999_999, ResetAfterNs: 1_000, Epoch: epoch}
}

func echoResults(n int) []*limitpb.CheckResult {
	results := make([]*limitpb.CheckResult, n)
	for i := range results {
		results[i] = &limitpb.CheckResult{Response: echoCheck()}
	}
	return results
}

func (echoLimits) Check(context.Context, *limitpb.CheckRequest) (*limitpb.CheckResponse, error) {
	return echoCheck(), nil
}

func (echoLimits) BatchCheck(_ context.Context, req *limitpb.BatchCheckRequest) (*limitpb.BatchCheckResponse, error) {
	return &limitpb.BatchCheckResponse{Results: echoResults(len(req.Checks))}, nil
}

func (echoLimits) StreamCheck(s grpc.BidiStreamingServer[limitpb.StreamCheckRequest, limitpb.StreamCheckResponse]) error {
	for {
		req, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.Send(&limitpb.StreamCheckResponse{Tag: req.Tag, Results: echoResults(len(req.Checks))}); err != nil {
			return err
		}
	}
}

type echoCounters struct {
	counterpb.UnimplementedCounterServiceServer
}

func (echoCounters) Add(context.Context, *counterpb.AddRequest) (*counterpb.AddResponse, error) {
	return &counterpb.AddResponse{Applied: true, Value: 1_000_000, Version: 1_000_000, Current: 1_000_000, Epoch: epoch}, nil
}

type echoLocks struct {
	lockpb.UnimplementedLockServiceServer
}

func (echoLocks) Acquire(context.Context, *lockpb.AcquireRequest) (*lockpb.AcquireResponse, error) {
	return &lockpb.AcquireResponse{Acquired: true, Token: epoch << 24, TtlNs: 10_000_000_000, Epoch: epoch}, nil
}

func (echoLocks) Release(context.Context, *lockpb.ReleaseRequest) (*lockpb.ReleaseResponse, error) {
	return &lockpb.ReleaseResponse{Released: true, Epoch: epoch}, nil
}

func (e echoLocks) BatchAcquire(ctx context.Context, req *lockpb.BatchAcquireRequest) (*lockpb.BatchAcquireResponse, error) {
	r := &lockpb.BatchAcquireResponse{Results: make([]*lockpb.AcquireResult, len(req.Acquires))}
	for i := range r.Results {
		a, _ := e.Acquire(ctx, nil) // has no errors
		r.Results[i] = &lockpb.AcquireResult{Response: a}
	}
	return r, nil
}

func (e echoLocks) BatchRelease(ctx context.Context, req *lockpb.BatchReleaseRequest) (*lockpb.BatchReleaseResponse, error) {
	r := &lockpb.BatchReleaseResponse{Results: make([]*lockpb.ReleaseResult, len(req.Releases))}
	for i := range r.Results {
		a, _ := e.Release(ctx, nil) // has no errors
		r.Results[i] = &lockpb.ReleaseResult{Response: a}
	}
	return r, nil
}

type echoOnces struct {
	oncepb.UnimplementedOnceServiceServer
}

func (echoOnces) Begin(context.Context, *oncepb.BeginRequest) (*oncepb.BeginResponse, error) {
	return &oncepb.BeginResponse{Outcome: oncepb.Outcome_OUTCOME_FIRST, Token: epoch << 24, Attempt: 1, TtlNs: 10_000_000_000, Epoch: epoch}, nil
}

func (echoOnces) Complete(context.Context, *oncepb.CompleteRequest) (*oncepb.CompleteResponse, error) {
	return &oncepb.CompleteResponse{Completed: true, KeepNs: 1_000_000_000, Epoch: epoch}, nil
}

type echoSemaphores struct {
	semaphorepb.UnimplementedSemaphoreServiceServer
}

func (echoSemaphores) Acquire(context.Context, *semaphorepb.AcquireRequest) (*semaphorepb.AcquireResponse, error) {
	return &semaphorepb.AcquireResponse{Acquired: true, Token: epoch << 24, TtlNs: 10_000_000_000, Capacity: 10, Held: 1, Epoch: epoch}, nil
}

func (echoSemaphores) Release(context.Context, *semaphorepb.ReleaseRequest) (*semaphorepb.ReleaseResponse, error) {
	return &semaphorepb.ReleaseResponse{Released: true, Epoch: epoch}, nil
}

type echoRegisters struct {
	registerpb.UnimplementedRegisterServiceServer
}

func (echoRegisters) Put(context.Context, *registerpb.PutRequest) (*registerpb.PutResponse, error) {
	return &registerpb.PutResponse{Applied: true, Version: epoch << 24, Epoch: epoch}, nil
}

var echoValue = make([]byte, valueSize)

func (echoRegisters) Get(context.Context, *registerpb.GetRequest) (*registerpb.GetResponse, error) {
	return &registerpb.GetResponse{Exists: true, Value: echoValue, Version: epoch << 24, Epoch: epoch}, nil
}

type echoIDs struct {
	idpb.UnimplementedIdServiceServer
}

func (echoIDs) Next(_ context.Context, req *idpb.NextRequest) (*idpb.NextResponse, error) {
	return &idpb.NextResponse{First: epoch << 24, Count: req.Count, Node: "echo"}, nil
}
