package rls_test

import (
	"strings"
	"testing"
)

// TestRefunds needs an owner that gives tokens back and knows sliding windows.
func TestRefunds(t *testing.T) {
	for _, tc := range []struct {
		name  string
		yaml  string
		steps []step
	}{
		{"negative hits", `
- key: a
  rate_limit: {unit: day, requests_per_unit: 10}
`, []step{
			one("a=1 +8", "ok: ok 2 of 10/day"),
			one("a=1 -5", "ok: ok 7 of 10/day"),
			one("a=1 -50", "ok: ok 10 of 10/day"), // to full, and not beyond
			one("a=1 -0", "ok: ok 10 of 10/day"),
			one("a=1 +10", "ok: ok 0 of 10/day"),
			one("a=1 -1", "ok: ok 1 of 10/day"),
		}},
		{"all or nothing", `
- key: a
  rate_limit: {unit: day, requests_per_unit: 10, keystead: {all_or_nothing: true}}
- key: b
  rate_limit: {unit: day, requests_per_unit: 2}
`, []step{
			{ask: []string{"a=1", "b=1"}, hits: 2, want: "ok: ok 8 of 10/day, ok 0 of 2/day"},
			{ask: []string{"a=1", "b=1"}, hits: 2, want: "over: ok 8 of 10/day, over 0 of 2/day", then: `keystead_rls_refunds_total{outcome="given"} 1`},
			{ask: []string{"a=1", "b=2"}, hits: 9, want: "over: over 8 of 10/day, over 0 of 2/day"},
			one("a=1 +8", "ok: ok 0 of 10/day"),
		}},
		{"sliding window", `
- key: a
  rate_limit: {unit: day, requests_per_unit: 3, keystead: {algorithm: sliding_window}}
`, []step{
			one("a=1 +2", "ok: ok 1 of 3/day"),
			one("a=1 +2", "over: over 0 of 3/day"),
			one("a=1", "over: over 0 of 3/day"),
		}},
	} {
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
				if st.then != "" {
					eventually(t, st.then, func() bool { return strings.Contains(s.metrics(t), st.then+"\n") })
				}
			}
		})
	}
}
