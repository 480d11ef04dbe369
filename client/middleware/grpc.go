package middleware

import (
	"context"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// GRPC is what of gRPC calls is limited.
type GRPC struct {
	// Key is what a call is limited by. Default CallerIP(Proxies{}), the address that the
	// connection comes from. A key that is longer than 512 bytes, or is not
	// UTF-8, is replaced by its SHA-256.
	Key GRPCKey
	// Cost is how many tokens a call of a method spends; 0 = it is not limited. Default 1.
	Cost func(ctx context.Context, method string) uint64
}

func (o GRPC) withDefaults() GRPC {
	if o.Key == nil {
		o.Key = CallerIP(Proxies{})
	}
	if o.Cost == nil {
		o.Cost = func(context.Context, string) uint64 { return 1 }
	}
	return o
}

// Unary returns the interceptor of unary calls.
func (l *Limiter) Unary(o GRPC) grpc.UnaryServerInterceptor {
	o = o.withDefaults()
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		set := func(md metadata.MD) error { return grpc.SetHeader(ctx, md) }
		if err := l.call(ctx, o, info.FullMethod, set); err != nil {
			return nil, err
		}
		return next(ctx, req)
	}
}

// Stream returns the interceptor of streams, which are checked when they begin.
func (l *Limiter) Stream(o GRPC) grpc.StreamServerInterceptor {
	o = o.withDefaults()
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		if err := l.call(ss.Context(), o, info.FullMethod, ss.SetHeader); err != nil {
			return err
		}
		return next(srv, ss)
	}
}

// call checks a call, and returns the error that it is refused with.
func (l *Limiter) call(ctx context.Context, o GRPC, method string, set func(metadata.MD) error) error {
	v := l.decide(ctx, o.Key(ctx, method), o.Cost(ctx, method))
	md := metadata.MD{}
	if policy, left, ok := l.fields(&v); ok {
		md.Set(policyFieldName, policy)
		md.Set(rateLimitField, left)
	}
	return refusal(&v, l.name, v.decision.RetryAfter, md, set)
}

// refusal sets the headers of a call, and returns the error that it is refused with.
func refusal(v *verdict, name string, after time.Duration, md metadata.MD, set func(metadata.MD) error) error {
	code, message := codes.ResourceExhausted, "too many requests: the limit "+name+" is used up"
	if !v.limited {
		code, message, after = codes.Unavailable, "the limit "+name+" cannot be checked at the moment", pause
	}
	if !v.allowed {
		md.Set(retryAfterField, retryAfter(after))
	}
	if len(md) > 0 {
		_ = set(md) // fails when headers were sent already, by an interceptor before
	}
	if v.allowed {
		return nil
	}
	s := status.New(code, message)
	if told, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(after)}); err == nil {
		s = told
	}
	return s.Err()
}
