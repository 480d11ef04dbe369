package rpc

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/keystead/keystead/owner"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
	semaphorepb "github.com/keystead/keystead/proto/keystead/semaphore/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// acquiresOf are acquires of some keys, each under an id of its own.
func acquiresOf(client uint64, keys ...string) *lockpb.BatchAcquireRequest {
	req := &lockpb.BatchAcquireRequest{}
	for i, key := range keys {
		req.Acquires = append(req.Acquires, &lockpb.AcquireRequest{Key: key, Holder: fmt.Sprint("h", client), TtlNs: int64(time.Minute), RequestId: requestN(client, uint64(i+1))})
	}
	return req
}

// Items of a batch of locks are done one by one, in order, fail alone, and never wait.
func TestBatchOfLocks(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		ctx := bound(t)
		req := acquiresOf(1, "k", "k", "", "l", "m", "k")
		req.Acquires[0].Metadata = []byte("m")
		req.Acquires[4].WaitNs = 1
		req.Acquires[5] = req.Acquires[0]
		r := must(h.locks.BatchAcquire(ctx, req))(t)
		k, l := r.Results[0].Response, r.Results[3].Response
		if !k.GetAcquired() || k.Replay != nil || !l.GetAcquired() {
			t.Fatal(r)
		}
		if held := r.Results[1].Response; held.GetAcquired() || held.GetHolder().GetToken() != k.Token || held.Holder.Metadata != nil {
			t.Errorf("a lock that is held: %v", held)
		}
		badField("key").checkItem(in(t, "no key"), r.Results[2].Error)
		refusal{code: codes.InvalidArgument, why: commonpb.Reason_REASON_INVALID, field: "wait_ns", hint: true}.checkItem(in(t, "one that waits"), r.Results[4].Error)
		if again := r.Results[5].Response; again.GetToken() != k.Token || again.Replay == nil {
			t.Errorf("the same again: %v", again)
		}
		if len(r.Deciders) != 1 || k.Epoch != 0 || r.Deciders[0].Epoch != testEpoch {
			t.Errorf("decided by %v", r.Deciders)
		}

		release := &lockpb.BatchReleaseRequest{Releases: []*lockpb.ReleaseRequest{
			{Key: "k", Token: k.Token, RequestId: requestN(1, 11)}, {Key: "k", Token: k.Token, RequestId: requestN(1, 11)}, {Key: "l", Token: l.Token + 1}, {Token: 1}, {Key: "l", Token: l.Token},
		}}
		for i, want := range []any{true, true, false, badField("key"), true} {
			x := must(h.locks.BatchRelease(ctx, release))(t).Results[i]
			if f, fails := want.(refusal); fails {
				f.checkItem(in(t, fmt.Sprint("release ", i)), x.Error)
			} else if i < 4 && (x.Error != nil || x.Response.Released != want) {
				t.Errorf("release %d: %v", i, x)
			}
		}
		if v := must(h.locks.Inspect(ctx, &lockpb.InspectRequest{Key: "l"}))(t); v.Holder != nil {
			t.Errorf("after its release: %v", v)
		}
		if r := must(h.locks.BatchAcquire(ctx, &lockpb.BatchAcquireRequest{}))(t); len(r.Results) != 0 {
			t.Error(r)
		}
	})
}

