package rpc

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/keystead/keystead/internal/fallback"
	"github.com/keystead/keystead/internal/forward"
	"github.com/keystead/keystead/internal/tests/agreed"
	"github.com/keystead/keystead/owner"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// capOf is a check of 10 an hour, of which a node admits so many in a minute by itself.
func capOf(key string, n uint64) *limitpb.CheckRequest {
	return &limitpb.CheckRequest{Key: key, Limit: 10, PeriodNs: int64(time.Hour), Fallback: &limitpb.Fallback{
		Source: limitpb.FallbackSource_FALLBACK_SOURCE_LOCAL_CAP, Cap: n, PeriodNs: int64(time.Minute)}}
}

// knownOf is one that goes by what the owner said in the last ten seconds.
func knownOf(key string) *limitpb.CheckRequest {
	return &limitpb.CheckRequest{Key: key, Limit: 10, PeriodNs: int64(time.Hour), Fallback: &limitpb.Fallback{
		Source: limitpb.FallbackSource_FALLBACK_SOURCE_LAST_KNOWN, KnownForNs: int64(10 * time.Second)}}
}

// outages are how an owner, n2, cannot be asked, and by which end of it.
func outages(t *testing.T, g *group, key string) map[string]func() (end func()) {
	n2 := g.nodes["n2"]
	return map[string]func() func(){
		"budget": func() func() { // nobody owns the key for a moment
			all := []table.Holder{agreed.Holder("n1"), agreed.Holder("n2"), agreed.Holder("n3")}
			g.apply(table.Command{Remove: &table.Remove{Members: all}})
			return func() {
				g.board.admit("n1", "n2", "n3")
				g.begin("n1", "n2", "n3")
			}
		},
		"unavailable": func() func() {
			down := func() bool { return false }
			n2.wire.Store(&down)
			if conn, ok := g.conns.Load("n1 n2:7400"); ok {
				_ = conn.(interface{ Close() error }).Close()
				synctest.Wait()
			}
			return func() {
				n2.wire.Store(nil)
				time.Sleep(3 * time.Second) // until it is dialled again
			}
		},
		"outcome_unknown": func() func() { // it hands the row over, and declines after a while
			n2.frozen.Store(true)
			return func() { n2.frozen.Store(false) }
		},
	}
}

// TestCheckFallsBack: however the owner cannot be asked, a check is decided by its fallback within
// the budget, and by the owner when it is there again.
func TestCheckFallsBack(t *testing.T) {
	for _, why := range []string{"budget", "unavailable", "outcome_unknown"} {
		t.Run(why, func(t *testing.T) {
			inGroup(t, func(t *testing.T, g *group) {
				n1, key := g.nodes["n1"], g.key("n2")
				must(n1.limits.Check(bound(t), capOf(key, 2)))(t)
				end := outages(t, g, key)[why]()
				for i, want := range []bool{true, true, false} {
					began := time.Now()
					r := must(n1.limits.Check(bound(t), capOf(key, 2)))(t)
					if took := time.Since(began); took > fallback.DefaultBudget*3/4+time.Millisecond {
						t.Errorf("it took %s", took)
					}
					if !r.Degraded || r.DegradedSource != limitpb.FallbackSource_FALLBACK_SOURCE_LOCAL_CAP || r.Allowed != want || r.Owner != "n1" || r.Epoch != 0 || r.Capacity != 2 || r.Limit != 10 {
						t.Errorf("check %d: %v", i, r)
					}
				}
				if n := count(t, n1.metrics.degraded.of[fallback.LocalCap][why]); n == 0 {
					t.Error("it was not counted")
				}
				end()
				r := must(n1.limits.Check(bound(t), capOf(key, 2)))(t)
				if owner, _, _ := g.board.Table().Owner(owner.Hash(key)); r.Degraded || r.Owner != owner.Node || r.Remaining < 8 {
					t.Errorf("when it is there again: %v", r)
				}
			})
		})
	}
}

