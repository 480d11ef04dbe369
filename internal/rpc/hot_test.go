package rpc

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/keystead/keystead/hotkey/home"
	"github.com/keystead/keystead/owner"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
)

// seenAt is a look at n objects, each a little less busy than the one before.
func seenAt(at int64, n int) *home.HotKeys {
	s := &home.HotKeys{At: at, Rate: 50_000, Objects: 7, LeftOut: 3, Hot: 1, Floor: 1000, Factor: 10, Stay: int64(10 * time.Second), Max: 100}
	for i := range n {
		s.Keys = append(s.Keys, home.HotKey{
			Object:  owner.Object{Ref: owner.Ref{Key: fmt.Sprintf("k%d\x1b", i), Name: "api"}, Kind: owner.KindLimit},
			RateMax: float64(9000 - i), RateMin: float64(8000 - i),
		})
	}
	return s
}

func TestListHot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := seenAt(0, home.MaxHotKeys)
		h, c := clusterOf(t, Config{Node: "n1", Hot: func() *home.HotKeys { return seen }})
		seen.At = h.clock.Now()
		first := &seen.Keys[0]
		first.Kind, first.Waiting, first.Hot, first.Since = owner.KindLock, 4, true, seen.At-int64(12*time.Second)
		time.Sleep(300 * time.Millisecond)
		r := must(c.ListHot(bound(t), &clusterpb.ListHotRequest{MaxKeys: 2}))(t)
		same(t, r, &clusterpb.ListHotResponse{
			Id: "n1", Epoch: 4, Rate: 50_000, Objects: 7, Hot: 1, LeftOut: 3, AgeNs: int64(300 * time.Millisecond),
			Policy: &clusterpb.HotPolicy{Floor: 1000, Factor: 10, StayNs: int64(10 * time.Second), Max: 100},
			Keys: []*clusterpb.HotKey{
				{Key: "k0\x1b", Name: "api", Kind: commonpb.Kind_KIND_LOCK, RateMax: 9000, RateMin: 8000, Hot: true, SinceNs: int64(12300 * time.Millisecond), Waiting: 4},
				{Key: "k1\x1b", Name: "api", Kind: commonpb.Kind_KIND_LIMIT, RateMax: 8999, RateMin: 7999},
			},
		})
		for limit, want := range map[uint32]int{0: 20, 1: 1, home.MaxHotKeys: home.MaxHotKeys} {
			if r := must(c.ListHot(bound(t), &clusterpb.ListHotRequest{MaxKeys: limit}))(t); len(r.Keys) != want {
				t.Errorf("limit %d: %d keys, want %d", limit, len(r.Keys), want)
			}
		}
		_, err := c.ListHot(bound(t), &clusterpb.ListHotRequest{MaxKeys: home.MaxHotKeys + 1})
		badField("max_keys").check(t, err)
	})
}

// A node that has seen less than is asked for tells what it has; one that does not look
// says so.
func TestListHotOfLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := clusterOf(t, Config{Hot: func() *home.HotKeys { return &home.HotKeys{} }})
		if r := must(c.ListHot(bound(t), &clusterpb.ListHotRequest{}))(t); len(r.Keys) != 0 || r.Id != loneID {
			t.Errorf("%v", r)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		_, c := clusterOf(t, Config{})
		_, err := c.ListHot(bound(t), &clusterpb.ListHotRequest{})
		refusal{code: codes.Unavailable, why: commonpb.Reason_REASON_UNAVAILABLE, hint: true, retry: time.Second}.check(t, err)
	})
}
