package rpc

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/keystead/keystead/internal/fallback"
	"github.com/keystead/keystead/owner"
	admissionpb "github.com/keystead/keystead/proto/keystead/admission/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// admitFalling: a request without a model can be decided without its owner, one of a small model cannot.
const admitFalling = `
policies: {shared: {limit: 9/1h, fallback: "last-known:1m", budget: 100ms}}
admissions:
  chat:
    key: "org:{org}"
    fields: [org, user, model]
    demands:
    - {name: rpm, limit: 100/1h, fallback: "local-cap:3/1m"}
    - {name: "user:{user}", policy: shared, cost: tokens, clamp: 50}
    - {name: running, when: {model: small}, slots: 2}
`

// falls starts nodes that go by it, and returns a request, by its number, of an organisation whose key n2 owns.
func falls(t *testing.T) (*group, func(sequence uint64) *admissionpb.AdmitRequest) {
	g := grouped(t, 3, false, nil)
	g.called("c", table.PoliciesLevel)
	for _, m := range g.nodes {
		m.shelf.put(1, admitFalling)
	}
	org := ""
	for i := 0; ; i++ {
		org = fmt.Sprint(i)
		if at, _, _ := g.board.Table().Owner(owner.Hash("org:" + org)); at.Node == "n2" {
			break
		}
	}
	return g, func(sequence uint64) *admissionpb.AdmitRequest { return chatRequest(org, "u", 2, sequence) }
}

// TestAdmitFallsBack: what a policy demands is decided without the owner if all demands can be, each by its own fallback, in
// the shortest budget: all are charged or none. There is no hold, and when the owner is back nothing was charged.
func TestAdmitFallsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, ask := falls(t)
		c := g.nodes["n1"].admissions
		first := must(c.Admit(bound(t), ask(1)))(t)
		if first.Degraded || first.HoldId == "" || first.Demands[1].Remaining != 7 || first.Demands[1].DegradedSource != 0 {
			t.Fatalf("the owner is there: %v", first)
		}
		g.nodes["n2"].frozen.Store(true)
		peek := ask(2)
		peek.Peek = true
		tagged := ask(0)
		tagged.RequestId, tagged.HoldTag = nil, "t"
		for i, want := range []struct {
			q            *admissionpb.AdmitRequest
			admitted     bool
			rpm, user    uint64 // left
			byCap, known bool   // refused
		}{
			{peek, true, 2, 5, false, false},
			{ask(3), true, 2, 5, false, false},
			{ask(4), true, 1, 3, false, false},
			{func() *admissionpb.AdmitRequest { q := ask(5); q.Amounts[0].Cost = 4000; return q }(), false, 0, 3, false, true}, // half of 9 are 4
			{ask(6), true, 0, 1, false, false},
			{ask(7), false, 0, 1, true, true},
			{tagged, false, 0, 1, true, true},
		} {
			began := time.Now()
			r := must(c.Admit(bound(t), want.q))(t)
			if took := time.Since(began); took > 76*time.Millisecond {
				t.Errorf("step %d took %s", i, took)
			}
			if !r.Degraded || r.Admitted != want.admitted || r.HoldId != "" || r.HoldNs != 0 || r.Owner != "n1" || r.Epoch != 0 || r.PolicyVersion != 1 || r.Key != first.Key || (r.RetryAfterNs == 0) != want.admitted || r.RetryAfterNs > int64(time.Second) {
				t.Errorf("step %d: %v", i, r)
			}
			a, b := r.Demands[0], r.Demands[1]
			if a.Name != "rpm" || a.Remaining != want.rpm || a.Capacity != 3 || a.Refused != want.byCap || a.DegradedSource != limitpb.FallbackSource_FALLBACK_SOURCE_LOCAL_CAP {
				t.Errorf("step %d, by the cap: %v", i, a)
			}
			if b.Name != "user:u" || b.Remaining != want.user || b.Capacity != 9 || b.Refused != want.known || b.DegradedSource != limitpb.FallbackSource_FALLBACK_SOURCE_LAST_KNOWN {
				t.Errorf("step %d, by what was known: %v", i, b)
			}
			if i == 3 && b.Reserved != 4 {
				t.Errorf("an estimate reserves its share: %v", b)
			}
		}
		degraded := g.nodes["n1"].metrics.degraded
		if a, b := count(t, degraded.of[fallback.LocalCap]["outcome_unknown"])+count(t, degraded.of[fallback.LocalCap]["budget"]), count(t, degraded.of[fallback.LastKnown]["outcome_unknown"])+count(t, degraded.of[fallback.LastKnown]["budget"]); a != 7 || b != 7 {
			t.Errorf("counted %v and %v", a, b)
		}
		_, err := c.Settle(bound(t), &admissionpb.SettleRequest{Key: first.Key, HoldId: ""})
		refusal{code: codes.InvalidArgument, why: commonpb.Reason_REASON_INVALID, field: "hold_id", hint: true}.check(in(t, "no hold"), err)
		g.nodes["n2"].frozen.Store(false)
		back := must(c.Admit(bound(t), ask(3)))(t) // it was not remembered
		if back.Degraded || back.HoldId == "" || back.Demands[0].Remaining != 98 || back.Demands[1].Remaining != 5 {
			t.Errorf("the owner is back: %v", back)
		}
	})
}

