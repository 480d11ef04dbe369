package rpc

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/keystead/keystead/owner"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	oncepb "github.com/keystead/keystead/proto/keystead/once/v1"
)

// envelopedOnces are those of enveloped that are of work that is done once.
func envelopedOnces() []envelopedCall {
	id := &commonpb.RequestId{Client: []byte("0123456789abcdef"), Sequence: 7, Settled: 5, AgeNs: 9}
	return []envelopedCall{
		{onceBegin.operation, &oncepb.BeginRequest{Key: "k", Fingerprint: "f", Holder: "h", TtlNs: 1e9, WaitNs: 2e9, RequestId: id}, "",
			"08011002180380013e8a012f0a016b1a0166220168288094ebdc033080a8d6b9073a180a10303132333435363738396162636465661007180520099201016b9a01180a1030313233343536373839616263646566100718052009a00180a8d6b907",
			&oncepb.BeginResponse{Outcome: oncepb.Outcome_OUTCOME_DONE, Token: 8, Result: []byte("r")}, "", "0801703e7a0708031008320172", false},
		{onceRenew.operation, &oncepb.RenewRequest{Key: "k", Token: 8, TtlNs: 1e9, Reclaim: &oncepb.Reclaim{LeftNs: 5, Fingerprint: "f"}}, "",
			"08011002180380013f8a01120a016b1808208094ebdc032a0508051201669201016b",
			&oncepb.RenewResponse{Renewed: true, Reclaimed: true}, "", "0801703f7a0408011801", false},
		{onceComplete.operation, &oncepb.CompleteRequest{Key: "k", Token: 8, Result: []byte("r"), KeepNs: 1e9, RequestId: id}, "",
			"0801100218038001408a01280a016b1808220172288094ebdc033a180a10303132333435363738396162636465661007180520099201016b9a01180a1030313233343536373839616263646566100718052009",
			&oncepb.CompleteResponse{Completed: true, KeepNs: 1e9}, "", "080170407a080801108094ebdc03", false},
		{onceAbandon.operation, &oncepb.AbandonRequest{Key: "k", Token: 8, RequestId: id}, "",
			"0801100218038001418a011f0a016b180822180a10303132333435363738396162636465661007180520099201016b9a01180a1030313233343536373839616263646566100718052009",
			&oncepb.AbandonResponse{Abandoned: true}, "", "080170417a020801", false},
		{onceGet.operation, &oncepb.GetRequest{Key: "k"}, "",
			"0801100218038001428a01030a016b9201016b",
			&oncepb.GetResponse{Phase: oncepb.Phase_PHASE_UNDER_WAY, Token: 8, Fingerprint: "f"}, "", "080170427a0708011008320166", false},
		{onceForget.operation, &oncepb.ForgetRequest{Key: "k", UnderWay: true, RequestId: id}, "",
			"0801100218038001438a011f0a016b180122180a10303132333435363738396162636465661007180520099201016b9a01180a1030313233343536373839616263646566100718052009",
			&oncepb.ForgetResponse{Forgotten: true, Phase: oncepb.Phase_PHASE_DONE}, "", "080170437a0408011002", false},
	}
}

func beginning(key, holder string, wait time.Duration) *oncepb.BeginRequest {
	return &oncepb.BeginRequest{Key: key, Fingerprint: "body", Holder: holder, TtlNs: int64(10 * time.Second), WaitNs: int64(wait)}
}

// TestOnce: through any node, work is begun, renewed, completed, abandoned and forgotten.
func TestOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, 3, false, nil)
		g.called("c", owner.OnceLevel)
		for _, n := range []string{"n1", "n2", "n3"} {
			onceThrough(t, g.nodes[n], "of "+n)
		}
	})
}

