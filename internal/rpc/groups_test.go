package rpc

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/hold"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	grouppb "github.com/keystead/keystead/proto/keystead/group/v1"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
)

// envelopedGroups are those of enveloped that are of groups.
func envelopedGroups() []envelopedCall {
	id := &commonpb.RequestId{Client: []byte("0123456789abcdef"), Sequence: 7, Settled: 5, AgeNs: 9}
	return []envelopedCall{
		{groupJoin.operation, &grouppb.JoinRequest{Key: "k", Id: "m", Metadata: []byte("v"), TtlNs: 1e9, AfterToken: 6, RequestId: id}, "", "0801100218038001388a012b0a016b1a016d220176288094ebdc0332180a103031323334353637383961626364656610071805200940069201016b9a01180a1030313233343536373839616263646566100718052009",
			&grouppb.JoinResponse{Joined: true, Token: 8}, "", "080170387a0408011008", false},
		{groupRenew.operation, &grouppb.RenewRequest{Key: "k", Token: 8, TtlNs: 1e9, Reclaim: &grouppb.Reclaim{LeftNs: 5, Id: "m"}}, "", "0801100218038001398a01120a016b1808208094ebdc032a05080512016d9201016b",
			&grouppb.RenewResponse{Renewed: true, Reclaimed: true}, "", "080170397a0408011801", false},
		{groupUpdate.operation, &grouppb.UpdateRequest{Key: "k", Token: 8, Metadata: []byte("v"), RequestId: id}, "", "08011002180380013a8a01220a016b18082201762a180a10303132333435363738396162636465661007180520099201016b9a01180a1030313233343536373839616263646566100718052009",
			&grouppb.UpdateResponse{Updated: true}, "", "0801703a7a020801", false},
		{groupLeave.operation, &grouppb.LeaveRequest{Key: "k", Token: 8, RequestId: id}, "", "08011002180380013b8a011f0a016b180822180a10303132333435363738396162636465661007180520099201016b9a01180a1030313233343536373839616263646566100718052009",
			&grouppb.LeaveResponse{Left: true}, "", "0801703b7a020801", false},
		{groupVerify.operation, &grouppb.VerifyRequest{Key: "k", Token: 8}, "", "08011002180380013c8a01050a016b18089201016b",
			&grouppb.VerifyResponse{Member: true, Membership: &grouppb.Member{Token: 8, Id: "m"}}, "", "0801703c7a09080112050a016d1008", false},
		{groupList.operation, &grouppb.ListRequest{Key: "k"}, "", "08011002180380013d8a01030a016b9201016b",
			&grouppb.ListResponse{Members: []*grouppb.Member{{Token: 8}}, Version: 9}, "", "0801703d7a060a0210081009", false},
		{groupAwait.operation, &peerv1.AwaitRequest{Key: "k", Seen: &peerv1.Seen{Position: 6, Exists: true}, WaitNs: 2e9}, "", "0801100218038001618a010f0a016b1a04080610012080a8d6b9079201016ba00180a8d6b907",
			&grouppb.WatchResponse{Members: []*grouppb.Member{{Token: 8}}, Version: 9}, "", "080170617a06120210081809", false},
	}
}

// watchGroup watches a group until the test ends.
func watchGroup(t *testing.T, m *member, key string, after uint64) grpc.ServerStreamingClient[grouppb.WatchResponse] {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute) // of the bubble
	t.Cleanup(cancel)
	return must(m.groups.Watch(ctx, &grouppb.WatchRequest{Key: key, AfterVersion: after}))(t)
}

// nextMembers returns the next message that is no heartbeat.
func nextMembers(t *testing.T, o grpc.ServerStreamingClient[grouppb.WatchResponse]) *grouppb.WatchResponse {
	t.Helper()
	for range 100 {
		r := must(o.Recv())(t)
		if !r.Heartbeat {
			return r
		}
		if len(r.Members) > 0 || r.Version != 0 || r.StaleAfterNs != int64(watchStale) || r.Owner == "" {
			t.Errorf("a heartbeat says %v", r)
		}
	}
	t.Fatal("nothing but heartbeats")
	return nil
}

