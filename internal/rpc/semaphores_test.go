package rpc

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/keystead/keystead/owner"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	semaphorepb "github.com/keystead/keystead/proto/keystead/semaphore/v1"
)

// envelopedPermits are those of enveloped that are of semaphores.
func envelopedPermits() []envelopedCall {
	id := &commonpb.RequestId{Client: []byte("0123456789abcdef"), Sequence: 7, Settled: 5, AgeNs: 9}
	return []envelopedCall{
		{semaphoreAcquire.operation, &semaphorepb.AcquireRequest{Key: "k", Holder: "h", Permits: 2, Capacity: 10, TtlNs: 1e9, WaitNs: 2e9, DelayNs: 1e6, RequestId: id}, "",
			"08011002180380011f8a01340a016b1a01682002280a308094ebdc033880a8d6b90740c0843d52180a10303132333435363738396162636465661007180520099201016b9a01180a1030313233343536373839616263646566100718052009a00180a8d6b907",
			&semaphorepb.AcquireResponse{Acquired: true, Token: 8, Capacity: 10}, "", "0801701f7a0608011008280a", false},
		{semaphoreRenew.operation, &semaphorepb.RenewRequest{Key: "k", Token: 8, TtlNs: 1e9, Reclaim: &semaphorepb.Reclaim{LeftNs: 5, Permits: 2, Capacity: 10}}, "",
			"0801100218038001208a01130a016b1808208094ebdc032a0608051802200a9201016b",
			&semaphorepb.RenewResponse{Renewed: true, Reclaimed: true}, "", "080170207a0408011801", false},
		{semaphoreRelease.operation, &semaphorepb.ReleaseRequest{Key: "k", Token: 8, RequestId: id}, "",
			"0801100218038001218a011f0a016b180822180a10303132333435363738396162636465661007180520099201016b9a01180a1030313233343536373839616263646566100718052009",
			&semaphorepb.ReleaseResponse{Released: true}, "", "080170217a020801", false},
		{semaphoreVerify.operation, &semaphorepb.VerifyRequest{Key: "k", Token: 8}, "",
			"0801100218038001228a01050a016b18089201016b",
			&semaphorepb.VerifyResponse{Held: true, Holder: &semaphorepb.Holder{Token: 8, Permits: 2}}, "", "080170227a080801120410081802", false},
		{semaphoreUpdate.operation, &semaphorepb.UpdateRequest{Key: "k", Token: 8, Metadata: []byte("m")}, "",
			"0801100218038001238a01080a016b180822016d9201016b",
			&semaphorepb.UpdateResponse{Updated: true}, "", "080170237a020801", false},
		{semaphoreDowngrade.operation, &semaphorepb.DowngradeRequest{Key: "k", Token: 8, Permits: 1}, "",
			"0801100218038001248a01070a016b180820019201016b",
			&semaphorepb.DowngradeResponse{Downgraded: true, Permits: 1}, "", "080170247a0408011001", false},
		{semaphoreRevoke.operation, &semaphorepb.RevokeRequest{Key: "k", Token: 8, RequestId: id}, "",
			"0801100218038001258a011f0a016b180822180a10303132333435363738396162636465661007180520099201016b9a01180a1030313233343536373839616263646566100718052009",
			&semaphorepb.RevokeResponse{Revoked: true}, "", "080170257a020801", false},
		{semaphoreSetCapacity.operation, &semaphorepb.SetCapacityRequest{Key: "k", Capacity: 10, RequestId: id}, "",
			"0801100218038001268a011f0a016b180a22180a10303132333435363738396162636465661007180520099201016b9a01180a1030313233343536373839616263646566100718052009",
			&semaphorepb.SetCapacityResponse{Capacity: 10, Held: 2}, "", "080170267a04080a1002", false},
		{semaphoreInspect.operation, &semaphorepb.InspectRequest{Key: "k", MaxListed: 3}, "",
			"0801100218038001278a01050a016b18039201016b",
			&semaphorepb.InspectResponse{Capacity: 10, Holding: 1, Waiting: 2}, "", "080170277a06080a30014002", false},
	}
}

// TestSemaphores: through any node, permits are granted in one line, changed under their token,
// and given back.
func TestSemaphores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, 3, false, nil)
		g.called("c", owner.SemaphoreLevel)
		for _, n := range []string{"n1", "n2", "n3"} {
			permitsThrough(t, g.nodes[n], "of "+n)
		}
	})
}

