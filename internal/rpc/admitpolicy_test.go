package rpc

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/keystead/keystead/owner"
	admissionpb "github.com/keystead/keystead/proto/keystead/admission/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

const (
	admitOne   = "admissions: {chat: {key: \"org:{org}\", fields: [org, user, tier], demands: [{name: rpm, limit: 10/1h}, {name: \"user:{user}\", when: {tier: gold}, limit: 8/1h, cost: tokens}, {name: \"user:{user}\", limit: 4/1h, cost: tokens}, {name: running, slots: 2}]}}"
	admitTwo   = "admissions: {chat: {key: \"org:{org}\", fields: [org, user, tier], demands: [{name: rpm, limit: 20/1h}]}}"
	admitMoved = "admissions: {chat: {key: \"o:{org}\", fields: [org, user, tier], demands: [{name: rpm, limit: 20/1h}]}}"
)

func chatRequest(org, user string, tokens uint64, sequence uint64) *admissionpb.AdmitRequest {
	q := &admissionpb.AdmitRequest{Policy: "chat", Fields: []*admissionpb.Field{{Name: "user", Value: user}, {Name: "org", Value: org}}, Amounts: []*admissionpb.Cost{{Name: "tokens", Cost: tokens}}, HoldNs: int64(time.Minute)}
	q.RequestId = requestN(1, sequence)
	return q
}

// admitting starts nodes with an admission policy.
func admitting(t *testing.T, n int) *group {
	g := grouped(t, n, false, nil)
	g.called("c", table.PoliciesLevel)
	for _, m := range g.nodes {
		m.shelf.put(1, admitOne)
	}
	return g
}

// TestAdmitByPolicy: through any node, the fields of a request say its key and its demands, and they are
// charged as if they had been stated; a retry is told the same, also when the policy has changed.
func TestAdmitByPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := admitting(t, 3)
		ctx := bound(t)
		for i, through := range g.names() {
			c := g.nodes[through].admissions
			org := string(rune('a' + i))
			a := must(c.Admit(ctx, chatRequest(org, "u/1", 3, 7)))(t)
			if !a.Admitted || a.Key != "org:"+org || a.PolicyVersion != 1 || len(a.Demands) != 3 || a.Demands[1].Name != "user:u%2f1" || a.Demands[1].Remaining != 1 || a.Demands[2].Capacity != 2 {
				t.Fatal(a)
			}
			if r := must(c.Admit(ctx, chatRequest(org, "u/1", 2, 8)))(t); r.Admitted || r.Demands[0].Refused || !r.Demands[1].Refused {
				t.Error(r)
			}
			gold := chatRequest(org, "u/1", 2, 9)
			gold.Fields = append(gold.Fields, &admissionpb.Field{Name: "tier", Value: "gold"})
			if r := must(c.Admit(ctx, gold))(t); !r.Admitted || r.Demands[1].Capacity != 8 {
				t.Error(r)
			}
			if n := must(g.nodes[through].counters.Get(ctx, &counterpb.GetRequest{Key: a.Key, Name: "running"}))(t); n.Value != 2 {
				t.Error(n)
			}
			s := must(c.Settle(ctx, &admissionpb.SettleRequest{Key: a.Key, HoldId: a.HoldId, Costs: []*admissionpb.Cost{{Name: a.Demands[1].Name, Cost: 1}}}))(t)
			if s.State != admissionpb.HoldState_HOLD_STATE_HELD || s.Costs[1].Back != 2 {
				t.Error(s)
			}
		}
		first := must(g.nodes["n1"].admissions.Admit(ctx, chatRequest("z", "u", 1, 7)))(t)
		for _, n := range g.nodes {
			n.shelf.put(2, admitTwo)
		}
		again := chatRequest("z", "u", 1, 7)
		again.Amounts = nil // the new policy asks for none
		if _, err := g.nodes["n2"].admissions.Admit(ctx, again); err == nil {
			t.Error("another request under the same id")
		}
		n := must(g.nodes["n2"].admissions.Admit(ctx, &admissionpb.AdmitRequest{Policy: "chat", Fields: chatRequest("z", "u", 1, 7).Fields}))(t)
		if !n.Admitted || n.PolicyVersion != 2 || n.Demands[0].Capacity != 20 || n.Demands[0].Remaining != 18 || first.PolicyVersion != 1 {
			t.Error(n)
		}
	})
}

// TestAdmitByPolicyAgain: a retry is told of the hold that the first attempt has made, although the
// policy demands something else by now.
func TestAdmitByPolicyAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := admitting(t, 2)
		ctx := bound(t)
		first := must(g.nodes["n1"].admissions.Admit(ctx, chatRequest("7", "u", 1, 7)))(t)
		for _, n := range g.nodes {
			n.shelf.put(2, "admissions: {chat: {key: \"org:{org}\", fields: [org, user], demands: [{name: rpm, limit: 20/1h, cost: tokens}]}}")
		}
		again := must(g.nodes["n2"].admissions.Admit(ctx, chatRequest("7", "u", 1, 7)))(t)
		if again.Replay == nil || again.HoldId != first.HoldId || !again.Admitted || again.PolicyVersion != 2 || again.Demands[0].Remaining != 19 {
			t.Error(again)
		}
		other := chatRequest("7", "v", 1, 7)
		_, err := g.nodes["n2"].admissions.Admit(ctx, other)
		refusal{code: codes.InvalidArgument, why: commonpb.Reason_REASON_REQUEST_ID_REUSED, field: "request_id", hint: true}.check(in(t, "another user"), err)
	})
}

