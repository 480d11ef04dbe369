package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	pb "github.com/keystead/keystead/proto/keystead/v1"
)

// limits is the LimitService.
type limits struct {
	pb.UnimplementedLimitServiceServer
	s *Server
}

func (l *limits) check(req *pb.CheckRequest, now int64) (owner.CheckAnswer, error) {
	var id reqid.ID
	if !req.Peek { // it changes nothing, so that there is nothing to repeat
		var err error
		if id, err = requestID(req.RequestId); err != nil {
			return owner.CheckAnswer{}, err
		}
	}
	op := limit.Op{Params: limit.Params{Limit: req.Limit, Period: req.PeriodNs, Burst: req.Burst}, Peek: req.Peek}
	if req.Refund == 0 {
		op.Cost = max(req.Cost, 1)
	} else if err := refund(req, &op); err != nil {
		return owner.CheckAnswer{}, err
	}
	switch req.Algorithm {
	case pb.Algorithm_ALGORITHM_UNSPECIFIED, pb.Algorithm_ALGORITHM_TOKEN_BUCKET:
		op.Algorithm = limit.TokenBucket
	case pb.Algorithm_ALGORITHM_FIXED_WINDOW:
		op.Algorithm = limit.FixedWindow
	case pb.Algorithm_ALGORITHM_SLIDING_WINDOW:
		op.Algorithm = limit.SlidingWindow
	default:
		return owner.CheckAnswer{}, &owner.Error{Reason: owner.Invalid, Field: "algorithm",
			Message: "is unknown to this node", Hint: "use TOKEN_BUCKET, FIXED_WINDOW or SLIDING_WINDOW"}
	}
	return l.s.cfg.Store.Check(now, ref(req.Key, req.Name, "limit"), id, op)
}

// refund makes an operation one that gives tokens back.
func refund(req *pb.CheckRequest, op *limit.Op) error {
	bad := func(message, hint string) error {
		return &owner.Error{Reason: owner.Invalid, Field: "refund", Message: message, Hint: hint}
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

func (l *limits) fill(r *pb.CheckResponse, a *owner.CheckAnswer) {
	r.Allowed, r.Limit, r.Remaining = a.Allowed, a.Capacity, a.Remaining
	r.RetryAfterNs, r.ResetAfterNs = a.RetryAfter, a.ResetAfter
	r.Epoch, r.Replay, r.Owner = a.Permit.Epoch, replayOf(a.Meta), l.s.cfg.Node
	r.LostEpoch = a.Permit.Lost
}

func checkMeta(a *owner.CheckAnswer) owner.Meta { return a.Meta }
func checkYes(a *owner.CheckAnswer) bool        { return a.Allowed }

func (l *limits) Check(ctx context.Context, req *pb.CheckRequest) (*pb.CheckResponse, error) {
	if req.Anywhere {
		return l.anywhere(ctx, req)
	}
	return l.atOwner(ctx, req)
}

// atOwner has the owner of the key decide.
func (l *limits) atOwner(ctx context.Context, req *pb.CheckRequest) (*pb.CheckResponse, error) {
	r, err := l.decide(req, nil)
	if err != nil && l.s.elsewhere(err) {
		a, err := l.s.forward(ctx, forwardCheck(req), time.Now())
		return a.GetCheck(), err
	}
	return r, Status(err)
}

func forwardCheck(req *pb.CheckRequest) *peerv1.ForwardCall {
	return &peerv1.ForwardCall{Call: &peerv1.ForwardCall_Check{Check: req}}
}

// decide decides a check on this node.
func (l *limits) decide(req *pb.CheckRequest, later *promises) (*pb.CheckResponse, error) {
	a, err := l.check(req, l.s.cfg.Clock.Now())
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
	err := run(ctx, l.s, &l.s.cfg.Metrics.ops[opCheck], len(reqs), items[owner.CheckAnswer]{
		bad:  func(i int) error { return alone(reqs[i]) },
		do:   func(i int, now int64) (owner.CheckAnswer, error) { return l.check(reqs[i], now) },
		call: func(i int) *peerv1.ForwardCall { return forwardCheck(reqs[i]) },
		took: func(i int, a *peerv1.ForwardAnswer) {
			results[i] = &cells[i].result
			results[i].Response = a.GetCheck()
		},
		meta: checkMeta,
		yes:  checkYes,
		put: func(i int, a *owner.CheckAnswer, err error) {
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
