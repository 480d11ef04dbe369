package bench

import (
	"context"
	"errors"
	"io"
	"net"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"

	"github.com/keystead/keystead/internal/rpc"
	pb "github.com/keystead/keystead/proto/keystead/v1"
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
	pb.RegisterLimitServiceServer(s, echoLimits{})
	pb.RegisterCounterServiceServer(s, echoCounters{})
	pb.RegisterLockServiceServer(s, echoLocks{})
	rlspb.RegisterRateLimitServiceServer(s, echoRLS{})
	pb.RegisterIdServiceServer(s, echoIDs{})
	return s.Serve(l)
}

type echoLimits struct {
	pb.UnimplementedLimitServiceServer
}

func echoCheck() *pb.CheckResponse {
	return &pb.CheckResponse{Allowed: true, Limit: 1_000_000, Remaining: 999_999, ResetAfterNs: 1_000, Epoch: epoch}
}

func echoResults(n int) []*pb.CheckResult {
	results := make([]*pb.CheckResult, n)
	for i := range results {
		results[i] = &pb.CheckResult{Response: echoCheck()}
	}
	return results
}

func (echoLimits) Check(context.Context, *pb.CheckRequest) (*pb.CheckResponse, error) {
	return echoCheck(), nil
}

func (echoLimits) BatchCheck(_ context.Context, req *pb.BatchCheckRequest) (*pb.BatchCheckResponse, error) {
	return &pb.BatchCheckResponse{Results: echoResults(len(req.Checks))}, nil
}

func (echoLimits) StreamCheck(s grpc.BidiStreamingServer[pb.StreamCheckRequest, pb.StreamCheckResponse]) error {
	for {
		req, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.Send(&pb.StreamCheckResponse{Tag: req.Tag, Results: echoResults(len(req.Checks))}); err != nil {
			return err
		}
	}
}

type echoCounters struct {
	pb.UnimplementedCounterServiceServer
}

func (echoCounters) Add(context.Context, *pb.AddRequest) (*pb.AddResponse, error) {
	return &pb.AddResponse{Applied: true, Value: 1_000_000, Version: 1_000_000, Current: 1_000_000, Epoch: epoch}, nil
}

type echoLocks struct {
	pb.UnimplementedLockServiceServer
}

func (echoLocks) Acquire(context.Context, *pb.AcquireRequest) (*pb.AcquireResponse, error) {
	return &pb.AcquireResponse{Acquired: true, Token: epoch << 24, TtlNs: 10_000_000_000, Epoch: epoch}, nil
}

func (echoLocks) Release(context.Context, *pb.ReleaseRequest) (*pb.ReleaseResponse, error) {
	return &pb.ReleaseResponse{Released: true, Epoch: epoch}, nil
}

type echoIDs struct {
	pb.UnimplementedIdServiceServer
}

func (echoIDs) Next(_ context.Context, req *pb.NextRequest) (*pb.NextResponse, error) {
	return &pb.NextResponse{First: epoch << 24, Count: req.Count, Node: "echo"}, nil
}
