package rpc

import (
	"context"
	"time"

	"github.com/keystead/keystead/hotkey/divide"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/counter"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	pb "github.com/keystead/keystead/proto/keystead/v1"
)

// counters is the CounterService.
type counters struct {
	pb.UnimplementedCounterServiceServer
	s *Server
}

// add adds to a counter. With a part, it is for that; without, for the object, or if that
// is split, for the part of it that is here.
func (c *counters) add(req *pb.AddRequest, part *peerv1.Part, now int64) (added, error) {
	id, err := requestID(req.RequestId)
	if err != nil {
		return added{}, err
	}
	op := counter.AddOp{Delta: req.Delta, IdleTTL: req.IdleTtlNs}
	if req.Min != nil {
		op.HasMin, op.Min = true, *req.Min
	}
	if req.Max != nil {
		op.HasMax, op.Max = true, *req.Max
	}
	r, h, err := c.s.place(counterKind, ref(req.Key, req.Name, counterKind), part, &id)
	if err != nil {
		return added{}, err
	}
	a, err := c.s.cfg.Store.Add(now, r, id, op)
	if h.split == nil {
		return added{a, 0}, err
	}
	if err != nil {
		return added{}, c.s.divided(h, err)
	}
	c.s.parts.of(h.split.ID, h.index).operations.Add(1)
	beside := c.s.beside(h)
	if a.Replayed && a.Version&divide.OfWhole != 0 { // the whole has answered: just that again
		a.Value, a.Version = a.Value+h.split.Base, a.Version&^divide.OfWhole
	} else {
		a.Value, a.Version = a.Value+beside, a.Version|splitVersion
	}
	a.Current += beside
	return added{a, uint32(len(h.split.Parts))}, nil
}

// added is the answer of a counter, or of one of so many parts.
type added struct {
	owner.AddAnswer
	parts uint32
}

var refusals = map[counter.Refusal]pb.Refusal{
	counter.None:     pb.Refusal_REFUSAL_UNSPECIFIED,
	counter.BelowMin: pb.Refusal_REFUSAL_BELOW_MIN,
	counter.AboveMax: pb.Refusal_REFUSAL_ABOVE_MAX,
	counter.Overflow: pb.Refusal_REFUSAL_OVERFLOW,
}

func (c *counters) fill(r *pb.AddResponse, a *added) {
	r.Applied, r.Value, r.Version, r.Refusal = a.Applied, a.Value, a.Version, refusals[a.Refusal]
	r.Epoch, r.Replay, r.Current, r.Owner = a.Permit.Epoch, replayOf(a.Meta), a.Current, c.s.cfg.Node
	r.LostEpoch, r.Parts = a.Permit.LostEpoch(), a.parts
}

func addMeta(a *added) owner.Meta { return a.Meta }
func addYes(a *added) bool        { return a.Applied }

func (c *counters) Add(ctx context.Context, req *pb.AddRequest) (*pb.AddResponse, error) {
	r, err := c.decideAdd(req, nil, nil)
	if err != nil && c.s.elsewhere(err) {
		a, err := c.s.forward(ctx, forwardAdd(req), time.Now())
		return a.GetAdd(), err
	}
	return r, Status(err)
}

func forwardAdd(req *pb.AddRequest) *peerv1.ForwardCall {
	return &peerv1.ForwardCall{Call: &peerv1.ForwardCall_Add{Add: req}}
}

func (c *counters) decideAdd(req *pb.AddRequest, part *peerv1.Part, later *promises) (*pb.AddResponse, error) {
	a, err := c.add(req, part, c.s.cfg.Clock.Now())
	if err := one(c.s, later, &c.s.cfg.Metrics.ops[opAdd], &a, addMeta, addYes, err); err != nil {
		return nil, err
	}
	r := new(pb.AddResponse)
	c.fill(r, &a)
	return r, nil
}

func (c *counters) BatchAdd(ctx context.Context, req *pb.BatchAddRequest) (*pb.BatchAddResponse, error) {
	type cell struct {
		result   pb.AddResult
		response pb.AddResponse
	}
	n := len(req.Adds)
	cells, results := make([]cell, n), make([]*pb.AddResult, n)
	err := run(ctx, c.s, &c.s.cfg.Metrics.ops[opAdd], n, items[added]{
		do:   func(i int, now int64) (added, error) { return c.add(req.Adds[i], nil, now) },
		call: func(i int) *peerv1.ForwardCall { return forwardAdd(req.Adds[i]) },
		took: func(i int, a *peerv1.ForwardAnswer) {
			results[i] = &cells[i].result
			results[i].Response = a.GetAdd()
		},
		meta: addMeta,
		yes:  addYes,
		put: func(i int, a *added, err error) {
			x := &cells[i]
			results[i] = &x.result
			if err != nil {
				x.result.Error = wire(err)
				return
			}
			c.fill(&x.response, a)
			x.result.Response = &x.response
		},
	})
	if err != nil {
		return nil, err
	}
	return &pb.BatchAddResponse{Results: results}, nil
}

// get reads a counter; with a part, that. A split counter is read elsewhere: all its
// parts are.
func (c *counters) get(req *pb.GetRequest, part *peerv1.Part, now int64) (owner.GetAnswer, error) {
	r := ref(req.Key, req.Name, counterKind)
	switch {
	case part != nil:
		h, err := c.s.shareOf(part)
		if err != nil {
			return owner.GetAnswer{}, err
		}
		r = h.ref(owner.Share)
	case c.s.cfg.Cluster != nil && findSplit(c.s.cfg.Cluster.Table(), counterKind, r) != nil:
		return owner.GetAnswer{}, errNotOwner
	}
	return c.s.cfg.Store.Get(now, r)
}

