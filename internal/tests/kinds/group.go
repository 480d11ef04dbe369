package kinds

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/internal/tests/history"
	"github.com/keystead/keystead/owner"
	grouppb "github.com/keystead/keystead/proto/keystead/group/v1"
)

// Group is a group of a few ids, so that members are replaced. What its watchers are told, and what a
// late member says, is checked beside the model.
var Group = Kind{
	Name:     "group",
	Of:       owner.KindGroup,
	Share:    2,
	Work:     belong,
	Probe:    Probe{In: history.GroupInput{Op: history.GroupList}, Ask: listMembers},
	Model:    history.Group,
	Workload: "lock",
}

// member is a membership that a worker has.
type member struct {
	of    Object
	id    int
	token uint64
	until int64 // the worker counts on it
}

func memberID(id int) string { return fmt.Sprint("m", id) }

func listMembers(ctx context.Context, conn *grpc.ClientConn, key string) (Answer, error) {
	r, err := grouppb.NewGroupServiceClient(conn).List(ctx, &grouppb.ListRequest{Key: key})
	var out history.GroupOutput
	for _, m := range r.GetMembers() {
		for id := range out.Members {
			if memberID(id) == m.Id {
				out.Members[id] = m.Token
			}
		}
	}
	return Answer{out, r.GetOwner(), r.GetEpoch()}, err
}

// belong joins, says something, and mostly leaves; some only watch.
func belong(ctx context.Context, w *Worker, o Object) {
	if w.rng.IntN(6) == 0 {
		watchMembers(ctx, w, o)
		return
	}
	m, ok := joinGroup(ctx, w, o)
	if !ok {
		return
	}
	w.Rest(ctx, writePace)
	switch w.rng.IntN(4) {
	case 0:
		renewMember(ctx, w, &m)
	case 1:
		verifyMember(ctx, w, m)
	case 2:
		sayAsMember(ctx, w, m)
	}
	w.Rest(ctx, writePace)
	switch w.rng.IntN(8) {
	case 0:
		wait(ctx, max(time.Duration(m.until-w.now()), 0)) // its TTL ends it
		verifyMember(ctx, w, m)
		return
	case 1, 2:
		return // the next one of its id takes its place
	}
	out, _, ok := do(ctx, w, operation[*grouppb.LeaveResponse]{
		object: o, in: history.GroupInput{Op: history.GroupLeave, ID: m.id, Token: m.token}, keyed: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, as name, opt grpc.CallOption) (*grouppb.LeaveResponse, error) {
			return grouppb.NewGroupServiceClient(conn).Leave(ctx, &grouppb.LeaveRequest{Key: o.Key, Token: m.token, RequestId: as.id, IdempotencyKey: as.key}, opt)
		},
		output: func(r *grouppb.LeaveResponse) any {
			return history.GroupOutput{OK: r.Left, Replay: replayed(r.Replay)}
		},
	})
	if ok && out.Left && w.rng.IntN(4) == 0 && sayAsMember(ctx, w, m) {
		w.cfg.Log.Unexpected(fmt.Sprintf("what a member of %s said under token %d was taken after it had left", o.Key, m.token))
	}
}

func joinGroup(ctx context.Context, w *Worker, o Object) (member, bool) {
	w.grants++
	in := history.GroupInput{Op: history.GroupJoin, ID: w.rng.IntN(history.GroupIDs), TTL: w.ttl()}
	had := fmt.Sprint(o.Key, "/", in.ID)
	if w.rng.IntN(2) == 0 {
		in.After = w.seen[had]
	}
	metadata := fmt.Append(nil, w.number, "/", w.grants)
	out, began, ok := do(ctx, w, operation[*grouppb.JoinResponse]{
		object: o, in: in, keyed: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, as name, opt grpc.CallOption) (*grouppb.JoinResponse, error) {
			return grouppb.NewGroupServiceClient(conn).Join(ctx, &grouppb.JoinRequest{Key: o.Key, Id: memberID(in.ID), Metadata: metadata,
				TtlNs: in.TTL, AfterToken: in.After, RequestId: as.id, IdempotencyKey: as.key}, opt)
		},
		output: func(r *grouppb.JoinResponse) any {
			return history.GroupOutput{OK: r.Joined, Token: r.Token, Later: r.LaterToken, TTL: r.TtlNs, Replay: replayed(r.Replay)}
		},
	})
	if !ok || !out.Joined || out.TtlNs <= 0 {
		return member{}, false
	}
	w.seen[had] = out.Token
	return member{of: o, id: in.ID, token: out.Token, until: began + w.cfg.Drift.Least(in.TTL)}, true
}

