package rls

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// keyed stands for owners by the key of a descriptor, each of which answers by itself;
// a batch has its answer when all of them have.
type keyed map[string]func(ctx context.Context, c *limitpb.CheckRequest) *limitpb.CheckResult

func (k keyed) BatchCheck(ctx context.Context, req *limitpb.BatchCheckRequest) (*limitpb.BatchCheckResponse, error) {
	resp := &limitpb.BatchCheckResponse{}
	for _, c := range req.Checks {
		for key, decide := range k {
			if strings.Contains(c.Key, fmt.Sprintf("%d:%s", len(key), key)) {
				resp.Results = append(resp.Results, decide(ctx, c))
			}
		}
	}
	return resp, nil
}

// at decides after a while, unless nobody listens any more: then what became of the
// hits is not known.
func (b *bucket) at(after time.Duration) func(context.Context, *limitpb.CheckRequest) *limitpb.CheckResult {
	return func(ctx context.Context, c *limitpb.CheckRequest) *limitpb.CheckResult {
		select {
		case <-time.After(after):
			return b.decide(c)
		case <-ctx.Done():
			return &limitpb.CheckResult{Error: &commonpb.Error{Code: int32(codes.Unknown), Reason: commonpb.Reason_REASON_OUTCOME_UNKNOWN}}
		}
	}
}

// deaf decides after a while, although nobody may wait any more: an owner whose standby is gone.
func (b *bucket) deaf(after time.Duration) func(context.Context, *limitpb.CheckRequest) *limitpb.CheckResult {
	return func(_ context.Context, c *limitpb.CheckRequest) *limitpb.CheckResult {
		time.Sleep(after)
		return b.decide(c)
	}
}

const latePolicies = threePolicies + `
- key: both
  rate_limit: {unit: day, requests_per_unit: 9, keystead: {all_or_nothing: true, on_failure: allow}}
`

// hasty asks with 20 ms to answer, and says after how long there was an answer.
func hasty(t *testing.T, s *Service, hits uint32, keys ...string) (string, time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	began := time.Now()
	got := s.got(t, ctx, asked(hits, keys...))
	return got, time.Since(began)
}

// An owner that is silent takes nothing away of what the others have said: the policy
// is for the descriptors whose answer is missing.
func TestSilentOwnerKeepsTheOthers(t *testing.T) {
	for name, silent := range map[string]func(context.Context, *limitpb.CheckRequest) *limitpb.CheckResult{
		"away": (&bucket{left: 9}).at(time.Hour),
		"deaf": (&bucket{left: 9}).deaf(2 * time.Second),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newService(t, latePolicies, nil)
				full := func(ctx context.Context, c *limitpb.CheckRequest) *limitpb.CheckResult {
					return (&bucket{left: 9}).at(time.Millisecond)(ctx, c)
				}
				empty := (&bucket{}).at(2 * time.Millisecond)
				s.checker = keyed{"allow": silent, "error": full, "shadow": empty, "deny": empty}
				for keys, want := range map[string]string{
					"allow error":        "OK: OK/0 OK/6",
					"error allow shadow": "OK: OK/6 OK/0 OK/0",
					"allow deny error":   "OVER_LIMIT: OK/0 OVER_LIMIT/0 OK/6",
				} {
					if got, took := hasty(t, s, 3, strings.Fields(keys)...); got != want || took != 15*time.Millisecond {
						t.Errorf("%s: %s after %s, want %s", keys, got, took, want)
					}
				}
				if sum := s.counted(t, "keystead_rls_failures_total", ""); sum != 3 {
					t.Errorf("%v failures were counted, want those of one owner", sum)
				}
			})
		})
	}
	// When all have answered, it is the answer at once.
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, latePolicies, nil)
		s.checker = keyed{"allow": (&bucket{left: 9}).at(2 * time.Millisecond), "error": (&bucket{left: 9}).at(time.Millisecond)}
		if got, took := hasty(t, s, 3, "allow", "error"); got != "OK: OK/6 OK/6" || took != 2*time.Millisecond {
			t.Errorf("%s after %s", got, took)
		}
	})
}

