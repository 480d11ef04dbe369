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

// Lock is a lock. What each of them protects is a Guarded.
var Lock = Kind{
	Name:     "lock",
	Of:       owner.KindLock,
	Share:    2,
	Work:     lock,
	Probe:    Probe{In: history.LockInput{Op: history.LockInspect}, Ask: inspect},
	Model:    history.DelayedLock,
	Workload: "lock",
}

func inspect(ctx context.Context, conn *grpc.ClientConn, key string) (Answer, error) {
	r, err := lockpb.NewLockServiceClient(conn).Inspect(ctx, &lockpb.InspectRequest{Key: key})
	return Answer{lockOutput(r.GetHolder()), r.GetOwner(), r.GetEpoch()}, err
}

func lockOutput(h *lockpb.Holder) history.LockOutput {
	return history.LockOutput{Holder: h.GetId(), HolderToken: h.GetToken(), HolderTTL: h.GetTtlNs()}
}

// grant is a lock that a worker holds.
type grant struct {
	of     Object
	holder string
	token  uint64
	until  int64 // end of its lease, as the worker counts it
}

const (
	leastTTL = 300 * time.Millisecond
	mostWait = 400 * time.Millisecond
	// writePace is the longest rest before a write under a lock.
	writePace = 40 * time.Millisecond
)

func (w *Worker) ttl() int64 {
	return int64(leastTTL) + w.rng.Int64N(int64(w.cfg.LongestTTL-leastTTL))
}

// lock watches a lock, or takes it, writes to what it protects, and mostly gives it back. Some holders
// write after their lease is over, as a process does that was paused.
func lock(ctx context.Context, w *Worker, o Object) {
	if w.rng.IntN(watchesOf) == 0 {
		watchLock(ctx, w, o)
		return
	}
	g, ok := acquire(ctx, w, o)
	if !ok {
		return
	}
	write := func() { w.cfg.Recording.Guarded(g.of.Key).Write(w.number, g.holder, g.token, g.until) }
	write() // so that each grant is seen, in its order
	for range 1 + w.rng.IntN(3) {
		w.Rest(ctx, writePace)
		write()
	}
	if w.rng.IntN(4) == 0 {
		renew(ctx, w, &g)
		write()
	}
	switch w.rng.IntN(8) {
	case 0: // its TTL ends it
	case 1: // … and it does not know
		wait(ctx, max(time.Duration(g.until-w.now()), 0))
		w.Rest(ctx, writePace)
		write()
	default:
		_, _, _ = do(ctx, w, operation[*lockpb.ReleaseResponse]{
			object: g.of, in: history.LockInput{Op: history.LockRelease, Token: g.token}, keyed: true,
			call: func(ctx context.Context, conn *grpc.ClientConn, as name, opt grpc.CallOption) (*lockpb.ReleaseResponse, error) {
				return release(ctx, w, conn, &lockpb.ReleaseRequest{Key: g.of.Key, Token: g.token, RequestId: as.id, IdempotencyKey: as.key}, opt)
			},
			output: func(r *lockpb.ReleaseResponse) any {
				return history.LockOutput{OK: r.Released, Replay: replayed(r.Replay)}
			},
		})
	}
}

func acquire(ctx context.Context, w *Worker, o Object) (grant, bool) {
	w.grants++
	in := history.LockInput{Op: history.LockAcquire, Holder: fmt.Sprint(w.number, "/", w.grants), TTL: w.ttl(), Tickets: w.tickets()}
	t := w.ticket()
	if t != nil || w.rng.IntN(3) > 0 {
		in.Wait = 1 + w.rng.Int64N(int64(mostWait))
	}
	out, began, ok := do(ctx, w, operation[*lockpb.AcquireResponse]{
		object: o, in: in, wait: time.Duration(in.Wait), keyed: true, ticket: t,
		call: func(ctx context.Context, conn *grpc.ClientConn, as name, opt grpc.CallOption) (*lockpb.AcquireResponse, error) {
			return tryOrWait(ctx, w, conn, &lockpb.AcquireRequest{Key: o.Key, Holder: in.Holder, TtlNs: in.TTL, WaitNs: t.waitOr(in.Wait), TicketTtlNs: t.ttl(), RequestId: as.id, IdempotencyKey: as.key}, opt)
		},
		output: func(r *lockpb.AcquireResponse) any {
			out := lockOutput(r.Holder)
			out.OK, out.Token, out.Waited, out.TTL, out.Replay = r.Acquired, r.Token, t.waited(r.WaitedNs), r.TtlNs, replayed(r.Replay)
			return out
		},
	})
	if !ok || !out.Acquired || out.TtlNs <= 0 {
		return grant{}, false
	}
	return grant{of: o, holder: in.Holder, token: out.Token, until: began + w.cfg.Drift.Least(t.lasts(out.WaitedNs, in.TTL, out.TtlNs))}, true
}

// renew prolongs a grant, if it can. A renewal has no request id: an attempt that was lost
// may still prolong it, which does no harm.
func renew(ctx context.Context, w *Worker, g *grant) {
	in := history.LockInput{Op: history.LockRenew, Token: g.token, TTL: w.ttl()}
	out, began, ok := do(ctx, w, operation[*lockpb.RenewResponse]{
		object: g.of, in: in, bare: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, _ name, opt grpc.CallOption) (*lockpb.RenewResponse, error) {
			return lockpb.NewLockServiceClient(conn).Renew(ctx, &lockpb.RenewRequest{Key: g.of.Key, Token: g.token, TtlNs: in.TTL}, opt)
		},
		output: func(r *lockpb.RenewResponse) any {
			out := lockOutput(r.Holder)
			out.OK, out.TTL = r.Renewed, r.TtlNs
			return out
		},
	})
	switch until := began + w.cfg.Drift.Least(in.TTL); {
	case ok && out.Renewed:
		// Retries of a bare request follow attempts that did nothing, so the first
		// send is early, which makes the lease too short at worst.
		g.until = until
	case !ok:
		// A renewal that was lost may also have cut the lease short.
		g.until = min(g.until, until)
	}
}
