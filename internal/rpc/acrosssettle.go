package rpc

import (
	"context"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/across"
	"github.com/keystead/keystead/owner/admission"
	admissionpb "github.com/keystead/keystead/proto/keystead/admission/v1"
)

// What callers ask of a hold of several keys they ask by any of them. Its owner tells the others what a hold has cost;
// the node that was asked has all of them extend it.

// phasesAcross is what a hold of several keys is to callers.
var phasesAcross = map[across.Phase]admission.Phase{
	across.Held: admission.Held, across.Admitted: admission.Held, across.Charged: admission.Charged, across.Released: admission.Released,
}

// settleAcross ends a hold of several keys at one of them.
func (s *Server) settleAcross(f frame, q *admissionpb.SettleRequest, hold admission.ID, r *admissionpb.SettleResponse) (verdict, error) {
	if q.Release && len(q.Costs) > 0 {
		return verdict{}, failure.Invalidf("release", "does not go with costs: nothing was used, or it is said how much")
	}
	costs := make([]owner.CostAcross, 0, len(q.Costs))
	for _, c := range q.Costs {
		costs = append(costs, owner.CostAcross{Key: c.GetKey(), Name: c.GetName(), Cost: c.GetCost()})
	}
	a, err := s.cfg.Store.SettleAcross(f.now, f.at, across.ID(hold), costs, q.Release)
	if err != nil {
		return verdict{}, s.heldWhole(f, hold, err)
	}
	before := phasesAcross[a.Before]
	if a.Before == across.Settled && a.Replayed { // as this says
		before = admission.Held
		r.Replay = replayOf(a.Meta)
	}
	a.Replayed = r.Replay != nil
	r.State = holdStates[before]
	r.Epoch, r.Owner, r.LostEpoch = a.Permit.Epoch, s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, before != admission.Unknown}, s.copiedAcross(a.Permit)
}

// copiedAcross waits until the copies have what was done to a hold of several keys, whatever the settings say of
// admissions: others are told of it.
func (s *Server) copiedAcross(p owner.Permit) error {
	if !s.row(s.sent[opSettle]).alone {
		return nil // the answer waits
	}
	return s.awaitCopies(p.Hash, false)
}

// extendHere has the time of a hold of several keys end later at one of them.
func (s *Server) extendHere(f frame, q *admissionpb.ExtendRequest, hold admission.ID, r *admissionpb.ExtendResponse) (verdict, error) {
	left, keys, meta, err := s.cfg.Store.ExtendAcross(f.now, f.at, across.ID(hold), q.HoldNs)
	if err != nil {
		return verdict{}, err
	}
	r.State = admissionpb.HoldState_HOLD_STATE_HOLD_UNKNOWN
	if r.HoldNs, r.Keys = left, keys; left > 0 {
		r.State = admissionpb.HoldState_HOLD_STATE_HELD
	}
	r.Epoch, r.Owner, r.LostEpoch = meta.Permit.Epoch, s.cfg.Node, meta.Permit.LostEpoch()
	return verdict{meta, left > 0}, nil
}

// frontExtend answers the Extend of a user. A hold of several keys is extended at all of them, or if its time is over at
// one, it is over at those that were asked before.
func (s *Server) frontExtend(ctx context.Context, o *extendOp, q *admissionpb.ExtendRequest) (*admissionpb.ExtendResponse, error) {
	r, err := o.atOwner(ctx, s, q)
	if err != nil || r.State != admissionpb.HoldState_HOLD_STATE_HELD {
		return r, err
	}
	extended := []string{q.Key}
	for _, key := range r.Keys {
		if key == q.Key {
			continue
		}
		a, err := o.atOwner(ctx, s, &admissionpb.ExtendRequest{Key: key, Name: q.Name, HoldId: q.HoldId, HoldNs: q.HoldNs})
		if err != nil {
			return nil, err
		}
		if a.State != admissionpb.HoldState_HOLD_STATE_HELD {
			s.tellOver(o.of.named(q.Name), q.HoldId, extended)
			r.State, r.HoldNs = a.State, 0
			return r, nil
		}
		extended = append(extended, key)
		r.HoldNs = min(r.HoldNs, a.HoldNs)
	}
	return r, nil
}

// tellOver tells the owners of keys that the time of a hold is over.
func (s *Server) tellOver(name, hold string, keys []string) {
	id, err := namedHold(hold)
	if err != nil {
		return
	}
	for _, key := range keys {
		s.outboxes.send(acrossWord, outgoing{news: wireWord(name, &across.Word{ID: across.ID(id), Key: key, Phase: across.Released})})
	}
}

// extendOp is the type of admissionExtend.
type extendOp = op[admissionpb.ExtendRequest, admissionpb.ExtendResponse, *admissionpb.ExtendRequest, *admissionpb.ExtendResponse]
