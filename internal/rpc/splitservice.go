package rpc

import (
	"cmp"
	"context"
	"fmt"
	"unicode/utf8"

	"github.com/keystead/keystead/hotkey/divide"
	"github.com/keystead/keystead/hotkey/home"
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
	pb "github.com/keystead/keystead/proto/keystead/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// order reads and checks the address of an object.
func order(word, key, name string) (home.Order, error) {
	bad := func(field, message, hint string) (home.Order, error) {
		return home.Order{}, &failure.Error{Reason: failure.Invalid, Field: field, Message: message, Hint: hint}
	}
	kind, ok := divide.KindOf(word)
	switch {
	case !ok:
		return bad("kind", fmt.Sprintf("is %q", word), `use "limit" or "counter": locks are never split`)
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