// TestNobodyOwnsTheKeyOfAFallback: nor does it wait for a table that has an owner.
func TestNobodyOwnsTheKeyOfAFallback(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		key := g.key("n2")
		g.apply(table.Command{Remove: &table.Remove{Members: []table.Holder{agreed.Holder("n1"), agreed.Holder("n2"), agreed.Holder("n3")}}})
		began := time.Now()
		req := capOf(key, 2)
		req.Fallback.BudgetNs = int64(100 * time.Millisecond)
		r := must(g.nodes["n1"].limits.Check(bound(t), req))(t)
		if took := time.Since(began); !r.Degraded || !r.Allowed || took > 76*time.Millisecond {
			t.Errorf("after %s: %v", took, r)
		}
	})
}

// TestOwnerThatActsAndIsSilent: what was charged at the owner stays so, beside what the fallback
// has admitted.
func TestOwnerThatActsAndIsSilent(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		n1, n2, key := g.nodes["n1"], g.nodes["n2"], g.key("n2")
		on := make(chan struct{})
		hang := func() { <-on }
		n2.confirm.Store(&hang)
		r := must(n1.limits.Check(bound(t), capOf(key, 2)))(t)
		if !r.Degraded || !r.Allowed {
			t.Error(r)
		}
		close(on)
		synctest.Wait()
		if r := must(n1.limits.Check(bound(t), capOf(key, 2)))(t); r.Degraded || r.Remaining != 8 {
			t.Error(r)
		}
	})
}

// TestOwnerItselfMayNotAct: the node that is asked owns the key and may not act for it.
func TestOwnerItselfMayNotAct(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		n2, key := g.nodes["n2"], g.key("n2")
		must(n2.limits.Check(bound(t), knownOf(key)))(t)
		n2.frozen.Store(true)
		began := time.Now()
		r := must(n2.limits.Check(bound(t), knownOf(key)))(t)
		if took := time.Since(began); !r.Degraded || !r.Allowed || r.Remaining != 8 || took > fallback.DefaultBudget {
			t.Errorf("after %s: %v", took, r)
		}
	})
}

// TestLastKnownIsOnce: what the owner said was left is admitted once and for ten seconds, and
// peeks spend none of it.
func TestLastKnownIsOnce(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		n1, key := g.nodes["n1"], g.key("n2")
		fresh := must(n1.limits.Check(bound(t), knownOf(key)))(t)
		g.nodes["n2"].frozen.Store(true)
		peek := knownOf(key)
		peek.Peek, peek.Cost = true, 9
		if r := must(n1.limits.Check(bound(t), peek))(t); !r.Degraded || !r.Allowed || r.Remaining != 9 {
			t.Error(r)
		}
		req := knownOf(key)
		req.Cost = 6
		for _, want := range []bool{true, false} {
			r := must(n1.limits.Check(bound(t), req))(t)
			if r.Allowed != want || r.Remaining != 3 || r.DegradedSource != limitpb.FallbackSource_FALLBACK_SOURCE_LAST_KNOWN || r.Capacity != 10 || r.Epoch != fresh.Epoch {
				t.Error(r)
			}
			if !want && (r.RetryAfterNs <= 0 || r.RetryAfterNs > int64(time.Second)) {
				t.Errorf("to be asked again after %d ns", r.RetryAfterNs)
			}
		}
		time.Sleep(10 * time.Second)
		_, err := n1.limits.Check(bound(t), req)
		unheard.check(t, err)
		if n := count(t, n1.metrics.degraded.of[fallback.None]["outcome_unknown"]); n != 1 {
			t.Errorf("%v counted", n)
		}
		other := knownOf(g.keys("n2", 2, nil)[1])
		_, err = n1.limits.Check(bound(t), other)
		unheard.check(t, err)
		other.Key = g.keys("n1", 2, nil)[1]
		g.nodes["n1"].frozen.Store(true)
		_, err = n1.limits.Check(bound(t), other)
		unavailable.check(t, err) // and not that the caller has no time left
	})
}

