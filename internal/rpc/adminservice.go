package rpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/keystead/keystead/hotkey/divide"
	"github.com/keystead/keystead/hotkey/home"
	"github.com/keystead/keystead/internal/drain"
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/forgo"
	"github.com/keystead/keystead/owner"
	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// admin is the AdminService: what operators may do, apart from what everybody reads.
type admin struct {
	adminpb.UnimplementedAdminServiceServer
	s *Server
	c Cluster
}

// order reads and checks the address of an object.
func order(of commonpb.Kind, key, name string) (home.Order, error) {
	bad := func(field, message, hint string) (home.Order, error) {
		return home.Order{}, &failure.Error{Reason: failure.Invalid, Field: field, Message: message, Hint: hint}
	}
	word := kindName(of)
	kind, ok := divide.KindOf(word)
	switch {
	case !ok:
		return bad("kind", fmt.Sprintf("is %s", of), "use KIND_LIMIT or KIND_COUNTER: locks are never split")
	case key == "" || len(key) > owner.MaxKey:
		return bad("key", fmt.Sprintf("has %d bytes; 1 to %d are allowed", len(key), owner.MaxKey), "")
	case key[0] == 0 || //guard:split-order
		!utf8.ValidString(key):
		return bad("key", "begins with a NUL byte, or is not valid UTF-8", "")
	case len(name) > owner.MaxName || !utf8.ValidString(name):
		return bad("name", fmt.Sprintf("has more than %d bytes, or is not valid UTF-8", owner.MaxName), "")
	}
	return home.Order{Kind: kind, Key: key, Name: cmp.Or(name, word), Manual: true}, nil
}

var errNoSplits = &failure.Error{Reason: failure.Invalid,
	Message: "this node runs alone: there is nobody to serve parts", Hint: "split objects in a cluster"}

// SplitObject implements the AdminService.
func (a *admin) SplitObject(ctx context.Context, req *adminpb.SplitObjectRequest) (*adminpb.SplitObjectResponse, error) {
	o, err := order(req.Kind, req.Key, req.Name)
	switch {
	case err != nil:
		return nil, a.s.refuse(err)
	case a.s.cfg.Splits == nil:
		return nil, a.s.refuse(errNoSplits)
	case req.Parts != 0 && (req.Parts < table.MinParts || req.Parts > table.MaxParts):
		return nil, a.s.refuse(&failure.Error{Reason: failure.Invalid, Field: "parts",
			Message: fmt.Sprintf("is %d; %d to %d are allowed, or 0 for one on each node", req.Parts, table.MinParts, table.MaxParts)})
	}
	o.Parts, o.Reason = int(req.Parts), "by hand"
	t, sp, err := a.s.cfg.Splits.Split(ctx, o)
	if err != nil {
		return nil, a.s.refuse(err)
	}
	return &adminpb.SplitObjectResponse{Split: wireSplit(t, sp)}, nil
}

// MergeObject implements the AdminService.
func (a *admin) MergeObject(ctx context.Context, req *adminpb.MergeObjectRequest) (*adminpb.MergeObjectResponse, error) {
	o, err := order(req.Kind, req.Key, req.Name)
	if err == nil && a.s.cfg.Splits == nil {
		err = errNoSplits
	}
	if err == nil {
		o.Reason = "by hand"
		err = a.s.cfg.Splits.Merge(ctx, o)
	}
	if err != nil {
		return nil, a.s.refuse(err)
	}
	return &adminpb.MergeObjectResponse{}, nil
}

// Drain implements the AdminService.
func (a *admin) Drain(ctx context.Context, req *adminpb.DrainRequest) (*adminpb.DrainResponse, error) {
	s, err := a.drain(ctx, drain.Order{Node: req.Node, Force: req.Force})
	return &adminpb.DrainResponse{State: s}, err
}

// Undrain implements the AdminService.
func (a *admin) Undrain(ctx context.Context, req *adminpb.UndrainRequest) (*adminpb.UndrainResponse, error) {
	s, err := a.drain(ctx, drain.Order{Node: req.Node, Undo: true})
	return &adminpb.UndrainResponse{State: s}, err
}

func (a *admin) drain(ctx context.Context, o drain.Order) (*adminpb.DrainState, error) {
	if o.Node == "" {
		return nil, a.s.refuse(&failure.Error{Reason: failure.Invalid, Field: "node", Message: "is missing"})
	}
	s, err := a.c.Drain(ctx, o)
	switch {
	case err != nil && ctx.Err() != nil && !errors.As(err, new(*failure.Error)):
		return nil, a.s.refuse(gaveUp(ctx))
	case err != nil:
		return nil, a.s.refuse(err)
	}
	return &adminpb.DrainState{
		Node: s.Member.Node, Incarnation: s.Member.Incarnation, Phase: phases[s.Member.Phase],
		RowsOwned: uint32(s.Owned), RowsStandby: uint32(s.Standby), Already: s.Already, Epoch: s.Epoch,
	}, nil
}

// maxForgone bounds the processes that a ForgoDisk may name.
const maxForgone = 64

// ForgoDisk implements the AdminService.
func (a *admin) ForgoDisk(ctx context.Context, req *adminpb.ForgoDiskRequest) (*adminpb.ForgoDiskResponse, error) {
	switch {
	case req.Node == "":
		return nil, a.s.refuse(&failure.Error{Reason: failure.Invalid, Field: "node", Message: "is missing"})
	case len(req.Incarnations) > maxForgone:
		return nil, a.s.refuse(&failure.Error{Reason: failure.Invalid, Field: "incarnations", Message: fmt.Sprintf("are %d; at most %d are allowed", len(req.Incarnations), maxForgone)})
	case a.s.cfg.Forgo == nil:
		return nil, a.s.refuse(forgo.ErrNothingWaits(req.Node))
	}
	s, err := a.s.cfg.Forgo(ctx, forgo.Order{Node: req.Node, Incarnations: req.Incarnations, DryRun: req.DryRun, Reason: "by hand"})
	switch {
	case err != nil && ctx.Err() != nil && !errors.As(err, new(*failure.Error)):
		return nil, a.s.refuse(gaveUp(ctx))
	case err != nil:
		return nil, a.s.refuse(err)
	}
	return &adminpb.ForgoDiskResponse{Incarnations: s.Incarnations, Rows: uint32(s.Rows), RowsWaiting: uint32(s.Other), RowsLost: uint32(s.Lost), Epoch: s.Epoch}, nil
}