func onceThrough(t *testing.T, m *member, key string) {
	ctx := bound(t)
	a := must(m.onces.Begin(ctx, beginning(key, "a", 0)))(t)
	if a.Outcome != oncepb.Outcome_OUTCOME_FIRST || a.Token == 0 || a.Attempt != 1 || a.TtlNs != int64(10*time.Second) || a.Owner == "" || a.Epoch == 0 || a.WaitedNs != 0 {
		t.Fatal(a)
	}
	time.Sleep(time.Second)
	if r := must(m.onces.Begin(ctx, beginning(key, "b", 0)))(t); r.Outcome != oncepb.Outcome_OUTCOME_BUSY || r.Holder != "a" || r.AgeNs < int64(time.Second) || r.TtlNs > int64(9*time.Second) || r.Token != a.Token {
		t.Error(r)
	}
	other := beginning(key, "b", 0)
	other.Fingerprint = "other"
	_, err := m.onces.Begin(ctx, other)
	refusal{code: codes.FailedPrecondition, why: commonpb.Reason_REASON_OTHER_FINGERPRINT, field: "fingerprint", hint: true}.check(in(t, "another body"), err)
	_, err = m.onces.Begin(ctx, &oncepb.BeginRequest{Key: key})
	badField("ttl_ns").check(in(t, "no TTL"), err)
	_, err = m.onces.Complete(ctx, &oncepb.CompleteRequest{Key: key, Token: a.Token, KeepNs: 1})
	badField("keep_ns").check(in(t, "a short retention"), err)
	if r := must(m.onces.Renew(ctx, &oncepb.RenewRequest{Key: key, Token: a.Token, TtlNs: int64(time.Minute)}))(t); !r.Renewed || r.TtlNs != int64(time.Minute) {
		t.Error(r)
	}
	if r := must(m.onces.Renew(ctx, &oncepb.RenewRequest{Key: key, Token: a.Token + 1, TtlNs: int64(time.Minute)}))(t); r.Renewed || r.Phase != oncepb.Phase_PHASE_UNDER_WAY {
		t.Error(r)
	}
	if r := must(m.onces.Forget(ctx, &oncepb.ForgetRequest{Key: key}))(t); r.Forgotten || r.Phase != oncepb.Phase_PHASE_UNDER_WAY {
		t.Error(r)
	}
	if r := must(m.onces.Abandon(ctx, &oncepb.AbandonRequest{Key: key, Token: a.Token, RequestId: requestN(1, 7)}))(t); !r.Abandoned {
		t.Error(r)
	}
	b := must(m.onces.Begin(ctx, other))(t)
	if b.Outcome != oncepb.Outcome_OUTCOME_FIRST || b.Token <= a.Token {
		t.Error(b)
	}
	if r := must(m.onces.Complete(ctx, &oncepb.CompleteRequest{Key: key, Token: a.Token, Result: []byte("late")}))(t); r.Completed || r.Phase != oncepb.Phase_PHASE_UNDER_WAY {
		t.Error(r)
	}
	if r := must(m.onces.Complete(ctx, &oncepb.CompleteRequest{Key: key, Token: b.Token, Result: []byte("receipt"), RequestId: requestN(1, 8)}))(t); !r.Completed || r.KeepNs != int64(24*time.Hour) {
		t.Error(r)
	}
	if r := must(m.onces.Begin(ctx, other))(t); r.Outcome != oncepb.Outcome_OUTCOME_DONE || string(r.Result) != "receipt" || r.Token != b.Token {
		t.Error(r)
	}
	if r := must(m.onces.Get(ctx, &oncepb.GetRequest{Key: key, Name: "once"}))(t); r.Phase != oncepb.Phase_PHASE_DONE || r.Fingerprint != "other" || string(r.Result) != "receipt" || r.TtlNs != int64(24*time.Hour) {
		t.Error(r)
	}
	if r := must(m.onces.Forget(ctx, &oncepb.ForgetRequest{Key: key}))(t); !r.Forgotten || r.Phase != oncepb.Phase_PHASE_DONE {
		t.Error(r)
	}
	if r := must(m.onces.Get(ctx, &oncepb.GetRequest{Key: key}))(t); r.Phase != oncepb.Phase_PHASE_UNSPECIFIED || r.Token != 0 {
		t.Error(r)
	}
}

// begun is a Begin that may wait, under way.
type begun struct {
	r   *oncepb.BeginResponse
	err error
}

// waiting starts some callers that wait for a key, each after the other.
func waiting(ctx context.Context, m *member, key string, n int) chan begun {
	heard := make(chan begun, n)
	for i := range n {
		go func() {
			r, err := m.onces.Begin(ctx, beginning(key, fmt.Sprint(i), time.Minute))
			heard <- begun{r, err}
		}()
		synctest.Wait()
	}
	return heard
}