// What an answer that comes too late turns out to have spent is given back if the
// request was in vain, and only then.
func TestLateAnswersAreGivenBack(t *testing.T) {
	for _, tc := range []struct {
		name, keys    string
		after         time.Duration // until the late one answers
		want, log     string
		given, failed float64
	}{
		{"the request fails", "together deny", 100 * time.Millisecond, "DeadlineExceeded", "-3 +3", 1, 0},
		{"it is over another limit", "both error", 100 * time.Millisecond, "OVER_LIMIT: OK/0 OVER_LIMIT/0", "-3 +3", 1, 0},
		{"it is let through", "both allow", 100 * time.Millisecond, "OK: OK/0 OK/6", "-3", 0, 0},
		{"it is late by seconds", "both error", 4 * time.Second, "OVER_LIMIT: OK/0 OVER_LIMIT/0", "-3 +3", 1, 0},
		{"it never answers", "both error", time.Hour, "OVER_LIMIT: OK/0 OVER_LIMIT/0", "", 0, 1},
		{"it is let through, and nobody answers", "both allow", time.Hour, "OK: OK/0 OK/6", "", 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newService(t, latePolicies, nil)
				late, empty, full := &bucket{left: 9}, &bucket{}, &bucket{left: 9}
				slow := func(ctx context.Context, c *limitpb.CheckRequest) *limitpb.CheckResult {
					if c.Refund > 0 {
						return late.decide(c)
					}
					return late.at(tc.after)(ctx, c)
				}
				s.checker = keyed{"together": slow, "both": slow, "deny": empty.at(0), "error": empty.at(0), "allow": full.at(0)}
				if got, took := hasty(t, s, 3, strings.Fields(tc.keys)...); got != tc.want || took != 15*time.Millisecond {
					t.Errorf("%s after %s, want %s", got, took, tc.want)
				}
				time.Sleep(deferredTime + maxRefundTime)
				s.Close()
				if got := strings.Join(late.log, " "); got != tc.log {
					t.Errorf("its owner was told %q, want %q", got, tc.log)
				}
				given, failed := s.counted(t, "keystead_rls_refunds_total", "given"), s.counted(t, "keystead_rls_refunds_total", "failed")
				if given != tc.given || failed != tc.failed {
					t.Errorf("%v were counted as given, %v as failed", given, failed)
				}
			})
		})
	}
}

// An answer does not wait for what is given back: it would come after its caller has
// decided by itself.
func TestRefundsDoNotHoldUpAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, latePolicies, nil)
		b, empty := &bucket{left: 9}, &bucket{}
		s.checker = keyed{"error": empty.at(0), "together": func(ctx context.Context, c *limitpb.CheckRequest) *limitpb.CheckResult {
			if c.Refund > 0 {
				return b.at(700*time.Millisecond)(ctx, c)
			}
			return b.decide(c)
		}}
		began := time.Now()
		if got := s.got(t, t.Context(), asked(3, "together", "error")); got != "OVER_LIMIT: OK/9 OVER_LIMIT/0" || time.Since(began) != 0 {
			t.Errorf("%s after %s", got, time.Since(began))
		}
		if s.Close(); time.Since(began) != 700*time.Millisecond || b.left != 9 {
			t.Errorf("closed after %s, with %d left", time.Since(began), b.left)
		}
	})
}