// Permits go in batches as locks do.
func TestBatchOfPermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, 3, false, nil)
		g.called("c", owner.SemaphoreLevel)
		acquire := func(holder string, permits uint32) *semaphorepb.AcquireRequest {
			return &semaphorepb.AcquireRequest{Key: "k", Holder: holder, Permits: permits, Capacity: 3, TtlNs: int64(time.Minute)}
		}
		waits := acquire("d", 1)
		waits.WaitNs = 1
		for _, n := range []string{"n1", "n2", "n3"} {
			p := g.nodes[n].permits
			r := must(p.BatchAcquire(bound(t), &semaphorepb.BatchAcquireRequest{Acquires: []*semaphorepb.AcquireRequest{acquire("a", 2), acquire("b", 2), acquire("c", 1), waits}}))(t)
			a, b, c := r.Results[0].Response, r.Results[1].Response, r.Results[2].Response
			if !a.GetAcquired() || b.GetAcquired() || !c.GetAcquired() || r.Deciders[r.Results[0].Decider].Owner == "" {
				t.Fatal(r)
			}
			refusal{code: codes.InvalidArgument, why: commonpb.Reason_REASON_INVALID, field: "wait_ns", hint: true}.checkItem(t, r.Results[3].Error)
			back := must(p.BatchRelease(bound(t), &semaphorepb.BatchReleaseRequest{Releases: []*semaphorepb.ReleaseRequest{{Key: "k", Token: a.Token}, {Key: "k", Token: a.Token}, {Key: "k", Token: c.Token}}}))(t)
			if x := back.Results; !x[0].Response.GetReleased() || x[1].Response.GetReleased() || !x[2].Response.GetReleased() {
				t.Error(back)
			}
		}
		g.called("c", owner.SemaphoreLevel-1)
		_, err := g.nodes["n1"].permits.BatchAcquire(bound(t), &semaphorepb.BatchAcquireRequest{})
		refusal{code: codes.Unavailable, why: commonpb.Reason_REASON_UNAVAILABLE, hint: true, retry: time.Second}.check(in(t, "before its level"), err)
	})
}

// mending are lapsing copies that have all in the end.
type mending struct{ lapsing }

func (m *mending) Behind(hash uint64) table.Behind {
	if m.had.Load() {
		return table.Behind{}
	}
	return m.lapsing.Behind(hash)
}

// A batch whose answers may not be told, as the wait for the standby was given up, is sent again
// under its ids: each item is told its first grant, and no lock is granted twice.
func TestBatchOfLocksIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		copies := &mending{}
		g := grouped(t, 2, false, func(c *Config) { c.Copies = copies })
		n1, keys := g.nodes["n1"], append(g.keys("n1", 5, nil), g.keys("n2", 5, nil)...)
		tokens := map[string]uint64{}
		for i, x := range must(n1.locks.BatchAcquire(bound(t), acquiresOf(1, keys...)))(t).Results {
			unheard.checkItem(in(t, keys[i]), x.Error)
		}
		copies.had.Store(true)
		for _, key := range keys {
			tokens[key] = must(n1.locks.Inspect(bound(t), &lockpb.InspectRequest{Key: key}))(t).Holder.GetToken()
		}
		for i, x := range must(n1.locks.BatchAcquire(bound(t), acquiresOf(2, keys...)))(t).Results {
			if x.Response.GetAcquired() || x.Response.GetHolder().GetId() != "h1" {
				t.Errorf("another's item %d: %v", i, x)
			}
		}
		for i, x := range must(n1.locks.BatchAcquire(bound(t), acquiresOf(1, keys...)))(t).Results {
			if a := x.Response; !a.GetAcquired() || a.Replay == nil || a.TtlNs == 0 || a.Token != tokens[keys[i]] {
				t.Errorf("item %d: %v; its token is %d", i, x, tokens[keys[i]])
			}
		}
	})
}

// The row of an item moves while its batch is done: that item fails alone, the grants of the others
// are told, and the same batch again brings what is missing.
func TestBatchOfLocksWhoseRowMoves(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		g.begin("n1", "n2")
		n3 := g.nodes["n3"]
		moves := g.key("n3")
		at := func(h uint64) bool { tb := g.board.Table(); return tb.Find(h) != tb.Find(owner.Hash(moves)) }
		keys := append([]string{moves}, append(g.keys("n3", 3, at), g.keys("n1", 3, nil)...)...)
		flip := func() { g.flip(moves) }
		n3.confirm.Store(&flip) // the items were decided, and none was told
		req := acquiresOf(1, keys...)
		first := must(n3.locks.BatchAcquire(bound(t), req))(t)
		tokens := make([]uint64, len(keys))
		for i, x := range first.Results {
			if i == 0 {
				if x.Error.GetReason() != commonpb.Reason_REASON_OUTCOME_UNKNOWN || x.Response != nil {
					t.Errorf("the item whose row moved: %v", x)
				}
				continue
			}
			if tokens[i] = x.Response.GetToken(); !x.Response.GetAcquired() || tokens[i] == 0 {
				t.Errorf("item %d: %v", i, x)
			}
		}
		for i, x := range must(n3.locks.BatchAcquire(bound(t), req))(t).Results {
			if a := x.Response; !a.GetAcquired() || i > 0 && (a.Replay == nil || a.Token != tokens[i]) {
				t.Errorf("again, item %d: %v", i, x)
			}
		}
	})
}

