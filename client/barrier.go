package client

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	barrierpb "github.com/keystead/keystead/proto/keystead/barrier/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
)

const (
	// MaxParties is the most parties of a barrier or a phaser.
	MaxParties = 10_000

	maxParty  = 64
	maxWithin = 24 * time.Hour
)

// Barrier is a named barrier that many keys have, each its own: a number of parties wait for each
// other, again and again. It is a small value: making one costs nothing, and it may be copied
// and kept.
type Barrier struct {
	c       *Client
	name    string
	parties int
}

// Barrier names a barrier of so many parties, 1 to MaxParties. All of them have to say the same
// number. name "" = "barrier".
func (c *Client) Barrier(name string, parties int) Barrier { return Barrier{c, name, parties} }

// BarrierOption is how a party arrives: Party, Within and InPhase.
type BarrierOption func(*arrival)

// arrival is what options say of one.
type arrival struct {
	party  string
	within time.Duration
	phase  uint64
}

// Party names the party, with at most 64 bytes, its own among all: arriving again under it, also
// from another process, it counts once in a phase. Without it each call is a party of its own.
func Party(id string) BarrierOption { return func(a *arrival) { a.party = id } }

// Within has the phase broken if not all have arrived so long after this party: up to 24 h, which
// is the default. The earliest of all parties counts, also of one that has left meanwhile.
func Within(d time.Duration) BarrierOption { return func(a *arrival) { a.within = d } }

// InPhase has the party arrive for one phase only: ErrPhaseOver if that is not under way.
func InPhase(phase uint64) BarrierOption { return func(a *arrival) { a.phase = phase } }

func (b Barrier) arrival(opts []BarrierOption) (a arrival, err error) {
	for _, o := range opts {
		if o != nil {
			o(&a)
		}
	}
	switch {
	case b.parties < 1 || b.parties > MaxParties:
		err = invalid("parties", "are %d; choose 1 to %d", b.parties, MaxParties)
	case len(a.party) > maxParty:
		err = invalid("Party", "has %d bytes; at most %d are allowed", len(a.party), maxParty)
	case a.within < 0 || a.within > maxWithin:
		err = invalid("Within", "is %s; choose up to %s", a.within, maxWithin)
	}
	return a, err
}

// Arrival says for which phase a party has arrived.
type Arrival struct {
	// Phase is what Await waits for. Phases have numbers that rise and do not follow one
	// another.
	Phase uint64
	// Last reports whether it was the last: the phase was passed by it.
	Last bool
	Meta
}

// Arrive has the caller arrive, and does not wait. Errors: ErrPhaseOver; ErrCapacityMismatch if
// others have said another number of parties.
func (b Barrier) Arrive(ctx context.Context, key string, opts ...BarrierOption) (Arrival, error) {
	a, err := b.arrival(opts)
	if err := cmp.Or(b.c.judge(ctx, key, b.name), err); err != nil {
		return Arrival{}, about(err, "arrive", key, "")
	}
	return b.c.arrive(ctx, key, b.name, uint32(b.parties), &a)
}

// arrive has a party arrive; one without a name gets one.
func (c *Client) arrive(ctx context.Context, key, name string, parties uint32, a *arrival) (Arrival, error) {
	op := c.ops.begin()
	defer op.finish()
	r, err := ask(ctx, c, toKey(key, false).of("arrive"), op, func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId, opts ...grpc.CallOption) (*barrierpb.ArriveResponse, error) {
		if a.party == "" {
			a.party = fmt.Sprintf("%x.%d", id.Client, id.Sequence)
		}
		return barrierpb.NewBarrierServiceClient(conn).Arrive(ctx, &barrierpb.ArriveRequest{Key: key, Name: name, Party: a.party, Parties: parties, Phase: a.phase, WithinNs: int64(a.within), RequestId: id}, opts...)
	})
	switch {
	case err != nil:
		return Arrival{}, err
	case r.Arrived:
		return Arrival{Phase: r.Phase, Last: r.Last, Meta: metaOf(r, r.Replay)}, nil
	case r.Refusal == barrierpb.Refusal_REFUSAL_NOT_REGISTERED:
		err = &Error{Code: codes.FailedPrecondition, Reason: ErrNotRegistered, Message: fmt.Sprintf("the party %q is not registered, or not any more", a.party)}
	default:
		err = &Error{Code: codes.FailedPrecondition, Reason: ErrPhaseOver, Message: "the phase is not under way; it is " + word(r.Verdict, "VERDICT_")}
	}
	return Arrival{}, about(err, "arrive", key, r.Owner)
}

// Await waits until a phase is passed, or ctx ends. It changes nothing, and may be called again.
// Errors: ErrBroken; ErrLost if nothing is known of the phase any more: it was lost with all
// nodes that kept the barrier, or is long over.
func (b Barrier) Await(ctx context.Context, key string, phase uint64) error {
	return b.c.awaitPhase(ctx, key, b.name, phase)
}