// TestWhatNeverFallsBack: what an owner refuses, and what it would refuse, is an error; so is a
// refund, and a call that is not to be passed on.
func TestWhatNeverFallsBack(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		n1, key := g.nodes["n1"], g.key("n2")
		ctx := bound(t)
		refused := func(what string, ctx context.Context, reason string, change func(r *limitpb.CheckRequest)) {
			t.Helper()
			for _, frozen := range []bool{false, true} {
				g.nodes["n2"].frozen.Store(frozen)
				req := capOf(key, 5)
				change(req)
				r, err := n1.limits.Check(ctx, req)
				if reasonIn(err) != reason && (frozen || what != "a refund") {
					t.Errorf("%s, frozen %t: %v %v", what, frozen, r, err)
				}
			}
		}
		refused("a cost above the limit", ctx, "INVALID", func(r *limitpb.CheckRequest) { r.Cost = 11 })
		refused("no key", ctx, "INVALID", func(r *limitpb.CheckRequest) { r.Key = "" })
		refused("a long key", ctx, "INVALID", func(r *limitpb.CheckRequest) { r.Key = fmt.Sprintf("%0513d", 1) })
		refused("no limit", ctx, "INVALID", func(r *limitpb.CheckRequest) { r.Limit = 0 })
		refused("a half of an id", ctx, "INVALID", func(r *limitpb.CheckRequest) { r.RequestId = &commonpb.RequestId{Sequence: 1} })
		refused("a long name", ctx, "INVALID", func(r *limitpb.CheckRequest) { r.IdempotencyKey = fmt.Sprintf("%065d", 1) })
		refused("no source", ctx, "INVALID", func(r *limitpb.CheckRequest) { r.Fallback.Source = 0 })
		refused("another source", ctx, "INVALID", func(r *limitpb.CheckRequest) { r.Fallback.Source = 257 })
		refused("no cap", ctx, "INVALID", func(r *limitpb.CheckRequest) { r.Fallback.Cap = 0 })
		refused("a budget of nothing", ctx, "INVALID", func(r *limitpb.CheckRequest) { r.Fallback.BudgetNs = 1 })
		refused("anywhere", ctx, "INVALID", func(r *limitpb.CheckRequest) { r.Anywhere = true })
		refused("turns of others", ctx, "INVALID", func(r *limitpb.CheckRequest) {
			r.Algorithm, r.Fallback = limitpb.Algorithm_ALGORITHM_LEAKY_BUCKET, knownOf("").Fallback
		})
		refused("a refund", ctx, "UNAVAILABLE", func(r *limitpb.CheckRequest) { r.Refund = 1 })
		refused("no-forward", metadata.AppendToOutgoingContext(ctx, forward.NoForward, ""), "NOT_OWNER", func(*limitpb.CheckRequest) {})

		short, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		began := time.Now()
		if r := must(n1.limits.Check(short, &limitpb.CheckRequest{Key: key, Limit: 10, PeriodNs: int64(time.Hour), Fallback: &limitpb.Fallback{
			Source: limitpb.FallbackSource_FALLBACK_SOURCE_LOCAL_CAP, Cap: 1, BudgetNs: int64(10 * time.Second)}}))(t); !r.Degraded || time.Since(began) > 751*time.Millisecond {
			t.Errorf("before the deadline of the caller, after %s: %v", time.Since(began), r)
		}
		g.nodes["n2"].frozen.Store(false)
		must(n1.limits.Check(ctx, capOf(key, 5)))(t) // the node does not degrade by itself
	})
}

