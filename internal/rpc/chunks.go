package rpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/keystead/keystead/internal/chunk"
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/limit"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// newChunks returns the chunks of limits that this node takes from their owners.
func newChunks(s *Server) *chunk.Cache {
	return chunk.New(chunk.Config{Now: s.cfg.Clock.Now, Charge: s.takeChunk})
}

// takeChunk charges tokens at the owner of a bucket, as an ordinary check with a
// request id: it waits for the standby, and one that is sent again is not charged
// twice.
func (s *Server) takeChunk(ctx context.Context, b *chunk.Bucket, id chunk.ID, tokens uint64) (bool, chunk.Report, error) {
	req := lessened(b, tokens)
	//guard:override-chunks
	req.Anywhere = true // the owner refuses it under an override
	req.RequestId = &commonpb.RequestId{Client: id.Client[:], Sequence: id.Sequence, Settled: id.Sequence}
	m, err := s.router.Pass(ctx, limitCheck.call(req, owner.Hash(req.Key)), time.Time{})
	s.cfg.Metrics.forwarded(err)
	if err != nil {
		if wire(err).Reason == commonpb.Reason_REASON_INVALID {
			err = &chunk.Fault{Err: err}
		}
		return false, chunk.Report{}, err
	}
	r := m.(*limitpb.CheckResponse)
	if r.Overridden {
		return false, chunk.Report{}, &chunk.Fault{Err: errOverridden}
	}
	return r.Allowed, chunk.Report{Remaining: r.Remaining, RetryAfter: r.RetryAfterNs, ResetAfter: r.ResetAfterNs,
		Epoch: r.Epoch, Lost: r.LostEpoch, Owner: r.Owner}, nil
}

// errOverridden is why a node decides nothing by itself: the owner goes by other numbers than the
// caller's.
var errOverridden = errors.New("the limit is overridden")

// lessened is a check at the owner that leaves alone what is kept back.
func lessened(b *chunk.Bucket, cost uint64) *limitpb.CheckRequest {
	//guard:chunk-slack chunk.Slack(b.Burst) -> 0
	return &limitpb.CheckRequest{Key: b.Key, Name: b.Name, Limit: b.Limit, PeriodNs: b.Period, Burst: b.Burst - chunk.Slack(b.Burst), Cost: cost}
}

// bucketOf returns the token bucket that a check with anywhere is about. alone says that
// no other node spends of it.
func bucketOf(req *limitpb.CheckRequest, alone bool) (chunk.Bucket, error) {
	bad := func(field, message, hint string) (chunk.Bucket, error) {
		return chunk.Bucket{}, &failure.Error{Reason: failure.Invalid, Field: field, Message: message, Hint: hint}
	}
	b := chunk.Bucket{Key: req.Key, Name: cmp.Or(req.Name, limitKind), Limit: req.Limit, Period: req.PeriodNs, Burst: req.Burst}
	if b.Burst == 0 {
		b.Burst = b.Limit
	}
	slack := chunk.Slack(b.Burst)
	switch {
	case req.Algorithm != limitpb.Algorithm_ALGORITHM_UNSPECIFIED && req.Algorithm != limitpb.Algorithm_ALGORITHM_TOKEN_BUCKET:
		return bad("anywhere", "goes with token buckets only", "leave it out, or use TOKEN_BUCKET")
	case req.Refund != 0:
		return bad("refund", "cannot be given back anywhere but at the owner", "leave it out, or anywhere")
	case req.Overdraft:
		return bad("overdraft", "does not go with anywhere: only the owner knows what is owed", "leave it out, or anywhere")
	case req.RequestId != nil:
		return bad("request_id", "cannot be kept by a node that spends by itself", "leave it out, or anywhere")
	//guard:key-anywhere
	case keyOf(req) != "":
		return bad("idempotency_key", "cannot be kept by a node that spends by itself", "leave it out, or anywhere")
	case b.Burst > limit.MaxLimit:
		return bad("burst", fmt.Sprintf("is %d; at most %d is allowed", b.Burst, uint64(limit.MaxLimit)), "")
	case !alone && req.Cost > b.Burst-slack && req.Cost <= b.Burst:
		return bad("cost", fmt.Sprintf("is %d, and with anywhere %d of %d tokens are kept back: it would never be allowed", req.Cost, slack, b.Burst),
			"leave anywhere out, or allow a larger burst")
	}
	// As the owner would, but before it has to do with others that ask for the key.
	var field *failure.Error
	op := limit.Op{Params: limit.Params{Limit: b.Limit, Period: b.Period, Burst: req.Burst}, Cost: max(req.Cost, 1)}
	//guard:nonsense-at-the-door
	if err := op.Validate(); errors.As(err, &field) {
		return bad(field.Field, field.Message, "")
	}
	return b, nil
}