func renewMember(ctx context.Context, w *Worker, m *member) {
	in := history.GroupInput{Op: history.GroupRenew, ID: m.id, Token: m.token, TTL: w.ttl()}
	out, began, ok := do(ctx, w, operation[*grouppb.RenewResponse]{
		object: m.of, in: in, bare: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, _ name, opt grpc.CallOption) (*grouppb.RenewResponse, error) {
			return grouppb.NewGroupServiceClient(conn).Renew(ctx, &grouppb.RenewRequest{Key: m.of.Key, Token: m.token, TtlNs: in.TTL}, opt)
		},
		output: func(r *grouppb.RenewResponse) any {
			return history.GroupOutput{OK: r.Renewed, TTL: r.TtlNs}
		},
	})
	switch until := began + w.cfg.Drift.Least(in.TTL); {
	case ok && out.Renewed:
		m.until = until
	case !ok:
		m.until = min(m.until, until)
	}
}

func verifyMember(ctx context.Context, w *Worker, m member) {
	_, _, _ = do(ctx, w, operation[*grouppb.VerifyResponse]{
		object: m.of, in: history.GroupInput{Op: history.GroupVerify, ID: m.id, Token: m.token}, bare: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, _ name, opt grpc.CallOption) (*grouppb.VerifyResponse, error) {
			return grouppb.NewGroupServiceClient(conn).Verify(ctx, &grouppb.VerifyRequest{Key: m.of.Key, Token: m.token}, opt)
		},
		output: func(r *grouppb.VerifyResponse) any {
			return history.GroupOutput{OK: r.Member, TTL: r.Membership.GetTtlNs()}
		},
	})
}

// sayAsMember says something under a token, once and without a record, and reports whether it was
// taken.
func sayAsMember(ctx context.Context, w *Worker, m member) bool {
	attempt, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.cfg.Attempt)
	defer cancel()
	w.grants++
	r, err := grouppb.NewGroupServiceClient(w.conns[w.at]).Update(attempt, &grouppb.UpdateRequest{Key: m.of.Key, Token: m.token, Metadata: fmt.Append(nil, w.number, "/", w.grants)})
	return err == nil && r.Updated
}

// watchMembers watches a group for a while. What it is told goes forward: versions never fall, no
// token is above them, no id is there twice, and a version shows the same to all.
func watchMembers(ctx context.Context, w *Worker, o Object) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), mostObserved)
	defer cancel()
	last := &grouppb.WatchResponse{}
	stream, err := grouppb.NewGroupServiceClient(w.conns[w.at]).Watch(ctx, &grouppb.WatchRequest{Key: o.Key})
	for n := 0; err == nil && n < mostStates; {
		var r *grouppb.WatchResponse
		if r, err = stream.Recv(); err != nil || r.Heartbeat {
			continue
		}
		n++
		if r.Version < last.Version {
			w.cfg.Log.Unexpected(fmt.Sprintf("a watcher of %s was told version %d after %d", o.Key, r.Version, last.Version))
		}
		here, shown := map[string]bool{}, ""
		for _, m := range r.Members {
			if here[m.Id] || m.Token > r.Version {
				w.cfg.Log.Unexpected(fmt.Sprintf("version %d of %s shows %v", r.Version, o.Key, r.Members))
			}
			here[m.Id] = true
			shown += fmt.Sprint(m.Token, " ", string(m.Metadata), ", ")
		}
		if shown != "" {
			if was := w.cfg.Recording.shown(o.Key, r.Version, shown); was != "" {
				w.cfg.Log.Unexpected(fmt.Sprintf("version %d of %s shows %s and has shown %s", r.Version, o.Key, shown, was))
			}
		}
		last = r
	}
}
