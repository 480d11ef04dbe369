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

// Phaser is a phaser and a child of it, of parties under leases that come and go. Both are under one
// key: what loses one loses the other.
var Phaser = Kind{
	Name:     "phaser",
	Of:       owner.KindBarrier,
	Share:    2,
	Work:     takesPart,
	Probe:    Probe{In: history.PhaserInput{Op: history.PhaserInspect}, Ask: inspectPhaser},
	Model:    history.Phaser,
	Workload: "counter",
}

const (
	parentPhaser = "parent"
	childPhaser  = "child"
	// mostPhases is for how many phases a party arrives before it goes.
	mostPhases = 4
)

// taking is a worker that takes part.
type taking struct {
	of    Object
	child bool
	party uint8
	phase uint64 // the next one for which it arrives
}

func phaserName(child bool) string {
	if child {
		return childPhaser
	}
	return parentPhaser
}

func (p *taking) id() string { return fmt.Sprint("p", p.party) }

func (p *taking) in(op history.PhaserOp) history.PhaserInput {
	return history.PhaserInput{Op: op, Child: p.child, Party: p.party}
}

func inspectPhaser(ctx context.Context, conn *grpc.ClientConn, key string) (Answer, error) {
	r, err := barrierpb.NewBarrierServiceClient(conn).Inspect(ctx, &barrierpb.InspectRequest{Key: key, Name: parentPhaser})
	return Answer{history.PhaserOutput{Current: r.GetPhase(), Here: r.GetArrivedParties(), Parties: r.GetParties(), Counted: true}, r.GetOwner(), r.GetEpoch()}, err
}

// takesPart registers, arrives for some phases as they come, and mostly leaves. Some parties break a
// phase, or are gone without a word.
func takesPart(ctx context.Context, w *Worker, o Object) {
	p := &taking{of: o, child: w.rng.IntN(2) == 0, party: uint8(w.number % history.PhaserParties)}
	if w.rng.IntN(24) == 0 {
		breakPhaser(ctx, w, p)
		return
	}
	if !register(ctx, w, p) {
		return
	}
	for range 1 + w.rng.IntN(mostPhases) {
		w.Rest(ctx, writePace)
		if w.rng.IntN(4) == 0 && !renewParty(ctx, w, p) || !arrivesAt(ctx, w, p) {
			break
		}
	}
	if w.rng.IntN(6) == 0 {
		return // its lease ends
	}
	_, _, _ = do(ctx, w, operation[*barrierpb.LeaveResponse]{
		object: o, in: p.in(history.PhaserLeave), keyed: true, late: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, as name, opt grpc.CallOption) (*barrierpb.LeaveResponse, error) {
			return barrierpb.NewBarrierServiceClient(conn).Leave(ctx, &barrierpb.LeaveRequest{Key: o.Key, Name: phaserName(p.child), Party: p.id(), RequestId: as.id, IdempotencyKey: as.key}, opt)
		},
		output: func(r *barrierpb.LeaveResponse) any {
			return history.PhaserOutput{OK: r.Left, Replay: replayed(r.Replay)}
		},
	})
}

// register makes the worker a party. It reports whether it is one, and for which phase it arrives.
func register(ctx context.Context, w *Worker, p *taking) bool {
	in := p.in(history.PhaserRegister)
	in.TTL = w.ttl()
	loss := barrierpb.Loss(w.rng.IntN(3))
	var parent *barrierpb.Parent
	if p.child {
		parent = &barrierpb.Parent{Key: p.of.Key, Name: parentPhaser}
	}
	out, _, ok := do(ctx, w, operation[*barrierpb.RegisterResponse]{
		object: p.of, in: in, keyed: true, late: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, as name, opt grpc.CallOption) (*barrierpb.RegisterResponse, error) {
			return barrierpb.NewBarrierServiceClient(conn).Register(ctx, &barrierpb.RegisterRequest{Key: p.of.Key, Name: phaserName(p.child), Party: p.id(),
				TtlNs: in.TTL, Loss: loss, Parent: parent, RequestId: as.id, IdempotencyKey: as.key}, opt)
		},
		output: func(r *barrierpb.RegisterResponse) any {
			return history.PhaserOutput{OK: r.Registered, Current: r.Phase, Replay: replayed(r.Replay)}
		},
	})
	p.phase = out.GetPhase()
	return ok && out.Registered && p.phase != 0
}

