package rpc

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/keystead/keystead/owner"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

func overdrawnOf(key string, cost uint64) *limitpb.CheckRequest {
	return &limitpb.CheckRequest{Key: key, Limit: 10, PeriodNs: int64(10 * time.Second), Cost: cost, Overdraft: true}
}

// TestOverdrafts: through any node, one by one and in a batch, what was used is spent, and later checks wait
// until it is paid.
func TestOverdrafts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, 2, false, nil)
		g.called("c", owner.OverdraftLevel)
		for _, n := range []string{"n1", "n2"} {
			key := g.key(n)
			check := func(q *limitpb.CheckRequest) *limitpb.CheckResponse {
				t.Helper()
				return must(g.nodes["n1"].limits.Check(bound(t), q))(t)
			}
			first := overdrawnOf(key, 13)
			first.RequestId = requestN(7, 1)
			for range 2 {
				if r := check(first); !r.Allowed || r.Debt != 3 || r.Remaining != 0 || r.Capacity != 10 || r.RetryAfterNs != int64(4*time.Second) {
					t.Errorf("at %s: %v", n, r)
				}
			}
			plain := &limitpb.CheckRequest{Key: key, Limit: 10, PeriodNs: int64(10 * time.Second)}
			b := must(g.nodes["n1"].limits.BatchCheck(bound(t), &limitpb.BatchCheckRequest{Checks: []*limitpb.CheckRequest{plain, overdrawnOf(key, 2), plain}}))(t)
			if r := b.Results; r[0].Response.GetAllowed() || r[0].Response.GetDebt() != 3 || !r[1].Response.GetAllowed() || r[1].Response.GetDebt() != 5 || r[2].Response.GetAllowed() {
				t.Errorf("at %s, in a batch: %v", n, r)
			}
			for what, tc := range map[string]struct {
				change func(q *limitpb.CheckRequest)
				field  string
			}{
				"anywhere":        {func(q *limitpb.CheckRequest) { q.Anywhere = true }, "overdraft"},
				"peek":            {func(q *limitpb.CheckRequest) { q.Peek = true }, "overdraft"},
				"refund":          {func(q *limitpb.CheckRequest) { q.Cost, q.Refund = 0, 1 }, "refund"},
				"a leaky bucket":  {func(q *limitpb.CheckRequest) { q.Algorithm = limitpb.Algorithm_ALGORITHM_LEAKY_BUCKET }, "overdraft"},
				"too much of it":  {func(q *limitpb.CheckRequest) { q.Cost = 1e12 + 1 }, "cost"},
				"as much as 2^64": {func(q *limitpb.CheckRequest) { q.Cost = 1<<64 - 1 }, "cost"},
			} {
				q := overdrawnOf(key, 1)
				tc.change(q)
				_, err := g.nodes["n1"].limits.Check(bound(t), q)
				f := badField(tc.field)
				f.hint = what == "anywhere"
				f.check(in(t, "with "+what), err)
			}
			time.Sleep(6 * time.Second)
			if r := check(plain); !r.Allowed || r.Debt != 0 {
				t.Errorf("at %s, when it is paid: %v", n, r)
			}
		}
	})
}

// TestOverdraftsNeedTheirLevel: a node of before would refuse what does not fit, and is not asked.
func TestOverdraftsNeedTheirLevel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, 2, false, nil)
		g.called("c", owner.OverdraftLevel-1)
		next := *g.nodes["n2"].Table() // it has heard of the level already
		next.Level = owner.OverdraftLevel
		g.nodes["n2"].Set(&next)
		for _, at := range []string{"n1", "n2"} {
			_, err := g.nodes["n1"].limits.Check(bound(t), overdrawnOf(g.key(at), 1))
			refusal{code: codes.Unavailable, why: commonpb.Reason_REASON_UNAVAILABLE, hint: true, retry: time.Second}.check(in(t, "of "+at), err)
		}
	})
}

// TestOverdraftsHaveNoFallback: what was used is not lost in an answer that is made up while the owner is away.
func TestOverdraftsHaveNoFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, 2, false, nil)
		g.called("c", owner.OverdraftLevel)
		q := capOf(g.key("n2"), 5)
		q.Overdraft = true
		if r := must(g.nodes["n1"].limits.Check(bound(t), q))(t); !r.Allowed || r.Degraded {
			t.Errorf("the owner is there: %v", r)
		}
		g.nodes["n2"].frozen.Store(true)
		if r, err := g.nodes["n1"].limits.Check(bound(t), q); err == nil {
			t.Errorf("the owner is away: %v", r)
		}
		q.Overdraft = false
		if r := must(g.nodes["n1"].limits.Check(bound(t), q))(t); !r.Degraded {
			t.Errorf("a check: %v", r)
		}
		g.nodes["n2"].frozen.Store(false)
	})
}

// TestOverdraftsOfPoliciesHaveNoFallback: nor by the fallback of a policy, one by one and in a batch.
func TestOverdraftsOfPoliciesHaveNoFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := withPolicies(t, 2)
		g.called("c", owner.OverdraftLevel)
		for _, m := range g.nodes {
			m.shelf.put(2, `policies: {user: {limit: 9/1h, fallback: "local-cap:5/1m", budget: 100ms}}`)
		}
		l, key := g.nodes["n1"].limits, g.key("n2")
		used, check := &limitpb.CheckRequest{Key: key, Policy: "user", Cost: 2, Overdraft: true}, &limitpb.CheckRequest{Key: key, Policy: "user"}
		if r := must(l.Check(bound(t), used))(t); !r.Allowed || r.Degraded || r.Remaining != 7 {
			t.Errorf("the owner is there: %v", r)
		}
		g.nodes["n2"].frozen.Store(true)
		if r, err := l.Check(bound(t), used); err == nil {
			t.Errorf("the owner is away: %v", r)
		}
		b := must(l.BatchCheck(bound(t), &limitpb.BatchCheckRequest{Checks: []*limitpb.CheckRequest{used, check}}))(t).Results
		if b[0].Error == nil || !b[1].Response.GetDegraded() {
			t.Errorf("the owner is away, in a batch: %v", b)
		}
		g.nodes["n2"].frozen.Store(false)
		if r := must(l.Check(bound(t), used))(t); r.Degraded || r.Remaining != 5 {
			t.Errorf("the owner is back: %v", r)
		}
	})
}
