package rls

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// owners stand for the nodes that decide: what a real one does not do when it is
// asked to, such as failing.
type owners func(ctx context.Context, checks []*limitpb.CheckRequest) ([]*limitpb.CheckResult, error)

func (o owners) BatchCheck(ctx context.Context, req *limitpb.BatchCheckRequest) (*limitpb.BatchCheckResponse, error) {
	results, err := o(ctx, req.Checks)
	if err != nil {
		return nil, err
	}
	return &limitpb.BatchCheckResponse{Results: results}, nil
}

func newService(t *testing.T, text string, o owners) *Service {
	t.Helper()
	path := filepath.Join(t.TempDir(), "limits.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := New(Config{Path: path, Metrics: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	s.checker = o
	return s
}

// counted returns the sum of the counters of a name, with a value of their label unless
// that is "".
func (s *Service) counted(t *testing.T, name, label string) (sum float64) {
	t.Helper()
	families, err := s.cfg.Metrics.(*prometheus.Registry).Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			if f.GetName() == name && (label == "" || m.Label[0].GetValue() == label) {
				sum += m.Counter.GetValue()
			}
		}
	}
	return sum
}

// asked is a request with a descriptor (key, 1) for each key, of so many hits.
func asked(hits uint32, keys ...string) *request {
	r := &request{domain: "d", hits: hits}
	for _, k := range keys {
		r.descriptors = append(r.descriptors, descriptor{entries: []entry{{k, "1"}}})
	}
	return r
}

// got returns the answer to a request: the codes, overall first, or the error.
func (s *Service) got(t *testing.T, ctx context.Context, r *request) string {
	t.Helper()
	a, err := s.answer(ctx, r)
	if err != nil {
		return grpcstatus.Code(err).String()
	}
	var resp rlspb.RateLimitResponse
	if err := proto.Unmarshal(a.(*answer).wire, &resp); err != nil {
		t.Fatal(err)
	}
	text := resp.OverallCode.String() + ":"
	for _, st := range resp.Statuses {
		text += fmt.Sprintf(" %s/%d", st.Code, st.LimitRemaining)
	}
	return text
}

const threePolicies = `
domain: d
descriptors:
- key: error
  rate_limit: {unit: day, requests_per_unit: 9}
- key: allow
  rate_limit: {unit: day, requests_per_unit: 9, keystead: {on_failure: allow}}
- key: deny
  rate_limit: {unit: day, requests_per_unit: 9, keystead: {on_failure: deny}}
- key: shadow
  shadow_mode: true
  rate_limit: {unit: day, requests_per_unit: 9, keystead: {on_failure: deny}}
- key: together
  rate_limit: {unit: day, requests_per_unit: 9, keystead: {all_or_nothing: true}}
`

// What becomes of a request while an owner does not answer is what the limit says.
func TestFailurePolicies(t *testing.T) {
	t.Parallel()
	all := func(code codes.Code) owners {
		return func(_ context.Context, checks []*limitpb.CheckRequest) ([]*limitpb.CheckResult, error) {
			results := make([]*limitpb.CheckResult, len(checks))
			for i := range results {
				results[i] = &limitpb.CheckResult{Error: &commonpb.Error{Code: int32(code), Reason: commonpb.Reason_REASON_UNAVAILABLE, Message: "not now"}}
			}
			return results, nil
		}
	}
	whole := func(context.Context, []*limitpb.CheckRequest) ([]*limitpb.CheckResult, error) {
		return nil, grpcstatus.Error(codes.ResourceExhausted, "too many calls")
	}
	nothing := func(context.Context, []*limitpb.CheckRequest) ([]*limitpb.CheckResult, error) { return nil, nil }
	for _, tc := range []struct {
		owners owners
		keys   string
		want   string
	}{
		{all(codes.Unavailable), "error", "Unavailable"},
		{all(codes.Unavailable), "allow", "OK: OK/0"},
		{all(codes.Unavailable), "deny", "OVER_LIMIT: OVER_LIMIT/0"},
		{all(codes.Unavailable), "shadow", "OK: OK/0"},
		{all(codes.Unavailable), "allow deny", "OVER_LIMIT: OK/0 OVER_LIMIT/0"},
		{all(codes.Unavailable), "allow error", "Unavailable"},
		{all(codes.InvalidArgument), "allow", "InvalidArgument"},
		{whole, "error", "ResourceExhausted"},
		{whole, "allow", "OK: OK/0"},
		{whole, "deny", "OVER_LIMIT: OVER_LIMIT/0"},
		{nothing, "error", "Unknown"},
		{nothing, "deny", "OVER_LIMIT: OVER_LIMIT/0"},
	} {
		s := newService(t, threePolicies, tc.owners)
		if got := s.got(t, t.Context(), asked(1, strings.Fields(tc.keys)...)); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.keys, got, tc.want)
		}
		if sum := s.counted(t, "keystead_rls_failures_total", ""); sum != float64(len(strings.Fields(tc.keys))) {
			t.Errorf("%s: %v failures were counted", tc.keys, sum)
		}
	}
}

