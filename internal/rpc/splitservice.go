package rpc

import (
	"context"
	"fmt"
	"unicode/utf8"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
	pb "github.com/keystead/keystead/proto/keystead/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// SplitOrder is an object that is to be split, or made whole.
type SplitOrder struct {
	Kind, Key, Name string
	Parts           int    // 0 = one for each node on the ring
	Manual          bool   // somebody asked for it
	Reason          string // for people
}

// order reads and checks the address of an object.
func order(kind, key, name string) (SplitOrder, error) {
	bad := func(field, message, hint string) (SplitOrder, error) {
		return SplitOrder{}, &failure.Error{Reason: failure.Invalid, Field: field, Message: message, Hint: hint}
	}
	switch {
	case kind != limitKind && kind != counterKind:
		return bad("kind", fmt.Sprintf("is %q", kind), `use "limit" or "counter": locks are never split`)
	case key == "" || len(key) > owner.MaxKey:
		return bad("key", fmt.Sprintf("has %d bytes; 1 to %d are allowed", len(key), owner.MaxKey), "")
	case key[0] == 0 || //guard:split-order
		!utf8.ValidString(key):
		return bad("key", "begins with a NUL byte, or is not valid UTF-8", "")
	case len(name) > owner.MaxName || !utf8.ValidString(name):
		return bad("name", fmt.Sprintf("has more than %d bytes, or is not valid UTF-8", owner.MaxName), "")
	}
	return SplitOrder{Kind: kind, Key: key, Name: ref(key, name, kind).Name, Manual: true}, nil
}

var errNoSplits = &failure.Error{Reason: failure.Invalid,
	Message: "this node runs alone: there is nobody to serve parts", Hint: "split objects in a cluster"}

// SplitObject implements the service.
func (c *cluster) SplitObject(ctx context.Context, req *pb.SplitObjectRequest) (*pb.SplitObjectResponse, error) {
	o, err := order(req.Kind, req.Key, req.Name)
	switch {
	case err != nil:
		return nil, c.s.refuse(err)
	case c.s.cfg.Splits == nil:
		return nil, c.s.refuse(errNoSplits)
	case req.Parts != 0 && (req.Parts < table.MinParts || req.Parts > table.MaxParts):
		return nil, c.s.refuse(&failure.Error{Reason: failure.Invalid, Field: "parts",
			Message: fmt.Sprintf("is %d; %d to %d are allowed, or 0 for one on each node", req.Parts, table.MinParts, table.MaxParts)})
	}
	o.Parts, o.Reason = int(req.Parts), "by hand"
	t, sp, err := c.s.cfg.Splits.Split(ctx, o)
	if err != nil {
		return nil, c.s.refuse(err)
	}
	return &pb.SplitObjectResponse{Split: wireSplit(t, sp)}, nil
}

// MergeObject implements the service.
func (c *cluster) MergeObject(ctx context.Context, req *pb.MergeObjectRequest) (*pb.MergeObjectResponse, error) {
	o, err := order(req.Kind, req.Key, req.Name)
	if err == nil && c.s.cfg.Splits == nil {
		err = errNoSplits
	}
	if err == nil {
		o.Reason = "by hand"
		err = c.s.cfg.Splits.Merge(ctx, o)
	}
	if err != nil {
		return nil, c.s.refuse(err)
	}
	return &pb.MergeObjectResponse{}, nil
}
