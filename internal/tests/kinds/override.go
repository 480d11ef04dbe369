package kinds

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/internal/tests/history"
	"github.com/keystead/keystead/owner"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// Override is a limit that is overridden, of which the override is looked at and not the tokens.
var Override = Kind{
	Name:  "override",
	Of:    owner.KindLimit,
	Share: 1,
	Work:  override,
	Probe: Probe{In: history.OverrideInput{Check: true}, Ask: func(ctx context.Context, conn *grpc.ClientConn, key string) (Answer, error) {
		req := checkOverridden(key)
		req.Peek = true
		r, err := limitpb.NewLimitServiceClient(conn).Check(ctx, req)
		return Answer{appliedOutput(r), r.GetOwner(), r.GetEpoch()}, err
	}},
	Model:    func(int64) history.Model { return history.Override() },
	Workload: "check",
}

func checkOverridden(key string) *limitpb.CheckRequest {
	return &limitpb.CheckRequest{Key: key, Limit: 1, PeriodNs: int64(time.Second)}
}

func appliedOutput(r *limitpb.CheckResponse) any {
	out := history.OverrideOutput{Replay: replayed(r.GetReplay())}
	if r.GetOverridden() {
		out.Applied = r.GetLimit()
	}
	return out
}

// override sets an override, clears it, or looks which one is in force.
func override(ctx context.Context, w *Worker, o Object) {
	switch w.rng.IntN(4) {
	case 0:
		in := history.OverrideInput{Limit: 2 + w.rng.Uint64N(1000)}
		_, _, _ = do(ctx, w, operation[*limitpb.SetOverrideResponse]{object: o, in: in, keyed: true, repeat: true,
			call: func(ctx context.Context, conn *grpc.ClientConn, as name, opt grpc.CallOption) (*limitpb.SetOverrideResponse, error) {
				return limitpb.NewLimitServiceClient(conn).SetOverride(ctx, &limitpb.SetOverrideRequest{Key: o.Key, Limit: in.Limit, PeriodNs: int64(time.Second), RequestId: as.id, IdempotencyKey: as.key}, opt)
			},
			output: func(r *limitpb.SetOverrideResponse) any {
				return history.OverrideOutput{Existed: r.GetExisted(), Replay: replayed(r.GetReplay())}
			},
		})
	case 1:
		_, _, _ = do(ctx, w, operation[*limitpb.ClearOverrideResponse]{object: o, in: history.OverrideInput{}, keyed: true, repeat: true,
			call: func(ctx context.Context, conn *grpc.ClientConn, as name, opt grpc.CallOption) (*limitpb.ClearOverrideResponse, error) {
				return limitpb.NewLimitServiceClient(conn).ClearOverride(ctx, &limitpb.ClearOverrideRequest{Key: o.Key, RequestId: as.id, IdempotencyKey: as.key}, opt)
			},
			output: func(r *limitpb.ClearOverrideResponse) any {
				return history.OverrideOutput{Existed: r.GetExisted(), Replay: replayed(r.GetReplay())}
			},
		})
	default:
		_, _, _ = do(ctx, w, operation[*limitpb.CheckResponse]{object: o, in: history.OverrideInput{Check: true}, bare: true,
			call: func(ctx context.Context, conn *grpc.ClientConn, _ name, opt grpc.CallOption) (*limitpb.CheckResponse, error) {
				return limitpb.NewLimitServiceClient(conn).Check(ctx, checkOverridden(o.Key), opt)
			},
			output: appliedOutput,
		})
	}
}
