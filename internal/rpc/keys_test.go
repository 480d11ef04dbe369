package rpc

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/keystead/keystead/internal/forward"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/reqid"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
	"github.com/keystead/keystead/ring"
)

var keyReused = refusal{code: codes.InvalidArgument, why: commonpb.Reason_REASON_REQUEST_ID_REUSED, field: "idempotency_key", hint: true}

// keyedCalls are all that carry keys. The first of two bodies is sent twice, the other one
// is not the same.
var keyedCalls = map[string]func(ctx context.Context, m *house, object, key string, other bool) (replay *commonpb.Replay, err error){
	"check": func(ctx context.Context, m *house, object, key string, other bool) (*commonpb.Replay, error) {
		req := &limitpb.CheckRequest{Key: object, Limit: 10, PeriodNs: int64(time.Hour), IdempotencyKey: key}
		if other {
			req.Limit = 11
		}
		r, err := m.limits.Check(ctx, req)
		return r.GetReplay(), err
	},
	"add": func(ctx context.Context, m *house, object, key string, other bool) (*commonpb.Replay, error) {
		req := &counterpb.AddRequest{Key: object, Delta: 1, IdempotencyKey: key}
		if other {
			req.Min = new(int64)
		}
		r, err := m.counters.Add(ctx, req)
		return r.GetReplay(), err
	},
	"compare and set": func(ctx context.Context, m *house, object, key string, other bool) (*commonpb.Replay, error) {
		req := &counterpb.CompareAndSetRequest{Key: object, Name: "set", Value: 1, IdempotencyKey: key}
		if other {
			req.IdleTtlNs = int64(time.Hour)
		}
		r, err := m.counters.CompareAndSet(ctx, req)
		return r.GetReplay(), err
	},
	"reset": func(ctx context.Context, m *house, object, key string, other bool) (*commonpb.Replay, error) {
		if other {
			_, err := m.counters.Add(ctx, &counterpb.AddRequest{Key: object, Name: "reset", IdempotencyKey: key})
			return nil, err
		}
		r, err := m.counters.Reset(ctx, &counterpb.ResetRequest{Key: object, Name: "reset", IdempotencyKey: key})
		return r.GetReplay(), err
	},
	"acquire": func(ctx context.Context, m *house, object, key string, other bool) (*commonpb.Replay, error) {
		req := &lockpb.AcquireRequest{Key: object, Holder: "ann", TtlNs: int64(time.Hour), IdempotencyKey: key}
		if other {
			req.TtlNs++
		}
		r, err := m.locks.Acquire(ctx, req)
		return r.GetReplay(), err
	},
	"release": func(ctx context.Context, m *house, object, key string, other bool) (*commonpb.Replay, error) {
		req := &lockpb.ReleaseRequest{Key: object, Name: "released", Token: 1, IdempotencyKey: key}
		if other {
			req.Token = 2
		}
		r, err := m.locks.Release(ctx, req)
		return r.GetReplay(), err
	},
}

// askTwice sends each call twice, and another one under the same key.
func askTwice(t *testing.T, m *house, object string) {
	t.Helper()
	for name, call := range keyedCalls {
		key := strings.Repeat("é", 30) + name[:1]
		first, err := call(bound(t), m, object, key, false)
		if err != nil || first != nil {
			t.Fatalf("%s: %v, %v", name, first, err)
		}
		if again, err := call(bound(t), m, object, key, false); err != nil || again == nil {
			t.Errorf("%s, again: %v, %v", name, again, err)
		}
		_, err = call(bound(t), m, object, key, true)
		keyReused.check(in(t, name), err)
	}
}

// TestKeys: each request that changes something acts once under its idempotency key, at its
// owner and at any other node.
func TestKeys(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		h.rule.known.Store(true)
		askTwice(t, h, "k")
	})
	inGroup(t, func(t *testing.T, g *group) {
		g.called("c", owner.KeyLevel)
		for _, m := range g.nodes {
			m.known.Store(true)
		}
		for i, node := range []string{"n1", "n2"} {
			askTwice(t, g.nodes[node].house, g.keys("n2", 2, nil)[i])
		}
	})
}

