package rpc

import (
	"context"

	"github.com/keystead/keystead/hotkey/divide"
	"github.com/keystead/keystead/internal/forward"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/counter"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// counters is what the CounterService has beside the table of operations: batches.
type counters struct {
	counterpb.UnimplementedCounterServiceServer
	s *Server
}

var refusals = map[counter.Refusal]counterpb.Refusal{
	counter.None:     counterpb.Refusal_REFUSAL_UNSPECIFIED,
	counter.BelowMin: counterpb.Refusal_REFUSAL_BELOW_MIN,
	counter.AboveMax: counterpb.Refusal_REFUSAL_ABOVE_MAX,
	counter.Overflow: counterpb.Refusal_REFUSAL_OVERFLOW,
}

// add adds to a counter. With a part, it is for that; without, for the object, or if that
// is split, for the part of it that is here.
func (s *Server) add(f frame, req *counterpb.AddRequest, r *counterpb.AddResponse) (verdict, error) {
	op := counter.AddOp{Delta: req.Delta, IdleTTL: req.IdleTtlNs}
	if req.Min != nil {
		op.HasMin, op.Min = true, *req.Min
	}
	if req.Max != nil {
		op.HasMax, op.Max = true, *req.Max
	}
	at, h, err := s.place(counterKind, f.at, f.part, &f.id)
	if err != nil {
		return verdict{}, err
	}
	a, err := s.cfg.Store.Add(f.now, at, f.id, op)
	switch {
	case err != nil && h.split != nil:
		return verdict{}, s.divided(h, err)
	case err != nil:
		return verdict{}, err
	case h.split != nil:
		s.parts.of(h.split.ID, h.index).operations.Add(1)
		s.addOthers(h, &a)
		r.Parts = uint32(len(h.split.Parts))
	}
	r.Applied, r.Value, r.Version, r.Refusal = a.Applied, a.Value, a.Version, refusals[a.Refusal]
	r.Epoch, r.Replay, r.Current, r.Owner = a.Permit.Epoch, replayOf(a.Meta), a.Current, s.cfg.Node
	r.LostEpoch = a.Permit.LostEpoch()
	return verdict{a.Meta, a.Applied}, nil
}

// addOthers makes the answer of a part one of the counter, as far as this node has heard
// what the other parts have.
func (s *Server) addOthers(h share, a *owner.AddAnswer) {
	others := s.remainder(h)
	if a.Replayed && a.Version&divide.OfWhole != 0 { // the whole has answered: just that again
		a.Value, a.Version = a.Value+h.split.Base, a.Version&^divide.OfWhole
	} else {
		a.Value, a.Version = a.Value+others, a.Version|splitVersion
	}
	a.Current += others
}

// addDivides reports whether a part can do an add.
func addDivides(req *counterpb.AddRequest) bool {
	return req.Min == nil && //guard:split-divisible
		req.Max == nil && //guard:split-divisible
		req.IdleTtlNs == 0
}

// BatchAdd implements the service.
func (c *counters) BatchAdd(ctx context.Context, req *counterpb.BatchAddRequest) (*counterpb.BatchAddResponse, error) {
	var by deciders
	results, err := batch(ctx, c.s, counterAdd, req.Adds, nil, func(r *counterpb.AddResult, a *counterpb.AddResponse, w *commonpb.Error) {
		if r.Response, r.Error = a, w; a != nil {
			r.Decider = by.move(&a.Owner, &a.Epoch)
		}
	})
	if err != nil {
		return nil, err
	}
	return &counterpb.BatchAddResponse{Results: results, Deciders: by.list}, nil
}

// get reads a counter; with a part, that. A split counter is read elsewhere: all its
// parts are.
func (s *Server) get(f frame, _ *counterpb.GetRequest, r *counterpb.GetResponse) (verdict, error) {
	at := f.at
	switch {
	case f.part != nil:
		h, err := s.shareOf(f.part)
		if err != nil {
			return verdict{}, err
		}
		at = h.ref(owner.Share)
	case s.cfg.Cluster != nil && findSplit(s.cfg.Cluster.Table(), counterKind, at) != nil:
		return verdict{}, forward.ErrNotOwner
	}
	a, err := s.cfg.Store.Get(f.now, at)
	if err != nil {
		return verdict{}, err
	}
	r.Value, r.Version, r.Epoch, r.Owner, r.LostEpoch = a.Value, a.Version, a.Permit.Epoch, s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.Version != 0}, nil
}

// getDivides reports whether a part can do a get: its own.
func getDivides(*counterpb.GetRequest) bool { return true }

// sumOfParts returns what a split counter has, by what its parts have.
func sumOfParts(node string, sp *table.Split, _ *counterpb.GetRequest, parts []*counterpb.GetResponse) *counterpb.GetResponse {
	r := &counterpb.GetResponse{Value: sp.Base, Version: splitVersion, Epoch: sp.ID, Owner: node, Parts: uint32(len(sp.Parts))}
	for _, g := range parts {
		r.Value += g.Value
		r.Version = (r.Version + g.Version) | splitVersion
		r.Epoch, r.LostEpoch = max(r.Epoch, g.Epoch), max(r.LostEpoch, g.LostEpoch)
	}
	return r
}

// BatchGet implements the service.
func (c *counters) BatchGet(ctx context.Context, req *counterpb.BatchGetRequest) (*counterpb.BatchGetResponse, error) {
	var by deciders
	results, err := batch(ctx, c.s, counterGet, req.Gets, nil, func(r *counterpb.GetResult, a *counterpb.GetResponse, w *commonpb.Error) {
		if r.Response, r.Error = a, w; a != nil {
			r.Decider = by.move(&a.Owner, &a.Epoch)
		}
	})
	if err != nil {
		return nil, err
	}
	return &counterpb.BatchGetResponse{Results: results, Deciders: by.list}, nil
}

func (s *Server) compareAndSet(f frame, req *counterpb.CompareAndSetRequest, r *counterpb.CompareAndSetResponse) (verdict, error) {
	a, err := s.cfg.Store.CompareAndSet(f.now, f.at, f.id, counter.CompareAndSetOp{Value: req.Value, Version: req.Version, IdleTTL: req.IdleTtlNs})
	if err != nil {
		return verdict{}, err
	}
	r.Applied, r.Value, r.Version, r.Current = a.Applied, a.Value, a.Version, a.Current
	r.Epoch, r.Replay, r.Owner, r.LostEpoch = a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.Applied}, nil
}

func (s *Server) reset(f frame, _ *counterpb.ResetRequest, r *counterpb.ResetResponse) (verdict, error) {
	a, err := s.cfg.Store.Reset(f.now, f.at, f.id)
	if err != nil {
		return verdict{}, err
	}
	r.Previous, r.Version, r.Current = a.Previous, a.Version, a.Current
	r.Epoch, r.Replay, r.Owner, r.LostEpoch = a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.Version != 0}, nil
}

func (s *Server) deleteCounter(f frame, _ *counterpb.DeleteRequest, r *counterpb.DeleteResponse) (verdict, error) {
	a, err := s.cfg.Store.Delete(f.now, f.at, f.id)
	if err != nil {
		return verdict{}, err
	}
	r.Deleted, r.Previous, r.Version, r.Current = a.Deleted, a.Previous, a.Version, a.Current
	r.Epoch, r.Replay, r.Owner, r.LostEpoch = a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.Deleted}, nil
}
