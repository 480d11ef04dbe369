package system

import (
	"context"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// oldNames are options of connections to nodes that may be older than the names of today:
// a call that is answered UNIMPLEMENTED did nothing, and is made again under the name that
// it had before each noun had a package of its own.
func oldNames() []grpc.DialOption {
	var old sync.Map // by *grpc.ClientConn: its node answered to an old name last
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			err := next(ctx, method, req, reply, cc, opts...)
			if status.Code(err) != codes.Unimplemented {
				old.Delete(cc)
				return err
			}
			old.Store(cc, true)
			return next(ctx, oldName(method), req, reply, cc, opts...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			if _, is := old.Load(cc); is {
				method = oldName(method)
			}
			return next(ctx, desc, cc, method, opts...)
		}),
	}
}

// oldName returns what a method was called in the one package of then.
func oldName(method string) string {
	service, name, _ := strings.Cut(strings.TrimPrefix(method, "/keystead."), ".v1.")
	if service == "admin" {
		_, call, _ := strings.Cut(name, "/")
		return "/keystead.v1.ClusterService/" + call
	}
	name = strings.Replace(name, "/CompareAndSet", "/SetIf", 1)
	name = strings.Replace(name, "/GetOwners", "/GetOwner", 1)
	return "/keystead.v1." + name
}
