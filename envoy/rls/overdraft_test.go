package rls_test

import (
	"testing"
	"time"
)

const overdrawn = `
domain: d
descriptors:
- key: tokens
  rate_limit: {unit: hour, requests_per_unit: 60, keystead: {algorithm: token_bucket, overdraft: true}}
- key: window
  rate_limit: {unit: hour, requests_per_unit: 60, keystead: {overdraft: true}}
- key: closed
  rate_limit: {unit: hour, requests_per_unit: 0, keystead: {overdraft: true}}
`

// TestOverdraftAfterTheStream: hits that the request states are spent whether or not they are there, and the
// next requests are over the limit until it is paid.
func TestOverdraftAfterTheStream(t *testing.T) {
	t.Parallel()
	s := serve(t, overdrawn, nil)
	for i, tc := range []struct {
		ask, want string
		reset     time.Duration // of what is over; to the minute
	}{
		{"tokens=1 +0", "ok: ok 60 of 60/hour", 0},
		{"tokens=1 +50", "ok: ok 10 of 60/hour", 0},
		{"tokens=1 +0", "ok: ok 10 of 60/hour", 0},
		{"tokens=1 +70", "over: over 0 of 60/hour", 61 * time.Minute}, // nobody listens
		{"tokens=1 +10", "over: over 0 of 60/hour", 71 * time.Minute}, // of a stream that ran meanwhile
		{"tokens=1 +0", "over: over 0 of 60/hour", 71 * time.Minute},
		{"tokens=1", "over: over 0 of 60/hour", 71 * time.Minute}, // is not charged
		{"tokens=1 -40", "ok: ok 0 of 60/hour", 0},
		{"tokens=1", "over: over 0 of 60/hour", 31 * time.Minute},
		{"window=1 +100", "over: over 0 of 60/hour", time.Hour},
		{"window=1", "over: over 0 of 60/hour", time.Hour},
		{"window=1 -41", "ok: ok 1 of 60/hour", 0},
		{"closed=1 +5", "over: over 0 of 0/hour", time.Hour},
		{"tokens=2 +18446744073709551615", "over: over 0 of 60/hour", 0},
	} {
		r, err := s.ask(t, "d", 0, tc.ask)
		if err != nil {
			t.Fatal(err)
		}
		got := r.Statuses[0].DurationUntilReset.AsDuration().Round(time.Minute)
		if show(r) != tc.want || tc.reset > 0 && got != tc.reset {
			t.Errorf("%d %s: %s, in %s; want %s, in %s", i, tc.ask, show(r), got, tc.want, tc.reset)
		}
	}
}