func permitsThrough(t *testing.T, m *member, key string) {
	const second = int64(time.Second)
	ctx := bound(t)
	acquire := func(holder string, permits, of uint32, wait int64) *semaphorepb.AcquireRequest {
		return &semaphorepb.AcquireRequest{Key: key, Holder: holder, Permits: permits, Capacity: of, TtlNs: 60 * second, WaitNs: wait}
	}
	a := must(m.permits.Acquire(ctx, acquire("a", 2, 3, 0)))(t)
	if !a.Acquired || a.Token == 0 || a.Capacity != 3 || a.TtlNs != 60*second || a.Owner == "" || a.Epoch == 0 {
		t.Fatal(a)
	}
	if r := must(m.permits.Acquire(ctx, acquire("x", 2, 0, 0)))(t); r.Acquired || r.Held != 2 || r.QueuePosition != 1 {
		t.Error(r)
	}
	_, err := m.permits.Acquire(ctx, acquire("x", 1, 4, 0))
	refusal{code: codes.FailedPrecondition, why: commonpb.Reason_REASON_CAPACITY_MISMATCH, hint: true}.check(in(t, "another capacity"), err)
	_, err = m.permits.Acquire(ctx, acquire("x", 4, 0, 0))
	badField("permits").check(in(t, "more than there are"), err)
	waited := make(chan *semaphorepb.AcquireResponse, 1)
	go func() {
		r, err := m.permits.Acquire(ctx, acquire("b", 0, 3, 10*second))
		if err == nil && r.Acquired {
			go func() { _, _ = m.permits.Acquire(ctx, acquire("large", 3, 3, 10*second)) }()
		}
		waited <- r
	}()
	b := <-waited
	if !b.GetAcquired() || b.Token <= a.Token {
		t.Error(b)
	}
	synctest.Wait()
	v := must(m.permits.Inspect(ctx, &semaphorepb.InspectRequest{Key: key, Name: "semaphore"}))(t)
	if v.Held != 3 || v.Holding != 2 || v.Waiting != 1 || len(v.Holders) != 2 || v.Holders[1].Id != "b" || v.Holders[0].Permits != 2 || v.Waiters[0].Id != "large" {
		t.Error(v)
	}
	if r := must(m.permits.Update(ctx, &semaphorepb.UpdateRequest{Key: key, Token: a.Token, Metadata: []byte("m")}))(t); !r.Updated {
		t.Error(r)
	}
	if r := must(m.permits.Downgrade(ctx, &semaphorepb.DowngradeRequest{Key: key, Token: a.Token, Permits: 1}))(t); !r.Downgraded || r.Permits != 1 {
		t.Error(r)
	}
	if r := must(m.permits.Verify(ctx, &semaphorepb.VerifyRequest{Key: key, Token: a.Token}))(t); !r.Held || r.Holder.Permits != 1 || string(r.Holder.Metadata) != "m" {
		t.Error(r)
	}
	if r := must(m.permits.Renew(ctx, &semaphorepb.RenewRequest{Key: key, Token: a.Token, TtlNs: 30 * second}))(t); !r.Renewed || r.TtlNs != 30*second {
		t.Error(r)
	}
	if r := must(m.permits.Revoke(ctx, &semaphorepb.RevokeRequest{Key: key, Token: b.Token, RequestId: requestN(1, 7)}))(t); !r.Revoked {
		t.Error(r)
	}
	if r := must(m.permits.Release(ctx, &semaphorepb.ReleaseRequest{Key: key, Token: b.Token}))(t); r.Released {
		t.Error(r)
	}
	if r := must(m.permits.SetCapacity(ctx, &semaphorepb.SetCapacityRequest{Key: key, Capacity: 5}))(t); r.Capacity != 5 || r.Held != 4 {
		t.Error(r)
	}
	if r := must(m.permits.Verify(ctx, &semaphorepb.VerifyRequest{Key: key, Token: b.Token}))(t); r.Held || r.Holder != nil {
		t.Error(r)
	}
}

// TestPermitsNeedRoom: callers queue for permits only when the copies have room for more.
func TestPermitsNeedRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		copies := &roomy{places: make(chan struct{}, 1)}
		copies.had.Store(true)
		g := grouped(t, 1, false, func(c *Config) { c.Copies = copies })
		g.called("c", owner.SemaphoreLevel)
		n, ctx := g.nodes["n1"], bound(t)
		acquire := func(wait time.Duration) (*semaphorepb.AcquireResponse, error) {
			return n.permits.Acquire(ctx, &semaphorepb.AcquireRequest{Key: "k", Holder: "h", Capacity: 1, TtlNs: int64(time.Minute), WaitNs: int64(wait)})
		}
		if r, err := acquire(time.Minute); err != nil || !r.Acquired {
			t.Fatal(r, err)
		}
		_, err := acquire(time.Minute)
		refusal{code: codes.ResourceExhausted, why: commonpb.Reason_REASON_OVERLOADED, hint: true, retry: 100 * time.Millisecond}.check(t, err)
		if r, err := acquire(0); err != nil || r.Acquired {
			t.Error(r, err)
		}
	})
}

// TestKeysOfUpdates: an Update whose attempt was held up brings no older metadata back, under a
// request id or a key; and a node that may not know its key is sent none.
func TestKeysOfUpdates(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		g.called("c", owner.LockLevel-1)
		time.Sleep(10 * time.Minute) // a node knows no keys of before it was there
		ctx, key, m := bound(t), g.key("n2"), g.nodes["n1"]
		a := must(m.permits.Acquire(ctx, &semaphorepb.AcquireRequest{Key: key, Holder: "a", Capacity: 1, TtlNs: int64(time.Minute)}))(t)
		update := func(id *commonpb.RequestId, idem, to string) (*semaphorepb.UpdateResponse, error) {
			return m.permits.Update(ctx, &semaphorepb.UpdateRequest{Key: key, Token: a.Token, Metadata: []byte(to), RequestId: id, IdempotencyKey: idem})
		}
		_, err := update(nil, "k", "none")
		refusal{code: codes.Unavailable, why: commonpb.Reason_REASON_UNAVAILABLE, hint: true, retry: time.Second}.check(t, err)
		if r := must(update(requestN(1, 7), "", "one"))(t); !r.Updated || r.Replay != nil {
			t.Error(r)
		}
		g.called("c", owner.LockLevel)
		if r := must(update(nil, "k", "two"))(t); !r.Updated || r.Replay != nil {
			t.Error(r)
		}
		if r := must(update(requestN(1, 7), "", "one"))(t); !r.Updated || r.Replay == nil {
			t.Error(r)
		}
		if r := must(update(nil, "l", "three"))(t); !r.Updated {
			t.Error(r)
		}
		if r := must(update(nil, "k", "two"))(t); !r.Updated || r.Replay == nil {
			t.Error(r)
		}
		if v := must(m.permits.Verify(ctx, &semaphorepb.VerifyRequest{Key: key, Token: a.Token}))(t); string(v.Holder.GetMetadata()) != "three" {
			t.Error(v)
		}
	})
}