// TestBatchFallsBack: in a batch and in a stream, those that have a fallback go by theirs, in the
// shortest of their budgets, and the others have as long as ever.
func TestBatchFallsBack(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		n1, key, here, there := g.nodes["n1"], g.key("n2"), g.key("n1"), g.key("n3")
		g.nodes["n2"].frozen.Store(true)
		plain := capOf(there, 1)
		plain.Fallback = nil
		wrong := capOf(key, 0)
		checks := []*limitpb.CheckRequest{capOf(key, 2), capOf(here, 2), plain, wrong, capOf(key, 2), capOf(key, 2), capOf(there, 2)}
		began := time.Now()
		b := must(n1.limits.BatchCheck(bound(t), &limitpb.BatchCheckRequest{Checks: checks}))(t)
		if took := time.Since(began); took > fallback.DefaultBudget {
			t.Errorf("it took %s", took)
		}
		for i, want := range []struct {
			degraded, allowed bool
			by                string
		}{{true, true, "n1"}, {false, true, "n1"}, {false, true, "n3"}, {}, {true, true, "n1"}, {true, false, "n1"}, {false, true, "n3"}} {
			r := b.Results[i]
			if i == 3 {
				if r.Error.GetField() != "fallback.cap" {
					t.Error(r)
				}
			} else if a := r.Response; a.GetDegraded() != want.degraded || a.GetAllowed() != want.allowed || b.Deciders[r.Decider].Owner != want.by || r.Error != nil {
				t.Errorf("check %d: %v by %v", i, r, b.Deciders)
			}
		}
		stream := must(n1.limits.StreamCheck(bound(t)))(t)
		if err := stream.Send(&limitpb.StreamCheckRequest{Tag: 7, Checks: []*limitpb.CheckRequest{capOf(key, 3)}}); err != nil {
			t.Fatal(err)
		}
		if r := must(stream.Recv())(t); !r.Results[0].Response.GetDegraded() || r.Tag != 7 {
			t.Error(r)
		}
		began = time.Now()
		plain.Key = key
		b = must(n1.limits.BatchCheck(bound(t), &limitpb.BatchCheckRequest{Checks: []*limitpb.CheckRequest{plain, capOf(here, 2)}}))(t)
		if took := time.Since(began); took < forward.MaxAwait || b.Results[0].Error.GetReason() != commonpb.Reason_REASON_UNAVAILABLE || b.Results[1].Response.GetDegraded() {
			t.Errorf("after %s: %v", took, b)
		}
	})
}

// mute are copies that never have anything.
type mute struct{ slow }

func (m *mute) AwaitOf(ctx context.Context, _ uint64, _ table.Holder) bool {
	<-ctx.Done()
	return false
}

// TestCopiesThatAreSilent: the budget also ends the wait for the standby of a key of this node's
// own; what was decided stays charged.
func TestCopiesThatAreSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := clusterOf(t, Config{Node: "n1", Copies: &mute{}})
		l := limitpb.NewLimitServiceClient(h.conn)
		for _, batch := range []bool{false, true} {
			began := time.Now()
			req, r := capOf("k", 2), (*limitpb.CheckResponse)(nil)
			if batch {
				r = must(l.BatchCheck(bound(t), &limitpb.BatchCheckRequest{Checks: []*limitpb.CheckRequest{req}}))(t).Results[0].Response
			} else {
				r = must(l.Check(bound(t), req))(t)
			}
			if took := time.Since(began); !r.GetDegraded() || !r.GetAllowed() || took > fallback.DefaultBudget {
				t.Errorf("batch %t, after %s: %v", batch, took, r)
			}
		}
	})
}

// TestRetryOfADegradedCheck: it is not remembered under its id, so the same request may be decided by
// the owner later, and once.
func TestRetryOfADegradedCheck(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		n1, key := g.nodes["n1"], g.key("n2")
		req := capOf(key, 2)
		req.RequestId = requestN(1, 1)
		g.nodes["n2"].frozen.Store(true)
		if r := must(n1.limits.Check(bound(t), req))(t); !r.Degraded {
			t.Error(r)
		}
		g.nodes["n2"].frozen.Store(false)
		for _, replay := range []bool{false, true} {
			if r := must(n1.limits.Check(bound(t), req))(t); r.Degraded || r.Remaining != 9 || (r.Replay != nil) != replay {
				t.Error(r)
			}
		}
	})
}

