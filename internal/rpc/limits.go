package rpc

import (
	"context"
	"errors"
	"io"
	"math"
	"math/bits"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/forward"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/limit"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// limits is the LimitService: what is not in the table of operations, and checks for
// callers in this process.
type limits struct {
	limitpb.UnimplementedLimitServiceServer
	s *Server
}

// checkOp is the type of limitCheck.
type checkOp = op[limitpb.CheckRequest, limitpb.CheckResponse, *limitpb.CheckRequest, *limitpb.CheckResponse]

// check decides a check. With a part, it is for that; without, for the object, or if that
// is split, for the part of it that is here.
func (s *Server) check(f frame, req *limitpb.CheckRequest, r *limitpb.CheckResponse) (verdict, error) {
	op := limit.Op{Params: limit.Params{Limit: req.Limit, Period: req.PeriodNs, Burst: req.Burst}, Peek: req.Peek, MaxDelay: req.MaxDelayNs,
		Overdraft: req.Overdraft, Chunk: req.Anywhere && !req.Peek && s.cfg.Cluster != nil}
	if req.Refund == 0 {
		op.Cost = max(req.Cost, 1)
	} else if err := refund(req, &op); err != nil {
		return verdict{}, err
	}
	if err := refills(req, &op); err != nil {
		return verdict{}, err
	}
	if err := s.behind(req.PolicyVersion); err != nil {
		return verdict{}, err
	}
	if f.part == nil && s.cfg.Cluster != nil && peekSums(req) && findSplit(s.cfg.Cluster.Table(), limitKind, f.at) != nil {
		return verdict{}, forward.ErrNotOwner // all of its parts are asked
	}
	at, h, err := s.place(limitKind, f.at, f.part, &f.id)
	if err != nil {
		return verdict{}, err
	}
	var a owner.CheckAnswer
	if req.Policy == "" {
		a, err = s.cfg.Store.Check(f.now, at, f.id, op)
	} else {
		var by owner.Resolved
		a, by, err = s.cfg.Store.CheckPolicy(f.now, at, f.id, req.Policy, op)
		op.Params, r.PolicyVersion = by.Params, by.Version
	}
	if h.split != nil {
		if err != nil {
			return verdict{}, s.divided(h, err)
		}
		s.countCheck(h, &op, &a)
		r.Parts = uint32(len(h.split.Parts))
	}
	if err != nil {
		return verdict{}, err
	}
	r.Allowed, r.Capacity, r.Limit, r.Remaining = a.Allowed, a.Capacity, op.Limit, a.Remaining
	r.RetryAfterNs, r.ResetAfterNs, r.DelayNs, r.Debt = a.RetryAfter, a.ResetAfter, a.Delay, a.Debt
	r.PeriodEnds = a.Ends / int64(time.Second)
	if a.Override != 0 {
		r.Limit, r.Overridden = a.Override, true
	}
	r.Epoch, r.Replay, r.Owner = a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node
	r.LostEpoch, r.Slack = a.Permit.LostEpoch(), a.Slack
	return verdict{a.Meta, a.Allowed}, nil
}

// refills says in an operation how the limit of a check refills.
func refills(req *limitpb.CheckRequest, op *limit.Op) error {
	switch req.Algorithm {
	case limitpb.Algorithm_ALGORITHM_CALENDAR_WINDOW:
		return byCalendar(req, op)
	case limitpb.Algorithm_ALGORITHM_UNSPECIFIED, limitpb.Algorithm_ALGORITHM_TOKEN_BUCKET:
		op.Algorithm = limit.TokenBucket
	case limitpb.Algorithm_ALGORITHM_FIXED_WINDOW:
		op.Algorithm = limit.FixedWindow
	case limitpb.Algorithm_ALGORITHM_SLIDING_WINDOW:
		op.Algorithm = limit.SlidingWindow
	case limitpb.Algorithm_ALGORITHM_LEAKY_BUCKET:
		op.Algorithm = limit.LeakyBucket
	default:
		return &failure.Error{Reason: failure.Invalid, Field: "algorithm",
			Message: "is unknown to this node", Hint: "use TOKEN_BUCKET, FIXED_WINDOW, SLIDING_WINDOW, CALENDAR_WINDOW or LEAKY_BUCKET"}
	}
	return noCalendar(req)
}

// checkLevel is the level of the cluster from which on all nodes know the algorithm of a check.
func checkLevel(req *limitpb.CheckRequest) uint32 {
	switch {
	//guard:policy-sent-level
	case req.Policy != "":
		return table.PoliciesLevel
	//guard:overdraft-sent-level
	case req.Overdraft:
		return owner.OverdraftLevel
	case req.Algorithm == limitpb.Algorithm_ALGORITHM_LEAKY_BUCKET:
		return owner.LeakyLevel
	case req.Algorithm == limitpb.Algorithm_ALGORITHM_CALENDAR_WINDOW:
		return owner.CalendarLevel
	}
	return 0
}

// checkDivides reports whether a part can do a check.
func checkDivides(req *limitpb.CheckRequest) bool {
	return req.Algorithm == limitpb.Algorithm_ALGORITHM_UNSPECIFIED || req.Algorithm == limitpb.Algorithm_ALGORITHM_TOKEN_BUCKET
}

// peekSums reports whether all parts answer a check together: one that reads a token bucket,
// and says what it holds.
func peekSums(req *limitpb.CheckRequest) bool {
	return req.Peek && req.Policy == "" && checkDivides(req)
}

// sumOfPeeks returns what a split limit has, by what its parts have. Parts that were read one
// after the other are taken to be full again when the last one is, and to fill up at the
// limit's rate together.
func sumOfPeeks(node string, sp *table.Split, req *limitpb.CheckRequest, parts []*limitpb.CheckResponse) *limitpb.CheckResponse {
	r := &limitpb.CheckResponse{Limit: req.Limit, Epoch: sp.ID, Owner: node, Parts: uint32(len(sp.Parts))}
	for _, p := range parts {
		r.Capacity, r.Remaining = max(r.Capacity, p.Capacity), r.Remaining+p.Remaining
		r.ResetAfterNs, r.Debt = max(r.ResetAfterNs, p.ResetAfterNs), r.Debt+p.Debt
		r.Epoch, r.LostEpoch = max(r.Epoch, p.Epoch), max(r.LostEpoch, p.LostEpoch)
		if p.Overridden {
			r.Limit, r.Overridden = p.Limit, true
		}
	}
	cost := max(req.Cost, 1)
	if r.Remaining = min(r.Remaining, r.Capacity); r.Remaining >= cost {
		r.Allowed = true
		return r
	}
	if r.Overridden { // its period is not told: in that time all of it is there, if it ever is
		if r.RetryAfterNs = max(r.ResetAfterNs, 1); cost > r.Capacity {
			r.RetryAfterNs = math.MaxInt64
		}
		return r
	}
	hi, lo := bits.Mul64(cost-r.Remaining, uint64(req.PeriodNs)) // both are below 2^63
	wait, _ := bits.Div64(hi%req.Limit, lo, req.Limit)
	if r.RetryAfterNs = math.MaxInt64; hi < req.Limit && wait < math.MaxInt64 {
		r.RetryAfterNs = int64(wait) + 1
	}
	return r
}

// refund makes an operation one that gives tokens back.
func refund(req *limitpb.CheckRequest, op *limit.Op) error {
	bad := func(message, hint string) error {
		return &failure.Error{Reason: failure.Invalid, Field: "refund", Message: message, Hint: hint}
	}
	switch {
	case req.Cost != 0:
		return bad("does not go with a cost: a check spends, or gives back", "leave cost at 0, or send two checks")
	case req.Peek:
		return bad("does not go with peek: it always changes what is spent", "peek with a check of its own")
	}
	op.Refund = req.Refund
	return nil
}

// resetLimit makes a limit full. One that is split is made whole first: no part can do it.
func (s *Server) resetLimit(f frame, _ *limitpb.ResetRequest, r *limitpb.ResetResponse) (verdict, error) {
	a, err := s.cfg.Store.ResetLimit(f.now, f.at, f.id)
	if err != nil {
		return verdict{}, err
	}
	r.Existed, r.Spent = a.Spent > 0, a.Spent
	r.Epoch, r.Replay, r.Owner, r.LostEpoch = a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.Spent > 0}, nil
}

