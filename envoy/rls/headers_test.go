package rls_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/keystead/keystead/envoy/rls"
	"github.com/keystead/keystead/internal/node"
)

func ietf(c *node.Config) { c.RLS.Headers = rls.IETF }

// fields returns RateLimit-Policy and RateLimit of an answer. The time a slow machine may need is taken out:
// t is in tens of seconds, rounded up.
func fields(t testing.TB, r *rlspb.RateLimitResponse) (policy, left string) {
	t.Helper()
	for _, h := range r.ResponseHeadersToAdd {
		switch h.Key {
		case "RateLimit-Policy":
			policy = h.Value
		case "RateLimit":
			left = h.Value
		default:
			t.Errorf("another header: %v", h)
		}
	}
	left = regexp.MustCompile(`;t=\d+`).ReplaceAllStringFunc(left, func(text string) string {
		return fmt.Sprintf(";t=%d", (whole(t, text[len(";t="):])+9)/10*10)
	})
	return policy, left
}

// TestDraftExamples: what Envoy's client gets is what the examples of the draft's revision 11 show, of the
// limits that they are about. In the draft's lists there is no space after a comma; RFC 9651 writes one.
func TestDraftExamples(t *testing.T) {
	t.Parallel()
	s := serve(t, `
domain: d
descriptors:
- {key: default, rate_limit: {name: default, unit: minute, requests_per_unit: 51}}
- {key: permin, rate_limit: {name: permin, unit: minute, requests_per_unit: 50}}
- {key: perhr, rate_limit: {name: perhr, unit: hour, requests_per_unit: 1000}}
- {key: burst, rate_limit: {name: burst, unit: minute, requests_per_unit: 100}}
- {key: daily, rate_limit: {name: daily, unit: day, requests_per_unit: 1000}}
- {key: none, rate_limit: {name: default, unit: minute, requests_per_unit: 1000, keystead: {algorithm: sliding_window}}}
- {key: dayLimit, rate_limit: {name: dayLimit, unit: day, requests_per_unit: 5000}}
- {key: throttled, rate_limit: {name: default, unit: minute, requests_per_unit: 1}}
- {key: fixedwindow, rate_limit: {name: fixedwindow, unit: minute, requests_per_unit: 100}}
`, ietf)
	for _, tc := range []struct {
		section      string
		ask          []string
		policy, left string
	}{
		{"3", []string{"burst=1", "daily=1"}, `"burst";q=100;w=60, "daily";q=1000;w=86400`, `"burst";r=99;t=60, "daily";r=999;t=86400`},
		{"3.2", []string{"permin=1", "perhr=1"}, `"permin";q=50;w=60, "perhr";q=1000;w=3600`, `"permin";r=49;t=60, "perhr";r=999;t=3600`},
		{"4.2", []string{"default=1"}, `"default";q=51;w=60`, `"default";r=50;t=60`},
		{"4.2", []string{"none=1"}, `"default";q=1000;w=60`, `"default";r=999`},
		{"B.1.2", []string{"dayLimit=1 +4900"}, `"dayLimit";q=5000;w=86400`, `"dayLimit";r=100;t=86400`},
		{"B.1.4", []string{"throttled=1"}, `"default";q=1;w=60`, `"default";r=0;t=60`},
		{"B.1.4", []string{"throttled=1"}, `"default";q=1;w=60`, `"default";r=0;t=60`},
		{"B.2.1", []string{"fixedwindow=1"}, `"fixedwindow";q=100;w=60`, `"fixedwindow";r=99;t=60`},
	} {
		r, err := s.ask(t, "d", 1, tc.ask...)
		if err != nil {
			t.Fatal(err)
		}
		if policy, left := fields(t, r); policy != tc.policy || left != tc.left {
			t.Errorf("%s: RateLimit-Policy: %s, RateLimit: %s; want %s and %s", tc.section, policy, left, tc.policy, tc.left)
		}
	}
}

const manyLimits = `
domain: d
descriptors:
- {key: a, rate_limit: {unit: hour, requests_per_unit: 10}}
- {key: bucket, rate_limit: {unit: minute, requests_per_unit: 2, keystead: {algorithm: token_bucket, burst: 3}}}
- {key: spare, rate_limit: {unit: minute, requests_per_unit: 2, keystead: {algorithm: token_bucket, over_limit: spend_nothing}}}
- {key: slide, rate_limit: {unit: minute, requests_per_unit: 2, keystead: {algorithm: sliding_window}}}
- {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: free, rate_limit: {unlimited: true}}
- {key: closed, rate_limit: {unit: hour, requests_per_unit: 0}}
- {key: 'ü"', rate_limit: {unit: hour, requests_per_unit: 7}}
- {key: é, rate_limit: {unit: hour, requests_per_unit: 8}}
- {key: quota, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
- key: group
  value: '*'
  descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 100}}
- {key: over, rate_limit: {unit: hour, requests_per_unit: 1}}
`