// TestOnceIsAwaited: all who wait are told the result; of a turn that is abandoned, or whose holder
// is gone, one is first and the others go on waiting; each waits for no longer than it said.
func TestOnceIsAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, 3, false, nil)
		g.called("c", owner.OnceLevel)
		m := g.nodes["n1"]
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		const n = 20
		for _, key := range []string{"k1", "k2", "k3", "k4"} { // at several owners
			a := must(m.onces.Begin(ctx, beginning(key, "a", 0)))(t)
			heard := waiting(ctx, m, key, n)
			began := time.Now()
			must(m.onces.Abandon(ctx, &oncepb.AbandonRequest{Key: key, Token: a.Token}))(t)
			b := <-heard
			if synctest.Wait(); b.err != nil || b.r.Outcome != oncepb.Outcome_OUTCOME_FIRST || len(heard) != 0 || time.Since(began) > 100*time.Millisecond {
				t.Fatalf("%v, and %d others after %s", b, len(heard), time.Since(began))
			}
			c := <-heard // b is gone
			if synctest.Wait(); c.err != nil || c.r.Outcome != oncepb.Outcome_OUTCOME_FIRST || c.r.Token <= b.r.Token || c.r.Attempt != 2 || len(heard) != 0 {
				t.Fatalf("%v, and %d others", c, len(heard))
			}
			if waited := time.Since(began); waited < 10*time.Second || waited > 11*time.Second || c.r.WaitedNs > int64(waited) || c.r.WaitedNs < int64(9*time.Second) {
				t.Errorf("after %s: %v", waited, c.r)
			}
			must(m.onces.Complete(ctx, &oncepb.CompleteRequest{Key: key, Token: c.r.Token, Result: []byte("receipt")}))(t)
			for range n - 2 {
				if x := <-heard; x.err != nil || x.r.Outcome != oncepb.Outcome_OUTCOME_DONE || string(x.r.Result) != "receipt" {
					t.Fatal(x)
				}
			}
		}
		must(m.onces.Begin(ctx, beginning("busy", "a", 0)))(t)
		r := must(m.onces.Begin(ctx, beginning("busy", "b", 3*time.Second)))(t)
		if r.Outcome != oncepb.Outcome_OUTCOME_BUSY || r.Holder != "a" {
			t.Error(r)
		}
		left, leave := context.WithCancel(ctx)
		heard := waiting(left, m, "busy", 3)
		leave()
		for range 3 {
			if x := <-heard; x.err == nil {
				t.Error(x.r)
			}
		}
		synctest.Wait()
		for id, n := range g.nodes {
			if w := n.store.Stats().Waiting; w != 0 {
				t.Errorf("%d wait at %s", w, id)
			}
		}
	})
}

// TestAwaitedAtAnotherOwner: those who wait where the key was go on at its new owner within a beat,
// and are told there what comes of the work.
func TestAwaitedAtAnotherOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, 3, false, nil)
		ctx := bound(t)
		g.begin("n1", "n2")
		g.called("c", owner.OnceLevel)
		key := g.moving("n3", "n1")
		must(g.nodes["n2"].onces.Begin(ctx, beginning(key, "a", 0)))(t)
		heard := waiting(ctx, g.nodes["n2"], key, 3)
		to := g.flip(key) // which has no copy of it in this test
		g.called("c", owner.OnceLevel)
		time.Sleep(onceBeat + time.Second)
		synctest.Wait()
		x := <-heard
		if x.err != nil || x.r.Outcome != oncepb.Outcome_OUTCOME_FIRST || x.r.Owner != to || len(heard) != 0 {
			t.Fatalf("%v, and %d others", x, len(heard))
		}
		must(g.nodes["n1"].onces.Complete(ctx, &oncepb.CompleteRequest{Key: key, Token: x.r.Token, Result: []byte("receipt")}))(t)
		for range 2 {
			if x := <-heard; x.err != nil || string(x.r.Result) != "receipt" || x.r.Owner != to {
				t.Error(x)
			}
		}
	})
}
