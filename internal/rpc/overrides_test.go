package rpc

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/keystead/keystead/owner"
	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// envelopedOverrides are those of enveloped that came with overrides.
func envelopedOverrides() []envelopedCall {
	id := &commonpb.RequestId{Client: []byte("0123456789abcdef"), Sequence: 7, Settled: 5, AgeNs: 9}
	return []envelopedCall{
		{limitSetOverride.operation, &limitpb.SetOverrideRequest{Key: "k", Limit: 8, PeriodNs: 9000, Burst: 10, EndsAfterNs: 11, RequestId: id}, "",
			"08011002180380016e8a01260a016b180820a846280a300b3a180a10303132333435363738396162636465661007180520099201016b9a01180a1030313233343536373839616263646566100718052009",
			&limitpb.SetOverrideResponse{Existed: true, Owner: "n"}, "", "0801706e7a05080122016e", false},
		{limitClearOverride.operation, &limitpb.ClearOverrideRequest{Key: "k", RequestId: id}, "",
			"08011002180380016f8a011d0a016b1a180a10303132333435363738396162636465661007180520099201016b9a01180a1030313233343536373839616263646566100718052009",
			&limitpb.ClearOverrideResponse{Existed: true}, "", "0801706f7a020801", false},
		{limitGetOverride.operation, &limitpb.GetOverrideRequest{Key: "k"}, "",
			"0801100218038001708a01030a016b9201016b",
			&limitpb.GetOverrideResponse{Override: &limitpb.Override{Limit: 8, PeriodNs: 9000, Burst: 10, EndsAfterNs: 11}}, "", "080170707a0b0a09080810a846180a200b", false},
	}
}

func overrideOn(key string, n uint64) *limitpb.SetOverrideRequest {
	return &limitpb.SetOverrideRequest{Key: key, Limit: n, PeriodNs: int64(time.Minute), EndsAfterNs: int64(time.Hour)}
}

// TestOverrides: through any node an override is set, in force for checks, batches and peeks, read,
// shown, listed and cleared.
func TestOverrides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, 2, false, nil)
		g.called("c", owner.OverrideLevel)
		m := g.nodes["n1"]
		limits := limitpb.NewLimitServiceClient(m.conn)
		for _, n := range []string{"n1", "n2"} {
			key := g.key(n)
			set := overrideOn(key, 1000)
			set.Burst, set.RequestId = 5000, requestN(7, 1)
			if r := must(limits.SetOverride(bound(t), set))(t); r.Existed || r.Owner != n || r.Epoch == 0 {
				t.Errorf("of %s: %v", n, r)
			}
			if r := must(limits.SetOverride(bound(t), set))(t); r.Replay == nil || r.Existed {
				t.Errorf("of %s, again: %v", n, r)
			}
			check := &limitpb.CheckRequest{Key: key, Limit: 10, PeriodNs: int64(time.Second), Cost: 100}
			if r := must(limits.Check(bound(t), check))(t); !r.Allowed || r.Limit != 1000 || r.Capacity != 5000 || r.Remaining != 4900 || !r.Overridden {
				t.Errorf("of %s: %v", n, r)
			}
			peek := &limitpb.CheckRequest{Key: key, Limit: 10, PeriodNs: int64(time.Second), Peek: true}
			window := &limitpb.CheckRequest{Key: key, Name: "other", Limit: 10, PeriodNs: int64(time.Second)}
			b := must(limits.BatchCheck(bound(t), &limitpb.BatchCheckRequest{Checks: []*limitpb.CheckRequest{check, peek, window}}))(t)
			if r := b.Results[0].Response; !r.GetAllowed() || r.GetRemaining() != 4800 || !r.GetOverridden() {
				t.Errorf("of %s, in a batch: %v", n, b.Results[0])
			}
			if r := b.Results[1].Response; r.GetRemaining() != 4800 || r.GetLimit() != 1000 || !r.GetOverridden() {
				t.Errorf("of %s, a peek: %v", n, b.Results[1])
			}
			if r := b.Results[2].Response; r.GetCapacity() != 10 || r.GetOverridden() {
				t.Errorf("of %s, another name: %v", n, b.Results[2])
			}
			time.Sleep(time.Minute)
			if r := must(limits.GetOverride(bound(t), &limitpb.GetOverrideRequest{Key: key}))(t); r.Override.GetLimit() != 1000 || r.Override.Burst != 5000 || r.Override.PeriodNs != int64(time.Minute) || r.Override.EndsAfterNs != int64(59*time.Minute) {
				t.Errorf("of %s: %v", n, r)
			}
			admins := adminpb.NewAdminServiceClient(m.conn)
			k := must(admins.InspectKey(bound(t), &adminpb.InspectKeyRequest{Key: key}))(t)
			if len(k.Objects) != 2 && len(k.Objects) != 1 || k.Objects[0].Limit.GetOverride().GetLimit() != 1000 {
				t.Errorf("of %s: %v", n, k)
			}
			l := must(admins.ListObjects(bound(t), &adminpb.ListObjectsRequest{Node: n, Overridden: true}))(t)
			if len(l.Objects) != 1 || l.Objects[0].Key != key || l.Objects[0].Name != "limit" {
				t.Errorf("of %s: %v", n, l)
			}
			_, err := admins.ListObjects(bound(t), &adminpb.ListObjectsRequest{Node: n, Overridden: true, Kind: commonpb.Kind_KIND_LOCK})
			refusal{code: codes.InvalidArgument, why: commonpb.Reason_REASON_INVALID, field: "overridden", hint: true}.check(in(t, n), err)
			if r := must(limits.ClearOverride(bound(t), &limitpb.ClearOverrideRequest{Key: key}))(t); !r.Existed {
				t.Errorf("of %s: %v", n, r)
			}
			if r := must(limits.GetOverride(bound(t), &limitpb.GetOverrideRequest{Key: key}))(t); r.Override != nil {
				t.Errorf("of %s: %v", n, r)
			}
			_, err = limits.Check(bound(t), check)
			refusal{code: codes.InvalidArgument, why: commonpb.Reason_REASON_INVALID, field: "cost"}.check(in(t, n), err)
		}
	})
}