// TestCallerThatLeavesGetsNoFallback: nobody would hear of it, and it would count.
func TestCallerThatLeavesGetsNoFallback(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		n1, key := g.nodes["n1"], g.key("n2")
		g.nodes["n2"].frozen.Store(true)
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(20*time.Millisecond, cancel)
		r, err := limitCheck.serve(ctx, n1.server, capOf(key, 1))
		if err == nil {
			t.Error(r)
		}
		unheard.check(t, err)
		if r := must(n1.limits.Check(bound(t), capOf(key, 1)))(t); !r.Degraded || !r.Allowed {
			t.Error(r)
		}
	})
}

// TestOwnerThatAnswersCostsNothing: without a fallback, a check is as it was before.
func TestOwnerThatAnswersCostsNothing(t *testing.T) {
	g := grouped(t, 1, false, nil)
	s, req := g.nodes["n1"].server, &limitpb.CheckRequest{Key: "k", Limit: 1e9, PeriodNs: int64(time.Hour)}
	ctx := context.Background()
	n := testing.AllocsPerRun(200, func() {
		if _, err := limitCheck.serve(ctx, s, req); err != nil {
			t.Fatal(err)
		}
	})
	if n > 1 { // the answer
		t.Errorf("%v allocations", n)
	}
}

// TestPolicyFallsBack: a check that names a policy goes by the fallback of that, one by one and in
// batches, and judged by its numbers; it has none of its own.
func TestPolicyFallsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := withPolicies(t, 3)
		for _, m := range g.nodes {
			m.shelf.put(2, `policies: {user: {limit: 9/1h, fallback: "local-cap:2/1m", budget: 100ms}, known: {limit: 9/1h, fallback: "last-known:1m"}, closed: {limit: 9/1h}}`)
		}
		l, key := g.nodes["n1"].limits, g.key("n2")
		must(l.Check(bound(t), &limitpb.CheckRequest{Key: key, Policy: "known", Cost: 5}))(t)
		g.nodes["n2"].frozen.Store(true)
		began := time.Now()
		r := must(l.Check(bound(t), &limitpb.CheckRequest{Key: key, Policy: "user"}))(t)
		if took := time.Since(began); !r.Degraded || !r.Allowed || r.Capacity != 2 || r.Limit != 9 || r.PolicyVersion != 2 || took > 76*time.Millisecond {
			t.Errorf("after %s: %v", took, r)
		}
		b := must(l.BatchCheck(bound(t), &limitpb.BatchCheckRequest{Checks: []*limitpb.CheckRequest{
			{Key: key, Policy: "user"}, {Key: key, Policy: "user"}, {Key: key, Policy: "known", Cost: 4}, {Key: key, Policy: "user", Cost: 10}, {Key: key, Policy: "nobody"}, {Key: key, Policy: "closed"},
		}}))(t).Results
		if a, c, d := b[0].Response, b[1].Response, b[2].Response; !a.GetAllowed() || !c.GetDegraded() || c.GetAllowed() || !d.GetAllowed() || d.Remaining != 0 {
			t.Error(b)
		}
		for i, want := range map[int]commonpb.Reason{3: commonpb.Reason_REASON_INVALID, 4: commonpb.Reason_REASON_UNAVAILABLE, 5: commonpb.Reason_REASON_UNAVAILABLE} {
			if b[i].Error.GetReason() != want && b[i].Error.GetReason() != commonpb.Reason_REASON_OUTCOME_UNKNOWN {
				t.Errorf("check %d: %v", i, b[i])
			}
		}
		both := capOf(key, 1)
		both.Limit, both.PeriodNs, both.Policy = 0, 0, "user"
		if r, err := l.Check(bound(t), both); reasonIn(err) != "INVALID" {
			t.Errorf("%v %v", r, err)
		}
	})
}
