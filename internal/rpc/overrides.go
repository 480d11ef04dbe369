package rpc

import (
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/limit"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// setOverride overrides a limit. One that is split is made whole first, so that all parts get it.
func (s *Server) setOverride(f frame, req *limitpb.SetOverrideRequest, r *limitpb.SetOverrideResponse) (verdict, error) {
	a, err := s.cfg.Store.SetOverride(f.now, f.at, f.id, limit.Override{Limit: req.Limit, Period: req.PeriodNs, Burst: req.Burst}, req.EndsAfterNs)
	if err != nil {
		return verdict{}, err
	}
	r.Existed = a.Existed
	r.Epoch, r.Replay, r.Owner, r.LostEpoch = a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.Existed}, nil
}

// clearOverride ends an override.
func (s *Server) clearOverride(f frame, _ *limitpb.ClearOverrideRequest, r *limitpb.ClearOverrideResponse) (verdict, error) {
	a, err := s.cfg.Store.ClearOverride(f.now, f.at, f.id)
	if err != nil {
		return verdict{}, err
	}
	r.Existed = a.Existed
	r.Epoch, r.Replay, r.Owner, r.LostEpoch = a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.Existed}, nil
}

// getOverride reads an override, of a split limit at any of its parts: all have the same.
func (s *Server) getOverride(f frame, _ *limitpb.GetOverrideRequest, r *limitpb.GetOverrideResponse) (verdict, error) {
	at, h, err := s.place(limitKind, f.at, f.part, &f.id)
	if err != nil {
		return verdict{}, err
	}
	a, err := s.cfg.Store.GetOverride(f.now, at)
	if err != nil {
		return verdict{}, s.divided(h, err)
	}
	r.Override = wireOverride(a.Override, a.Left)
	r.Epoch, r.Owner, r.LostEpoch = a.Permit.Epoch, s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.Existed}, nil
}

// always is for operations that any part can do.
func always[Q any](*Q) bool { return true }

// wireOverride is an override as it travels, nil if it is none.
func wireOverride(o limit.Override, left int64) *limitpb.Override {
	if o == (limit.Override{}) {
		return nil
	}
	return &limitpb.Override{Limit: o.Limit, PeriodNs: o.Period, Burst: o.Burst, EndsAfterNs: left}
}

// overrideOf returns the override of an object that is shown, nil if none is in force.
func overrideOf(x *owner.Shown) *limitpb.Override {
	o, ok := x.Override()
	if !ok || o.Over(x.Now) {
		return nil
	}
	return wireOverride(o, o.Left(x.Now))
}