// Check implements the service for callers in this process.
func (l *limits) Check(ctx context.Context, req *limitpb.CheckRequest) (*limitpb.CheckResponse, error) {
	return l.s.frontCheck(ctx, limitCheck, req)
}

// frontCheck answers the check of a user.
func (s *Server) frontCheck(ctx context.Context, o *checkOp, req *limitpb.CheckRequest) (*limitpb.CheckResponse, error) {
	if err := s.byPolicy(req); err != nil {
		return nil, s.refuse(err)
	}
	rule, err := s.ruleOf(req)
	switch {
	case err != nil:
		return nil, s.refuse(err)
	case rule != nil:
		return s.checkOr(ctx, o, req, rule)
	case req.Anywhere:
		return s.anywhere(ctx, o, req)
	}
	return s.checkAtOwner(ctx, o, req)
}

// checkAtOwner has the owner of the key decide, or the owners of two parts.
func (s *Server) checkAtOwner(ctx context.Context, o *checkOp, req *limitpb.CheckRequest) (*limitpb.CheckResponse, error) {
	r, err := o.atOwner(ctx, s, req)
	if err == nil && r.Parts > 0 && !r.Allowed && r.Owner == s.cfg.Node {
		r = s.second(ctx, o, req, r)
	}
	return r, err
}

