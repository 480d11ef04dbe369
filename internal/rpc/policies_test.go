package rpc

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/policy"
	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// shelf has the policies of one node.
type shelf struct{ inForce policy.InForce }

func (s *shelf) InForce() *policy.InForce { return &s.inForce }

func (s *shelf) Set(_ context.Context, text []byte, expect uint64) (*policy.Agreed, error) {
	if now := s.inForce.Load(); string(text) == string(now.Text) {
		return now, nil
	} else if now.Version != expect {
		return nil, &failure.Error{Reason: failure.PolicyConflict, Message: "another version", Hint: "look"}
	}
	s.put(expect+1, string(text))
	return s.inForce.Load(), nil
}

func (s *shelf) put(version uint64, text string) {
	s.inForce.Put(policy.NewAgreed(version, "", []byte(text), nil))
}

const (
	policiesOne = "policies: {user: {limit: 3/1h, burst: 4}, login: {limit: 1/1h, algorithm: fixed-window}}"
	policiesTwo = "policies: {user: {limit: 9/1h}}"
)

// withPolicies starts nodes that go by the first policies.
func withPolicies(t *testing.T, n int) *group {
	g := grouped(t, n, false, nil)
	g.called("c", table.PoliciesLevel)
	for _, m := range g.nodes {
		m.shelf.put(1, policiesOne)
	}
	return g
}

// TestCheckByPolicy: through any node, a check that names a policy is one of its limit, one by
// one and in batches.
func TestCheckByPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := withPolicies(t, 3)
		ctx := bound(t)
		for _, n := range g.names() {
			for _, through := range g.names() {
				key := g.keys(n, 9, nil)[slices.Index(g.names(), through)]
				l := g.nodes[through].limits
				r := must(l.Check(ctx, &limitpb.CheckRequest{Key: key, Policy: "user", RequestId: requestN(1, 7)}))(t)
				if !r.Allowed || r.Capacity != 4 || r.Limit != 3 || r.Remaining != 3 || r.PolicyVersion != 1 || r.Owner != n {
					t.Fatal(r)
				}
				if r := must(l.Check(ctx, &limitpb.CheckRequest{Key: key, Policy: "user", RequestId: requestN(1, 7)}))(t); r.Replay == nil || r.Remaining != 3 || r.PolicyVersion != 1 {
					t.Error(r)
				}
				b := must(l.BatchCheck(ctx, &limitpb.BatchCheckRequest{Checks: []*limitpb.CheckRequest{
					{Key: key, Policy: "user", Cost: 2}, {Key: key, Policy: "nobody"}, {Key: key, Policy: "user", Limit: 1, PeriodNs: 1e9}, {Key: key, Policy: "login"},
				}}))(t).Results
				if a := b[0].Response; a == nil || a.Remaining != 1 || a.PolicyVersion != 1 {
					t.Error(b[0])
				}
				if b[1].GetError().GetReason() != commonpb.Reason_REASON_POLICY_UNKNOWN || b[2].GetError().GetField() != "policy" || !b[3].GetResponse().GetAllowed() {
					t.Error(b[1:])
				}
				// The name of an object is that of its policy: the two above do not mix.
				if r := must(l.Check(ctx, &limitpb.CheckRequest{Key: key, Name: "user", Policy: "user", Peek: true, Cost: 2}))(t); r.Allowed || r.Remaining != 1 {
					t.Error(r)
				}
				if r := must(l.Check(ctx, &limitpb.CheckRequest{Key: key, Policy: "user", Refund: 1}))(t); r.Remaining != 2 {
					t.Error(r)
				}
			}
		}
	})
}

func TestCheckByPolicyIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := withPolicies(t, 2)
		ctx, l, key := bound(t), g.nodes["n1"].limits, g.key("n2")
		for what, req := range map[string]*limitpb.CheckRequest{
			"a limit":     {Policy: "user", Limit: 1},
			"a period":    {Policy: "user", PeriodNs: 1e9},
			"a burst":     {Policy: "user", Burst: 1},
			"a algorithm": {Policy: "user", Algorithm: limitpb.Algorithm_ALGORITHM_TOKEN_BUCKET},
			"anywhere":    {Policy: "user", Anywhere: true},
			"no name":     {Policy: "a b"},
		} {
			req.Key = key
			_, err := l.Check(ctx, req)
			badField("policy").check(in(t, what), err)
		}
		_, err := l.Check(ctx, &limitpb.CheckRequest{Key: key, Limit: 1, PeriodNs: 1e9, PolicyVersion: 1})
		badField("policy_version").check(in(t, "a version alone"), err)
		_, err = l.Check(ctx, &limitpb.CheckRequest{Key: key, Policy: "user", Cost: 5})
		badField("cost").check(in(t, "more than there can be"), err)
		_, err = l.Check(ctx, &limitpb.CheckRequest{Key: key, Policy: "nobody"})
		refusal{code: codes.NotFound, why: commonpb.Reason_REASON_POLICY_UNKNOWN, hint: true}.check(in(t, "unknown"), err)
		_, err = l.Check(ctx, &limitpb.CheckRequest{Key: key, Policy: "user", PolicyVersion: 2})
		refusal{code: codes.Unavailable, why: commonpb.Reason_REASON_UNAVAILABLE, hint: true, retry: policyLag}.check(in(t, "a later version"), err)
		g.called("c", table.PoliciesLevel-1)
		_, err = l.Check(ctx, &limitpb.CheckRequest{Key: key, Policy: "user"})
		refusal{code: codes.Unavailable, why: commonpb.Reason_REASON_UNAVAILABLE, hint: true, retry: time.Second}.check(in(t, "an older level"), err)
	})
}