// TestKeysAreChecked: a key that cannot be one is refused, and so is a request id that could
// be taken for one.
func TestKeysAreChecked(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		h.rule.known.Store(true)
		for name, call := range keyedCalls {
			_, err := call(bound(t), h, "k", strings.Repeat("k", 65), false)
			f := badField("idempotency_key")
			f.hint = true
			f.check(in(t, name), err)
		}
		both := badField("idempotency_key")
		both.hint = true
		_, err := h.counters.Add(bound(t), &counterpb.AddRequest{Key: "k", Delta: 1, IdempotencyKey: "a", RequestId: requestN(1, 1)})
		both.check(t, err)
		_, err = h.locks.Release(bound(t), &lockpb.ReleaseRequest{Key: "k", Token: 1, IdempotencyKey: "a", RequestId: requestN(1, 1)})
		both.check(t, err)
		_, err = h.limits.Check(bound(t), &limitpb.CheckRequest{Key: "k", Limit: 1, PeriodNs: 1e9, IdempotencyKey: "a", Anywhere: true})
		both.check(t, err)
		id := reqid.KeyID("a")
		greatest := requestN(1, math.MaxUint64)
		_, err = h.counters.Add(bound(t), &counterpb.AddRequest{Key: "k", Delta: 1, RequestId: greatest})
		badField("request_id.sequence").check(t, err)
		if !id.Keyed() {
			t.Error("it is that of a key")
		}
		// A peek changes nothing: its key is not looked at.
		peek := &limitpb.CheckRequest{Key: "k", Limit: 1, PeriodNs: 1e9, IdempotencyKey: "a", Peek: true}
		if r := must(h.limits.Check(bound(t), peek))(t); r.Replay != nil {
			t.Errorf("%v", r)
		}
	})
}

// TestKeysInBatches: each item has its own key, and fails alone.
func TestKeysInBatches(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		g.called("c", owner.KeyLevel)
		for _, m := range g.nodes {
			m.known.Store(true)
		}
		var adds []*counterpb.AddRequest
		for _, node := range []string{"n1", "n2", "n3"} {
			adds = append(adds, &counterpb.AddRequest{Key: g.key(node), Delta: 1, IdempotencyKey: "order"})
		}
		adds = append(adds, adds[0], &counterpb.AddRequest{Key: adds[1].Key, Delta: 2, IdempotencyKey: "order"})
		for round := range 2 {
			r := must(g.nodes["n1"].counters.BatchAdd(bound(t), &counterpb.BatchAddRequest{Adds: adds}))(t)
			for i, x := range r.Results[:4] {
				if x.Error != nil || (x.Response.Replay != nil) != (round > 0 || i == 3) || x.Response.Current != 1 {
					t.Errorf("round %d, item %d: %v", round, i, x)
				}
			}
			keyReused.checkItem(t, r.Results[4].Error)
		}
	})
}

// TestKeysNeedTheirLevel: a node of an earlier level would do a request and not look at its
// key. So none is sent to one, and none is done, as long as there may be such a node.
func TestKeysNeedTheirLevel(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		g.called("c", owner.KeyLevel-1)
		refused := refusal{code: codes.Unavailable, why: commonpb.Reason_REASON_UNAVAILABLE, field: "idempotency_key", hint: true, retry: time.Second}
		key := g.key("n2")
		for _, through := range []string{"n1", "n2"} {
			m := g.nodes[through]
			for name, call := range keyedCalls {
				_, err := call(bound(t), m.house, key, "a", false)
				refused.check(in(t, through+" "+name), err)
			}
			r := must(m.counters.BatchAdd(bound(t), &counterpb.BatchAddRequest{Adds: []*counterpb.AddRequest{
				{Key: key, Delta: 1, IdempotencyKey: "a"}, {Key: g.key("n3"), Delta: 1, IdempotencyKey: "a"}, {Key: g.key("n3"), Name: "without"},
			}}))(t)
			refused.checkItem(t, r.Results[0].Error)
			refused.checkItem(t, r.Results[1].Error)
			if r.Results[2].Error != nil {
				t.Errorf("an item without a key: %v", r.Results[2])
			}
		}
		if n := g.nodes["n2"].store.Stats().Objects[owner.KindCounter]; n != 0 {
			t.Errorf("%d counters are there", n)
		}
	})
}

// TestKeysOnTheirWay: what passes a call on sees an id in the place of its key, by which it
// sends the call again, and finds the part that the key belongs to.
func TestKeysOnTheirWay(t *testing.T) {
	req := &counterpb.AddRequest{Key: "k", Delta: 1, IdempotencyKey: "order-7"}
	c := counterAdd.call(req, 1)
	id, err := wireID(c.ID)
	if err != nil || id != reqid.KeyID("order-7") {
		t.Fatalf("%+v, %v", id, err)
	}
	parts := map[int]bool{}
	for i := range 64 {
		id := reqid.KeyID(fmt.Sprint("order", i))
		parts[ring.PartOf(id.Client.Hi, id.Client.Lo, id.Sequence, 4)] = true
	}
	if len(parts) != 4 {
		t.Errorf("keys go to %d of 4 parts", len(parts))
	}
	f, err := forward.Encode(c, true)
	if err != nil {
		t.Fatal(err)
	}
	f.RequestId = requestN(3, 9) // what comes along does not count: the owner looks at the request
	back, err := forward.Decode(f, func(n uint32) *forward.Operation {
		if n != opAdd {
			return nil
		}
		return &counterAdd.Operation
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := counterAdd.idOf(back.Request.(*counterpb.AddRequest), back.ID)
	if err != nil || got != reqid.KeyID("order-7") {
		t.Errorf("%+v, %v", got, err)
	}
}
