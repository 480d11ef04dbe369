package rpc

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/keystead/keystead/owner"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

// envelopedLocks are those of enveloped that came with shared locks.
func envelopedLocks() []envelopedCall {
	id := &commonpb.RequestId{Client: []byte("0123456789abcdef"), Sequence: 7, Settled: 5, AgeNs: 9}
	return []envelopedCall{
		{lockVerify.operation, &lockpb.VerifyRequest{Key: "k", Token: 8}, "",
			"0801100218038001288a01050a016b18089201016b",
			&lockpb.VerifyResponse{Held: true, Holder: &lockpb.Holder{Token: 8, Shared: true}}, "", "080170287a080801120410083001", false},
		{lockUpdate.operation, &lockpb.UpdateRequest{Key: "k", Token: 8, Metadata: []byte("m")}, "",
			"0801100218038001298a01080a016b180822016d9201016b",
			&lockpb.UpdateResponse{Updated: true}, "", "080170297a020801", false},
		{lockDowngrade.operation, &lockpb.DowngradeRequest{Key: "k", Token: 8}, "",
			"08011002180380012a8a01050a016b18089201016b",
			&lockpb.DowngradeResponse{Downgraded: true}, "", "0801702a7a020801", false},
		{lockRevoke.operation, &lockpb.RevokeRequest{Key: "k", Token: 8, RequestId: id}, "",
			"08011002180380012b8a011f0a016b180822180a10303132333435363738396162636465661007180520099201016b9a01180a1030313233343536373839616263646566100718052009",
			&lockpb.RevokeResponse{Revoked: true}, "", "0801702b7a020801", false},
	}
}

// TestSharedLocks: through any node, a lock is shared, downgraded, verified and revoked.
func TestSharedLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, 3, false, nil)
		g.called("c", owner.LockLevel)
		for _, n := range []string{"n1", "n2", "n3"} {
			sharedThrough(t, g.nodes[n], "of "+n)
		}
	})
}

func sharedThrough(t *testing.T, m *member, key string) {
	const second = int64(time.Second)
	ctx := bound(t)
	acquire := func(holder string, shared bool, wait int64) *lockpb.AcquireRequest {
		return &lockpb.AcquireRequest{Key: key, Holder: holder, Shared: shared, TtlNs: 60 * second, WaitNs: wait}
	}
	a := must(m.locks.Acquire(ctx, acquire("a", true, 0)))(t)
	b := must(m.locks.Acquire(ctx, acquire("b", true, 0)))(t)
	if !a.Acquired || !b.Acquired || b.Token <= a.Token || !a.Shared || a.DelayNs != 0 || a.Session != nil {
		t.Fatal(a, b)
	}
	if r := must(m.locks.Acquire(ctx, acquire("w", false, 0)))(t); r.Acquired || r.Holder.GetId() != "a" || !r.Holder.Shared {
		t.Error(r)
	}
	upgrade := acquire("a", false, 0)
	upgrade.Token = a.Token
	_, err := m.locks.Acquire(ctx, upgrade)
	refusal{code: codes.InvalidArgument, why: commonpb.Reason_REASON_INVALID, field: "token", hint: true}.check(in(t, "an upgrade"), err)
	v := must(m.locks.Inspect(ctx, &lockpb.InspectRequest{Key: key}))(t)
	if v.Holding != 2 || len(v.Holders) != 2 || !v.Holders[1].Shared || v.Holders[1].Id != "b" || v.Holder.GetId() != "a" {
		t.Error(v)
	}
	for _, again := range []bool{false, true} {
		q := &lockpb.UpdateRequest{Key: key, Token: b.Token, Metadata: []byte("m"), RequestId: requestN(1, 6)}
		if r := must(m.locks.Update(ctx, q))(t); !r.Updated || again != (r.Replay != nil) {
			t.Error(r)
		}
	}
	if r := must(m.locks.Verify(ctx, &lockpb.VerifyRequest{Key: key, Token: b.Token}))(t); !r.Held || !r.Holder.Shared || string(r.Holder.Metadata) != "m" {
		t.Error(r)
	}
	must(m.locks.Release(ctx, &lockpb.ReleaseRequest{Key: key, Token: a.Token}))(t)
	if r := must(m.locks.Revoke(ctx, &lockpb.RevokeRequest{Key: key, Token: b.Token, RequestId: requestN(1, 7)}))(t); !r.Revoked {
		t.Error(r)
	}
	delayed := acquire("w", false, 0)
	delayed.DelayNs = 5 * second
	w := must(m.locks.Acquire(ctx, delayed))(t)
	if w.Shared || w.DelayNs != delayed.DelayNs {
		t.Error(w)
	}
	if r := must(m.locks.Verify(ctx, &lockpb.VerifyRequest{Key: key, Token: b.Token}))(t); r.Held || r.Holder.GetId() != "w" || r.Holder.Shared {
		t.Error(r)
	}
	for range 2 {
		if r := must(m.locks.Downgrade(ctx, &lockpb.DowngradeRequest{Key: key, Token: w.Token}))(t); !r.Downgraded {
			t.Error(r)
		}
	}
	if r := must(m.locks.Acquire(ctx, acquire("c", true, 0)))(t); !r.Acquired {
		t.Error(r)
	}
	if r := must(m.locks.Downgrade(ctx, &lockpb.DowngradeRequest{Key: key, Token: b.Token}))(t); r.Downgraded {
		t.Error(r)
	}
}

// TestSharedLocksNeedTheirLevel: a node of before does not know that a lock is to be shared, and is
// sent no such request.
func TestSharedLocksNeedTheirLevel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, 2, false, nil)
		g.called("c", owner.LockLevel-1)
		next := *g.nodes["n2"].Table() // it has heard of the level already, and would share
		next.Level = owner.LockLevel
		g.nodes["n2"].Set(&next)
		for _, at := range []string{"n1", "n2"} {
			key := g.key(at)
			for what, q := range map[string]*lockpb.AcquireRequest{
				"shared": {Key: key, Holder: "h", TtlNs: int64(time.Minute), Shared: true},
				"delay":  {Key: key, Holder: "h", TtlNs: int64(time.Minute), DelayNs: int64(time.Second)},
			} {
				_, err := g.nodes["n1"].locks.Acquire(bound(t), q)
				refusal{code: codes.Unavailable, why: commonpb.Reason_REASON_UNAVAILABLE, hint: true, retry: time.Second}.check(in(t, "of "+at+", "+what), err)
			}
		}
	})
}