// TestAdmitByPolicyIsRefused: each with the field that is wrong.
func TestAdmitByPolicyIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := admitting(t, 2)
		ctx, c := bound(t), g.nodes["n1"].admissions
		field := func(name, value string) *admissionpb.Field { return &admissionpb.Field{Name: name, Value: value} }
		ok := []*admissionpb.Field{field("org", "7"), field("user", "u")}
		tokens := []*admissionpb.Cost{{Name: "tokens", Cost: 1}}
		many := make([]*admissionpb.Field, 17)
		hinted := map[string]bool{"no user": true, "an unknown field": true, "an unknown amount": true, "no tokens": true}
		for what, x := range map[string]struct {
			field string
			q     *admissionpb.AdmitRequest
		}{
			"a key":              {"policy", &admissionpb.AdmitRequest{Policy: "chat", Key: "k", Fields: ok, Amounts: tokens}},
			"demands":            {"policy", &admissionpb.AdmitRequest{Policy: "chat", Demands: []*admissionpb.Demand{rpm("r", 1, 2)}, Fields: ok, Amounts: tokens}},
			"no policy":          {"policy", &admissionpb.AdmitRequest{Key: "k", Demands: []*admissionpb.Demand{rpm("r", 1, 2)}, Fields: ok}},
			"no name":            {"policy", &admissionpb.AdmitRequest{Policy: "a b", Fields: ok}},
			"no user":            {"fields.user", &admissionpb.AdmitRequest{Policy: "chat", Fields: ok[:1], Amounts: tokens}},
			"an unknown field":   {"fields", &admissionpb.AdmitRequest{Policy: "chat", Fields: append(ok[:2:2], field("x", "y")), Amounts: tokens}},
			"a field twice":      {"fields", &admissionpb.AdmitRequest{Policy: "chat", Fields: append(ok[:2:2], ok[0]), Amounts: tokens}},
			"too many fields":    {"fields", &admissionpb.AdmitRequest{Policy: "chat", Fields: many}},
			"no tokens":          {"amounts.tokens", &admissionpb.AdmitRequest{Policy: "chat", Fields: ok}},
			"tokens twice":       {"amounts", &admissionpb.AdmitRequest{Policy: "chat", Fields: ok, Amounts: append(tokens[:1:1], tokens[0])}},
			"an unknown amount":  {"amounts", &admissionpb.AdmitRequest{Policy: "chat", Fields: ok, Amounts: append(tokens[:1:1], &admissionpb.Cost{Name: "x", Cost: 1})}},
			"slots and no hold":  {"demands[2].slots", &admissionpb.AdmitRequest{Policy: "chat", Fields: ok, Amounts: tokens}},
			"more than there is": {"demands[1].cost", &admissionpb.AdmitRequest{Policy: "chat", Fields: ok, Amounts: []*admissionpb.Cost{{Name: "tokens", Cost: 5}}, Peek: true}},
		} {
			_, err := c.Admit(ctx, x.q)
			want := badField(x.field)
			want.hint = hinted[what]
			want.check(in(t, what), err)
			if what == "slots and no hold" && !strings.Contains(err.Error(), `(the demand "running")`) {
				t.Errorf("%s: %v", what, err)
			}
		}
		q := chatRequest("7", "u", 1, 7)
		q.Policy = "nobody"
		_, err := c.Admit(ctx, q)
		refusal{code: codes.NotFound, why: commonpb.Reason_REASON_POLICY_UNKNOWN, hint: true}.check(in(t, "unknown"), err)
		q = chatRequest("7", "u", 1, 7)
		q.PolicyVersion = 2
		_, err = c.Admit(ctx, q)
		refusal{code: codes.Unavailable, why: commonpb.Reason_REASON_UNAVAILABLE, hint: true, retry: policyLag}.check(in(t, "a later version"), err)
	})
}

// TestAdmitOwnerHasOtherPolicies: an owner that is behind waits, one that is ahead goes by what it has, and
// one whose policies have another key for the request decides nothing.
func TestAdmitOwnerHasOtherPolicies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := admitting(t, 2)
		ctx := bound(t)
		org := ""
		for i := range 100 {
			org = fmt.Sprint(i)
			if m, _, ok := g.nodes["n1"].Table().Owner(owner.Hash("org:" + org)); ok && m.Node == "n2" {
				break
			}
		}
		g.nodes["n1"].shelf.put(2, admitTwo)
		heard := make(chan *admissionpb.AdmitResponse, 1)
		ask := &admissionpb.AdmitRequest{Policy: "chat", Fields: []*admissionpb.Field{{Name: "org", Value: org}}}
		go func() {
			r, err := g.nodes["n1"].admissions.Admit(ctx, ask)
			if err != nil {
				t.Error(err)
			}
			heard <- r
		}()
		time.Sleep(100 * time.Millisecond)
		g.nodes["n2"].shelf.put(2, admitTwo)
		if r := <-heard; r.GetPolicyVersion() != 2 || r.Demands[0].Remaining != 19 {
			t.Error(r)
		}
		g.nodes["n2"].shelf.put(3, admitMoved)
		short, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		_, err := g.nodes["n1"].admissions.Admit(short, &admissionpb.AdmitRequest{Policy: "chat", Fields: ask.Fields})
		if err == nil {
			t.Error("a key that the owner's policies do not have was charged")
		}
		g.nodes["n1"].shelf.put(3, admitMoved)
		if r := must(g.nodes["n1"].admissions.Admit(ctx, &admissionpb.AdmitRequest{Policy: "chat", Fields: ask.Fields}))(t); r.Key != "o:"+org || r.PolicyVersion != 3 {
			t.Error(r)
		}
	})
}