func whoIs(members []*grouppb.Member) string {
	var all []string
	for _, m := range members {
		all = append(all, m.Id+"="+string(m.Metadata))
	}
	return strings.Join(all, " ")
}

// Through any node: members join, update and leave, and each watcher hears of the whole, also of a
// member whose time is over, when it is.
func TestGroups(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		g.called("c", owner.GroupLevel)
		for _, n := range []string{"n1", "n2", "n3"} {
			groupThrough(t, g.nodes[n], "of "+n)
		}
	})
}

func groupThrough(t *testing.T, m *member, key string) {
	const second = int64(time.Second)
	ctx := bound(t)
	join := func(id string) *grouppb.JoinRequest {
		return &grouppb.JoinRequest{Key: key, Id: id, Metadata: []byte("at " + id), TtlNs: 10 * second}
	}
	o := watchGroup(t, m, key, 0)
	first := nextMembers(t, o)
	if len(first.Members) != 0 || first.Version == 0 {
		t.Error(first)
	}
	a := must(m.groups.Join(ctx, join("a")))(t)
	if !a.Joined || a.Token == 0 || a.TtlNs != 10*second || a.Owner == "" || a.Epoch == 0 {
		t.Fatal(a)
	}
	b := must(m.groups.Join(ctx, join("b")))(t)
	seen := nextMembers(t, o)
	for len(seen.Members) < 2 { // the latest state, not each
		seen = nextMembers(t, o)
	}
	if whoIs(seen.Members) != "a=at a b=at b" || seen.Version <= first.Version {
		t.Error(seen)
	}
	if r := must(m.groups.Update(ctx, &grouppb.UpdateRequest{Key: key, Token: a.Token, Metadata: []byte("moved"), RequestId: requestN(1, 3)}))(t); !r.Updated {
		t.Error(r)
	}
	if seen = nextMembers(t, o); whoIs(seen.Members) != "a=moved b=at b" {
		t.Error(seen)
	}
	late := join("a")
	again := must(m.groups.Join(ctx, late))(t)
	if seen = nextMembers(t, o); whoIs(seen.Members) != "b=at b a=at a" || seen.Version < again.Token {
		t.Error(seen)
	}
	late.AfterToken = a.Token
	if r := must(m.groups.Join(ctx, late))(t); r.Joined || r.LaterToken != again.Token || r.Token != 0 {
		t.Error(r)
	}
	v := must(m.groups.List(ctx, &grouppb.ListRequest{Key: key, Name: "group"}))(t)
	if whoIs(v.Members) != "b=at b a=at a" || v.Version != seen.Version || v.Members[0].TtlNs <= 0 || v.Epoch == 0 {
		t.Error(v)
	}
	if r := must(m.groups.Verify(ctx, &grouppb.VerifyRequest{Key: key, Token: a.Token}))(t); r.Member || r.Membership != nil {
		t.Error(r)
	}
	if r := must(m.groups.Verify(ctx, &grouppb.VerifyRequest{Key: key, Token: b.Token}))(t); !r.Member || r.Membership.Id != "b" {
		t.Error(r)
	}
	if r := must(m.groups.Leave(ctx, &grouppb.LeaveRequest{Key: key, Token: again.Token}))(t); !r.Left {
		t.Error(r)
	}
	if seen = nextMembers(t, o); whoIs(seen.Members) != "b=at b" {
		t.Error(seen)
	}
	if r := must(m.groups.Renew(ctx, &grouppb.RenewRequest{Key: key, Token: b.Token, TtlNs: second / 50}))(t); !r.Renewed {
		t.Error(r)
	}
	for nobody := (*grouppb.WatchResponse)(nil); nobody == nil; { // the owner's clock is no bubble's
		if r := must(o.Recv())(t); !r.Heartbeat {
			nobody = r
			if len(r.Members) > 0 || r.LostEpoch != 0 || r.Version < seen.Version {
				t.Error(r)
			}
		}
	}
}

// fill has as many members join as there can be, which say as much as they may.
func fill(t *testing.T, m *member, key string) (last uint64) {
	t.Helper()
	for i := range hold.MaxHolders {
		r := must(m.groups.Join(bound(t), &grouppb.JoinRequest{Key: key, Id: fmt.Sprintf("%0*d", hold.MaxName, i), Metadata: bytes.Repeat([]byte{0xff}, hold.MaxMetadata), TtlNs: int64(time.Hour)}))(t)
		if last = r.Token; !r.Joined {
			t.Fatal(r)
		}
	}
	return last
}