// The error for a caller has the reason and the hint of the owner's.
func TestFailureKeepsItsReason(t *testing.T) {
	t.Parallel()
	s := newService(t, threePolicies, func(context.Context, []*limitpb.CheckRequest) ([]*limitpb.CheckResult, error) {
		return []*limitpb.CheckResult{{Error: &commonpb.Error{Code: int32(codes.Unavailable), Reason: commonpb.Reason_REASON_UNAVAILABLE, Message: "m", Hint: "h", RetryAfterNs: 5}}}, nil
	})
	_, err := s.answer(t.Context(), asked(1, "error"))
	if text := fmt.Sprint(grpcstatus.Convert(err).Details()); !strings.Contains(text, "UNAVAILABLE") || !strings.Contains(text, "h") || !strings.Contains(text, "retry_delay") {
		t.Errorf("%v: %s", err, text)
	}
}

// A policy takes effect while the caller still listens.
func TestPolicyWithinDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, threePolicies, func(ctx context.Context, checks []*limitpb.CheckRequest) ([]*limitpb.CheckResult, error) {
			<-ctx.Done()
			return []*limitpb.CheckResult{{Error: &commonpb.Error{Code: int32(codes.DeadlineExceeded), Message: "gave up"}}}, nil
		})
		for _, tc := range []struct {
			key  string
			took time.Duration
			want string
		}{{"allow", 15 * time.Millisecond, "OK: OK/0"}, {"deny", 15 * time.Millisecond, "OVER_LIMIT: OVER_LIMIT/0"}, {"error", 20 * time.Millisecond, "DeadlineExceeded"}} {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			began := time.Now()
			if got := s.got(t, ctx, asked(1, tc.key)); got != tc.want || time.Since(began) != tc.took {
				t.Errorf("%s: %s after %s", tc.key, got, time.Since(began))
			}
			cancel()
		}
		// Not even for owners that do not look at the time: they cannot say yet.
		s.Close()
		s = newService(t, threePolicies, func(ctx context.Context, checks []*limitpb.CheckRequest) ([]*limitpb.CheckResult, error) {
			time.Sleep(2 * time.Second)
			return nil, ctx.Err()
		})
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		began := time.Now()
		if got := s.got(t, ctx, asked(1, "allow")); got != "OK: OK/0" || time.Since(began) != 15*time.Millisecond {
			t.Errorf("%s after %s", got, time.Since(began))
		}
		if s.Close(); time.Since(began) != 2*time.Second {
			t.Errorf("closed after %s, with a batch under way", time.Since(began))
		}
	})
}

// bucket is a limit of an owner that others spend from: after each check, as much
// as next says.
type bucket struct {
	mu   sync.Mutex // held while it decides
	left uint64
	next []uint64
	log  []string
}

func (b *bucket) decide(c *limitpb.CheckRequest) *limitpb.CheckResult {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := &limitpb.CheckResponse{Capacity: 9}
	switch {
	case c.Refund > 0:
		b.left, r.Allowed = min(b.left+uint64(c.Refund), 9), true
		b.log = append(b.log, fmt.Sprintf("+%d", c.Refund))
	case c.Peek:
		r.Allowed = b.left >= max(c.Cost, 1)
		b.log = append(b.log, "?")
	default:
		if r.Allowed = b.left >= c.Cost; r.Allowed {
			b.left -= c.Cost
		}
		b.log = append(b.log, fmt.Sprintf("-%d", c.Cost))
	}
	r.Remaining = b.left
	if len(b.next) > 0 {
		b.left -= min(b.left, b.next[0])
		b.next = b.next[1:]
	}
	return &limitpb.CheckResult{Response: r}
}

// What is left goes with hits that were over the limit, even if others spend at
// the same time; and it is not tried for ever.
func TestRestIsSpent(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		next []uint64
		hits uint32
		log  string
		left uint64
	}{
		{nil, 9, "-9", 0},
		{nil, 10, "? -9", 0},
		{[]uint64{3}, 12, "? -9 -6", 0},
		{[]uint64{3, 2}, 12, "? -9 -6 -4", 0},
		{[]uint64{1, 1, 1, 1}, 12, "? -9 -8 -7", 5},
	} {
		b := &bucket{left: 9, next: tc.next}
		s := newService(t, threePolicies, func(_ context.Context, checks []*limitpb.CheckRequest) ([]*limitpb.CheckResult, error) {
			return []*limitpb.CheckResult{b.decide(checks[0])}, nil
		})
		s.got(t, t.Context(), asked(tc.hits, "error"))
		if got := strings.Join(b.log, " "); got != tc.log || b.left != tc.left {
			t.Errorf("%v: %s with %d left, want %s with %d", tc.next, got, b.left, tc.log, tc.left)
		}
	}
}