// TestOverriddenAnywhere: a node that spends by itself goes by an override within the second for
// which it holds what it took before, and takes nothing any more.
func TestOverriddenAnywhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, 2, false, nil)
		g.called("c", owner.OverrideLevel)
		key, at := g.key("n1"), g.nodes["n2"].limits
		if r := must(at.Check(bound(t), anywhereCheck(key, 1)))(t); !r.Allowed || r.Slack == 0 || r.Overridden {
			t.Fatal(r)
		}
		must(limitpb.NewLimitServiceClient(g.nodes["n2"].conn).SetOverride(bound(t), overrideOn(key, 50)))(t)
		time.Sleep(time.Second)
		must(limitpb.NewLimitServiceClient(g.nodes["n2"].conn).Reset(bound(t), &limitpb.ResetRequest{Key: key}))(t)
		allowed := 0
		for range 60 {
			r := must(at.Check(bound(t), anywhereCheck(key, 1)))(t)
			if r.Allowed {
				allowed++
			}
			if !r.Overridden || r.Capacity != 50 || r.Limit != 50 || r.Slack != 0 {
				t.Fatal(r)
			}
		}
		if allowed != 50 {
			t.Errorf("%d of 50", allowed)
		}
		must(limitpb.NewLimitServiceClient(g.nodes["n2"].conn).ClearOverride(bound(t), &limitpb.ClearOverrideRequest{Key: key}))(t)
		if r := must(at.Check(bound(t), anywhereCheck(key, 1)))(t); r.Overridden || r.Capacity != 2400 {
			t.Error(r)
		}
	})
}

// TestOverridesNeedTheirLevel: before it is committed no node is asked for an override.
func TestOverridesNeedTheirLevel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, 2, false, nil)
		g.called("c", owner.OverrideLevel-1)
		next := *g.nodes["n2"].Table() // it has heard of the level already
		next.Level = owner.OverrideLevel
		g.nodes["n2"].Set(&next)
		limits := limitpb.NewLimitServiceClient(g.nodes["n1"].conn)
		for _, at := range []string{"n1", "n2"} {
			_, err := limits.SetOverride(bound(t), overrideOn(g.key(at), 5))
			later := refusal{code: codes.Unavailable, why: commonpb.Reason_REASON_UNAVAILABLE, hint: true, retry: time.Second}
			later.check(in(t, "set of "+at), err)
			_, err = limits.ClearOverride(bound(t), &limitpb.ClearOverrideRequest{Key: g.key(at)})
			later.check(in(t, "clear of "+at), err)
			_, err = limits.GetOverride(bound(t), &limitpb.GetOverrideRequest{Key: g.key(at)})
			later.check(in(t, "get of "+at), err)
		}
		_, err := adminpb.NewAdminServiceClient(g.nodes["n1"].conn).ListObjects(bound(t), &adminpb.ListObjectsRequest{Overridden: true})
		refusal{code: codes.Unavailable, why: commonpb.Reason_REASON_UNAVAILABLE, hint: true, retry: time.Second}.check(in(t, "list"), err)
	})
}

// TestSumOfOverriddenPeeks: a peek at a split limit is by the override.
func TestSumOfOverriddenPeeks(t *testing.T) {
	sp := &table.Split{ID: 40, Parts: make([]table.Part, 2)}
	part := &limitpb.CheckResponse{Limit: 100, Capacity: 12, Remaining: 3, ResetAfterNs: 9e9, Parts: 2, Overridden: true}
	for cost, wait := range map[uint64]int64{6: 0, 7: 9e9, 13: 1<<63 - 1} {
		r := sumOfPeeks("n2", sp, &limitpb.CheckRequest{Limit: 3, PeriodNs: 3e9, Cost: cost, Peek: true}, []*limitpb.CheckResponse{part, part})
		if !r.Overridden || r.Limit != 100 || r.Capacity != 12 || r.Remaining != 6 || r.Allowed != (wait == 0) || r.RetryAfterNs != wait {
			t.Errorf("%d: %v", cost, r)
		}
	}
}
