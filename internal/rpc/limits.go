package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	pb "github.com/keystead/keystead/proto/keystead/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// limits is the LimitService.
type limits struct {
	pb.UnimplementedLimitServiceServer
	s *Server
}

// check decides a check. With a part, it is for that; without, for the object, or if that
// is split, for the part of it that is here.
func (l *limits) check(req *pb.CheckRequest, part *peerv1.Part, now int64) (checked, error) {
	var id reqid.ID
	if !req.Peek { // it changes nothing, so that there is nothing to repeat
		var err error
		if id, err = requestID(req.RequestId); err != nil {
			return checked{}, err
		}
	}
	op := limit.Op{Params: limit.Params{Limit: req.Limit, Period: req.PeriodNs, Burst: req.Burst}, Peek: req.Peek}
	if req.Refund == 0 {
		op.Cost = max(req.Cost, 1)
	} else if err := refund(req, &op); err != nil {
		return checked{}, err
	}
	switch req.Algorithm {
	case pb.Algorithm_ALGORITHM_UNSPECIFIED, pb.Algorithm_ALGORITHM_TOKEN_BUCKET:
		op.Algorithm = limit.TokenBucket
	case pb.Algorithm_ALGORITHM_FIXED_WINDOW:
		op.Algorithm = limit.FixedWindow
	case pb.Algorithm_ALGORITHM_SLIDING_WINDOW:
		op.Algorithm = limit.SlidingWindow
	default:
		return checked{}, &failure.Error{Reason: failure.Invalid, Field: "algorithm",
			Message: "is unknown to this node", Hint: "use TOKEN_BUCKET, FIXED_WINDOW or SLIDING_WINDOW"}
	}
	r, h, err := l.s.place(limitKind, ref(req.Key, req.Name, limitKind), part, &id)
	if err != nil {
		return checked{}, err
	}
	a, err := l.s.cfg.Store.Check(now, r, id, op)
	if h.split == nil {
		return checked{a, 0}, err
	}
	if err != nil {
		return checked{}, l.s.divided(h, err)
	}
	l.s.countCheck(h, &op, &a)
	return checked{a, uint32(len(h.split.Parts))}, nil
}

// checked is the answer of a limit, or of one of so many parts.
type checked struct {
	owner.CheckAnswer
	parts uint32
}

// refund makes an operation one that gives tokens back.
func refund(req *pb.CheckRequest, op *limit.Op) error {
	bad := func(message, hint string) error {
		return &failure.Error{Reason: failure.Invalid, Field: "refund", Message: message, Hint: hint}
	}
	switch {
	case req.Refund < 0:
		return bad(fmt.Sprintf("is %d; it must not be negative", req.Refund), "send how many tokens to give back")
	case req.Cost != 0:
		return bad("does not go with a cost: a check spends, or gives back", "leave cost at 0, or send two checks")
	case req.Peek:
		return bad("does not go with peek: it always changes what is spent", "peek with a check of its own")
	}
	op.Refund = uint64(req.Refund)
	return nil
}

func (l *limits) fill(r *pb.CheckResponse, a *checked) {
	r.Allowed, r.Limit, r.Remaining = a.Allowed, a.Capacity, a.Remaining
	r.RetryAfterNs, r.ResetAfterNs = a.RetryAfter, a.ResetAfter
	r.Epoch, r.Replay, r.Owner = a.Permit.Epoch, replayOf(a.Meta), l.s.cfg.Node
	r.LostEpoch, r.Slack, r.Parts = a.Permit.LostEpoch(), a.Slack, a.parts
}

func checkMeta(a *checked) owner.Meta { return a.Meta }
func checkYes(a *checked) bool        { return a.Allowed }

func (l *limits) Check(ctx context.Context, req *pb.CheckRequest) (*pb.CheckResponse, error) {
	if req.Anywhere {
		return l.anywhere(ctx, req)
	}
	return l.atOwner(ctx, req)
}

// atOwner has the owner of the key decide.
func (l *limits) atOwner(ctx context.Context, req *pb.CheckRequest) (*pb.CheckResponse, error) {
	r, err := l.decide(req, nil, nil)
	if err != nil && l.s.elsewhere(err) {
		a, err := l.s.forward(ctx, forwardCheck(req), time.Now())
		return a.GetCheck(), err
	}
	if err == nil && r.Parts > 0 && !r.Allowed {
		r = l.second(ctx, req, r)
	}
	return r, Status(err)
}

