package rls_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/keystead/keystead/envoy/rls"
	"github.com/keystead/keystead/internal/node"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

const twoLimits = `
domain: d
descriptors:
- key: a
  rate_limit: {unit: hour, requests_per_unit: 10}
- key: b
  rate_limit: {unit: minute, requests_per_unit: 3}
- key: q
  quota_mode: true
  rate_limit: {unit: minute, requests_per_unit: 1}
`

// The client of Envoy gets the headers of the limit that is nearest to its end.
func TestHeaders(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		headers rls.Headers
		prefix  string
	}{{rls.NoHeaders, ""}, {rls.XRateLimit, "X-RateLimit-"}, {rls.RateLimit, "RateLimit-"}} {
		s := serve(t, twoLimits, func(c *node.Config) { c.RLS.Headers = tc.headers })
		r, err := s.ask(t, "d", 1, "a=1", "b=1", "none=1")
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, h := range r.ResponseHeadersToAdd {
			got += h.Key + "=" + h.Value + " "
		}
		want := ""
		if tc.prefix != "" {
			want = fmt.Sprintf("%[1]sLimit=3 %[1]sRemaining=2 %[1]sReset=60 ", tc.prefix)
		}
		if got != want {
			t.Errorf("%s: %q, want %q", tc.headers, got, want)
		}
		if r, err = s.ask(t, "d", 8, "a=1", "b=2"); err != nil || r.OverallCode != rlspb.RateLimitResponse_OVER_LIMIT {
			t.Fatal(r, err)
		}
		if h := r.ResponseHeadersToAdd; tc.prefix != "" && (h[0].Value != "3" || h[1].Value != "0") {
			t.Errorf("%s: over the limit: %v", tc.headers, h)
		}
	}
}

// In global shadow mode all requests get through, and the statuses tell.
func TestGlobalShadow(t *testing.T) {
	t.Parallel()
	s := serve(t, twoLimits, func(c *node.Config) { c.RLS.Shadow = true })
	r, err := s.ask(t, "d", 4, "b=1")
	if err != nil || show(r) != "ok: over 0 of 3/minute" {
		t.Errorf("%v %v", r, err)
	}
	if !strings.Contains(s.metrics(t), "keystead_rls_global_shadow_mode_total 1\n") {
		t.Error("it was not counted")
	}
}

// What makes no sense gets an error with a reason.
func TestInvalidRequests(t *testing.T) {
	t.Parallel()
	s := serve(t, twoLimits, nil)
	many := make([]string, 257)
	for i := range many {
		many[i] = "a=1"
	}
	multiplied := request(t, "d", 0, "a=1 @1/YEAR")
	multiplied.Descriptors[0].Limit.UnitMultiplier = wrapperspb.UInt32(2)
	for _, tc := range []struct {
		req    *rlspb.RateLimitRequest
		code   codes.Code
		reason string
		says   string
	}{
		{request(t, "", 0, "a=1"), codes.InvalidArgument, "INVALID", "the domain is empty"},
		{request(t, "d", 0), codes.InvalidArgument, "INVALID", "there are no descriptors"},
		{request(t, "d", 0, many...), codes.InvalidArgument, "INVALID", "257 descriptors; at most 256"},
		{request(t, "d", 0, "b=1", strings.Repeat("a=1,", 64)+"a=1"), codes.InvalidArgument, "INVALID", "65 entries; at most 64"},
		{request(t, "d", 0, "a=1 @1/NONE"), codes.InvalidArgument, "INVALID", "unit 0"},
		{multiplied, codes.InvalidArgument, "INVALID", "2 times the unit"},
		{request(t, "d", 0, "a="+strings.Repeat("x", 65<<10)), codes.ResourceExhausted, "TOO_LARGE", "at most 65536"},
	} {
		r, err := s.ShouldRateLimit(t.Context(), tc.req)
		st := status.Convert(err)
		if st.Code() != tc.code || !strings.Contains(st.Message(), tc.says) {
			t.Errorf("%s: %v %v", tc.says, r, err)
			continue
		}
		info := &errdetails.ErrorInfo{}
		for _, d := range st.Details() {
			if i, ok := d.(*errdetails.ErrorInfo); ok {
				info = i
			}
		}
		if info.Reason != tc.reason || info.Domain != "keystead" {
			t.Errorf("%s: %v", tc.says, info)
		}
	}
	if r, err := s.ask(t, "d", 0, strings.Repeat("a=1,", 63)+"a=1"); err != nil || show(r) != "ok: ok" {
		t.Errorf("64 entries: %v %v", r, err)
	}
	// Nothing was spent.
	if r, err := s.ask(t, "d", 0, "a=1 +10"); err != nil || show(r) != "ok: ok 0 of 10/hour" {
		t.Errorf("%v %v", r, err)
	}
}

// A unit of a request may be multiplied.
func TestUnitMultiplier(t *testing.T) {
	t.Parallel()
	s := serve(t, twoLimits, nil)
	req := request(t, "d", 0, "a=1 @1/MINUTE")
	req.Descriptors[0].Limit.UnitMultiplier = wrapperspb.UInt32(30)
	for _, want := range []string{"ok: ok 0 of 1/minute", "over: over 0 of 1/minute"} {
		r, err := s.ShouldRateLimit(t.Context(), req)
		if err != nil || show(r) != want {
			t.Fatalf("%v %v", r, err)
		}
		st := r.Statuses[0]
		if reset := st.DurationUntilReset.AsDuration(); st.CurrentLimit.UnitMultiplier.GetValue() != 30 || reset < 29*time.Minute || reset > 30*time.Minute {
			t.Errorf("%v", st)
		}
	}
}

