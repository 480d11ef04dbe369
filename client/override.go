package client

import (
	"cmp"
	"context"
	"time"

	"google.golang.org/grpc"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// Override is what a limit of a key goes by in the place of what its callers state.
type Override struct {
	// Rate is the limit. Its Algorithm is not used: that of each check stays.
	Rate Rate
	// Left is when it ends by itself; 0 = it does not.
	Left time.Duration
}

func overrideOf(o *limitpb.Override) *Override {
	if o == nil {
		return nil
	}
	return &Override{Rate: Rate{Limit: o.Limit, Period: time.Duration(o.PeriodNs), Burst: o.Burst}, Left: time.Duration(o.EndsAfterNs)}
}

// SetOverride has the limit of the key go by another rate than its callers state, this handle's
// among them, from the next check on: for so long, or until ClearOverride if that is 0. What was
// spent stays spent. The algorithm stays that of each check. It reports whether there was an
// override before, of which it takes the place.
func (l Limit) SetOverride(ctx context.Context, key string, rate Rate, lasts time.Duration, opts ...CallOption) (existed bool, err error) {
	if rate.Algorithm != TokenBucket {
		return false, about(invalid("algorithm", "is %s: an override has none, that of each check stays", rate.Algorithm), "set override", key, "")
	}
	return l.change(ctx, "set override", key, opts, func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId, idem string, opts ...grpc.CallOption) (overrode, error) {
		return limitpb.NewLimitServiceClient(conn).SetOverride(ctx, &limitpb.SetOverrideRequest{Key: key, Name: l.name,
			Limit: rate.Limit, PeriodNs: int64(rate.Period), Burst: rate.Burst, EndsAfterNs: int64(lasts), RequestId: id, IdempotencyKey: idem}, opts...)
	})
}

// ClearOverride ends the override of the limit of the key: from the next check on it goes by what
// that states. It reports whether there was one.
func (l Limit) ClearOverride(ctx context.Context, key string, opts ...CallOption) (existed bool, err error) {
	return l.change(ctx, "clear override", key, opts, func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId, idem string, opts ...grpc.CallOption) (overrode, error) {
		return limitpb.NewLimitServiceClient(conn).ClearOverride(ctx, &limitpb.ClearOverrideRequest{Key: key, Name: l.name, RequestId: id, IdempotencyKey: idem}, opts...)
	})
}

// overrode is the answer to what changes an override.
type overrode interface {
	GetExisted() bool
	GetEpoch() uint64
	GetOwner() string
}

// change sends what changes an override.
func (l Limit) change(ctx context.Context, what, key string, opts []CallOption,
	send func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId, idem string, opts ...grpc.CallOption) (overrode, error)) (existed bool, err error) {
	idem, err := keyOf(opts)
	if err := cmp.Or(l.c.judge(ctx, key, l.name), err); err != nil {
		return false, about(err, what, key, "")
	}
	op := l.c.ops.begin().under(idem)
	defer op.finish()
	r, err := ask(ctx, l.c, toKey(key, false).of(what), op, func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId, opts ...grpc.CallOption) (overrode, error) {
		return send(ctx, conn, unlessKeyed(id, idem), idem, opts...)
	})
	if err != nil {
		return false, err
	}
	return r.GetExisted(), nil
}

// Override returns the override of the limit of the key, nil if it has none.
func (l Limit) Override(ctx context.Context, key string) (*Override, error) {
	if err := l.c.judge(ctx, key, l.name); err != nil {
		return nil, about(err, "get override", key, "")
	}
	r, err := ask(ctx, l.c, toKey(key, true).of("get override"), nil, func(ctx context.Context, conn *grpc.ClientConn, _ *commonpb.RequestId, opts ...grpc.CallOption) (*limitpb.GetOverrideResponse, error) {
		return limitpb.NewLimitServiceClient(conn).GetOverride(ctx, &limitpb.GetOverrideRequest{Key: key, Name: l.name}, opts...)
	})
	return overrideOf(r.GetOverride()), err
}
