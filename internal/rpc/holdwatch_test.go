package rpc

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/keystead/keystead/owner"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	semaphorepb "github.com/keystead/keystead/proto/keystead/semaphore/v1"
)

// envelopedWatches are those of enveloped by which semaphores and locks are watched.
func envelopedWatches() []envelopedCall {
	q := &peerv1.AwaitRequest{Key: "k", Seen: &peerv1.Seen{Position: 6, Exists: true}, WaitNs: 2e9}
	return []envelopedCall{
		{semaphoreAwait.operation, q, "", "0801100218038001628a010f0a016b1a04080610012080a8d6b9079201016ba00180a8d6b907",
			&semaphorepb.WatchResponse{Capacity: 4, Held: 1, Holders: []*semaphorepb.Holder{{Token: 8}}, Holding: 1, Version: 9}, "", "080170627a0c100420012a02100830013809", false},
		{lockAwait.operation, q, "", "0801100218038001638a010f0a016b1a04080610012080a8d6b9079201016ba00180a8d6b907",
			&lockpb.WatchResponse{Holders: []*lockpb.Holder{{Token: 8}}, Holding: 1, Version: 9}, "", "080170637a0812021008180120" + "09", false},
	}
}

// beating is what a stream of a watch sends.
type beating interface {
	GetHeartbeat() bool
	GetVersion() uint64
	GetStaleAfterNs() int64
	GetOwner() string
}

// nextHeld returns the next message that is no heartbeat.
func nextHeld[R beating](t *testing.T, w interface{ Recv() (R, error) }) R {
	t.Helper()
	for range 100 {
		r := must(w.Recv())(t)
		if !r.GetHeartbeat() {
			return r
		}
		if r.GetVersion() != 0 || r.GetStaleAfterNs() != int64(watchStale) || r.GetOwner() == "" {
			t.Errorf("a heartbeat says %v", r)
		}
	}
	t.Fatal("nothing but heartbeats")
	panic("unreachable")
}

func watchLock(t *testing.T, m *member, key string, after uint64) grpc.ServerStreamingClient[lockpb.WatchResponse] {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute) // of the bubble
	t.Cleanup(cancel)
	return must(m.locks.Watch(ctx, &lockpb.WatchRequest{Key: key, AfterVersion: after}))(t)
}

func watchPermits(t *testing.T, m *member, key string, after uint64) grpc.ServerStreamingClient[semaphorepb.WatchResponse] {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute) // of the bubble
	t.Cleanup(cancel)
	return must(m.permits.Watch(ctx, &semaphorepb.WatchRequest{Key: key, AfterVersion: after}))(t)
}

// Through any node: the holders of a lock, alone or shared, and that there is none; nothing of a
// renewal and of the waiters.
func TestWatchLock(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		g.called("c", owner.WatchLevel)
		for _, n := range []string{"n1", "n2"} {
			m, key, ctx := g.nodes[n], g.keys("n2", 2, nil)[len(n)%2]+n, bound(t)
			w := watchLock(t, m, key, 0)
			last := uint64(0)
			expect := func(holding uint32, holders ...string) *lockpb.WatchResponse {
				t.Helper()
				r := nextHeld(t, w)
				var names []string
				for _, h := range r.Holders {
					if names = append(names, h.Id); h.HeldNs != 0 || h.TtlNs != 0 {
						t.Errorf("it has a time: %v", h)
					}
				}
				if r.Holding != holding || fmt.Sprint(names) != fmt.Sprint(holders) || r.Version < last || holding > 0 && r.Version == last {
					t.Errorf("through %s: %v after %d, want %v", n, r, last, holders)
				}
				last = r.Version
				return r
			}
			expect(0)
			ttl := int64(time.Hour)
			a := must(m.locks.Acquire(ctx, &lockpb.AcquireRequest{Key: key, Holder: "a", TtlNs: ttl, Metadata: []byte("m")}))(t)
			if r := expect(1, "a"); string(r.Holders[0].Metadata) != "m" || r.Holders[0].Shared || r.Holders[0].Token != a.Token {
				t.Error(r)
			}
			if r := must(watchLock(t, m, key, last).Recv())(t); !r.Heartbeat {
				t.Errorf("one that has it already was told %v", r)
			}
			must(m.locks.Renew(ctx, &lockpb.RenewRequest{Key: key, Token: a.Token, TtlNs: ttl}))(t)
			must(m.locks.Acquire(ctx, &lockpb.AcquireRequest{Key: key, Holder: "x", TtlNs: ttl, WaitNs: 1e9}))(t)
			must(m.locks.Downgrade(ctx, &lockpb.DowngradeRequest{Key: key, Token: a.Token}))(t)
			if r := expect(1, "a"); !r.Holders[0].Shared {
				t.Error(r)
			}
			must(m.locks.Acquire(ctx, &lockpb.AcquireRequest{Key: key, Holder: "b", TtlNs: ttl, Shared: true}))(t)
			expect(2, "a", "b")
			must(m.locks.Release(ctx, &lockpb.ReleaseRequest{Key: key, Token: a.Token}))(t)
			b := expect(1, "b")
			must(m.locks.Revoke(ctx, &lockpb.RevokeRequest{Key: key, Token: b.Holders[0].Token}))(t)
			expect(0)
		}
	})
}

