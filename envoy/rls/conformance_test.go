package rls_test

import (
	"testing"
	"time"
)

// step is one request of a case.
type step struct {
	ask  []string // descriptors; see service.ask
	hits uint32
	want string // see show
	then string // what the metrics show before the next step; "" = anything
}

// one is a request with one descriptor.
func one(descriptor, want string) step { return step{ask: []string{descriptor}, want: want} }

// conformance are what configurations mean. The domain of all of them is "d".
var conformance = []struct {
	name  string
	yaml  string
	steps []step
}{
	{"key and value", `
- key: database
  value: users
  rate_limit: {unit: day, requests_per_unit: 2}
`, []step{
		one("database=users", "ok: ok 1 of 2/day"),
		one("database=users", "ok: ok 0 of 2/day"),
		one("database=users", "over: over 0 of 2/day"),
		one("database=other", "ok: ok"),
		one("other=users", "ok: ok"),
		one("database=users,more=1", "ok: ok"),
	}},
	{"a key alone counts each value by itself", `
- key: ip
  rate_limit: {unit: hour, requests_per_unit: 1}
`, []step{
		one("ip=a", "ok: ok 0 of 1/hour"),
		one("ip=b", "ok: ok 0 of 1/hour"),
		one("ip=a", "over: over 0 of 1/hour"),
		one("ip=b", "over: over 0 of 1/hour"),
		one("ip=", "ok: ok 0 of 1/hour"),
	}},
	{"the value before the key", `
- key: ip
  rate_limit: {unit: week, requests_per_unit: 10}
- key: ip
  value: 50.0.0.5
  rate_limit: {unit: week, requests_per_unit: 0}
- key: ip
  value: 50.0.0.6
`, []step{
		one("ip=50.0.0.5", "over: over 0 of 0/week"),
		one("ip=50.0.0.6", "ok: ok"), // let through: it has no limit
		one("ip=50.0.0.7", "ok: ok 9 of 10/week"),
	}},
	{"depth", `
- key: a
  value: x
  rate_limit: {unit: day, requests_per_unit: 5}
  descriptors:
  - key: b
    value: y
    rate_limit: {unit: day, requests_per_unit: 7}
  - key: c
    descriptors:
    - key: d
      rate_limit: {unit: day, requests_per_unit: 9}
`, []step{
		one("a=x", "ok: ok 4 of 5/day"),
		one("a=x,b=y", "ok: ok 6 of 7/day"),
		one("a=x,b=z", "ok: ok"),
		one("a=x,c=1", "ok: ok"),
		one("a=x,c=1,d=1", "ok: ok 8 of 9/day"),
		one("a=x,c=2,d=1", "ok: ok 8 of 9/day"),
		one("a=x,c=1,d=1", "ok: ok 7 of 9/day"),
		one("a=x,c=1,d=1,e=1", "ok: ok"),
		one("b=y", "ok: ok"),
		one("a=x", "ok: ok 3 of 5/day"), // what is deeper has not counted here
	}},
	{"wildcards", `
- key: w
  value: foo*
  rate_limit: {unit: day, requests_per_unit: 2}
- key: w
  value: foobar
  rate_limit: {unit: day, requests_per_unit: 3}
- key: w
  value: fo*
  rate_limit: {unit: day, requests_per_unit: 4}
- key: w
  rate_limit: {unit: day, requests_per_unit: 5}
- key: m
  value: a*b
  rate_limit: {unit: day, requests_per_unit: 6}
`, []step{
		one("w=foo1", "ok: ok 1 of 2/day"),
		one("w=foo2", "ok: ok 1 of 2/day"), // each value by itself
		one("w=foo1", "ok: ok 0 of 2/day"),
		one("w=foobar", "ok: ok 2 of 3/day"), // the value before the wildcard
		one("w=fox", "ok: ok 3 of 4/day"),
		one("w=bar", "ok: ok 4 of 5/day"),
		one("w=foo*", "ok: ok 1 of 2/day"),
		one("m=axb", "ok: ok 5 of 6/day"),
		one("m=a*b", "ok: ok 5 of 6/day"),
		one("m=ab", "ok: ok 5 of 6/day"), // a star stands for nothing, too
		one("m=axc", "ok: ok"),
		one("m=xab", "ok: ok"),
	}},
	{"wildcards anywhere in a value", `
- key: p
  value: /api*v1
  rate_limit: {unit: day, requests_per_unit: 2}
- key: p
  value: "*tail"
  rate_limit: {unit: day, requests_per_unit: 3}
- key: p
  value: a*b*c
  rate_limit: {unit: day, requests_per_unit: 4}
- key: p
  value: ab*ba
  rate_limit: {unit: day, requests_per_unit: 5}
- key: p
  value: "*"
  rate_limit: {unit: day, requests_per_unit: 6}
- key: p
  value: z*
  rate_limit: {unit: day, requests_per_unit: 7}
`, []step{
		one("p=/api/x/v1", "ok: ok 1 of 2/day"),
		one("p=/apiv1", "ok: ok 1 of 2/day"),
		one("p=/api/x/v2", "ok: ok 5 of 6/day"),
		one("p=/api/tail", "ok: ok 2 of 3/day"),
		one("p=tail", "ok: ok 2 of 3/day"),
		one("p=abc", "ok: ok 3 of 4/day"),
		one("p=a.bb.c", "ok: ok 3 of 4/day"),
		one("p=acb", "ok: ok 5 of 6/day"), // the parts in their order only
		one("p=aba", "ok: ok 5 of 6/day"), // the parts do not overlap
		one("p=abba", "ok: ok 4 of 5/day"),
		one("p=z1", "ok: ok 5 of 6/day"), // the first in the file that fits
		one("p=z*", "ok: ok 6 of 7/day"), // but a pattern itself is an exact value
	}},
	{"share_threshold with wildcards anywhere", `
- key: p
  value: svc*ep*rpc
  share_threshold: true
  rate_limit: {unit: day, requests_per_unit: 3}
- key: tenant
  value: t*prod
  share_threshold: true
  descriptors:
  - key: resource
    value: res*v2
    share_threshold: true
    rate_limit: {unit: day, requests_per_unit: 2}
`, []step{
		one("p=svc1/ep1/rpc", "ok: ok 2 of 3/day"),
		one("p=svc2/ep2/rpc", "ok: ok 1 of 3/day"),
		one("p=svc*ep*rpc", "ok: ok 0 of 3/day"), // the pattern itself shares, too
		one("p=svc3/ep3/rpc", "over: over 0 of 3/day"),
		one("tenant=t1prod,resource=res1v2", "ok: ok 1 of 2/day"),
		one("tenant=t2prod,resource=res2v2", "ok: ok 0 of 2/day"),
		one("tenant=t3prod,resource=res3v2", "over: over 0 of 2/day"),
	}},
	{"share_threshold", `
- key: files
  value: files/*
  share_threshold: true
  rate_limit: {unit: day, requests_per_unit: 2}
- key: top
  value: t/*
  share_threshold: true
  descriptors:
  - key: sub
    rate_limit: {unit: day, requests_per_unit: 2}
`, []step{
		one("files=files/a", "ok: ok 1 of 2/day"),
		one("files=files/b", "ok: ok 0 of 2/day"),
		one("files=files/c", "over: over 0 of 2/day"),
		one("top=t/1,sub=x", "ok: ok 1 of 2/day"),
		one("top=t/2,sub=x", "ok: ok 0 of 2/day"),
		one("top=t/3,sub=y", "ok: ok 1 of 2/day"),
	}},
	{"several descriptors, in order", `
- key: a
  rate_limit: {unit: day, requests_per_unit: 1}
- key: b
  rate_limit: {unit: day, requests_per_unit: 3, name: second}
`, []step{
		{ask: []string{"b=1", "none=1", "a=1"}, want: "ok: ok 2 of 3/day second, ok, ok 0 of 1/day"},
		{ask: []string{"a=1", "b=1", "none=1"}, want: "over: over 0 of 1/day, ok 1 of 3/day second, ok"},
		{ask: []string{"b=1", "b=1"}, want: "over: ok 0 of 3/day second, over 0 of 3/day second"},
	}},
	{"unlimited", `
- key: u
  rate_limit: {unlimited: true, name: free}
- key: a
  rate_limit: {unit: day, requests_per_unit: 1}
`, []step{
		{ask: []string{"u=1", "a=1"}, want: "ok: ok 4294967295, ok 0 of 1/day"},
		{ask: []string{"u=1", "a=1"}, want: "over: ok 4294967295, over 0 of 1/day"},
	}},
	{"shadow_mode", `
- key: a
  shadow_mode: true
  rate_limit: {unit: day, requests_per_unit: 1}
- key: b
  rate_limit: {unit: day, requests_per_unit: 3}
`, []step{
		one("a=1", "ok: ok 0 of 1/day"),
		one("a=1", "ok: ok 0 of 1/day"),
		{ask: []string{"a=1", "b=1"}, hits: 4, want: "over: ok 0 of 1/day, over 0 of 3/day"},
	}},
	{"quota_mode", `
- key: q
  quota_mode: true
  rate_limit: {unit: day, requests_per_unit: 1}
- key: r
  quota_mode: true
  rate_limit: {unit: day, requests_per_unit: 3}
- key: s
  quota_mode: true
  shadow_mode: true
  rate_limit: {unit: day, requests_per_unit: 1}
- key: a
  rate_limit: {unit: day, requests_per_unit: 5}
- key: u
  quota_mode: true
  rate_limit: {unlimited: true}
`, []step{
		one("q=1", "ok: ok 0 of 1/day"),
		one("q=1", "over: over 0 of 1/day"),                                              // all quotas are over
		{ask: []string{"q=1", "r=1"}, want: "ok: over 0 of 1/day, ok 2 of 3/day"},        // one has room
		{ask: []string{"a=1", "q=1"}, want: "over: ok 4 of 5/day, over 0 of 1/day"},      // others do not help
		{ask: []string{"none=1", "q=1"}, want: "over: ok, over 0 of 1/day"},              // nor what has no limit
		{ask: []string{"u=1", "q=1"}, want: "over: ok 4294967295, over 0 of 1/day"},      // nor what is unlimited
		{ask: []string{"q=1", "r=1 +3"}, want: "over: over 0 of 1/day, over 0 of 3/day"}, // now both
		{ask: []string{"a=1 +5", "q=2"}, want: "over: over 0 of 5/day, ok 0 of 1/day"},   // an ordinary limit is enough
		one("s=1", "ok: ok 0 of 1/day"),
		one("s=1", "ok: ok 0 of 1/day"), // shadow_mode: never over
		{ask: []string{"s=1", "q=1"}, want: "ok: ok 0 of 1/day, over 0 of 1/day"},
	}},
	{"replaces", `
- key: k1
  rate_limit: {unit: day, requests_per_unit: 5, name: general}
- key: k2
  rate_limit:
    unit: day
    requests_per_unit: 10
    replaces: [{name: general}]
- key: k3
  rate_limit:
    unlimited: true
    replaces: [{name: general}]
`, []step{
		one("k1=v", "ok: ok 4 of 5/day general"),
		{ask: []string{"k1=v", "k2=v"}, want: "ok: ok, ok 9 of 10/day"},
		{ask: []string{"k1=v", "k3=v"}, want: "ok: ok, ok 4294967295"},
		one("k1=v", "ok: ok 3 of 5/day general"), // it did not count in between
	}},
	{"hits", `
- key: a
  rate_limit: {unit: day, requests_per_unit: 10}
- key: b
  rate_limit: {unit: day, requests_per_unit: 10}
`, []step{
		{ask: []string{"a=1", "b=1 +5"}, hits: 3, want: "ok: ok 7 of 10/day, ok 5 of 10/day"},
		one("a=1", "ok: ok 6 of 10/day"),
		one("a=1 +0", "ok: ok 6 of 10/day"), // looks, and spends nothing
		one("a=1 +7", "over: over 0 of 10/day"),
		one("a=1", "over: over 0 of 10/day"), // what was left went with the seven
		one("a=1 +0", "over: over 0 of 10/day"),
		one("b=1 +11", "over: over 0 of 10/day"), // more than there ever is
		one("b=1", "over: over 0 of 10/day"),
	}},
	{"is_negative_hits", `
- key: a
  rate_limit: {unit: day, requests_per_unit: 2}
- key: zero
  rate_limit: {unit: day, requests_per_unit: 0}
`, []step{
		one("a=1 +2", "ok: ok 0 of 2/day"),
		one("a=1 -0", "ok: ok 0 of 2/day"), // nothing is given back: never over the limit
		one("a=1 -1", "ok: ok 1 of 2/day"),
		one("a=1 -9", "ok: ok 2 of 2/day"), // at most to full
		one("a=1 +3", "over: over 0 of 2/day"),
		one("zero=1 -1", "ok: ok 0 of 0/day"),
		one("zero=1 -0", "ok: ok 0 of 0/day"),
	}},
	{"over_limit: spend_nothing", `
- key: a
  rate_limit: {unit: day, requests_per_unit: 10, keystead: {over_limit: spend_nothing}}
`, []step{
		one("a=1 +6", "ok: ok 4 of 10/day"),
		one("a=1 +6", "over: over 4 of 10/day"),
		one("a=1 +11", "over: over 4 of 10/day"),
		one("a=1 +4", "ok: ok 0 of 10/day"),
	}},
	{"limits of the request", `
- key: a
  shadow_mode: true
  rate_limit: {unit: day, requests_per_unit: 1}
`, []step{
		one("a=1 @2/DAY", "ok: ok 1 of 2/day"),
		one("a=1 @2/DAY", "ok: ok 0 of 2/day"),
		one("a=1 @2/DAY", "over: over 0 of 2/day"), // no shadow mode
		one("a=1 @3/HOUR", "ok: ok 2 of 3/hour"),   // another unit, another count
		one("none=1,deep=2 @1/MONTH", "ok: ok 0 of 1/month"),
		one("none=1,deep=2 @1/MONTH", "over: over 0 of 1/month"),
		one("none=1,deep=3 @0/YEAR", "over: over 0 of 0/year"),
	}},
	{"token bucket with a burst", `
- key: a
  rate_limit: {unit: day, requests_per_unit: 2, keystead: {algorithm: token_bucket, burst: 5}}
`, []step{
		one("a=1 +4", "ok: ok 1 of 2/day"),
		one("a=1", "ok: ok 0 of 2/day"),
		one("a=1", "over: over 0 of 2/day"),
	}},
}

// TestConformance asks a node of its own for each case.
func TestConformance(t *testing.T) {
	for _, tc := range conformance {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, "domain: d\ndescriptors:"+tc.yaml, nil)
			for i, st := range tc.steps {
				r, err := s.ask(t, "d", st.hits, st.ask...)
				if err != nil {
					t.Fatalf("step %d, %q: %v", i+1, st.ask, err)
				}
				if got := show(r); got != st.want {
					t.Errorf("step %d, %q:\n got %s\nwant %s", i+1, st.ask, got, st.want)
				}
				for n, s := range r.Statuses {
					if reset := s.DurationUntilReset.AsDuration(); s.CurrentLimit != nil && (s.DurationUntilReset == nil || reset < 0 || reset > yearAndMore) {
						t.Errorf("step %d, descriptor %d: full in %v", i+1, n+1, s.DurationUntilReset)
					}
				}
				if err := r.ValidateAll(); err != nil {
					t.Errorf("step %d: Envoy would refuse it: %v", i+1, err)
				}
			}
		})
	}
}

// yearAndMore is longer than any period, times any multiplier that is taken.
const yearAndMore = 367 * 24 * time.Hour
