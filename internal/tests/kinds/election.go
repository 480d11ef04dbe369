package kinds

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/internal/tests/history"
	"github.com/keystead/keystead/owner"
	electionpb "github.com/keystead/keystead/proto/keystead/election/v1"
)

// Election is an election: a semaphore of one permit as the model has it. What observers are told,
// and what a late leader says, is checked beside it.
var Election = Kind{
	Name:     "election",
	Of:       owner.KindElection,
	Share:    2,
	Work:     lead,
	Probe:    Probe{In: history.SemaphoreInput{Op: history.PermitsInspect}, Ask: inspectElection},
	Model:    history.Semaphore,
	Workload: "lock",
}

func led(l *electionpb.Leader) uint32 {
	if l == nil {
		return 0
	}
	return 1
}

func inspectElection(ctx context.Context, conn *grpc.ClientConn, key string) (Answer, error) {
	r, err := electionpb.NewElectionServiceClient(conn).Inspect(ctx, &electionpb.InspectRequest{Key: key})
	return Answer{history.SemaphoreOutput{Held: led(r.GetLeader())}, r.GetOwner(), r.GetEpoch()}, err
}

// lead campaigns, says something, and mostly resigns; some only observe.
func lead(ctx context.Context, w *Worker, o Object) {
	if w.rng.IntN(6) == 0 {
		observeElection(ctx, w, o)
		return
	}
	g, ok := campaign(ctx, w, o)
	if !ok {
		return
	}
	w.Rest(ctx, writePace)
	switch w.rng.IntN(4) {
	case 0:
		renewTerm(ctx, w, &g)
	case 1:
		verifyTerm(ctx, w, g)
	case 2:
		proclaim(ctx, w, g)
	}
	w.Rest(ctx, writePace)
	if w.rng.IntN(8) == 0 {
		wait(ctx, max(time.Duration(g.until-w.now()), 0)) // its TTL ends it
		verifyTerm(ctx, w, g)
		return
	}
	out, _, ok := do(ctx, w, operation[*electionpb.ResignResponse]{
		object: o, in: history.SemaphoreInput{Op: history.PermitsRelease, Token: g.token}, keyed: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, as name, opt grpc.CallOption) (*electionpb.ResignResponse, error) {
			return electionpb.NewElectionServiceClient(conn).Resign(ctx, &electionpb.ResignRequest{Key: o.Key, Token: g.token, RequestId: as.id, IdempotencyKey: as.key}, opt)
		},
		output: func(r *electionpb.ResignResponse) any {
			return history.SemaphoreOutput{OK: r.Resigned, Replay: replayed(r.Replay)}
		},
	})
	if ok && out.Resigned && w.rng.IntN(4) == 0 && proclaim(ctx, w, g) {
		w.cfg.Log.Unexpected(fmt.Sprintf("what a leader of %s said under token %d was taken after its resignation", o.Key, g.token))
	}
}

func campaign(ctx context.Context, w *Worker, o Object) (grant, bool) {
	w.grants++
	candidate := fmt.Sprint(w.number, "/", w.grants)
	in := history.SemaphoreInput{Op: history.PermitsAcquire, Permits: 1, Capacity: 1, TTL: w.ttl()}
	if w.rng.IntN(3) > 0 {
		in.Wait = 1 + w.rng.Int64N(int64(mostWait))
	}
	out, began, ok := do(ctx, w, operation[*electionpb.CampaignResponse]{
		object: o, in: in, wait: time.Duration(in.Wait), keyed: true, late: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, as name, opt grpc.CallOption) (*electionpb.CampaignResponse, error) {
			return electionpb.NewElectionServiceClient(conn).Campaign(ctx, &electionpb.CampaignRequest{Key: o.Key, Candidate: candidate, Value: []byte(candidate),
				TtlNs: in.TTL, WaitNs: in.Wait, RequestId: as.id, IdempotencyKey: as.key}, opt)
		},
		output: func(r *electionpb.CampaignResponse) any {
			return history.SemaphoreOutput{OK: r.Elected, Token: r.Token, Waited: r.WaitedNs, TTL: r.TtlNs, Held: led(r.Leader), Replay: replayed(r.Replay)}
		},
	})
	if !ok || !out.Elected || out.TtlNs <= 0 {
		return grant{}, false
	}
	return grant{of: o, holder: candidate, token: out.Token, until: began + w.cfg.Drift.Least(out.WaitedNs+in.TTL)}, true
}

