package rls_test

import (
	"strings"
	"testing"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/keystead/keystead/envoy/rls"
	"github.com/keystead/keystead/internal/node"
	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

const byPolicy = `
domain: d
descriptors:
- key: user
  rate_limit: {name: per_user, keystead: {policy: api/user}}
- key: tokens
  rate_limit: {keystead: {policy: tokens, overdraft: true}}
- key: together
  rate_limit: {keystead: {policy: api/user, all_or_nothing: true}}
- key: few
  rate_limit: {unit: day, requests_per_unit: 1}
- key: misspelt
  rate_limit: {keystead: {policy: api/usr, on_failure: allow}}
`

const somePolicies = `
policies:
  api/user: {algorithm: sliding-window, limit: 3/24h}
  tokens: {limit: 60/1h}
`

func (s *service) apply(t *testing.T, text string) {
	t.Helper()
	admin := adminpb.NewAdminServiceClient(dial(t, s.node))
	was, err := admin.GetPolicies(t.Context(), &adminpb.GetPoliciesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := admin.ApplyPolicies(t.Context(), &adminpb.ApplyPoliciesRequest{Text: text, ExpectVersion: was.Version}); err != nil {
		t.Fatal(err)
	}
}

// TestPolicies: a descriptor goes by a policy of the cluster, from the moment at which that is in force.
func TestPolicies(t *testing.T) {
	t.Parallel()
	s := serve(t, byPolicy, func(c *node.Config) { c.RLS.Headers = rls.IETF })
	say := func(want string, hits uint32, descriptors ...string) *rlspb.RateLimitResponse {
		t.Helper()
		r, err := s.ask(t, "d", hits, descriptors...)
		if err != nil || show(r) != want {
			t.Fatalf("%s: %v %v, want %s", descriptors, r, err, want)
		}
		return r
	}
	if r, err := s.ask(t, "d", 0, "user=1"); err == nil {
		t.Errorf("there are no policies, and %v", r)
	}
	s.apply(t, somePolicies)
	say("ok: ok 2 of 3/unknown per_user", 0, "user=1")
	r := say("ok: ok 1 of 3/unknown per_user", 0, "user=1")
	if h := r.ResponseHeadersToAdd; len(h) != 2 || h[0].Value != `"per_user";q=3` || h[1].Value != `"per_user";r=1` {
		t.Errorf("%v", h)
	}
	say("ok: ok 3 of 3/unknown per_user", 0, "user=2 +0")
	say("over: over 1 of 3/unknown per_user", 0, "user=1 +2") // nothing is spent
	say("over: over", 0, "user=1 +4")                         // never that many at once
	say("ok: ok 0 of 3/unknown per_user", 0, "user=1")
	if r := say("over: over 0 of 3/unknown per_user", 0, "user=1"); r.Statuses[0].DurationUntilReset.AsDuration() <= 0 {
		t.Error("a refused descriptor does not say when it passes")
	}
	say("ok: ok 2 of 3/unknown per_user", 0, "user=1 -2")
	say("ok: ok 60 of 60/unknown", 0, "tokens=1 +0")
	say("over: over 0 of 60/unknown", 0, "tokens=1 +70")
	say("over: over 0 of 60/unknown", 0, "tokens=1 +0")

	say("ok: ok 2 of 3/unknown, ok 0 of 1/day", 0, "together=1", "few=1")
	say("over: ok 2 of 3/unknown, over 0 of 1/day", 0, "together=1", "few=1")
	eventually(t, "it is given back", func() bool {
		r, err := s.ask(t, "d", 0, "together=1 +0")
		return err == nil && show(r) == "ok: ok 2 of 3/unknown"
	})
	if r, err := s.ask(t, "d", 0, "misspelt=1"); err == nil || !strings.Contains(err.Error(), "api/usr") {
		t.Errorf("a policy that is not there: %v %v", r, err)
	}

	// New numbers count at once, on the same count; so do overrides.
	s.apply(t, strings.Replace(somePolicies, "limit: 3/", "limit: 5/", 1))
	say("ok: ok 4 of 5/unknown per_user", 0, "user=1 +0")
	limits := limitpb.NewLimitServiceClient(dial(t, s.node))
	if c, err := limits.Check(t.Context(), &limitpb.CheckRequest{Key: objectKey("user", "1"), Policy: "api/user"}); err != nil || c.Remaining != 3 {
		t.Errorf("the object is that of the policy's checks: %v %v", c, err)
	}
	if _, err := limits.SetOverride(t.Context(), &limitpb.SetOverrideRequest{Key: objectKey("user", "1"), Name: "api/user", Limit: 1, PeriodNs: 3600e9}); err != nil {
		t.Fatal(err)
	}
	say("over: over 0 of 1/unknown per_user", 0, "user=1")
}