// Long descriptors are counted like others, and each by itself.
func TestLongDescriptors(t *testing.T) {
	t.Parallel()
	s := serve(t, twoLimits, nil)
	long := "b=" + strings.Repeat("x", 2000)
	for _, st := range []step{
		one(long+"1 +3", "ok: ok 0 of 3/minute"),
		one(long+"2 +3", "ok: ok 0 of 3/minute"),
		one(long+"1", "over: over 0 of 3/minute"),
	} {
		if r, err := s.ask(t, "d", 0, st.ask...); err != nil || show(r) != st.want {
			t.Errorf("%v %v", r, err)
		}
	}
}

// The objects are those that key.go describes: Keystead's own API sees them.
func TestObjects(t *testing.T) {
	t.Parallel()
	s := serve(t, twoLimits, nil)
	if _, err := s.ask(t, "d", 4, "a=x"); err != nil {
		t.Fatal(err)
	}
	r, err := limitpb.NewLimitServiceClient(dial(t, s.node)).Check(t.Context(), &limitpb.CheckRequest{
		Key: "1:d1:a1:x", Name: "envoy.rls/fixed_window/3600s", Limit: 10, PeriodNs: int64(time.Hour), Algorithm: limitpb.Algorithm_ALGORITHM_FIXED_WINDOW, Peek: true,
	})
	if err != nil || r.Remaining != 6 {
		t.Errorf("%v %v", r, err)
	}
}

// Hits are counted as upstream counts them, under labels that are bounded.
func TestMetrics(t *testing.T) {
	t.Parallel()
	s := serve(t, twoLimits+`
- key: s
  value: x
  shadow_mode: true
  rate_limit: {unit: hour, requests_per_unit: 1}
- key: v
  value_to_metric: true
  descriptors:
  - key: w
    value: p*
    rate_limit: {unit: hour, requests_per_unit: 5}
- key: free
  rate_limit: {unlimited: true}
- key: det
  detailed_metric: true
  rate_limit: {unit: hour, requests_per_unit: 5}
`, nil)
	for _, hits := range []uint32{7, 2, 3} { // of 10: 7 within, 2 within of which 1 near, 3 of which 2 over
		if _, err := s.ask(t, "d", hits, "a=1", "s=x", "v=1,w=p2", "det=3", "free=1"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.ask(t, "other", 1, "a=1", "b=1"); err != nil {
		t.Fatal(err)
	}
	got := s.metrics(t)
	for _, want := range []string{
		`keystead_rls_hits_total{domain="d",limit="a"} 12`,
		`keystead_rls_within_limit_total{domain="d",limit="a"} 9`,
		`keystead_rls_near_limit_total{domain="d",limit="a"} 2`,
		`keystead_rls_over_limit_total{domain="d",limit="a"} 2`,
		`keystead_rls_shadow_mode_total{domain="d",limit="a"} 0`,
		`keystead_rls_shadow_mode_total{domain="d",limit="s_x"} 11`,
		`keystead_rls_hits_total{domain="d",limit="v_1.w_p*"} 12`,
		`keystead_rls_hits_total{domain="d",limit="det_3"} 12`,
		`keystead_rls_hits_total{domain="d",limit="b"} 0`,
		`keystead_rls_within_limit_total{domain="d",limit="free"} 12`,
		`keystead_rls_domain_not_found_total 2`,
		`keystead_rls_config_limits 7`,
		`keystead_rls_config_broken 0`,
		`keystead_rls_failures_total{policy="allow"} 0`,
		`keystead_rpc_calls_total{code="OK",method="ShouldRateLimit",service="envoy.service.ratelimit.v3.RateLimitService"} 4`,
	} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("no %s in\n%s", want, lines(got, "keystead_rls"))
		}
	}
}

func lines(text, with string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if strings.Contains(line, with) && !strings.HasPrefix(line, "#") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// A limit lets no more through than it says, however many ask at once.
func TestConcurrentHits(t *testing.T) {
	t.Parallel()
	s := serve(t, "domain: d\ndescriptors: [{key: a, rate_limit: {unit: hour, requests_per_unit: 100}}]", nil)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	allowed := make(chan int)
	const callers = 8
	for range callers {
		go func() {
			n := 0
			for range 50 {
				r, err := s.ShouldRateLimit(ctx, request(t, "d", 1, "a=1"))
				if err == nil && r.OverallCode == rlspb.RateLimitResponse_OK {
					n++
				}
			}
			allowed <- n
		}()
	}
	sum := 0
	for range callers {
		sum += <-allowed
	}
	if sum != 100 {
		t.Errorf("%d hits got through a limit of 100", sum)
	}
}

// gRPC reflection describes the service, as it does those of the API.
func TestReflection(t *testing.T) {
	t.Parallel()
	s := serve(t, twoLimits, nil)
	if got := s.describe(t, rlspb.RateLimitService_ServiceDesc.ServiceName); !strings.Contains(got, "ShouldRateLimit") {
		t.Errorf("%q", got)
	}
}
