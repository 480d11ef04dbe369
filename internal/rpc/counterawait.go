package rpc

import (
	"context"
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/forward"
	"github.com/keystead/keystead/owner"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
)

// condOf returns what a request waits for.
func condOf(q *counterpb.AwaitRequest) (owner.Cond, error) {
	switch {
	case (q.AtMost == nil) == (q.AtLeast == nil):
		return owner.Cond{}, &failure.Error{Reason: failure.Invalid, Field: "at_most", Message: "exactly one of at_most and at_least says what to wait for"}
	case q.AtLeast != nil:
		return owner.Cond{Least: true, Value: *q.AtLeast}, nil
	}
	return owner.Cond{Value: *q.AtMost}, nil
}

// awaitCounter answers when a counter is as it is awaited, or the wait is over.
func (s *Server) awaitCounter(f frame, q *counterpb.AwaitRequest, r *counterpb.AwaitResponse) (verdict, error) {
	cond, err := condOf(q)
	if err != nil {
		return verdict{}, err
	}
	a, err := await(s, f, func(wait bool) (owner.GetAnswer, *owner.Pending[owner.GetAnswer], error) {
		if s.cfg.Cluster != nil && findSplit(s.cfg.Cluster.Table(), counterKind, f.at) != nil {
			return owner.GetAnswer{}, nil, forward.ErrNotOwner // all of its parts are asked
		}
		return s.cfg.Store.AwaitCounter(s.cfg.Clock.Now(), f.at, cond, wait)
	})
	if err != nil {
		return verdict{}, err
	}
	r.Met, r.Value, r.Version = cond.Met(a.Value, a.Version), a.Value, a.Version
	r.Epoch, r.Owner, r.LostEpoch = a.Permit.Epoch, s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, r.Met}, nil
}

const (
	// awaitTurn is how long an await of a counter stays at one owner: the counter may be split
	// by then.
	awaitTurn = 5 * time.Second
	// awaitParts is how often a counter that is split is read.
	awaitParts = 100 * time.Millisecond
	// awaitSteady is how long all reads of a split counter that changes all the time have to be
	// as it is awaited.
	awaitSteady = 2 * time.Second
)

// frontAwait has the owner of a counter answer, or, while it is split, reads all its parts again
// and again.
func (s *Server) frontAwait(ctx context.Context, o *op[counterpb.AwaitRequest, counterpb.AwaitResponse, *counterpb.AwaitRequest, *counterpb.AwaitResponse], q *counterpb.AwaitRequest) (*counterpb.AwaitResponse, error) {
	cond, err := condOf(q)
	if err == nil && (q.WaitNs < 0 || q.WaitNs > int64(maxAwait)) {
		err = failure.Invalidf("wait_ns", "is %s; choose 0 to %s", time.Duration(q.WaitNs), maxAwait)
	}
	if err != nil {
		return nil, s.refuse(err)
	}
	if s.cfg.Cluster == nil {
		return o.atOwner(ctx, s, q)
	}
	until, seen := time.Now().Add(time.Duration(q.WaitNs)), sums{}
	for {
		left := max(time.Until(until), 0)
		var a *counterpb.AwaitResponse
		split := s.splitAt(s.cfg.Cluster.Table(), o.of, q.Key, q.Name) != nil
		if split {
			a, err = s.awaitSum(ctx, cond, q, &seen)
		} else {
			turn := &counterpb.AwaitRequest{Key: q.Key, Name: q.Name, AtMost: q.AtMost, AtLeast: q.AtLeast, WaitNs: int64(min(left, awaitTurn))}
			a, err = o.atOwner(ctx, s, turn)
		}
		switch {
		case err != nil || a.Met || left == 0 || a.Version == 0 && a.LostEpoch != 0:
			return a, err
		case split && !rest(ctx, s, min(left, awaitParts)) && ctx.Err() != nil:
			return nil, Status(gaveUp(ctx))
		case s.stopped.Load():
			return nil, s.refuse(errStopping)
		}
	}
}

// sums are reads of a split counter. Its parts are read one after the other, so that a sum may be
// one that the counter never had: a part was read before it was raised, another one after it was
// lowered.
type sums struct {
	last  *counterpb.GetResponse
	since time.Time // all reads from then on were as it is awaited
}

// met reports whether the counter was as it is awaited: no part has changed between two reads that
// are, or all of them were for a while.
func (r *sums) met(cond owner.Cond, g *counterpb.GetResponse, now time.Time) bool {
	last := r.last
	if r.last = g; !cond.Met(g.Value, g.Version) {
		r.since = time.Time{}
		return false
	}
	if r.since.IsZero() {
		r.since = now
		return false
	}
	//guard:await-sum-steady last.Version == g.Version -> true
	return last.Version == g.Version && last.Parts == g.Parts && last.Epoch == g.Epoch || now.Sub(r.since) >= awaitSteady
}

// awaitSum reads a counter that is split, and once more if it seems to be as it is awaited.
func (s *Server) awaitSum(ctx context.Context, cond owner.Cond, q *counterpb.AwaitRequest, seen *sums) (*counterpb.AwaitResponse, error) {
	for again := false; ; again = true {
		g, err := counterGet.serve(ctx, s, &counterpb.GetRequest{Key: q.Key, Name: q.Name})
		if err != nil {
			return nil, err
		}
		if met := seen.met(cond, g, time.Now()); met || again || seen.since.IsZero() {
			return &counterpb.AwaitResponse{Met: met, Value: g.Value, Version: g.Version,
				Epoch: g.Epoch, Owner: g.Owner, LostEpoch: g.LostEpoch, Parts: g.Parts}, nil
		}
	}
}