// Through any node: who holds permits, and the capacity, if it was set or somebody holds some.
func TestWatchPermits(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		g.called("c", owner.WatchLevel)
		for _, n := range []string{"n1", "n2"} {
			m, key, ctx := g.nodes[n], "of "+n, bound(t)
			w := watchPermits(t, m, key, 0)
			expect := func(capacity, held, holding uint32) {
				t.Helper()
				if r := nextHeld(t, w); r.Capacity != capacity || r.Held != held || r.Holding != holding || len(r.Holders) != int(holding) {
					t.Errorf("through %s: %v, want %d of %d", n, r, held, capacity)
				}
			}
			expect(0, 0, 0)
			acquire := func(permits, of uint32) *semaphorepb.AcquireResponse {
				return must(m.permits.Acquire(ctx, &semaphorepb.AcquireRequest{Key: key, Holder: "a", Permits: permits, Capacity: of, TtlNs: int64(time.Hour)}))(t)
			}
			a := acquire(2, 4)
			expect(4, 2, 1)
			acquire(1, 0)
			expect(4, 3, 2)
			must(m.permits.SetCapacity(ctx, &semaphorepb.SetCapacityRequest{Key: key, Capacity: 9}))(t)
			expect(9, 3, 2)
			must(m.permits.Downgrade(ctx, &semaphorepb.DowngradeRequest{Key: key, Token: a.Token, Permits: 1}))(t)
			expect(9, 2, 2)
			for range 4 { // beats
				if r := must(w.Recv())(t); !r.Heartbeat {
					t.Errorf("nothing has happened, and a watcher was told %v", r)
				}
			}
		}
	})
}

// All watches of a lock at a node are one to its owner, and a cluster with nodes that do not know
// them has none.
func TestHoldWatchesShareATopic(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		g.called("c", owner.WatchLevel-1)
		m, key := g.nodes["n1"], g.key("n2")
		for _, err := range []error{errOf(watchLock(t, m, "k", 0).Recv()), errOf(watchPermits(t, m, "k", 0).Recv())} {
			refusal{code: codes.Unavailable, why: commonpb.Reason_REASON_UNAVAILABLE, hint: true, retry: time.Second}.check(t, err)
		}
		g.called("c", owner.WatchLevel)
		for range 50 {
			nextHeld(t, watchLock(t, m, key, 0))
		}
		synctest.Wait()
		row := g.nodes["n2"].server.row(lockAwait.operation)
		before := count(t, row.no)
		time.Sleep(10 * time.Second)
		if n := count(t, row.no) - before; n < 8 || n > 12 {
			t.Errorf("the owner was asked %v times in 10 s by 50 watches", n)
		}
	})
}

func errOf[R any](_ R, err error) error { return err }