// So many may give back at a time; the hits of others stay spent, and that is counted.
func TestRefundsAreBounded(t *testing.T) {
	t.Parallel()
	s := newService(t, latePolicies, nil)
	b, empty := &bucket{left: 9}, &bucket{}
	s.checker = keyed{"error": empty.at(0), "together": func(_ context.Context, c *limitpb.CheckRequest) *limitpb.CheckResult { return b.decide(c) }}
	for range maxRefunds {
		s.refunds <- struct{}{}
	}
	if got := s.got(t, t.Context(), asked(3, "together", "error")); got != "OVER_LIMIT: OK/9 OVER_LIMIT/0" || b.left != 6 || s.counted(t, "keystead_rls_refunds_total", "failed") != 1 {
		t.Errorf("%s, %d left", got, b.left)
	}
	for range maxRefunds {
		<-s.refunds
	}
}

// When too many questions are without an answer, no more are asked: the policies take
// effect at once. Requests without one wait for their owners as ever.
func TestTooManyLateQuestions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, latePolicies, nil)
		b := &bucket{left: 9}
		s.checker = keyed{"allow": b.at(0), "deny": b.at(0), "error": b.at(50 * time.Millisecond), "together": b.at(0)}
		for range maxDeferred - 1 {
			s.deferred <- struct{}{}
		}
		if got, _ := hasty(t, s, 3, "allow"); got != "OK: OK/6" {
			t.Errorf("with room for one: %s", got)
		}
		s.deferred <- struct{}{}
		for keys, want := range map[string]string{"allow": "OK: OK/0", "deny allow": "OVER_LIMIT: OVER_LIMIT/0 OK/0", "allow error": "ResourceExhausted", "together": "ResourceExhausted"} {
			if got, took := hasty(t, s, 3, strings.Fields(keys)...); got != want || took != 0 {
				t.Errorf("%s: %s after %s, want %s", keys, got, took, want)
			}
		}
		if n := s.counted(t, "keystead_rls_unasked_total", ""); n != 6 || len(b.log) != 1 {
			t.Errorf("%v were counted as not asked, and the owners were told %q", n, b.log)
		}
		began := time.Now()
		if got := s.got(t, t.Context(), asked(3, "error")); got != "OK: OK/3" || time.Since(began) != 50*time.Millisecond {
			t.Errorf("without a policy: %s after %s", got, time.Since(began))
		}
		for range maxDeferred {
			<-s.deferred
		}
	})
}

// What is asked of one key stays in order, also when keys are asked one by one.
func TestHastyOrderOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, latePolicies, nil)
		b, other := &bucket{left: 9}, &bucket{left: 9}
		s.checker = keyed{"allow": b.at(time.Millisecond), "deny": other.at(0)}
		r := asked(4, "allow", "deny", "allow", "allow")
		for i := range r.descriptors {
			r.descriptors[i].hits, r.descriptors[i].hasHits = uint64(i+1), true
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if got := s.got(t, ctx, r); got != "OK: OK/8 OK/7 OK/5 OK/1" || !slices.Equal(b.log, []string{"-1", "-3", "-4"}) {
			t.Errorf("%s, asked %q", got, b.log)
		}
	})
}

// Nothing goes on when the service is closed, even for owners that are silent for long.
func TestCloseEndsLateQuestions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, latePolicies, nil)
		s.checker = keyed{"both": (&bucket{left: 9}).at(time.Hour)}
		hasty(t, s, 3, "both")
		began := time.Now()
		if s.Close(); time.Since(began) != 0 {
			t.Errorf("closed after %s", time.Since(began))
		}
	})
}

// TestOverdraftOutlivesItsCall: what was used is charged by an owner that is late, although nobody waits for it.
func TestOverdraftOutlivesItsCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, `
domain: d
descriptors:
- key: owed
  rate_limit: {unit: day, requests_per_unit: 9, keystead: {overdraft: true}}
`, nil)
		owed := &bucket{left: 9}
		s.checker = keyed{"owed": owed.at(2 * time.Second)}
		hasty(t, s, 7, "owed")
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if got := strings.Join(owed.log, " "); got != "-7" {
			t.Errorf("the owner was asked %q", got)
		}
	})
}
