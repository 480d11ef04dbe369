package rpc

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/keystead/keystead/hotkey/home"
	"github.com/keystead/keystead/internal/failure"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// defaultHotKeys is how many a caller gets that asks for 0: a screen of them. One can ask
// for home.MaxHotKeys, with which an answer has about 85 KB at most, with the longest keys
// and names.
const defaultHotKeys = 20

var errNoHot = &failure.Error{Reason: failure.Unavailable, RetryAfter: time.Second,
	Message: "this node does not look for hot keys", Hint: "ask another node"}

// ListHot implements the service.
func (c *cluster) ListHot(_ context.Context, req *clusterpb.ListHotRequest) (*clusterpb.ListHotResponse, error) {
	if req.MaxKeys > home.MaxHotKeys {
		return nil, c.s.refuse(&failure.Error{Reason: failure.Invalid, Field: "max_keys",
			Message: fmt.Sprintf("is %d; at most %d are allowed", req.MaxKeys, home.MaxHotKeys)})
	}
	if c.s.cfg.Hot == nil {
		return nil, c.s.refuse(errNoHot)
	}
	seen, now := c.s.cfg.Hot(), c.s.cfg.Clock.Now()
	r := &clusterpb.ListHotResponse{
		Id: c.c.Self().Node, Epoch: c.c.Table().Epoch, Rate: seen.Rate, Objects: uint64(seen.Objects),
		Policy: &clusterpb.HotPolicy{Floor: seen.Floor, Factor: seen.Factor, StayNs: seen.Stay, Max: uint32(seen.Max)},
		Hot:    uint32(seen.Hot), LeftOut: uint64(seen.LeftOut), AgeNs: max(now-seen.At, 0), Splits: wireSplits(c.c.Table()),
	}
	keys := seen.Keys[:min(len(seen.Keys), int(cmp.Or(req.MaxKeys, defaultHotKeys)))]
	t := c.c.Table()
	for i := range keys {
		k := &keys[i]
		if k.IsPart() {
			if out := hotPart(t, k, now); out != nil {
				r.Keys = append(r.Keys, out)
			}
			continue
		}
		out := &clusterpb.HotKey{Key: k.Key, Name: k.Name, Kind: wireKind(k.Kind.String()), RateMax: k.RateMax, RateMin: k.RateMin, Hot: k.Hot, Waiting: uint32(k.Waiting)}
		if k.Hot {
			out.SinceNs = max(now-k.Since, 0)
		}
		r.Keys = append(r.Keys, out)
	}
	return r, nil
}

// hotPart is a busy part of a split object, under the object's own address; nil if the
// split is over.
func hotPart(t *table.Table, k *home.HotKey, now int64) *clusterpb.HotKey {
	id, part, _ := table.OfPart(k.Key)
	sp, ok := t.SplitOf(id)
	if !ok {
		return nil
	}
	out := &clusterpb.HotKey{Key: sp.Key, Name: sp.Name, Kind: wireKind(sp.Kind), RateMax: k.RateMax, RateMin: k.RateMin, Hot: k.Hot, Parts: uint32(len(sp.Parts)), Part: uint32(part)}
	if k.Hot {
		out.SinceNs = max(now-k.Since, 0)
	}
	return out
}
