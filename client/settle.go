package client

import (
	"cmp"
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"

	admissionpb "github.com/keystead/keystead/proto/keystead/admission/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
)

// Cost is what a demand has really cost, by its name: "limit", "counter" or "slots" if it was given none.
type Cost struct {
	Name string
	Cost uint64
	Key  string // of the demand, if it is another one than that of the hold
}

// Settled is how a hold was settled.
type Settled struct {
	// Late reports that the time of the hold was over: what its expiry did was corrected.
	Late  bool
	Costs []SettledCost // of each demand; empty if Replayed, and of a hold of several keys
	Meta
}

// SettledCost is how a demand was settled.
type SettledCost struct {
	Name    string
	Charged uint64 // what it has cost in the end
	Back    uint64 // what was given back
	Taken   uint64 // what was taken beyond what was charged before
	Debt    uint64 // what is charged beyond the capacity now
}

// Settle ends the hold with what its demands have really cost. One that is not named has cost what it
// reserved. The error is ErrHoldUnknown if the hold was over for too long. What was not admitted, has no hold or
// is settled stays as it is.
func (h *Admitted) Settle(ctx context.Context, costs ...Cost) (Settled, error) {
	return h.settle(ctx, costs, false)
}

// releaseTime is for how long a Release goes on when its context has ended.
const releaseTime = 2 * time.Second

// Release ends the hold as if nothing had been used, if it is not settled. It goes on for a moment when ctx ends, or
// has ended, so that it may be deferred.
func (h *Admitted) Release(ctx context.Context) error {
	if ctx == nil {
		_, err := h.settle(ctx, nil, true)
		return err
	}
	later, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	if end, ok := ctx.Deadline(); ok {
		var done context.CancelFunc
		later, done = context.WithTimeout(later, max(time.Until(end), 0)+releaseTime)
		defer done()
	}
	//guard:client-release-goes-on releaseTime -> 0
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(releaseTime, cancel) })
	defer stop()
	_, err := h.settle(later, nil, true)
	return err
}

func (h *Admitted) settle(ctx context.Context, costs []Cost, release bool) (Settled, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.hold == "" || h.settled {
		return Settled{}, nil
	}
	s, err := h.settleAt(ctx, costs, release)
	h.settled = err == nil || errors.Is(err, ErrHoldUnknown)
	// What is over is not kept, also if nobody could be told: it ends with its time.
	//guard:client-failed-settle-keeps !errors.Is(err, ErrInvalid) -> h.settled
	if h.stop != nil && !errors.Is(err, ErrInvalid) {
		h.stop()
	}
	return s, err
}

// Settle ends a hold of a key that another process may have made: see Admitted.Settle.
func (a Admission) Settle(ctx context.Context, key, hold string, costs []Cost, opts ...CallOption) (Settled, error) {
	return a.settle(ctx, key, heldAs{hold: hold}, costs, false, opts)
}

// SettleTag ends one of the holds of a key that were made under a tag (Admit.Tag): the one that ends first. The error is
// ErrHoldUnknown if there is none, and nothing happened.
func (a Admission) SettleTag(ctx context.Context, key, tag string, costs []Cost, opts ...CallOption) (Settled, error) {
	return a.settle(ctx, key, heldAs{tag: tag}, costs, false, opts)
}

// ReleaseTag is SettleTag as if nothing had been used.
func (a Admission) ReleaseTag(ctx context.Context, key, tag string, opts ...CallOption) (Settled, error) {
	return a.settle(ctx, key, heldAs{tag: tag}, nil, true, opts)
}

// Release ends a hold of a key as if nothing had been used.
func (a Admission) Release(ctx context.Context, key, hold string, opts ...CallOption) (Settled, error) {
	return a.settle(ctx, key, heldAs{hold: hold}, nil, true, opts)
}

// heldAs names a hold: one of the two is set.
type heldAs struct{ hold, tag string }

func (a Admission) settle(ctx context.Context, key string, held heldAs, costs []Cost, release bool, opts []CallOption) (Settled, error) {
	const what = "settle"
	idem, err := keyOf(opts)
	if err := cmp.Or(a.c.judge(ctx, key, a.name), err); err != nil {
		return Settled{}, about(err, what, key, "")
	}
	q := &admissionpb.SettleRequest{Key: key, Name: a.name, HoldId: held.hold, HoldTag: held.tag, Release: release, IdempotencyKey: idem}
	for _, c := range costs {
		q.Costs = append(q.Costs, &admissionpb.Cost{Key: c.Key, Name: c.Name, Cost: c.Cost})
	}
	op := a.c.ops.begin()
	defer op.finish()
	r, err := ask(ctx, a.c, toKey(key, false).of(what), op, func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId, opts ...grpc.CallOption) (*admissionpb.SettleResponse, error) {
		q.RequestId = unlessKeyed(id, idem)
		return admissionpb.NewAdmissionServiceClient(conn).Settle(ctx, q, opts...)
	})
	if err != nil {
		return Settled{}, err
	}
	s := Settled{Late: r.State != admissionpb.HoldState_HOLD_STATE_HELD, Meta: metaOf(r, r.Replay)}
	for _, c := range r.Costs {
		s.Costs = append(s.Costs, SettledCost{c.Name, c.Charged, c.Back, c.Taken, c.Debt})
	}
	if r.State == admissionpb.HoldState_HOLD_STATE_HOLD_UNKNOWN {
		return s, errHoldUnknown(what, key, r.Owner)
	}
	return s, nil
}

// Extend has a hold of a key end so long from now, and reports whether it goes on: if not, its time was over before. It
// never shortens a hold: one that ends later does so. ErrHoldUnknown: it was settled, never was, or is forgotten.
func (a Admission) Extend(ctx context.Context, key, hold string, ttl time.Duration) (bool, error) {
	const what = "extend"
	if err := a.c.judge(ctx, key, a.name); err != nil {
		return false, about(err, what, key, "")
	}
	r, err := ask(ctx, a.c, toKey(key, false).of(what), nil, func(ctx context.Context, conn *grpc.ClientConn, _ *commonpb.RequestId, opts ...grpc.CallOption) (*admissionpb.ExtendResponse, error) {
		return admissionpb.NewAdmissionServiceClient(conn).Extend(ctx, &admissionpb.ExtendRequest{Key: key, Name: a.name, HoldId: hold, HoldNs: int64(ttl)}, opts...)
	})
	if err == nil && r.State == admissionpb.HoldState_HOLD_STATE_HOLD_UNKNOWN {
		return false, errHoldUnknown(what, key, r.Owner)
	}
	return r.GetState() == admissionpb.HoldState_HOLD_STATE_HELD, err
}
