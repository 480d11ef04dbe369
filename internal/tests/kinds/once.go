package kinds

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/internal/tests/history"
	"github.com/keystead/keystead/owner"
	oncepb "github.com/keystead/keystead/proto/keystead/once/v1"
)

// Once is work that is done once, again and again: its results are kept for short.
var Once = Kind{
	Name:     "once",
	Of:       owner.KindOnce,
	Share:    2,
	Work:     workOnce,
	Probe:    Probe{In: history.OnceInput{Op: history.OnceGet}, Ask: getOnce},
	Model:    history.Once,
	Workload: "once",
}

// Results are kept between these.
const leastKeep, mostKeep = time.Second, 2 * time.Second

var oncePhases = map[oncepb.Phase]history.OncePhase{oncepb.Phase_PHASE_UNDER_WAY: history.OnceUnderWay, oncepb.Phase_PHASE_DONE: history.OnceDone}

var onceOutcomes = map[oncepb.Outcome]history.OncePhase{oncepb.Outcome_OUTCOME_FIRST: history.OnceFirst, oncepb.Outcome_OUTCOME_BUSY: history.OnceUnderWay, oncepb.Outcome_OUTCOME_DONE: history.OnceDone}

func getOnce(ctx context.Context, conn *grpc.ClientConn, key string) (Answer, error) {
	r, err := oncepb.NewOnceServiceClient(conn).Get(ctx, &oncepb.GetRequest{Key: key})
	return Answer{history.OnceOutput{Phase: oncePhases[r.GetPhase()], Token: r.GetToken(), Result: string(r.GetResult()), TTL: r.GetTtlNs()}, r.GetOwner(), r.GetEpoch()}, err
}

// workOnce begins, and if it is first mostly completes; some abandon, some are gone and complete
// late, when another may have begun.
func workOnce(ctx context.Context, w *Worker, o Object) {
	token, ok := beginOnce(ctx, w, o)
	if !ok {
		return
	}
	w.Rest(ctx, writePace)
	if w.rng.IntN(3) == 0 {
		renewOnce(ctx, w, o, token)
	}
	switch w.rng.IntN(8) {
	case 0, 1:
		abandonOnce(ctx, w, o, token)
		if w.rng.IntN(2) == 0 {
			completeOnce(ctx, w, o, token) // which must be refused
		}
	case 2:
		wait(ctx, w.cfg.LongestTTL)
		completeOnce(ctx, w, o, token)
	case 3: // it is gone
	default:
		completeOnce(ctx, w, o, token)
		if w.rng.IntN(2) == 0 {
			completeOnce(ctx, w, o, token) // another result, which must not replace it
		}
	}
}

func beginOnce(ctx context.Context, w *Worker, o Object) (token uint64, ok bool) {
	in := history.OnceInput{Op: history.OnceBegin, TTL: w.ttl()}
	if w.rng.IntN(2) == 0 {
		in.Wait = 1 + w.rng.Int64N(int64(mostWait))
	}
	r, _, ok := do(ctx, w, operation[*oncepb.BeginResponse]{
		object: o, in: in, wait: time.Duration(in.Wait), keyed: true, late: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, as name, opt grpc.CallOption) (*oncepb.BeginResponse, error) {
			return oncepb.NewOnceServiceClient(conn).Begin(ctx, &oncepb.BeginRequest{Key: o.Key, Fingerprint: "work", Holder: fmt.Sprint(w.number), TtlNs: in.TTL, WaitNs: in.Wait, RequestId: as.id, IdempotencyKey: as.key}, opt)
		},
		output: func(r *oncepb.BeginResponse) any {
			return history.OnceOutput{Phase: onceOutcomes[r.Outcome], Token: r.Token, Result: string(r.Result), TTL: r.TtlNs, Replay: replayed(r.Replay)}
		},
	})
	return r.GetToken(), ok && r.GetOutcome() == oncepb.Outcome_OUTCOME_FIRST
}

func renewOnce(ctx context.Context, w *Worker, o Object, token uint64) {
	in := history.OnceInput{Op: history.OnceRenew, Token: token, TTL: w.ttl()}
	_, _, _ = do(ctx, w, operation[*oncepb.RenewResponse]{
		object: o, in: in, bare: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, _ name, opt grpc.CallOption) (*oncepb.RenewResponse, error) {
			return oncepb.NewOnceServiceClient(conn).Renew(ctx, &oncepb.RenewRequest{Key: o.Key, Token: token, TtlNs: in.TTL}, opt)
		},
		output: func(r *oncepb.RenewResponse) any { return history.OnceOutput{OK: r.Renewed} },
	})
}

func completeOnce(ctx context.Context, w *Worker, o Object, token uint64) {
	w.grants++
	in := history.OnceInput{Op: history.OnceComplete, Token: token, Result: fmt.Sprint(w.number, "/", w.grants), Keep: int64(leastKeep) + w.rng.Int64N(int64(mostKeep-leastKeep))}
	_, _, _ = do(ctx, w, operation[*oncepb.CompleteResponse]{
		object: o, in: in, keyed: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, as name, opt grpc.CallOption) (*oncepb.CompleteResponse, error) {
			return oncepb.NewOnceServiceClient(conn).Complete(ctx, &oncepb.CompleteRequest{Key: o.Key, Token: token, Result: []byte(in.Result), KeepNs: in.Keep, RequestId: as.id, IdempotencyKey: as.key}, opt)
		},
		output: func(r *oncepb.CompleteResponse) any {
			return history.OnceOutput{OK: r.Completed, Replay: replayed(r.Replay)}
		},
	})
}

func abandonOnce(ctx context.Context, w *Worker, o Object, token uint64) {
	_, _, _ = do(ctx, w, operation[*oncepb.AbandonResponse]{
		object: o, in: history.OnceInput{Op: history.OnceAbandon, Token: token}, keyed: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, as name, opt grpc.CallOption) (*oncepb.AbandonResponse, error) {
			return oncepb.NewOnceServiceClient(conn).Abandon(ctx, &oncepb.AbandonRequest{Key: o.Key, Token: token, RequestId: as.id, IdempotencyKey: as.key}, opt)
		},
		output: func(r *oncepb.AbandonResponse) any {
			return history.OnceOutput{OK: r.Abandoned, Replay: replayed(r.Replay)}
		},
	})
}