func getMeta(a *owner.GetAnswer) owner.Meta { return a.Meta }
func getYes(a *owner.GetAnswer) bool        { return a.Version != 0 }

func (c *counters) Get(ctx context.Context, req *pb.GetRequest) (*pb.GetResponse, error) {
	r, err := c.decideGet(req, nil, nil)
	if err != nil && c.s.elsewhere(err) {
		a, err := c.s.forward(ctx, forwardGet(req), time.Now())
		return a.GetGet(), err
	}
	return r, Status(err)
}

func forwardGet(req *pb.GetRequest) *peerv1.ForwardCall {
	return &peerv1.ForwardCall{Call: &peerv1.ForwardCall_Get{Get: req}}
}

func (c *counters) decideGet(req *pb.GetRequest, part *peerv1.Part, later *promises) (*pb.GetResponse, error) {
	a, err := c.get(req, part, c.s.cfg.Clock.Now())
	if err := one(c.s, later, &c.s.cfg.Metrics.ops[opGet], &a, getMeta, getYes, err); err != nil {
		return nil, err
	}
	return c.gotten(&a), nil
}

func (c *counters) gotten(a *owner.GetAnswer) *pb.GetResponse {
	return &pb.GetResponse{Value: a.Value, Version: a.Version, Epoch: a.Permit.Epoch, Owner: c.s.cfg.Node, LostEpoch: a.Permit.LostEpoch()}
}

func (c *counters) BatchGet(ctx context.Context, req *pb.BatchGetRequest) (*pb.BatchGetResponse, error) {
	results := make([]*pb.GetResult, len(req.Gets))
	err := run(ctx, c.s, &c.s.cfg.Metrics.ops[opGet], len(req.Gets), items[owner.GetAnswer]{
		do:   func(i int, now int64) (owner.GetAnswer, error) { return c.get(req.Gets[i], nil, now) },
		call: func(i int) *peerv1.ForwardCall { return forwardGet(req.Gets[i]) },
		took: func(i int, a *peerv1.ForwardAnswer) { results[i] = &pb.GetResult{Response: a.GetGet()} },
		meta: getMeta,
		yes:  getYes,
		put: func(i int, a *owner.GetAnswer, err error) {
			if err != nil {
				results[i] = &pb.GetResult{Error: wire(err)}
				return
			}
			results[i] = &pb.GetResult{Response: c.gotten(a)}
		},
	})
	if err != nil {
		return nil, err
	}
	return &pb.BatchGetResponse{Results: results}, nil
}

func (c *counters) SetIf(ctx context.Context, req *pb.SetIfRequest) (*pb.SetIfResponse, error) {
	r, err := c.decideSetIf(req, nil)
	if err != nil && c.s.elsewhere(err) {
		a, err := c.s.forward(ctx, &peerv1.ForwardCall{Call: &peerv1.ForwardCall_SetIf{SetIf: req}}, time.Now())
		return a.GetSetIf(), err
	}
	return r, Status(err)
}

func (c *counters) decideSetIf(req *pb.SetIfRequest, later *promises) (*pb.SetIfResponse, error) {
	id, err := requestID(req.RequestId)
	var a owner.SetIfAnswer
	if err == nil {
		op := counter.SetIfOp{Value: req.Value, Version: req.Version, IdleTTL: req.IdleTtlNs}
		a, err = c.s.cfg.Store.SetIf(c.s.cfg.Clock.Now(), ref(req.Key, req.Name, "counter"), id, op)
	}
	err = one(c.s, later, &c.s.cfg.Metrics.ops[opSetIf], &a,
		func(a *owner.SetIfAnswer) owner.Meta { return a.Meta },
		func(a *owner.SetIfAnswer) bool { return a.Applied }, err)
	if err != nil {
		return nil, err
	}
	return &pb.SetIfResponse{Applied: a.Applied, Value: a.Value, Version: a.Version,
		Epoch: a.Permit.Epoch, Replay: replayOf(a.Meta), Current: a.Current, Owner: c.s.cfg.Node, LostEpoch: a.Permit.LostEpoch()}, nil
}

func (c *counters) Reset(ctx context.Context, req *pb.ResetRequest) (*pb.ResetResponse, error) {
	r, err := c.decideReset(req, nil)
	if err != nil && c.s.elsewhere(err) {
		a, err := c.s.forward(ctx, &peerv1.ForwardCall{Call: &peerv1.ForwardCall_Reset_{Reset_: req}}, time.Now())
		return a.GetReset_(), err
	}
	return r, Status(err)
}

func (c *counters) decideReset(req *pb.ResetRequest, later *promises) (*pb.ResetResponse, error) {
	id, err := requestID(req.RequestId)
	var a owner.ResetAnswer
	if err == nil {
		a, err = c.s.cfg.Store.Reset(c.s.cfg.Clock.Now(), ref(req.Key, req.Name, "counter"), id)
	}
	err = one(c.s, later, &c.s.cfg.Metrics.ops[opReset], &a,
		func(a *owner.ResetAnswer) owner.Meta { return a.Meta },
		func(a *owner.ResetAnswer) bool { return a.Version != 0 }, err)
	if err != nil {
		return nil, err
	}
	return &pb.ResetResponse{Previous: a.Previous, Version: a.Version,
		Epoch: a.Permit.Epoch, Replay: replayOf(a.Meta), Current: a.Current, Owner: c.s.cfg.Node, LostEpoch: a.Permit.LostEpoch()}, nil
}
