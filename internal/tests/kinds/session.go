package kinds

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/internal/heldset"
	"github.com/keystead/keystead/internal/tests/history"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	sessionpb "github.com/keystead/keystead/proto/keystead/session/v1"
)

// sessionOf is how many grants of permits there are, for one under a session.
const sessionOf = 4

// session is that of the grant that the worker asks for, nil without a TTL: the client of its
// request ids, and a generation for each grant, so that an end says what became of that one.
func (w *Worker) session(ttl time.Duration, as name) *commonpb.Session {
	if ttl == 0 {
		return nil
	}
	return &commonpb.Session{Client: as.id.Client, Generation: uint64(w.grants)}
}

// sessionPermits takes some under a session, keeps that alive, and ends it.
func sessionPermits(ctx context.Context, w *Worker, o Object) {
	g, ok := acquirePermits(ctx, w, o, w.cfg.SessionTTL)
	if !ok {
		return
	}
	request := w.calls.Begin()
	of := &commonpb.Session{Client: request.ID().Client, Generation: uint64(w.grants)}
	request.End()
	w.Rest(ctx, writePace)
	if w.rng.IntN(2) == 0 {
		_, _, _ = do(ctx, w, operation[kept]{
			object: o, in: history.SemaphoreInput{Op: history.PermitsKeep, Token: g.token, TTL: int64(w.cfg.SessionTTL)}, bare: true,
			call: func(ctx context.Context, conn *grpc.ClientConn, _ name, opt grpc.CallOption) (kept, error) {
				r, err := sessionpb.NewSessionServiceClient(conn).KeepAlive(ctx, &sessionpb.KeepAliveRequest{Session: of, TtlNs: int64(w.cfg.SessionTTL),
					Holds: []uint64{heldset.Hash(o.Key, "semaphore", g.token)}, Everywhere: true}, opt)
				return kept{r.GetAll()}, err
			},
			output: func(r kept) any { return history.SemaphoreOutput{OK: r.ok} },
		})
		w.Rest(ctx, writePace)
	}
	_, _, _ = do(ctx, w, operation[kept]{
		object: o, in: history.SemaphoreInput{Op: history.PermitsEnd, Token: g.token}, bare: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, _ name, opt grpc.CallOption) (kept, error) {
			r, err := sessionpb.NewSessionServiceClient(conn).End(ctx, &sessionpb.EndRequest{Session: of, Everywhere: true}, opt)
			return kept{r.GetReleased() > 0}, err
		},
		output: func(r kept) any { return history.SemaphoreOutput{OK: r.ok} },
	})
}

// kept is an answer about a session: it was kept alive, or ended. It is of no owner.
type kept struct{ ok bool }

func (kept) GetOwner() string { return "" }

func (kept) GetEpoch() uint64 { return 0 }
