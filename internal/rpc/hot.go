package rpc

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
	pb "github.com/keystead/keystead/proto/keystead/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// Bounds of what ListHot returns.
const (
	// MaxHotKeys is the most that a caller can ask for: an answer has about 85 KB at
	// most, with the longest keys and names.
	MaxHotKeys = 128
	// defaultHotKeys is what one that asks for 0 gets: a screen of them.
	defaultHotKeys = 20
)

// HotKeys is what a node saw of its busiest objects at a look. It does not change. All
// rates are in operations a second over the last ten seconds or so.
type HotKeys struct {
	At      int64   // of the look, ns by the clock of the store
	Rate    float64 // of all objects together
	Objects int64   // that the node holds as their owner; about
	LeftOut int64   // how often, since the start, there was no room for one that was hot enough
	Hot     int     // how many of Keys are hot

	Floor  float64 // the least rate of a hot one
	Factor float64 // times the average of the others that it has
	Stay   int64   // how long it is hot at least, ns
	Max    int     // how many are hot at a time, at most

	Keys []HotKey // the busiest first
}

// HotKey is an object that is busy.
type HotKey struct {
	owner.Object
	Rate  float64 // at most
	Sure  float64 // at least
	Hot   bool
	Since int64 // when it got hot, ns by the clock of the store; 0 if it is not
}

var errNoHot = &failure.Error{Reason: failure.Unavailable, RetryAfter: time.Second,
	Message: "this node does not look for hot keys", Hint: "ask another node"}

// ListHot implements the service.
func (c *cluster) ListHot(_ context.Context, req *pb.ListHotRequest) (*pb.ListHotResponse, error) {
	if req.Limit > MaxHotKeys {
		return nil, c.s.refuse(&failure.Error{Reason: failure.Invalid, Field: "limit",
			Message: fmt.Sprintf("is %d; at most %d are allowed", req.Limit, MaxHotKeys)})
	}
	if c.s.cfg.Hot == nil {
		return nil, c.s.refuse(errNoHot)
	}
	seen, now := c.s.cfg.Hot(), c.s.cfg.Clock.Now()
	r := &pb.ListHotResponse{
		Id: c.c.Self().Node, Epoch: c.c.Table().Epoch, Rate: seen.Rate, Objects: uint64(seen.Objects),
		Policy: &pb.HotPolicy{Floor: seen.Floor, Factor: seen.Factor, StayNs: seen.Stay, Max: uint32(seen.Max)},
		Hot:    uint32(seen.Hot), LeftOut: uint64(seen.LeftOut), AgeNs: max(now-seen.At, 0), Splits: wireSplits(c.c.Table()),
	}
	keys := seen.Keys[:min(len(seen.Keys), int(cmp.Or(req.Limit, defaultHotKeys)))]
	t := c.c.Table()
	for i := range keys {
		k := &keys[i]
		if k.Key[0] == 0 {
			if out := hotPart(t, k, now); out != nil {
				r.Keys = append(r.Keys, out)
			}
			continue
		}
		out := &pb.HotKey{Key: k.Key, Name: k.Name, Kind: k.Kind.String(), Rate: k.Rate, Sure: k.Sure, Hot: k.Hot, Waiting: uint32(k.Waiting)}
		if k.Hot {
			out.SinceNs = max(now-k.Since, 0)
		}
		r.Keys = append(r.Keys, out)
	}
	return r, nil
}

// hotPart is a busy part of a split object, under the object's own address; nil if the
// split is over.
func hotPart(t *table.Table, k *HotKey, now int64) *pb.HotKey {
	id, part, _ := table.OfPart(k.Key)
	sp, ok := t.SplitOf(id)
	if !ok {
		return nil
	}
	out := &pb.HotKey{Key: sp.Key, Name: sp.Name, Kind: sp.Kind, Rate: k.Rate, Sure: k.Sure, Hot: k.Hot, Parts: uint32(len(sp.Parts)), Part: uint32(part)}
	if k.Hot {
		out.SinceNs = max(now-k.Since, 0)
	}
	return out
}