// TestFields: each limit that may refuse is told, by its name or its place in the files, never by the values
// of a request; t is when there is more, and of what is refused, when it fits.
func TestFields(t *testing.T) {
	t.Parallel()
	s := serve(t, manyLimits, ietf)
	for i, tc := range []struct {
		ask          []string
		policy, left string
	}{
		{[]string{"none=1", "free=1", "shadow=1 +5"}, "", ""},
		{[]string{"a=1", "free=1", "a=2 +5"}, `"a";q=10;w=3600`, `"a";r=5;t=3600`}, // one name: the nearer one
		{[]string{"a=2", "a=1"}, `"a";q=10;w=3600`, `"a";r=4;t=3600`},
		{[]string{"bucket=1"}, `"bucket";q=2;w=60;keystead-burst=3`, `"bucket";r=2;t=30`},
		{[]string{"bucket=2 +3"}, `"bucket";q=2;w=60;keystead-burst=3`, `"bucket";r=0;t=30`},
		{[]string{"bucket=2 +2"}, `"bucket";q=2;w=60;keystead-burst=3`, `"bucket";r=0;t=60`},
		{[]string{"spare=1"}, `"spare";q=2;w=60`, `"spare";r=1;t=30`},
		{[]string{"spare=1 +2"}, `"spare";q=2;w=60`, `"spare";r=1;t=30`},
		{[]string{"spare=2 +0"}, `"spare";q=2;w=60`, `"spare";r=2`},
		{[]string{"slide=1"}, `"slide";q=2;w=60`, `"slide";r=1`},
		{[]string{"slide=1 +2"}, `"slide";q=2;w=60`, `"slide";r=0;t=60`},
		{[]string{"closed=1"}, `"closed";q=0;w=3600`, `"closed";r=0`},
		{[]string{`ü"=1`}, `"\"";q=7;w=3600`, `"\"";r=6;t=3600`},
		{[]string{`é=1`}, `"limit";q=8;w=3600`, `"limit";r=7;t=3600`},
		{[]string{"quota=1", "a=9"}, `"quota";q=1;w=3600, "a";q=10;w=3600`, `"quota";r=0;t=3600, "a";r=9;t=3600`},
		{[]string{"group=eve,user=secret"}, `"group_*.user";q=100;w=3600`, `"group_*.user";r=99;t=3600`},
		{[]string{"x=1,y=2 @5/HOUR"}, `"x.y";q=5;w=3600`, `"x.y";r=4;t=3600`},
		{[]string{"a=7", "over=1 +9", "a=8"}, `"a";q=10;w=3600, "over";q=1;w=3600`, `"a";r=9;t=3600, "over";r=0;t=3600`},
	} {
		r, err := s.ask(t, "d", 1, tc.ask...)
		if err != nil {
			t.Fatal(err)
		}
		if policy, left := fields(t, r); policy != tc.policy || left != tc.left {
			t.Errorf("%d %v: RateLimit-Policy: %s, RateLimit: %s; want %s and %s", i, tc.ask, policy, left, tc.policy, tc.left)
		}
	}
	shadow := serve(t, manyLimits, func(c *node.Config) { c.RLS.Headers, c.RLS.Shadow = rls.IETF, true })
	if r, err := shadow.ask(t, "d", 1, "a=1"); err != nil || len(r.ResponseHeadersToAdd) != 0 {
		t.Errorf("nothing is limited: %v %v", r, err)
	}
}

// TestFieldsAreBounded: of many limits, the answer tells of the eight that are nearest to their end, those
// that refuse first, in the order of the request; a name has 64 bytes at most.
func TestFieldsAreBounded(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	text.WriteString("domain: d\ndescriptors:\n")
	var ask []string
	for i := range 40 {
		fmt.Fprintf(&text, "- {key: k%d, rate_limit: {name: '%d%s', unit: hour, requests_per_unit: %d}}\n", i, i, strings.Repeat(`"`, 1000), 100-i)
		ask = append(ask, fmt.Sprintf("k%d=1", i))
	}
	ask[3] += " +98" // is refused, and spends all
	ask[5] += " +94" // leaves 1
	s := serve(t, text.String(), ietf)
	r, err := s.ask(t, "d", 1, ask...)
	if err != nil {
		t.Fatal(err)
	}
	policy, left := fields(t, r)
	var want [2][]string
	for _, i := range []int{3, 5, 34, 35, 36, 37, 38, 39} {
		name := fmt.Sprintf("%d%s", i, strings.Repeat(`\"`, 64-len(fmt.Sprint(i))))
		remaining := map[int]int{3: 0, 5: 1}
		n, special := remaining[i]
		if !special {
			n = 99 - i
		}
		want[0] = append(want[0], fmt.Sprintf(`"%s";q=%d;w=3600`, name, 100-i))
		want[1] = append(want[1], fmt.Sprintf(`"%s";r=%d;t=3600`, name, n))
	}
	if policy != strings.Join(want[0], ", ") || left != strings.Join(want[1], ", ") {
		t.Errorf("%s\n%s", policy, left)
	}
	if n := len(policy) + len(left); n > 4<<10 {
		t.Errorf("%d bytes of headers", n)
	}
}