// anywhere decides a check that any node may decide: out of a chunk that this node
// holds, or at the owner if it is the owner, or none can be had. A chunk is paid for,
// so that it may be spent without a lease.
func (s *Server) anywhere(ctx context.Context, at *checkOp, req *limitpb.CheckRequest) (*limitpb.CheckResponse, error) {
	if req.Peek { // nothing is spent
		return s.checkAtOwner(ctx, at, req)
	}
	o, alone := s.row(limitSpend), s.cfg.Cluster == nil
	b, err := bucketOf(req, alone)
	switch {
	case err != nil:
		o.errored.Inc()
		return nil, s.refuse(err)
	case alone:
		return s.checkAtOwner(ctx, at, req)
	}
	cost, t, self := max(req.Cost, 1), s.cfg.Cluster.Table(), s.cfg.Cluster.Self()
	most := min(chunk.Cap(b.Burst, len(t.Members)), least(t, &b))
	m, _, ok := t.Owner(owner.Hash(req.Key))
	switch {
	case len(req.Key) > owner.MaxKey || len(req.Name) > owner.MaxName: // which is for the owner to say
		return s.aside(ctx, at, &b, cost)
	case !ok || m.Holder() == self || most < 2*cost ||
		!mayHold(t, self): //guard:chunk-strangers
		return s.aside(ctx, at, &b, cost)
	}
	a, err := s.chunks.Spend(ctx, b, cost, most)
	switch {
	case errors.Is(err, chunk.ErrFull), errors.Is(err, errOverridden):
		return s.aside(ctx, at, &b, cost)
	case err != nil:
		if ctx.Err() != nil {
			err = gaveUp(ctx)
		}
		o.errored.Inc()
		return nil, s.refuse(err)
	case a.Allowed:
		o.yes.Inc()
	default:
		o.no.Inc()
	}
	return &limitpb.CheckResponse{Allowed: a.Allowed, Capacity: b.Burst, Limit: b.Limit, Remaining: a.Remaining, RetryAfterNs: a.RetryAfter, ResetAfterNs: a.ResetAfter,
		Epoch: a.Epoch, Owner: a.Owner, LostEpoch: a.Lost, Slack: chunk.Slack(b.Burst)}, nil
}

var errBatched = &failure.Error{Reason: failure.Invalid, Field: "anywhere", Message: "goes with a Check by itself, not in a batch",
	Hint: "leave it out, as a batch makes up for the way to the owner; or send the check by itself"}

// alone refuses a check that any node may decide within a batch, where the owner would
// decide it. A peek is for the owner in any case.
func alone(req *limitpb.CheckRequest) error {
	if req.Anywhere && !req.Peek {
		return errBatched
	}
	return nil
}

// mayHold reports whether a process may hold chunks: it is one of the nodes by whose number
// a table divides them, and on the ring. Those that join come to it together, as one
// change of that number, however many of them are admitted one by one.
func mayHold(t *table.Table, self table.Holder) bool {
	m, ok := t.Member(self.Node)
	return ok && m.Holder() == self && (m.Phase == table.Active || m.Phase == table.Leaving)
}

// least returns the most that every part of a bucket can have room for, of what is not kept
// back; a chunk of more would make the bucket whole. It is all that, if the bucket is
// not split.
func least(t *table.Table, b *chunk.Bucket) uint64 {
	room := b.Burst - chunk.Slack(b.Burst)
	sp := findSplit(t, limitKind, owner.Ref{Key: b.Key, Name: b.Name})
	if sp == nil {
		return room
	}
	weight := uint32(table.FullWeight)
	for _, p := range sp.Parts {
		weight = min(weight, p.Weight)
	}
	return room * uint64(weight) / table.FullWeight
}

// aside has the owner decide, beside the chunks of others.
func (s *Server) aside(ctx context.Context, at *checkOp, b *chunk.Bucket, cost uint64) (*limitpb.CheckResponse, error) {
	r, err := s.checkAtOwner(ctx, at, lessened(b, cost))
	if err != nil {
		return nil, err
	}
	if r.Overridden {
		return r, nil // nobody holds any of it
	}
	r.Capacity, r.Slack = b.Burst, r.Slack+chunk.Slack(b.Burst) // beside what other parts have, if it is split
	return r, nil
}