// secondTime is how long a check that was refused waits for another part: some calls on a
// busy network. The owner of that part may have died since it was heard of.
const secondTime = 50 * time.Millisecond

// second asks another part for what the one that is here has refused, if that is known to
// have had so much left a moment ago. With a request id there is no other part.
func (l *limits) second(ctx context.Context, req *pb.CheckRequest, first *pb.CheckResponse) *pb.CheckResponse {
	if req.RequestId != nil || req.Peek || req.Refund != 0 || staysHere(ctx) {
		return first
	}
	t := l.s.cfg.Cluster.Table()
	sp := splitOf(t, forwardCheck(req))
	if sp == nil || sp.Phase != table.Open {
		return first
	}
	i, ok := l.s.richer(t, sp, max(req.Cost, 1))
	if !ok {
		return first
	}
	ctx, cancel := context.WithTimeout(ctx, secondTime)
	defer cancel()
	p := newPassage(ctx, l.s, forwardCheck(req), time.Now())
	p.fixed, p.once, p.part = true, true, &peerv1.Part{Split: sp.ID, Index: uint32(i)}
	a, err := p.run()
	l.s.cfg.Metrics.forwarded(err)
	if err != nil {
		l.s.parts.of(sp.ID, i).remaining.Store(0) // until its home says how it does
		return first                              // nothing is known of the second, and the first is an answer
	}
	l.s.parts.of(sp.ID, i).remaining.Store(a.GetCheck().Remaining)
	if !a.GetCheck().Allowed {
		return first
	}
	return a.GetCheck()
}

func forwardCheck(req *pb.CheckRequest) *peerv1.ForwardCall {
	return &peerv1.ForwardCall{Call: &peerv1.ForwardCall_Check{Check: req}}
}

// decide decides a check on this node.
func (l *limits) decide(req *pb.CheckRequest, part *peerv1.Part, later *promises) (*pb.CheckResponse, error) {
	a, err := l.check(req, part, l.s.cfg.Clock.Now())
	o := &l.s.cfg.Metrics.ops[opCheck]
	if req.Peek {
		o = &l.s.cfg.Metrics.ops[opPeek]
	}
	if err := one(l.s, later, o, &a, checkMeta, checkYes, err); err != nil {
		return nil, err
	}
	r := new(pb.CheckResponse)
	l.fill(r, &a)
	return r, nil
}

// checks decides a batch. Results and responses are allocated in one piece.
func (l *limits) checks(ctx context.Context, reqs []*pb.CheckRequest) ([]*pb.CheckResult, error) {
	type cell struct {
		result   pb.CheckResult
		response pb.CheckResponse
	}
	cells, results := make([]cell, len(reqs)), make([]*pb.CheckResult, len(reqs))
	err := run(ctx, l.s, &l.s.cfg.Metrics.ops[opCheck], len(reqs), items[checked]{
		bad:  func(i int) error { return alone(reqs[i]) },
		do:   func(i int, now int64) (checked, error) { return l.check(reqs[i], nil, now) },
		call: func(i int) *peerv1.ForwardCall { return forwardCheck(reqs[i]) },
		took: func(i int, a *peerv1.ForwardAnswer) {
			results[i] = &cells[i].result
			results[i].Response = a.GetCheck()
		},
		meta: checkMeta,
		yes:  checkYes,
		put: func(i int, a *checked, err error) {
			c := &cells[i]
			results[i] = &c.result
			if err != nil {
				c.result.Error = wire(err)
				return
			}
			l.fill(&c.response, a)
			c.result.Response = &c.response
		},
	})
	return results, err
}

func (l *limits) BatchCheck(ctx context.Context, req *pb.BatchCheckRequest) (*pb.BatchCheckResponse, error) {
	results, err := l.checks(ctx, req.Checks)
	if err != nil {
		return nil, err
	}
	return &pb.BatchCheckResponse{Results: results}, nil
}

func (l *limits) StreamCheck(stream grpc.BidiStreamingServer[pb.StreamCheckRequest, pb.StreamCheckResponse]) error {
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
func (l *limits) answer(stream grpc.BidiStreamingServer[pb.StreamCheckRequest, pb.StreamCheckResponse], req *pb.StreamCheckRequest) error {
	l.s.busy.Add(1)
	defer l.s.busy.Add(-1)
	results, err := l.checks(stream.Context(), req.Checks)
	if err != nil {
		return err
	}
	return stream.Send(&pb.StreamCheckResponse{Tag: req.Tag, Results: results})
}