// The caller's time ends in the middle of a batch: what comes later was not acquired and says so,
// and the batch under the same ids acquires the rest.
func TestCallerLeavesMidBatchOfLocks(t *testing.T) {
	const n, done = 3 * ctxEvery, ctxEvery
	h := newHouse(t, nil)
	s := newLocks(bare(h))
	ctx := &leaver{Context: context.Background(), cause: context.DeadlineExceeded}
	changes := 0
	h.sink.on(func(*owner.Record) {
		if changes++; changes == 10 {
			ctx.left = true
		}
	})
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprint("key-", i)
	}
	for i, x := range must(s.BatchAcquire(ctx, acquiresOf(1, keys...)))(t).Results {
		if i < done {
			if !x.Response.GetAcquired() {
				t.Fatalf("item %d: %v", i, x)
			}
			continue
		}
		refusal{code: codes.DeadlineExceeded, why: commonpb.Reason_REASON_GAVE_UP}.checkItem(in(t, fmt.Sprint("item ", i)), x.Error)
	}
	for i, x := range must(s.BatchAcquire(context.Background(), acquiresOf(1, keys...)))(t).Results {
		if a := x.Response; !a.GetAcquired() || (a.Replay != nil) != (i < done) {
			t.Fatalf("again, item %d: %v", i, x)
		}
	}
}

// The answer to the largest batch is one that clients accept: 4 MiB, as gRPC has it.
func TestBatchOfLocksHasASmallAnswer(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		for _, n := range []string{"n1", "n2"} {
			key := g.key("n1")
			held := &lockpb.AcquireRequest{Key: key, Holder: strings.Repeat("h", 128), TtlNs: int64(time.Hour), Metadata: bytes.Repeat([]byte("m"), 1024)}
			must(g.nodes["n1"].locks.Acquire(bound(t), held))(t)
			req := &lockpb.BatchAcquireRequest{}
			for range MaxBatchItems {
				req.Acquires = append(req.Acquires, &lockpb.AcquireRequest{Key: key, Holder: "h", TtlNs: int64(time.Minute)})
			}
			r := must(g.nodes[n].locks.BatchAcquire(bound(t), req))(t)
			if size := r.SizeVT(); size > 3<<20 {
				t.Errorf("through %s: %d bytes", n, size)
			}
			for i, x := range r.Results {
				if h := x.Response.GetHolder(); h.GetId() != held.Holder {
					t.Fatalf("item %d: %v", i, x)
				}
			}
		}
	})
}

// What a node does for a lock of a batch, without gRPC.
func BenchmarkBatchOfLocks(b *testing.B) {
	s, items := newLocks(bare(newHouse(b, nil))), 64
	get, back := &lockpb.BatchAcquireRequest{}, &lockpb.BatchReleaseRequest{}
	for i := range items {
		key := fmt.Sprint("key-", i)
		get.Acquires = append(get.Acquires, &lockpb.AcquireRequest{Key: key, Holder: "h", TtlNs: int64(time.Minute)})
		back.Releases = append(back.Releases, &lockpb.ReleaseRequest{Key: key})
	}
	b.ReportAllocs()
	for i := 0; i < b.N; i += items {
		r, err := s.BatchAcquire(context.Background(), get)
		if err != nil {
			b.Fatal(err)
		}
		for j, x := range r.Results {
			back.Releases[j].Token = x.Response.GetToken()
		}
		d, err := s.BatchRelease(context.Background(), back)
		if err != nil || !d.Results[0].Response.GetReleased() || !d.Results[items-1].Response.GetReleased() {
			b.Fatal(d, err)
		}
	}
}
