package bench

import (
	"context"
	"fmt"

	admissionpb "github.com/keystead/keystead/proto/keystead/admission/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
)

// levels are the names of the limits of a key that are charged together.
var levels = [4]string{"bench-user", "bench-team", "bench-model", "bench-org"}

func (w *worker) admit() *admissionpb.AdmitRequest {
	q := &admissionpb.AdmitRequest{Key: w.key(), Name: "bench-admission"}
	for _, name := range levels {
		q.Demands = append(q.Demands, &admissionpb.Demand{Name: name, Limit: &admissionpb.LimitDemand{Limit: 1_000_000, PeriodNs: 1_000_000_000}})
	}
	return q
}

// startAdmit charges four limits of a key in one call.
func startAdmit(_ context.Context, w *worker) (cycle, error) {
	c := admissionpb.NewAdmissionServiceClient(w.conn)
	return func(ctx context.Context) error {
		q := w.admit()
		q.RequestId = w.requestID()
		_, err := c.Admit(ctx, q)
		return err
	}, nil
}

// startHold reserves four limits of a key, and settles them. A hold has a request id in any case.
func startHold(_ context.Context, w *worker) (cycle, error) {
	c := admissionpb.NewAdmissionServiceClient(w.conn)
	return func(ctx context.Context) error {
		q := w.admit()
		w.seq++
		q.HoldNs, q.RequestId = 10_000_000_000, &commonpb.RequestId{Client: w.client, Sequence: w.seq, Settled: w.seq}
		r, err := c.Admit(ctx, q)
		if err != nil {
			return err
		}
		if !r.Admitted {
			return fmt.Errorf("%s was not admitted", q.Key)
		}
		_, err = c.Settle(ctx, &admissionpb.SettleRequest{Key: q.Key, Name: q.Name, HoldId: r.HoldId, RequestId: w.requestID()})
		return err
	}, nil
}

type echoAdmissions struct {
	admissionpb.UnimplementedAdmissionServiceServer
}

func (echoAdmissions) Admit(_ context.Context, q *admissionpb.AdmitRequest) (*admissionpb.AdmitResponse, error) {
	r := &admissionpb.AdmitResponse{Admitted: true, HoldNs: q.HoldNs, Epoch: epoch}
	if q.HoldNs != 0 {
		r.HoldId = "0123456789abcdef0123456789abcdef-7a120"
	}
	for range q.Demands {
		r.Demands = append(r.Demands, &admissionpb.DemandResult{Reserved: 1, Capacity: 1_000_000, Remaining: 999_999, ResetAfterNs: 1_000})
	}
	return r, nil
}

func (echoAdmissions) Settle(context.Context, *admissionpb.SettleRequest) (*admissionpb.SettleResponse, error) {
	r := &admissionpb.SettleResponse{State: admissionpb.HoldState_HOLD_STATE_HELD, Epoch: epoch}
	for _, name := range levels {
		r.Costs = append(r.Costs, &admissionpb.CostResult{Name: name, Charged: 1})
	}
	return r, nil
}
