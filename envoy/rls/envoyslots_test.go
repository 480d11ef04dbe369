package rls_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	routepb "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	filterpb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
)

// documented returns the blocks of YAML of a section of docs/ratelimit.md.
func documented(t *testing.T, section string) (blocks []string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/ratelimit.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\n## "+section+"\n")
	rest, _, _ = strings.Cut(rest, "\n## ")
	for _, b := range strings.Split(rest, "```yaml\n")[1:] {
		b, _, _ = strings.Cut(b, "```")
		blocks = append(blocks, b)
	}
	return blocks
}

// perRoute reads what Envoy is given, as Envoy does.
func perRoute(t *testing.T, text string) *filterpb.RateLimitPerRoute {
	t.Helper()
	var doc struct {
		RateLimits []any `yaml:"rate_limits"`
	}
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(map[string]any{"rate_limits": doc.RateLimits})
	if err != nil {
		t.Fatal(err)
	}
	conf := &filterpb.RateLimitPerRoute{}
	if err := protojson.Unmarshal(data, conf); err != nil {
		t.Fatal(err)
	}
	if err := conf.ValidateAll(); err != nil {
		t.Fatal(err)
	}
	if len(conf.RateLimits) == 0 {
		t.Fatal("the section has no rate_limits")
	}
	return conf
}

// sent returns the request that Envoy makes of its configuration for headers: when the request comes, or with done when
// its stream is over. nil = none.
func sent(conf *filterpb.RateLimitPerRoute, headers map[string]string, done bool) *rlspb.RateLimitRequest {
	req := &rlspb.RateLimitRequest{Domain: "web"}
	for _, l := range conf.RateLimits {
		if d := describedBy(l, headers); l.ApplyOnStreamDone == done && d != nil {
			req.Descriptors = append(req.Descriptors, d)
		}
	}
	if len(req.Descriptors) == 0 {
		return nil
	}
	return req
}

func describedBy(l *routepb.RateLimit, headers map[string]string) *commonpb.RateLimitDescriptor {
	d := &commonpb.RateLimitDescriptor{HitsAddend: l.GetHitsAddend().GetNumber(), IsNegativeHits: l.GetHitsAddend().GetIsNegativeHits()}
	for _, a := range l.Actions {
		h := a.GetRequestHeaders()
		value, there := headers[h.GetHeaderName()]
		if !there {
			return nil
		}
		d.Entries = append(d.Entries, &commonpb.RateLimitDescriptor_Entry{Key: h.GetDescriptorKey(), Value: value})
	}
	return d
}

// TestDocumentedOverdrafts: what the page gives Envoy for hits after the stream is a configuration of Envoy's.
func TestDocumentedOverdrafts(t *testing.T) {
	conf := perRoute(t, documented(t, "Hits that are known after the stream")[0])
	if n := len(conf.RateLimits); n != 2 || !conf.RateLimits[1].ApplyOnStreamDone {
		t.Errorf("%v", conf)
	}
}

// TestDocumentedSlots: with what the page gives Envoy and the nodes, 20 requests of a team run at a time, whatever
// becomes of others.
func TestDocumentedSlots(t *testing.T) {
	t.Parallel()
	blocks := documented(t, "So many at a time")
	conf, s := perRoute(t, blocks[0]), serve(t, blocks[1], nil)
	ask := func(id string, done bool) bool {
		t.Helper()
		r, err := s.ShouldRateLimit(t.Context(), sent(conf, map[string]string{"x-team": "a", "x-request-id": id}, done))
		if err != nil {
			t.Fatal(err)
		}
		return r.OverallCode == rlspb.RateLimitResponse_OK
	}
	id := func(i int) string { return fmt.Sprintf("6b0c7e0a-0000-4000-8000-%012d", i) }
	for i := range 20 {
		if !ask(id(i), false) {
			t.Fatalf("request %d is refused", i)
		}
	}
	for i := 20; i < 24; i++ {
		if ask(id(i), false) {
			t.Errorf("request %d runs", i)
		}
		ask(id(i), true) // the stream of a refused one is over
	}
	if ask(id(24), false) {
		t.Error("refused requests gave slots back")
	}
	for i := range 20 {
		ask(id(i), true)
	}
	for i := 30; i < 50; i++ {
		if !ask(id(i), false) {
			t.Errorf("request %d is refused, and nothing runs", i)
		}
	}
	if sent(conf, map[string]string{"x-team": "a"}, false) != nil {
		t.Error("Envoy asks for a request without an id")
	}
}