func renewParty(ctx context.Context, w *Worker, p *taking) bool {
	in := p.in(history.PhaserRenew)
	in.TTL = w.ttl()
	out, _, ok := do(ctx, w, operation[*barrierpb.RenewResponse]{
		object: p.of, in: in, bare: true, late: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, _ name, opt grpc.CallOption) (*barrierpb.RenewResponse, error) {
			return barrierpb.NewBarrierServiceClient(conn).Renew(ctx, &barrierpb.RenewRequest{Key: p.of.Key, Name: phaserName(p.child), Party: p.id(), TtlNs: in.TTL}, opt)
		},
		output: func(r *barrierpb.RenewResponse) any {
			return history.PhaserOutput{OK: r.Renewed, Current: r.Phase}
		},
	})
	return ok && out.Renewed
}

// arrivesAt arrives for the phase, and waits until it has ended. It reports whether it goes on with
// the next one.
func arrivesAt(ctx context.Context, w *Worker, p *taking) bool {
	in := p.in(history.PhaserArrive)
	in.Phase = p.phase
	out, _, ok := do(ctx, w, operation[*barrierpb.ArriveResponse]{
		object: p.of, in: in, keyed: true, late: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, as name, opt grpc.CallOption) (*barrierpb.ArriveResponse, error) {
			return barrierpb.NewBarrierServiceClient(conn).Arrive(ctx, &barrierpb.ArriveRequest{Key: p.of.Key, Name: phaserName(p.child), Party: p.id(),
				Phase: in.Phase, RequestId: as.id, IdempotencyKey: as.key}, opt)
		},
		output: func(r *barrierpb.ArriveResponse) any {
			return history.PhaserOutput{OK: r.Arrived, Last: r.Last, Over: r.Refusal == barrierpb.Refusal_REFUSAL_OVER, Fate: history.PhaseFate(r.Verdict),
				Current: r.Current, Here: r.ArrivedParties, Parties: r.Parties, Counted: true, Replay: replayed(r.Replay)}
		},
	})
	switch {
	case !ok || out.Refusal == barrierpb.Refusal_REFUSAL_NOT_REGISTERED:
		return false
	case !out.Arrived || out.Last:
		p.phase = out.Current
		return p.phase != 0
	}
	return awaitParties(ctx, w, p)
}

func awaitParties(ctx context.Context, w *Worker, p *taking) bool {
	in := p.in(history.PhaserAwait)
	in.Phase = p.phase
	wait := time.Duration(w.rng.Int64N(int64(mostWait)))
	out, _, ok := do(ctx, w, operation[*barrierpb.AwaitResponse]{
		object: p.of, in: in, wait: wait, bare: true, late: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, _ name, opt grpc.CallOption) (*barrierpb.AwaitResponse, error) {
			return barrierpb.NewBarrierServiceClient(conn).Await(ctx, &barrierpb.AwaitRequest{Key: p.of.Key, Name: phaserName(p.child), Phase: in.Phase, WaitNs: int64(wait)}, opt)
		},
		output: func(r *barrierpb.AwaitResponse) any {
			return history.PhaserOutput{Fate: history.PhaseFate(r.Verdict), Current: r.Current, Here: r.ArrivedParties, Parties: r.Parties, Counted: true}
		},
	})
	if !ok || out.Verdict == barrierpb.Verdict_VERDICT_UNDER_WAY || out.Current == 0 {
		return false
	}
	p.phase = out.Current
	return true
}

func breakPhaser(ctx context.Context, w *Worker, p *taking) {
	_, _, _ = do(ctx, w, operation[*barrierpb.BreakResponse]{
		object: p.of, in: p.in(history.PhaserBreak), keyed: true, late: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, as name, opt grpc.CallOption) (*barrierpb.BreakResponse, error) {
			return barrierpb.NewBarrierServiceClient(conn).Break(ctx, &barrierpb.BreakRequest{Key: p.of.Key, Name: phaserName(p.child), RequestId: as.id, IdempotencyKey: as.key}, opt)
		},
		output: func(r *barrierpb.BreakResponse) any {
			return history.PhaserOutput{OK: r.Broken, Replay: replayed(r.Replay)}
		},
	})
}