// What was spent with all_or_nothing is given back if the request is over another
// limit, or fails; otherwise it is not.
func TestGivenBack(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		other  string // what becomes of the other descriptor
		shadow bool
		want   string
		log    string
	}{
		{"allowed", false, "OK: OK/6 OK/6", "-3"},
		{"denied", false, "OVER_LIMIT: OK/9 OVER_LIMIT/0", "-3 +3"},
		{"denied", true, "OK: OK/6 OVER_LIMIT/0", "-3"},
		{"failed", false, "Unavailable", "-3 +3"},
	} {
		b, other := &bucket{left: 9}, &bucket{left: 9}
		if tc.other == "denied" {
			other.left = 0
		}
		s := newService(t, threePolicies, func(ctx context.Context, checks []*limitpb.CheckRequest) (results []*limitpb.CheckResult, _ error) {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			for _, c := range checks {
				switch {
				case strings.Contains(c.Key, "together"):
					results = append(results, b.decide(c))
				case tc.other == "failed":
					results = append(results, &limitpb.CheckResult{Error: &commonpb.Error{Code: int32(codes.Unavailable)}})
				default:
					results = append(results, other.decide(c))
				}
			}
			return results, nil
		})
		s.cfg.Shadow = tc.shadow
		got := s.got(t, t.Context(), asked(3, "together", "error"))
		if s.Close(); got != tc.want || strings.Join(b.log, " ") != tc.log {
			t.Errorf("%s: %s, %v; want %s, %s", tc.other, got, b.log, tc.want, tc.log)
		}
	}
}

// A caller that leaves does not keep what was spent for it.
func TestGivenBackWhenTheCallerLeaves(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	b := &bucket{left: 9}
	s := newService(t, threePolicies, func(ctx context.Context, checks []*limitpb.CheckRequest) ([]*limitpb.CheckResult, error) {
		switch {
		case checks[0].Refund > 0 && ctx.Err() != nil:
			return nil, ctx.Err()
		case strings.Contains(checks[0].Key, "together"):
			defer cancel()
			return []*limitpb.CheckResult{b.decide(checks[0])}, nil
		}
		<-ctx.Done()
		return []*limitpb.CheckResult{{Error: &commonpb.Error{Code: int32(codes.Canceled)}}}, nil
	})
	got := s.got(t, ctx, asked(3, "together", "error"))
	if s.Close(); got != "Canceled" || b.left != 9 {
		t.Errorf("%s, %d left", got, b.left)
	}
	if s.counted(t, "keystead_rls_refunds_total", "given") != 1 {
		t.Error("it was not counted")
	}
	// And a refund that fails is counted as such.
	s = newService(t, threePolicies, func(_ context.Context, checks []*limitpb.CheckRequest) ([]*limitpb.CheckResult, error) {
		switch {
		case checks[0].Refund > 0:
			return nil, errors.New("gone")
		case strings.Contains(checks[0].Key, "together"):
			return []*limitpb.CheckResult{b.decide(checks[0])}, nil
		}
		return []*limitpb.CheckResult{{Error: &commonpb.Error{Code: int32(codes.Canceled)}}}, nil
	})
	s.got(t, t.Context(), asked(3, "together", "error"))
	if s.Close(); s.counted(t, "keystead_rls_refunds_total", "failed") != 1 {
		t.Error("a refund that failed was not counted")
	}
}

// A refusal that spends nothing is over the limit with all its hits; one that takes
// what is left, with those beyond, and then the rest is near it, as upstream has it.
func TestRefusalsAreCounted(t *testing.T) {
	t.Parallel()
	const text = "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 10, keystead: {over_limit: %s}}}]\n"
	for policy, want := range map[string][4]float64{ // hits, within, over, near
		"spend_nothing": {8, 2, 6, 0},
		"spend_rest":    {8, 2, 3, 2},
	} {
		b := &bucket{left: 5}
		s := newService(t, fmt.Sprintf(text, policy), func(_ context.Context, checks []*limitpb.CheckRequest) ([]*limitpb.CheckResult, error) {
			return []*limitpb.CheckResult{b.decide(checks[0])}, nil
		})
		s.got(t, t.Context(), asked(2, "a")) // 3 are left
		s.got(t, t.Context(), asked(6, "a"))
		var got [4]float64
		for i, name := range []string{"hits", "within_limit", "over_limit", "near_limit"} {
			got[i] = s.counted(t, "keystead_rls_"+name+"_total", "")
		}
		if got != want {
			t.Errorf("%s: hits, within, over and near are %v, want %v", policy, got, want)
		}
	}
}
