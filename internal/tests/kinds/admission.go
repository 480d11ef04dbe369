package kinds

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/internal/tests/history"
	"github.com/keystead/keystead/owner"
	admissionpb "github.com/keystead/keystead/proto/keystead/admission/v1"
)

// Admission is an admission of counters that are demanded together.
var Admission = Kind{
	Name:     "admission",
	Of:       owner.KindAdmission,
	Share:    2,
	Work:     admitTwins,
	Probe:    Probe{In: history.AdmissionInput{Op: history.AdmissionPeek}, Ask: peekTwins},
	Model:    history.Admission,
	Workload: "counter",
}

// twins demands the same of all counters.
func twins(cost int64) (all []*admissionpb.Demand) {
	for i := range history.AdmissionTwins {
		all = append(all, &admissionpb.Demand{Name: fmt.Sprint("twin", i), Cost: uint64(cost), Counter: &admissionpb.CounterDemand{Max: history.AdmissionMax}})
	}
	return all
}

func leftOfTwins(all []*admissionpb.DemandResult, peeked int64) (left [history.AdmissionTwins]int64) {
	for i, d := range all {
		if left[i] = int64(d.Remaining); !d.Refused {
			left[i] += peeked
		}
	}
	return left
}

func peekTwins(ctx context.Context, conn *grpc.ClientConn, key string) (Answer, error) {
	r, err := admissionpb.NewAdmissionServiceClient(conn).Admit(ctx, &admissionpb.AdmitRequest{Key: key, Demands: twins(1), Peek: true})
	return Answer{history.AdmissionOutput{Left: leftOfTwins(r.GetDemands(), 1)}, r.GetOwner(), r.GetEpoch()}, err
}

// admitTwins reserves some of all counters, and says later what it has cost.
func admitTwins(ctx context.Context, w *Worker, o Object) {
	in := history.AdmissionInput{Op: history.AdmissionAdmit, Cost: 1 + w.rng.Int64N(8)}
	ttl := w.ttl()
	out, _, ok := do(ctx, w, operation[*admissionpb.AdmitResponse]{
		object: o, in: in, keyed: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, as name, opt grpc.CallOption) (*admissionpb.AdmitResponse, error) {
			return admissionpb.NewAdmissionServiceClient(conn).Admit(ctx, &admissionpb.AdmitRequest{Key: o.Key, Demands: twins(in.Cost), HoldNs: ttl, OnExpiry: admissionpb.OnExpiry_ON_EXPIRY_CHARGE,
				RequestId: as.id, IdempotencyKey: as.key}, opt)
		},
		output: func(r *admissionpb.AdmitResponse) any {
			return history.AdmissionOutput{OK: r.Admitted, Left: leftOfTwins(r.Demands, 0), Replay: replayed(r.Replay)}
		},
	})
	if !ok || !out.Admitted {
		return
	}
	w.Rest(ctx, writePace)
	settleTwins(ctx, w, o, out.HoldId, in.Cost)
}

func settleTwins(ctx context.Context, w *Worker, o Object, hold string, cost int64) {
	in := history.AdmissionInput{Op: history.AdmissionSettle, Cost: cost}
	if w.rng.IntN(3) > 0 {
		in.Real = w.rng.Int64N(cost + 1)
	}
	var costs []*admissionpb.Cost
	for i := range history.AdmissionTwins {
		costs = append(costs, &admissionpb.Cost{Name: fmt.Sprint("twin", i), Cost: uint64(in.Real)})
	}
	if w.rng.IntN(4) > 0 { // so that they are not used up for good
		in.Real, costs = 0, nil
	}
	_, _, _ = do(ctx, w, operation[*admissionpb.SettleResponse]{
		object: o, in: in, keyed: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, as name, opt grpc.CallOption) (*admissionpb.SettleResponse, error) {
			return admissionpb.NewAdmissionServiceClient(conn).Settle(ctx, &admissionpb.SettleRequest{Key: o.Key, HoldId: hold, Costs: costs, Release: costs == nil, RequestId: as.id, IdempotencyKey: as.key}, opt)
		},
		output: func(r *admissionpb.SettleResponse) any {
			return history.AdmissionOutput{OK: r.State != admissionpb.HoldState_HOLD_STATE_HOLD_UNKNOWN, Replay: replayed(r.Replay)}
		},
	})
}
