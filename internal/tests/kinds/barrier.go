package kinds

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/internal/tests/history"
	"github.com/keystead/keystead/owner"
	barrierpb "github.com/keystead/keystead/proto/keystead/barrier/v1"
)

// Barrier is a barrier of some parties, fewer than there are workers.
var Barrier = Kind{
	Name:     "barrier",
	Of:       owner.KindBarrier,
	Share:    2,
	Work:     gathers,
	Probe:    Probe{In: history.BarrierInput{Op: history.BarrierInspect}, Ask: inspectBarrier},
	Model:    history.Barrier,
	Workload: "counter",
}

const (
	// parties is how many of them a barrier has.
	parties = 3
	// mostParties is how many the model tells apart.
	mostParties = 64
)

func inspectBarrier(ctx context.Context, conn *grpc.ClientConn, key string) (Answer, error) {
	r, err := barrierpb.NewBarrierServiceClient(conn).Inspect(ctx, &barrierpb.InspectRequest{Key: key})
	return Answer{history.BarrierOutput{Current: r.GetPhase(), Here: r.GetArrivedParties()}, r.GetOwner(), r.GetEpoch()}, err
}

// gathers arrives, waits for the others for a while, and sometimes leaves or breaks the phase.
func gathers(ctx context.Context, w *Worker, o Object) {
	if w.rng.IntN(16) == 0 {
		breakBarrier(ctx, w, o)
		return
	}
	party := uint8(w.number % mostParties)
	out, _, ok := do(ctx, w, operation[*barrierpb.ArriveResponse]{
		object: o, in: history.BarrierInput{Op: history.BarrierArrive, Party: party, Parties: parties}, keyed: true, late: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, as name, opt grpc.CallOption) (*barrierpb.ArriveResponse, error) {
			return barrierpb.NewBarrierServiceClient(conn).Arrive(ctx, &barrierpb.ArriveRequest{Key: o.Key, Party: fmt.Sprint(party), Parties: parties, RequestId: as.id, IdempotencyKey: as.key}, opt)
		},
		output: func(r *barrierpb.ArriveResponse) any {
			return history.BarrierOutput{OK: r.Arrived, Phase: r.Phase, Last: r.Last, Fate: history.PhaseFate(r.Verdict), Current: r.Current, Here: r.ArrivedParties, Replay: replayed(r.Replay)}
		},
	})
	if !ok || !out.Arrived || out.Last {
		return
	}
	if awaitPhase(ctx, w, o, out.Phase) || w.rng.IntN(3) > 0 {
		return
	}
	_, _, _ = do(ctx, w, operation[*barrierpb.LeaveResponse]{
		object: o, in: history.BarrierInput{Op: history.BarrierLeave, Party: party, Phase: out.Phase}, keyed: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, as name, opt grpc.CallOption) (*barrierpb.LeaveResponse, error) {
			return barrierpb.NewBarrierServiceClient(conn).Leave(ctx, &barrierpb.LeaveRequest{Key: o.Key, Party: fmt.Sprint(party), Phase: out.Phase, RequestId: as.id, IdempotencyKey: as.key}, opt)
		},
		output: func(r *barrierpb.LeaveResponse) any {
			return history.BarrierOutput{OK: r.Left, Replay: replayed(r.Replay)}
		},
	})
}

// awaitPhase reports whether a phase has ended.
func awaitPhase(ctx context.Context, w *Worker, o Object, phase uint64) bool {
	wait := time.Duration(w.rng.Int64N(int64(mostWait)))
	out, _, ok := do(ctx, w, operation[*barrierpb.AwaitResponse]{
		object: o, in: history.BarrierInput{Op: history.BarrierAwait, Phase: phase}, wait: wait, bare: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, _ name, opt grpc.CallOption) (*barrierpb.AwaitResponse, error) {
			return barrierpb.NewBarrierServiceClient(conn).Await(ctx, &barrierpb.AwaitRequest{Key: o.Key, Phase: phase, WaitNs: int64(wait)}, opt)
		},
		output: func(r *barrierpb.AwaitResponse) any {
			return history.BarrierOutput{Fate: history.PhaseFate(r.Verdict), Current: r.Current, Here: r.ArrivedParties}
		},
	})
	return ok && out.Verdict != barrierpb.Verdict_VERDICT_UNDER_WAY
}

func breakBarrier(ctx context.Context, w *Worker, o Object) {
	_, _, _ = do(ctx, w, operation[*barrierpb.BreakResponse]{
		object: o, in: history.BarrierInput{Op: history.BarrierBreak}, keyed: true, late: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, as name, opt grpc.CallOption) (*barrierpb.BreakResponse, error) {
			return barrierpb.NewBarrierServiceClient(conn).Break(ctx, &barrierpb.BreakRequest{Key: o.Key, RequestId: as.id, IdempotencyKey: as.key}, opt)
		},
		output: func(r *barrierpb.BreakResponse) any {
			return history.BarrierOutput{OK: r.Broken, Replay: replayed(r.Replay)}
		},
	})
}