// A long list that changes all the time is asked for so often that it is no burden, and the last one
// comes.
func TestChangesOfALargeGroup(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		g.called("c", owner.GroupLevel)
		m, key := g.nodes["n1"], g.key("n2")
		token := fill(t, m, key)
		o := watchGroup(t, m, key, 0)
		nextMembers(t, o)
		synctest.Wait()
		row := g.nodes["n2"].server.row(groupAwait.operation)
		before := count(t, row.yes)
		const many = 50
		for i := range many {
			must(m.groups.Update(bound(t), &grouppb.UpdateRequest{Key: key, Token: token, Metadata: fmt.Append(nil, i)}))(t)
			synctest.Wait()
		}
		if n := count(t, row.yes) - before; n > 5 {
			t.Errorf("of %d changes, %v were asked for at once", many, n)
		}
		for r := nextMembers(t, o); string(r.Members[len(r.Members)-1].Metadata) != fmt.Sprint(many-1); {
			r = nextMembers(t, o)
		}
	})
}

// The largest group that there can be comes through, as a list and to watchers, from another
// node than the one that is asked.
func TestLargestGroup(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		g.called("c", owner.GroupLevel)
		m, key, ctx := g.nodes["n1"], g.key("n2"), bound(t)
		fill(t, m, key)
		if r := must(m.groups.Join(ctx, &grouppb.JoinRequest{Key: key, Id: "more", TtlNs: int64(time.Hour)}))(t); r.Joined || r.LaterToken != 0 {
			t.Error(r)
		}
		v := must(m.groups.List(ctx, &grouppb.ListRequest{Key: key}))(t)
		o := watchGroup(t, m, key, 0)
		r := nextMembers(t, o)
		if len(v.Members) != hold.MaxHolders || len(r.Members) != hold.MaxHolders || r.Version != v.Version {
			t.Errorf("%d and %d members", len(v.Members), len(r.Members))
		}
		must(m.groups.Update(ctx, &grouppb.UpdateRequest{Key: key, Token: v.Members[7].Token, Metadata: []byte("news")}))(t)
		if r := nextMembers(t, o); string(r.Members[7].Metadata) != "news" || len(r.Members) != hold.MaxHolders {
			t.Errorf("%d members", len(r.Members))
		}
	})
}

// A cluster with nodes that know no groups has none; a counter is none.
func TestGroupRefusals(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		g.called("c", owner.GroupLevel-1)
		m, ctx := g.nodes["n1"], bound(t)
		_, err := m.groups.Join(ctx, &grouppb.JoinRequest{Key: "k", Id: "a", TtlNs: int64(time.Second)})
		refusal{code: codes.Unavailable, why: commonpb.Reason_REASON_UNAVAILABLE, hint: true, retry: time.Second}.check(t, err)
		_, err = watchGroup(t, m, "k", 0).Recv()
		refusal{code: codes.Unavailable, why: commonpb.Reason_REASON_UNAVAILABLE, hint: true, retry: time.Second}.check(t, err)
		g.called("c", owner.GroupLevel)
		_, err = m.groups.Join(ctx, &grouppb.JoinRequest{Key: "k", TtlNs: int64(time.Second)})
		badField("id").check(t, err)
		_, err = m.groups.Renew(ctx, &grouppb.RenewRequest{Key: "k", Token: 1, TtlNs: int64(time.Second), Reclaim: &grouppb.Reclaim{LeftNs: 1}})
		badField("reclaim.id").check(t, err)
		_, err = m.groups.Join(ctx, &grouppb.JoinRequest{Key: "k", Id: "a", TtlNs: int64(time.Second), Session: &commonpb.Session{Client: []byte("x")}})
		badField("session.client").check(t, err)
		_, err = watchGroup(t, m, "k", 1<<62).Recv()
		refusal{code: codes.InvalidArgument, why: commonpb.Reason_REASON_INVALID, field: "after_version", hint: true}.check(t, err)
		synctest.Wait()
	})
}
