package rls_test

import (
	"testing"
	"time"
)

const refusing = `
domain: d
descriptors:
- key: bucket
  rate_limit: {unit: hour, requests_per_unit: 60, keystead: {algorithm: token_bucket}}
- key: burst
  rate_limit: {unit: hour, requests_per_unit: 60, keystead: {algorithm: token_bucket, burst: 10}}
- key: whole
  rate_limit: {unit: hour, requests_per_unit: 60, keystead: {algorithm: token_bucket, over_limit: spend_nothing}}
- key: window
  rate_limit: {unit: hour, requests_per_unit: 60}
- key: sliding
  rate_limit: {unit: hour, requests_per_unit: 60, keystead: {algorithm: sliding_window}}
- key: shadow
  shadow_mode: true
  rate_limit: {unit: hour, requests_per_unit: 60, keystead: {algorithm: token_bucket}}
`

// A descriptor that is over its limit says when the same hits fit: Envoy's
// Retry-After is made of it. One that is not says when all is back.
func TestDurationUntilReset(t *testing.T) {
	t.Parallel()
	s := serve(t, refusing, nil)
	for _, tc := range []struct {
		ask  string
		want time.Duration // to the minute: each token of a bucket takes one
	}{
		{"bucket=1 +60", time.Hour},
		{"bucket=1", time.Minute},
		{"bucket=1 +0", time.Minute},
		{"bucket=1 +5", 5 * time.Minute},
		{"bucket=1 +61", time.Hour}, // never; it is full then
		{"bucket=2 +50", 50 * time.Minute},
		{"bucket=2 +20", 20 * time.Minute}, // the 10 that were left are gone
		{"bucket=3 +61", time.Hour},
		{"burst=1 +10", 10 * time.Minute},
		{"burst=1 +4", 4 * time.Minute},
		{"whole=1 +50", 50 * time.Minute},
		{"whole=1 +20", 10 * time.Minute}, // 10 are left, and stay
		{"window=1 +60", time.Hour},
		{"window=1", time.Hour},
		{"sliding=1 +50", time.Hour},
		{"sliding=1 +20", time.Hour},
		{"shadow=1 +60", time.Hour},
		{"shadow=1", time.Hour}, // it gets through
	} {
		r, err := s.ask(t, "d", 0, tc.ask)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Statuses[0].DurationUntilReset.AsDuration().Round(time.Minute); got != tc.want {
			t.Errorf("%s: %v %s, want %s", tc.ask, r.Statuses[0].Code, got, tc.want)
		}
	}
}

// What is left of a sliding window is spent by a request that is refused. It comes
// back later than what was spent before, and so says nothing about when to try again.
func TestSlidingRetry(t *testing.T) {
	t.Parallel()
	const apart = 300 * time.Millisecond
	s := serve(t, refusing, nil)
	if _, err := s.ask(t, "d", 0, "sliding=1 +50"); err != nil {
		t.Fatal(err)
	}
	first := time.Now()
	eventually(t, "some time has passed", func() bool { return time.Since(first) > apart })
	r, err := s.ask(t, "d", 0, "sliding=1 +20")
	if err != nil || show(r) != "over: over 0 of 60/hour" {
		t.Fatal(r, err)
	}
	if got := r.Statuses[0].DurationUntilReset.AsDuration(); got > time.Hour-apart {
		t.Errorf("20 fit when the first 50 leave: in %s", got)
	}
}