// secondTime is how long a check that was refused waits for another part: some calls on a
// busy network. The owner of that part may have died since it was heard of.
const secondTime = 50 * time.Millisecond

// second asks another part for what the one that is here has refused, if that is known to
// have had so much left a moment ago. With a request id there is no other part.
func (s *Server) second(ctx context.Context, o *checkOp, req *limitpb.CheckRequest, first *limitpb.CheckResponse) *limitpb.CheckResponse {
	if req.RequestId != nil || o.key(req) != "" || req.Peek || req.Refund != 0 || forward.StaysHere(ctx) {
		return first
	}
	t, c := s.cfg.Cluster.Table(), o.call(req, 0)
	sp := forward.SplitOf(t, c)
	if sp == nil || sp.Phase != table.Open {
		return first
	}
	i, ok := s.richer(t, sp, max(req.Cost, 1))
	if !ok {
		return first
	}
	ctx, cancel := context.WithTimeout(ctx, secondTime)
	defer cancel()
	m, err := s.router.PassToPart(ctx, c, &peerv1.Part{Split: sp.ID, Index: uint32(i)}, true)
	s.cfg.Metrics.forwarded(err)
	if err != nil {
		s.parts.of(sp.ID, i).remaining.Store(0) // until its home says how it does
		return first                            // nothing is known of the second, and the first is an answer
	}
	r := m.(*limitpb.CheckResponse)
	s.parts.of(sp.ID, i).remaining.Store(r.Remaining)
	if !r.Allowed {
		return first
	}
	return r
}

// bad says why no node would do a check of a batch, nil if there is nothing like that.
func (l *limits) bad(req *limitpb.CheckRequest) error {
	if err := l.s.byPolicy(req); err != nil {
		return err
	}
	if _, err := l.s.ruleOf(req); err != nil {
		return err
	}
	return alone(req)
}

// checks decides a batch.
func (l *limits) checks(ctx context.Context, reqs []*limitpb.CheckRequest) ([]*limitpb.CheckResult, []*commonpb.Decider, error) {
	var by deciders
	put := func(r *limitpb.CheckResult, a *limitpb.CheckResponse, w *commonpb.Error) {
		if r.Response, r.Error = a, w; a != nil {
			r.Decider = by.move(&a.Owner, &a.Epoch)
		}
	}
	if !slices.ContainsFunc(reqs, l.s.falls) {
		results, err := batch(ctx, l.s, limitCheck, reqs, l.bad, put)
		return results, by.list, err
	}
	results, err := l.checksOr(ctx, reqs, put)
	return results, by.list, err
}

// BatchCheck implements the service.
func (l *limits) BatchCheck(ctx context.Context, req *limitpb.BatchCheckRequest) (*limitpb.BatchCheckResponse, error) {
	results, by, err := l.checks(ctx, req.Checks)
	if err != nil {
		return nil, err
	}
	return &limitpb.BatchCheckResponse{Results: results, Deciders: by}, nil
}

// StreamCheck implements the service.
func (l *limits) StreamCheck(stream grpc.BidiStreamingServer[limitpb.StreamCheckRequest, limitpb.StreamCheckResponse]) error {
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if l.s.stopped.Load() {
			return l.s.refuse(errStopping)
		}
		if err := checkSize(req, MaxBatch); err != nil {
			return l.s.refuse(err)
		}
		if err := l.answer(stream, req); err != nil {
			return err
		}
	}
}

// answer answers one message of a stream. While it does, a stop waits for it.
func (l *limits) answer(stream grpc.BidiStreamingServer[limitpb.StreamCheckRequest, limitpb.StreamCheckResponse], req *limitpb.StreamCheckRequest) error {
	l.s.busy.Add(1)
	defer l.s.busy.Add(-1)
	results, by, err := l.checks(stream.Context(), req.Checks)
	if err != nil {
		return err
	}
	return stream.Send(&limitpb.StreamCheckResponse{Tag: req.Tag, Results: results, Deciders: by})
}