// TestAdmitThatDoesNotFall: one that demands something without a fallback fails without its owner; so does one of which
// nothing is known, and what the owner would refuse, is refused.
func TestAdmitThatDoesNotFall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, ask := falls(t)
		c := g.nodes["n1"].admissions
		must(c.Admit(bound(t), ask(1)))(t)
		wrong := func(sequence uint64, change func(q *admissionpb.AdmitRequest)) *admissionpb.AdmitRequest {
			q := ask(sequence)
			change(q)
			return q
		}
		for what, x := range map[string]struct {
			reason string // "" = the owner is not there
			q      *admissionpb.AdmitRequest
		}{
			"slots": {"", wrong(2, func(q *admissionpb.AdmitRequest) {
				q.Fields = append(q.Fields, &admissionpb.Field{Name: "model", Value: "small"})
			})},
			"another user":    {"", wrong(3, func(q *admissionpb.AdmitRequest) { q.Fields[0].Value = "v" })},
			"a long hold":     {"INVALID", wrong(4, func(q *admissionpb.AdmitRequest) { q.HoldNs = int64(25 * time.Hour) })},
			"no id":           {"INVALID", wrong(5, func(q *admissionpb.AdmitRequest) { q.RequestId = nil })},
			"an id and a tag": {"INVALID", wrong(12, func(q *admissionpb.AdmitRequest) { q.HoldTag = "t" })},
			"half of an id":   {"INVALID", wrong(6, func(q *admissionpb.AdmitRequest) { q.RequestId = &commonpb.RequestId{Sequence: 1} })},
			"on expiry":       {"INVALID", wrong(7, func(q *admissionpb.AdmitRequest) { q.OnExpiry = 7 })},
			"its own name":    {"INVALID", wrong(8, func(q *admissionpb.AdmitRequest) { q.Name = "rpm" })},
			"a long name":     {"INVALID", wrong(9, func(q *admissionpb.AdmitRequest) { q.Name = string(make([]byte, 129)) })},
			"no such policy":  {"POLICY_UNKNOWN", wrong(10, func(q *admissionpb.AdmitRequest) { q.Policy = "nobody" })},
			"no organisation": {"INVALID", wrong(11, func(q *admissionpb.AdmitRequest) { q.Fields = q.Fields[:1] })},
		} {
			g.nodes["n2"].frozen.Store(true)
			r, err := c.Admit(bound(t), x.q)
			if got := reasonIn(err); x.reason != "" && got != x.reason || x.reason == "" && got != "UNAVAILABLE" && got != "OUTCOME_UNKNOWN" {
				t.Errorf("%s: %v %v", what, r, err)
			}
			g.nodes["n2"].frozen.Store(false)
		}
	})
}

// TestAdmitRefusalsDoNotFall: the owner was asked, and it cannot be done.
func TestAdmitRefusalsDoNotFall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, ask := falls(t)
		first := must(g.nodes["n1"].admissions.Admit(bound(t), ask(1)))(t)
		for _, m := range g.nodes {
			m.shelf.put(2, "admissions: {chat: {key: \"org:{org}\", fields: [org, user], demands: [{name: it, limit: 9/1h, cost: tokens, fallback: \"local-cap:3/1m\"}]}}")
		}
		must(g.nodes["n1"].counters.Add(bound(t), &counterpb.AddRequest{Key: first.Key, Name: "it", Delta: 1}))(t)
		if r, err := g.nodes["n1"].admissions.Admit(bound(t), ask(2)); reasonIn(err) != "KIND_MISMATCH" {
			t.Errorf("%v %v", r, err)
		}
	})
}

// TestCallerThatLeavesIsNotAdmitted: nobody would hear of it, and it would count.
func TestCallerThatLeavesIsNotAdmitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, ask := falls(t)
		n1 := g.nodes["n1"]
		must(n1.admissions.Admit(bound(t), ask(1)))(t)
		g.nodes["n2"].frozen.Store(true)
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(20*time.Millisecond, cancel)
		if r, err := admissionAdmit.serve(ctx, n1.server, ask(2)); err == nil {
			t.Error(r)
		}
		if r := must(n1.admissions.Admit(bound(t), ask(3)))(t); !r.Degraded || r.Demands[0].Remaining != 2 {
			t.Error(r)
		}
		g.nodes["n2"].frozen.Store(false)
	})
}

// TestPolicyClamps: an estimate of a demand that is clamped reserves its share of the capacity, and one that is not is
// refused if it can never pass.
func TestPolicyClamps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, ask := falls(t)
		c, q := g.nodes["n1"].admissions, ask(1)
		q.Amounts[0].Cost = 4000
		r := must(c.Admit(bound(t), q))(t)
		if d := r.Demands[1]; !r.Admitted || d.Reserved != 4 || d.Remaining != 5 || d.Capacity != 9 {
			t.Errorf("%v", r)
		}
		s := must(c.Settle(bound(t), &admissionpb.SettleRequest{Key: r.Key, HoldId: r.HoldId, Costs: []*admissionpb.Cost{{Name: "user:u", Cost: 11}}}))(t)
		if d := s.Costs[1]; d.Charged != 11 || d.Taken != 7 || d.Debt != 2 {
			t.Errorf("what it cost is charged: %v", s)
		}
		for _, m := range g.nodes {
			m.shelf.put(2, admitOne)
		}
		q = chatRequest("x", "u", 4000, 2)
		_, err := c.Admit(bound(t), q)
		if reasonIn(err) != "INVALID" {
			t.Errorf("without a clamp: %v", err)
		}
	})
}
