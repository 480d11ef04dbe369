package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	admissionpb "github.com/keystead/keystead/proto/keystead/admission/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
)

// Under has a demand be of another key than the one of the Admit. Then the owners of all keys hold first, and all of
// them charge, or none does: see Admit.Demands.
func (d Demand) Under(key string) Demand {
	d.key = key
	return d
}

func (d *Demand) onWire() *admissionpb.Demand {
	q := &admissionpb.Demand{Key: d.key, Name: d.name, Cost: d.cost, ClampPercent: uint32(max(d.clamp, 0)), Anywhere: d.anywhere && d.key != ""}
	switch {
	case d.limit != nil:
		q.Limit = d.limit
	case d.slots:
		q.Slots = &admissionpb.SlotsDemand{Max: d.count}
	default:
		q.Counter = &admissionpb.CounterDemand{Max: d.count}
	}
	return q
}

// keys returns the keys of the demands, if one names its own: those behind that chunks may pay, which another key's
// owner decides.
func (q *Admit) keys() (all []string) {
	if !slices.ContainsFunc(q.Demands, func(d Demand) bool { return d.key != "" }) {
		return nil
	}
	for _, anywhere := range []bool{false, true} {
		for i := range q.Demands {
			d := &q.Demands[i]
			if key := cmp.Or(d.key, q.Key); (d.anywhere && d.key != "") == anywhere && !slices.Contains(all, key) {
				all = append(all, key)
			}
		}
	}
	return all
}

// settleAt has the owner of one of the keys end the hold. If it does not know it any more, because what it kept was lost,
// another one may.
func (h *Admitted) settleAt(ctx context.Context, costs []Cost, release bool) (s Settled, err error) {
	held := heldAs{hold: h.hold}
	//guard:client-tag-ends-one false
	if h.tag != "" { // who ended it by its tag may have left its id to another one
		held = heldAs{tag: h.tag}
	}
	s, err = h.of.settle(ctx, h.key, held, costs, release, nil)
	if len(h.keys) < 2 || !errors.Is(err, ErrHoldUnknown) {
		return s, err
	}
	costs = slices.Clone(costs)
	for i := range costs {
		costs[i].Key = cmp.Or(costs[i].Key, h.key)
	}
	for _, key := range h.keys {
		if key == h.key {
			continue
		}
		if s, err = h.of.settle(ctx, key, held, costs, release, nil); !errors.Is(err, ErrHoldUnknown) {
			break
		}
	}
	return s, err
}

// HoldInfo is a hold that is not settled.
type HoldInfo struct {
	Hold   string
	Over   bool          // its time is over, and what it reserved is charged or given back
	Age    time.Duration // since it was made
	Left   time.Duration // until it is over
	Charge bool          // what is not settled by then stays charged
	Costs  []Cost        // what it has reserved; of a hold of several keys, what it has of this one
	Keys   []string      // all of them, of a hold of several

	// Undecided reports that it is not known yet whether the owners of all keys hold.
	Undecided bool
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
		x := HoldInfo{Hold: h.HoldId, Over: h.State != admissionpb.HoldState_HOLD_STATE_HELD, Age: time.Duration(h.AgeNs), Left: time.Duration(h.HoldNs), Charge: h.OnExpiry == admissionpb.OnExpiry_ON_EXPIRY_CHARGE, Keys: h.Keys, Undecided: h.Undecided}
		for _, d := range h.Reserved {
			x.Costs = append(x.Costs, Cost{Name: d.Name, Cost: d.Cost})
		}
		holds = append(holds, x)
	}
	return holds, int(r.GetTotal()), err
}

// holdOf returns what a hold is called that an operation makes: the client and the sequence of its request.
func holdOf(op *operation) string { return fmt.Sprintf("%x-%x", op.of.client, op.seq) }

func errHoldUnknown(what, key, node string) *Error {
	return &Error{Op: what, Key: key, Node: node, Code: codes.NotFound, Reason: ErrHoldUnknown, Message: "the hold was settled, never was, or is forgotten; nothing happened"}
}

func (q *Admit) amounts() (all []*admissionpb.Cost) {
	for _, name := range slices.Sorted(maps.Keys(q.Amounts)) {
		all = append(all, &admissionpb.Cost{Name: name, Cost: q.Amounts[name]})
	}
	return all
}