// TestOwnerThatIsBehind: an owner that has not heard of the policies by which its caller's node
// goes waits for them, and decides nothing by those of before; one that has later ones goes
// by those.
func TestOwnerThatIsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := withPolicies(t, 2)
		ctx := bound(t)
		g.nodes["n1"].shelf.put(2, policiesTwo)
		for _, key := range []string{g.key("n2"), g.key("n1")} {
			heard := make(chan *limitpb.CheckResponse, 1)
			go func() {
				r, err := g.nodes["n1"].limits.Check(ctx, &limitpb.CheckRequest{Key: key, Policy: "user"})
				if err != nil {
					t.Error(err)
				}
				heard <- r
			}()
			time.Sleep(100 * time.Millisecond)
			g.nodes["n2"].shelf.put(2, policiesTwo)
			if r := <-heard; r.GetCapacity() != 9 || r.PolicyVersion != 2 {
				t.Error(r)
			}
		}
		// One that does not hear of them answers nothing.
		g.nodes["n1"].shelf.put(3, policiesOne)
		short, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		if r, err := g.nodes["n1"].limits.Check(short, &limitpb.CheckRequest{Key: g.key("n2"), Policy: "user"}); err == nil {
			t.Errorf("it decided by what was before: %v", r)
		}
		if r := must(g.nodes["n2"].limits.Check(ctx, &limitpb.CheckRequest{Key: g.key("n1"), Policy: "user"}))(t); r.PolicyVersion != 3 || r.Capacity != 4 {
			t.Error(r)
		}
	})
}

func TestApplyPolicies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := withPolicies(t, 1)
		ctx, a := bound(t), g.nodes["n1"].admin()
		if r := must(a.GetPolicies(ctx, &adminpb.GetPoliciesRequest{}))(t); r.Version != 1 || r.Text != policiesOne || r.Problem != "" {
			t.Error(r)
		}
		r := must(a.ApplyPolicies(ctx, &adminpb.ApplyPoliciesRequest{Text: policiesTwo, DryRun: true}))(t)
		if r.Version != 1 || !slices.Equal(r.Changed, []string{"user"}) || !slices.Equal(r.Removed, []string{"login"}) || len(r.Added) != 0 {
			t.Error(r)
		}
		_, err := a.ApplyPolicies(ctx, &adminpb.ApplyPoliciesRequest{Text: policiesTwo})
		refusal{code: codes.Aborted, why: commonpb.Reason_REASON_POLICY_CONFLICT, hint: true}.check(in(t, "another version"), err)
		if r := must(a.ApplyPolicies(ctx, &adminpb.ApplyPoliciesRequest{Text: policiesTwo, ExpectVersion: 1}))(t); r.Version != 2 {
			t.Error(r)
		}
		if r := must(a.ApplyPolicies(ctx, &adminpb.ApplyPoliciesRequest{Text: policiesTwo, ExpectVersion: 2}))(t); r.Version != 2 {
			t.Error("the same was applied again", r)
		}
		_, err = a.ApplyPolicies(ctx, &adminpb.ApplyPoliciesRequest{Text: "policies:\n  a: {limit: 1}\n  b: {}", ExpectVersion: 2})
		badField("text").check(in(t, "a broken file"), err)
		if err == nil || !strings.Contains(err.Error(), "line 2: ") || !strings.Contains(err.Error(), "line 3: ") {
			t.Error("not all that is wrong is told", err)
		}
		most := "policies: {}\n" + strings.Repeat("#", policy.MaxFile-13)
		if r := must(a.ApplyPolicies(ctx, &adminpb.ApplyPoliciesRequest{Text: most, ExpectVersion: 2}))(t); r.Version != 3 {
			t.Error(r)
		}
		if r := must(a.GetPolicies(ctx, &adminpb.GetPoliciesRequest{}))(t); r.Text != most {
			t.Error("the longest text was cut")
		}
		_, err = a.ApplyPolicies(ctx, &adminpb.ApplyPoliciesRequest{Text: most + "#", ExpectVersion: 3})
		badField("text").check(in(t, "a text that is too long"), err)
		g.nodes["n1"].shelf.put(4, "policies: {a: {limit: 1/s, of: tomorrow}}")
		if r := must(a.GetPolicies(ctx, &adminpb.GetPoliciesRequest{}))(t); r.Version != 4 || r.Problem == "" {
			t.Error(r)
		}
		_, err = g.nodes["n1"].limits.Check(ctx, &limitpb.CheckRequest{Key: "k", Policy: "user"})
		refusal{code: codes.Unavailable, why: commonpb.Reason_REASON_UNAVAILABLE, hint: true}.check(in(t, "policies of a later program"), err)
	})
}
