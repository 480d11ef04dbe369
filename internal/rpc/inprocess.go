package rpc

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// offered are the services of the API as Call finds them: by the full names of their
// methods that are not streams.
type offered map[string]offer

type offer struct {
	desc grpc.MethodDesc
	impl any
}

// offer serves a service of the API: over gRPC, and to Call.
func (s *Server) offer(sd *grpc.ServiceDesc, impl any) {
	s.grpc.RegisterService(sd, impl)
	for _, m := range sd.Methods {
		s.offered["/"+sd.ServiceName+"/"+m.MethodName] = offer{m, impl}
	}
}

// Methods returns the full names, "/package.Service/Method", of what Call does.
func (s *Server) Methods() []string { return slices.Sorted(maps.Keys(s.offered)) }

// Call does a call that came to this process in another form than gRPC. It goes through
// the same interceptor as one over gRPC: bounds, metrics, and whatever else is asked of
// callers. The error is a gRPC status.
func (s *Server) Call(ctx context.Context, method string, request any) (any, error) {
	o, ok := s.offered[method]
	if !ok {
		return nil, status.Error(codes.Unimplemented, fmt.Sprintf("there is no method %s", method))
	}
	select {
	case <-s.stopping: // gRPC refuses its calls by itself then
		return nil, s.refuse(errStopping)
	default:
	}
	read := func(any) error { return nil } // it is read already
	return o.desc.Handler(o.impl, ctx, read, func(ctx context.Context, _ any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		//guard:http-in-the-chain s.unary(ctx, request, info, handler) -> handler(ctx, request)
		return s.unary(ctx, request, info, handler)
	})
}

// MaxRequest returns how many bytes a request of a method has at most.
func (s *Server) MaxRequest(method string) int { return s.cfg.Metrics.method(method).most() }
