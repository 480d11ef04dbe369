package policy

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/keystead/keystead/internal/fallback"
)

// TestParseFallback: what decides without an owner, and what cannot be.
func TestParseFallback(t *testing.T) {
	s := parse(t, `policies:
  a: {limit: 100/1m, fallback: "local-cap:10/1m", budget: 100ms}
  b:
    limit: 100/1m
    burst: 300
    budget: 1s
    fallback: last-known:30s
  c: {limit: 1/s}
  d: {limit: 1/s, fallback: none}
`)
	for name, want := range map[string]fallback.Rule{
		"a": {Source: fallback.LocalCap, Cap: 10, Period: time.Minute, Budget: 100 * time.Millisecond},
		"b": {Source: fallback.LastKnown, KnownFor: 30 * time.Second, Budget: time.Second},
		"c": {}, "d": {},
	} {
		if got := s.Lookup(name).Fallback; got != want {
			t.Errorf("%s: %+v", name, got)
		}
	}
	for name, want := range map[string]string{"a": "local-cap:10/1m", "b": "last-known:30s", "c": "none"} {
		p := s.Lookup(name)
		if got := p.FallbackName(); got != want {
			t.Errorf("%s: %s", name, got)
		}
		if again, err := fallback.Parse(want); err != nil || again.Source != p.Fallback.Source {
			t.Errorf("%s: %+v %v", name, again, err)
		}
	}
	c := s.Changes(parse(t, `policies: {a: {limit: 100/1m, fallback: "local-cap:11/1m", budget: 100ms}, b: {limit: 100/1m, burst: 300, budget: 1s, fallback: "last-known:30s"}, c: {limit: 1/s}, d: {limit: 1/s}}`))
	if strings.Join(c.Changed, " ") != "a" || len(c.Added)+len(c.Removed) != 0 {
		t.Errorf("%+v", c)
	}
	for text, want := range map[string]string{
		"fallback: open":                                       "`fallback: open` is none",
		"fallback: last-known:1ms":                             "`fallback` of the policy `p` is 1ms; choose 100ms",
		"fallback: local-cap:2_000_000_000_000/1m":             "`fallback` of the policy `p` is 2000000000000",
		"fallback: local-cap:1/400d":                           "`fallback` of the policy `p` is 9600h0m0s",
		"fallback: local-cap:1/1m\n    budget: 1m":             "`budget` of the policy `p` is 1m0s",
		"budget: 100ms":                                        "`budget` of the policy `p` goes with a fallback",
		"budget: soon":                                         "`budget: soon` is no time",
		"algorithm: leaky-bucket\n    fallback: last-known:1s": "does not go with a leaky bucket",
	} {
		_, err := Parse("f.yaml", []byte("policies:\n  p:\n    limit: 5/1m\n    "+text))
		var got Problems
		if !errors.As(err, &got) || len(got) != 1 || !strings.Contains(got[0].Message, want) || got[0].Line < 4 {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestExplainFallback: the worst case in numbers, for some sizes of a cluster.
func TestExplainFallback(t *testing.T) {
	var b strings.Builder
	for _, p := range parse(t, `policies:
  a: {limit: 100/1m, fallback: "local-cap:10/1m"}
  b: {limit: 100/1m, burst: 300, fallback: "last-known:30s", budget: 1s}
  c: {limit: 1/s}
`).All() {
		if err := p.Explain(&b); err != nil {
			t.Fatal(err)
		}
	}
	if strings.Count(b.String(), "until then its fallback decides") != 2 || strings.Count(b.String(), "nothing is admitted.\n  Owner and standby") != 1 {
		t.Errorf("what happens until another node has taken over is not said:\n%s", b.String())
	}
	for _, want := range []string{
		"The owner cannot be asked within 250ms: each node admits at most 10 by itself in any time shorter than 1m,",
		"nodes × 10, so 3 nodes 30 more, 5 nodes 50, 7 nodes 70.",
		"The owner cannot be asked within 1s: each node admits what it heard last was left, for 30s: at most 300 in such a time,",
		"nodes × 300, so 3 nodes 900 more, 5 nodes 1500, 7 nodes 2100.",
		"The owner cannot be asked: an error, and nothing is admitted (fallback: none).",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}
