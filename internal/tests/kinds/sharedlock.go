package kinds

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/internal/tests/history"
	"github.com/keystead/keystead/owner"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

// SharedLock is a lock with readers and writers. It behaves as a semaphore of more permits than
// there are workers, of which a reader has one and a writer all.
var SharedLock = Kind{
	Name:     "shared-lock",
	Of:       owner.KindLock,
	Share:    1,
	Work:     sharedLock,
	Probe:    Probe{In: history.SemaphoreInput{Op: history.PermitsInspect}, Ask: inspectSharedLock},
	Model:    history.Semaphore,
	Workload: "lock",
}

// allShares is what a writer has.
const allShares = 1000

func shares(h *lockpb.Holder) uint32 {
	switch {
	case h == nil:
		return 0
	case h.Shared:
		return 1
	}
	return allShares
}

func inspectSharedLock(ctx context.Context, conn *grpc.ClientConn, key string) (Answer, error) {
	r, err := lockpb.NewLockServiceClient(conn).Inspect(ctx, &lockpb.InspectRequest{Key: key, MaxWaiters: 1000})
	held := uint32(0)
	for _, h := range r.GetHolders() {
		held += shares(h)
	}
	if len(r.GetHolders()) == 0 {
		held = shares(r.GetHolder()) // a node of before level 7 tells this one
	}
	return Answer{history.SemaphoreOutput{Held: held}, r.GetOwner(), r.GetEpoch()}, err
}

// sharedLock reads or writes under a lock, asks whether it still has it, and mostly gives it back.
func sharedLock(ctx context.Context, w *Worker, o Object) {
	g, ok := acquireShared(ctx, w, o)
	if !ok {
		return
	}
	w.Rest(ctx, writePace)
	switch w.rng.IntN(4) {
	case 0:
		renewShared(ctx, w, &g)
	case 1:
		verifyShared(ctx, w, g)
	}
	w.Rest(ctx, writePace)
	if w.rng.IntN(8) == 0 {
		wait(ctx, max(time.Duration(g.until-w.now()), 0)) // its TTL ends it
		verifyShared(ctx, w, g)
		return
	}
	_, _, _ = do(ctx, w, operation[*lockpb.ReleaseResponse]{
		object: o, in: history.SemaphoreInput{Op: history.PermitsRelease, Token: g.token}, keyed: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, as name, opt grpc.CallOption) (*lockpb.ReleaseResponse, error) {
			return lockpb.NewLockServiceClient(conn).Release(ctx, &lockpb.ReleaseRequest{Key: o.Key, Token: g.token, RequestId: as.id, IdempotencyKey: as.key}, opt)
		},
		output: func(r *lockpb.ReleaseResponse) any {
			return history.SemaphoreOutput{OK: r.Released, Replay: replayed(r.Replay)}
		},
	})
}

// acquireShared acquires the lock: two of three are readers.
func acquireShared(ctx context.Context, w *Worker, o Object) (grant, bool) {
	w.grants++
	holder := fmt.Sprint(w.number, "/", w.grants)
	shared := w.rng.IntN(3) > 0
	in := history.SemaphoreInput{Op: history.PermitsAcquire, Permits: shares(&lockpb.Holder{Shared: shared}), Capacity: allShares, TTL: w.ttl()}
	t := w.ticket()
	if t != nil || w.rng.IntN(3) > 0 {
		in.Wait = 1 + w.rng.Int64N(int64(mostWait))
	}
	out, began, ok := do(ctx, w, operation[*lockpb.AcquireResponse]{
		object: o, in: in, wait: time.Duration(in.Wait), keyed: true, late: true, ticket: t,
		call: func(ctx context.Context, conn *grpc.ClientConn, as name, opt grpc.CallOption) (*lockpb.AcquireResponse, error) {
			return lockpb.NewLockServiceClient(conn).Acquire(ctx, &lockpb.AcquireRequest{Key: o.Key, Holder: holder, Shared: shared,
				TtlNs: in.TTL, WaitNs: t.waitOr(in.Wait), TicketTtlNs: t.ttl(), RequestId: as.id, IdempotencyKey: as.key}, opt)
		},
		output: func(r *lockpb.AcquireResponse) any {
			// Of those that share it, the answer tells one.
			return history.SemaphoreOutput{OK: r.Acquired, Token: r.Token, Waited: t.waited(r.WaitedNs), TTL: r.TtlNs, Bare: !r.Acquired, Replay: replayed(r.Replay)}
		},
	})
	if !ok || !out.Acquired || out.TtlNs <= 0 {
		return grant{}, false
	}
	return grant{of: o, holder: holder, token: out.Token, until: began + w.cfg.Drift.Least(t.lasts(out.WaitedNs, in.TTL, out.TtlNs))}, true
}

func renewShared(ctx context.Context, w *Worker, g *grant) {
	in := history.SemaphoreInput{Op: history.PermitsRenew, Token: g.token, TTL: w.ttl()}
	out, began, ok := do(ctx, w, operation[*lockpb.RenewResponse]{
		object: g.of, in: in, bare: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, _ name, opt grpc.CallOption) (*lockpb.RenewResponse, error) {
			return lockpb.NewLockServiceClient(conn).Renew(ctx, &lockpb.RenewRequest{Key: g.of.Key, Token: g.token, TtlNs: in.TTL}, opt)
		},
		output: func(r *lockpb.RenewResponse) any { return history.SemaphoreOutput{OK: r.Renewed, TTL: r.TtlNs} },
	})
	switch until := began + w.cfg.Drift.Least(in.TTL); {
	case ok && out.Renewed:
		g.until = until
	case !ok:
		g.until = min(g.until, until)
	}
}

func verifyShared(ctx context.Context, w *Worker, g grant) {
	_, _, _ = do(ctx, w, operation[*lockpb.VerifyResponse]{
		object: g.of, in: history.SemaphoreInput{Op: history.PermitsVerify, Token: g.token}, bare: true, late: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, _ name, opt grpc.CallOption) (*lockpb.VerifyResponse, error) {
			return lockpb.NewLockServiceClient(conn).Verify(ctx, &lockpb.VerifyRequest{Key: g.of.Key, Token: g.token}, opt)
		},
		output: func(r *lockpb.VerifyResponse) any {
			if !r.Held {
				return history.SemaphoreOutput{}
			}
			return history.SemaphoreOutput{OK: true, TTL: r.Holder.GetTtlNs()}
		},
	})
}