func renewTerm(ctx context.Context, w *Worker, g *grant) {
	in := history.SemaphoreInput{Op: history.PermitsRenew, Token: g.token, TTL: w.ttl()}
	out, began, ok := do(ctx, w, operation[*electionpb.RenewResponse]{
		object: g.of, in: in, bare: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, _ name, opt grpc.CallOption) (*electionpb.RenewResponse, error) {
			return electionpb.NewElectionServiceClient(conn).Renew(ctx, &electionpb.RenewRequest{Key: g.of.Key, Token: g.token, TtlNs: in.TTL}, opt)
		},
		output: func(r *electionpb.RenewResponse) any {
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

func verifyTerm(ctx context.Context, w *Worker, g grant) {
	_, _, _ = do(ctx, w, operation[*electionpb.VerifyResponse]{
		object: g.of, in: history.SemaphoreInput{Op: history.PermitsVerify, Token: g.token}, bare: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, _ name, opt grpc.CallOption) (*electionpb.VerifyResponse, error) {
			return electionpb.NewElectionServiceClient(conn).Verify(ctx, &electionpb.VerifyRequest{Key: g.of.Key, Token: g.token}, opt)
		},
		output: func(r *electionpb.VerifyResponse) any {
			return history.SemaphoreOutput{OK: r.Leads, TTL: r.Leader.GetTtlNs()}
		},
	})
}

// proclaim says something under a token, once and without a record, and reports whether it was taken.
func proclaim(ctx context.Context, w *Worker, g grant) bool {
	attempt, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.cfg.Attempt)
	defer cancel()
	w.grants++
	r, err := electionpb.NewElectionServiceClient(w.conns[w.at]).Proclaim(attempt, &electionpb.ProclaimRequest{Key: g.of.Key, Token: g.token, Value: fmt.Append(nil, g.holder, "/", w.grants)})
	return err == nil && r.Proclaimed
}

// mostObserved is how long an election is observed at most.
const mostObserved = 200 * time.Millisecond

// observeElection observes an election for a while. What it is told goes forward: versions never
// fall, tokens rise with them, and a version shows the same to all.
func observeElection(ctx context.Context, w *Worker, o Object) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), mostObserved)
	defer cancel()
	last := &electionpb.ObserveResponse{}
	token := uint64(0)
	stream, err := electionpb.NewElectionServiceClient(w.conns[w.at]).Observe(ctx, &electionpb.ObserveRequest{Key: o.Key})
	for n := 0; err == nil && n < mostStates; {
		var r *electionpb.ObserveResponse
		if r, err = stream.Recv(); err != nil || r.Heartbeat {
			continue
		}
		n++
		switch l := r.Leader; {
		case r.Version < last.Version:
			w.cfg.Log.Unexpected(fmt.Sprintf("an observer of %s was told version %d after %d", o.Key, r.Version, last.Version))
		case l == nil:
		case l.Token < token || l.Token > r.Version:
			w.cfg.Log.Unexpected(fmt.Sprintf("an observer of %s was told token %d after %d, at version %d", o.Key, l.Token, token, r.Version))
		default:
			token = l.Token
			if was := w.cfg.Recording.shown(o.Key, r.Version, fmt.Sprint(l.Token, " ", string(l.Value))); was != "" {
				w.cfg.Log.Unexpected(fmt.Sprintf("version %d of %s shows %d %q, and has shown %s", r.Version, o.Key, l.Token, l.Value, was))
			}
		}
		last = r
	}
}
