package client

import (
	"context"
	"time"

	"google.golang.org/grpc"

	admissionpb "github.com/keystead/keystead/proto/keystead/admission/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
)

// HoldInfo is a hold that is not settled.
type HoldInfo struct {
	Hold   string
	Over   bool          // its time is over, and what it reserved is charged or given back
	Age    time.Duration // since it was made
	Left   time.Duration // until it is over
	Charge bool          // what is not settled by then stays charged
	Costs  []Cost        // what it has reserved
}

// Holds returns holds of a key that are not settled, at most 100, or the one of a name, and how many there are.
func (a Admission) Holds(ctx context.Context, key, hold string) (holds []HoldInfo, total int, err error) {
	const what = "inspect admission"
	if err := a.c.judge(ctx, key, a.name); err != nil {
		return nil, 0, about(err, what, key, "")
	}
	r, err := ask(ctx, a.c, toKey(key, true).of(what), nil, func(ctx context.Context, conn *grpc.ClientConn, _ *commonpb.RequestId, opts ...grpc.CallOption) (*admissionpb.InspectResponse, error) {
		return admissionpb.NewAdmissionServiceClient(conn).Inspect(ctx, &admissionpb.InspectRequest{Key: key, Name: a.name, HoldId: hold}, opts...)
	})
	for _, h := range r.GetHolds() {
		x := HoldInfo{Hold: h.HoldId, Over: h.State != admissionpb.HoldState_HOLD_STATE_HELD, Age: time.Duration(h.AgeNs), Left: time.Duration(h.HoldNs), Charge: h.OnExpiry == admissionpb.OnExpiry_ON_EXPIRY_CHARGE}
		for _, d := range h.Reserved {
			x.Costs = append(x.Costs, Cost{d.Name, d.Cost})
		}
		holds = append(holds, x)
	}
	return holds, int(r.GetTotal()), err
}