func (c *Client) awaitPhase(ctx context.Context, key, name string, phase uint64) error {
	const what = "await phase"
	if err := c.judge(ctx, key, name); err != nil {
		return about(err, what, key, "")
	}
	r, err := await(ctx, c, toKey(key, true).of(what), func(ctx context.Context, conn *grpc.ClientConn, wait time.Duration, opts ...grpc.CallOption) (*barrierpb.AwaitResponse, error) {
		return barrierpb.NewBarrierServiceClient(conn).Await(ctx, &barrierpb.AwaitRequest{Key: key, Name: name, Phase: phase, WaitNs: int64(wait)}, opts...)
	}, func(r *barrierpb.AwaitResponse) bool { return r.Verdict != barrierpb.Verdict_VERDICT_UNDER_WAY })
	if err != nil {
		return err
	}
	switch r.Verdict {
	case barrierpb.Verdict_VERDICT_PASSED:
		return nil
	case barrierpb.Verdict_VERDICT_BROKEN:
		e := &Error{Code: codes.Aborted, Reason: ErrBroken, Message: "the phase was broken: " + word(r.Cause, "CAUSE_")}
		if r.Party != "" {
			e.Message = fmt.Sprintf("the phase was broken: the party %q was lost", r.Party)
		}
		return about(e, what, key, r.Owner)
	}
	return about(&Error{Code: codes.DataLoss, Reason: ErrLost, Message: "nothing is known of the phase: it was lost with all nodes that kept it, or is long over"}, what, key, r.Owner)
}

// leaveTime bounds the call by which a party whose context has ended takes its arrival back.
const leaveTime = 2 * time.Second

// Wait arrives, and waits until all have. If ctx ends before, the arrival is taken back, so that
// no phase is passed with a caller that is gone; the others wait on. Errors are those of Arrive and
// of Await; after ErrBroken and ErrLost, all parties come again.
func (b Barrier) Wait(ctx context.Context, key string, opts ...BarrierOption) (Arrival, error) {
	a, err := b.arrival(opts)
	if err := cmp.Or(b.c.judge(ctx, key, b.name), err); err != nil {
		return Arrival{}, about(err, "arrive", key, "")
	}
	got, err := b.c.arrive(ctx, key, b.name, uint32(b.parties), &a)
	if err == nil && !got.Last {
		err = b.c.awaitPhase(ctx, key, b.name, got.Phase)
	}
	//guard:client-arrival-back
	if err != nil && ctx.Err() != nil && a.party != "" {
		back, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
		defer cancel()
		_, _ = b.c.leave(back, key, b.name, a.party, cmp.Or(got.Phase, a.phase)) // also if it may have arrived
	}
	return got, err
}

// leave takes a party away, and reports whether it was there.
func (c *Client) leave(ctx context.Context, key, name, party string, phase uint64) (bool, error) {
	op := c.ops.begin()
	defer op.finish()
	r, err := ask(ctx, c, toKey(key, false).of("leave barrier"), op, func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId, opts ...grpc.CallOption) (*barrierpb.LeaveResponse, error) {
		return barrierpb.NewBarrierServiceClient(conn).Leave(ctx, &barrierpb.LeaveRequest{Key: key, Name: name, Party: party, Phase: phase, RequestId: id}, opts...)
	})
	return r.GetLeft(), err
}

// Break ends the phase that is under way: all callers that wait for it get ErrBroken. It reports whether
// there was one.
func (b Barrier) Break(ctx context.Context, key string) (bool, error) {
	return b.c.breakPhase(ctx, key, b.name)
}

func (c *Client) breakPhase(ctx context.Context, key, name string) (bool, error) {
	const what = "break barrier"
	if err := c.judge(ctx, key, name); err != nil {
		return false, about(err, what, key, "")
	}
	op := c.ops.begin()
	defer op.finish()
	r, err := ask(ctx, c, toKey(key, false).of(what), op, func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId, opts ...grpc.CallOption) (*barrierpb.BreakResponse, error) {
		return barrierpb.NewBarrierServiceClient(conn).Break(ctx, &barrierpb.BreakRequest{Key: key, Name: name, RequestId: id}, opts...)
	})
	return r.GetBroken(), err
}

// BarrierState is a barrier or a phaser as it is.
type BarrierState struct {
	Phase   uint64 // that is under way; 0 = none
	Arrived int    // for that
	Parties int    // … of so many
	Phaser  bool   // they are those that are registered
	Passed  uint64 // phases
	Listed  []BarrierParty

	Parent         string // key of the phaser of which this one is a party; "" = none
	WaitsForParent bool   // all have arrived: the phase ends as that of the parent does
	Meta
}

// BarrierParty is one that takes part.
type BarrierParty struct {
	ID      string
	Arrived bool // for the phase that is under way
}

// Inspect returns the barrier of a key, with some of its parties.
func (b Barrier) Inspect(ctx context.Context, key string) (BarrierState, error) {
	return b.c.inspectBarrier(ctx, key, b.name)
}

func (c *Client) inspectBarrier(ctx context.Context, key, name string) (BarrierState, error) {
	const what = "inspect barrier"
	if err := c.judge(ctx, key, name); err != nil {
		return BarrierState{}, about(err, what, key, "")
	}
	r, err := ask(ctx, c, toKey(key, true).of(what), nil, func(ctx context.Context, conn *grpc.ClientConn, _ *commonpb.RequestId, opts ...grpc.CallOption) (*barrierpb.InspectResponse, error) {
		return barrierpb.NewBarrierServiceClient(conn).Inspect(ctx, &barrierpb.InspectRequest{Key: key, Name: name}, opts...)
	})
	if err != nil {
		return BarrierState{}, err
	}
	s := BarrierState{Phase: r.Phase, Arrived: int(r.ArrivedParties), Parties: int(r.Parties), Phaser: r.Phaser, Passed: r.Passed, Parent: r.Parent.GetKey(), WaitsForParent: r.WaitsForParent, Meta: metaOf(r, nil)}
	for _, p := range r.Listed {
		s.Listed = append(s.Listed, BarrierParty{p.Id, p.Arrived})
	}
	return s, nil
}
