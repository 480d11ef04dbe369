package kinds

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/internal/tests/history"
	"github.com/keystead/keystead/owner"
	semaphorepb "github.com/keystead/keystead/proto/keystead/semaphore/v1"
)

// Semaphore is a semaphore of some permits.
var Semaphore = Kind{
	Name:     "semaphore",
	Of:       owner.KindSemaphore,
	Share:    2,
	Work:     permits,
	Probe:    Probe{In: history.SemaphoreInput{Op: history.PermitsInspect}, Ask: inspectPermits},
	Model:    history.Semaphore,
	Workload: "semaphore",
}

// capacity is how many permits there are, fewer than those that want some at once.
const capacity = 4

func inspectPermits(ctx context.Context, conn *grpc.ClientConn, key string) (Answer, error) {
	r, err := semaphorepb.NewSemaphoreServiceClient(conn).Inspect(ctx, &semaphorepb.InspectRequest{Key: key})
	return Answer{history.SemaphoreOutput{Held: r.GetHeld() + r.GetDelayed()}, r.GetOwner(), r.GetEpoch()}, err
}

// permits watches a semaphore, or takes some, asks whether it still has them, and mostly gives them back.
func permits(ctx context.Context, w *Worker, o Object) {
	if w.rng.IntN(watchesOf) == 0 {
		watchPermits(ctx, w, o)
		return
	}
	if w.rng.IntN(sessionOf) == 0 {
		sessionPermits(ctx, w, o)
		return
	}
	g, ok := acquirePermits(ctx, w, o, 0)
	if !ok {
		return
	}
	w.Rest(ctx, writePace)
	switch w.rng.IntN(4) {
	case 0:
		renewPermits(ctx, w, &g)
	case 1:
		verifyPermits(ctx, w, g)
	}
	w.Rest(ctx, writePace)
	if w.rng.IntN(8) == 0 {
		wait(ctx, max(time.Duration(g.until-w.now()), 0)) // its TTL ends it
		verifyPermits(ctx, w, g)
		return
	}
	_, _, _ = do(ctx, w, operation[*semaphorepb.ReleaseResponse]{
		object: o, in: history.SemaphoreInput{Op: history.PermitsRelease, Token: g.token}, keyed: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, as name, opt grpc.CallOption) (*semaphorepb.ReleaseResponse, error) {
			return semaphorepb.NewSemaphoreServiceClient(conn).Release(ctx, &semaphorepb.ReleaseRequest{Key: o.Key, Token: g.token, RequestId: as.id, IdempotencyKey: as.key}, opt)
		},
		output: func(r *semaphorepb.ReleaseResponse) any {
			return history.SemaphoreOutput{OK: r.Released, Replay: replayed(r.Replay)}
		},
	})
}

// acquirePermits acquires some, under a session of a TTL if that is not 0.
func acquirePermits(ctx context.Context, w *Worker, o Object, session time.Duration) (grant, bool) {
	w.grants++
	holder := fmt.Sprint(w.number, "/", w.grants)
	in := history.SemaphoreInput{Op: history.PermitsAcquire, Permits: 1 + uint32(w.rng.IntN(3)), Capacity: capacity, TTL: w.ttl()}
	var t *ticket
	if session == 0 {
		t = w.ticket()
	}
	if in.TTL = cmp.Or(int64(session), in.TTL); t != nil || w.rng.IntN(3) > 0 {
		in.Wait = 1 + w.rng.Int64N(int64(mostWait))
	}
	out, began, ok := do(ctx, w, operation[*semaphorepb.AcquireResponse]{
		object: o, in: in, wait: time.Duration(in.Wait), keyed: session == 0, late: true, ticket: t,
		call: func(ctx context.Context, conn *grpc.ClientConn, as name, opt grpc.CallOption) (*semaphorepb.AcquireResponse, error) {
			return semaphorepb.NewSemaphoreServiceClient(conn).Acquire(ctx, &semaphorepb.AcquireRequest{Key: o.Key, Holder: holder, Permits: in.Permits, Capacity: in.Capacity,
				TtlNs: in.TTL, WaitNs: t.waitOr(in.Wait), TicketTtlNs: t.ttl(), RequestId: as.id, IdempotencyKey: as.key, Session: w.session(session, as)}, opt)
		},
		output: func(r *semaphorepb.AcquireResponse) any {
			return history.SemaphoreOutput{OK: r.Acquired, Token: r.Token, Waited: t.waited(r.WaitedNs), TTL: r.TtlNs, Held: r.Held, Replay: replayed(r.Replay)}
		},
	})
	if !ok || !out.Acquired || out.TtlNs <= 0 {
		return grant{}, false
	}
	return grant{of: o, holder: holder, token: out.Token, until: began + w.cfg.Drift.Least(t.lasts(out.WaitedNs, in.TTL, out.TtlNs))}, true
}

func renewPermits(ctx context.Context, w *Worker, g *grant) {
	in := history.SemaphoreInput{Op: history.PermitsRenew, Token: g.token, TTL: w.ttl()}
	out, began, ok := do(ctx, w, operation[*semaphorepb.RenewResponse]{
		object: g.of, in: in, bare: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, _ name, opt grpc.CallOption) (*semaphorepb.RenewResponse, error) {
			return semaphorepb.NewSemaphoreServiceClient(conn).Renew(ctx, &semaphorepb.RenewRequest{Key: g.of.Key, Token: g.token, TtlNs: in.TTL}, opt)
		},
		output: func(r *semaphorepb.RenewResponse) any {
			return history.SemaphoreOutput{OK: r.Renewed, TTL: r.TtlNs}
		},
	})
	switch until := began + w.cfg.Drift.Least(in.TTL); {
	case ok && out.Renewed:
		g.until = until
	case !ok:
		g.until = min(g.until, until)
	}
}

func verifyPermits(ctx context.Context, w *Worker, g grant) {
	_, _, _ = do(ctx, w, operation[*semaphorepb.VerifyResponse]{
		object: g.of, in: history.SemaphoreInput{Op: history.PermitsVerify, Token: g.token}, bare: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, _ name, opt grpc.CallOption) (*semaphorepb.VerifyResponse, error) {
			return semaphorepb.NewSemaphoreServiceClient(conn).Verify(ctx, &semaphorepb.VerifyRequest{Key: g.of.Key, Token: g.token}, opt)
		},
		output: func(r *semaphorepb.VerifyResponse) any {
			return history.SemaphoreOutput{OK: r.Held, TTL: r.Holder.GetTtlNs()}
		},
	})
}
