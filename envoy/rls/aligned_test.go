package rls_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/keystead/keystead/internal/node"
)

// TestAlignedWindows: windows of `aligned: true` are those of envoyproxy/ratelimit, Unix time divided by
// the unit: a week begins on a Thursday, a month has 30 days, a year 365.
func TestAlignedWindows(t *testing.T) {
	t.Parallel()
	var wall atomic.Int64
	wall.Store(time.Date(2026, 11, 23, 10, 59, 30, 0, time.UTC).Unix())
	s := serve(t, `
domain: d
descriptors:
- key: second
  rate_limit: {unit: second, requests_per_unit: 2, keystead: {aligned: true}}
- key: minute
  rate_limit: {unit: minute, requests_per_unit: 2, keystead: {aligned: true}}
- key: hour
  rate_limit: {unit: hour, requests_per_unit: 2, keystead: {algorithm: fixed_window, aligned: true}}
- key: day
  rate_limit: {unit: day, requests_per_unit: 2, keystead: {aligned: true, over_limit: spend_nothing}}
- key: week
  rate_limit: {unit: week, requests_per_unit: 2, keystead: {aligned: true, all_or_nothing: true}}
- key: month
  rate_limit: {unit: month, requests_per_unit: 2, keystead: {aligned: true}}
- key: year
  rate_limit: {unit: year, requests_per_unit: 2, keystead: {aligned: true}}
`, func(c *node.Config) { c.Wires.Wall = func() time.Time { return time.Unix(wall.Load(), 5e8) } })
	const day = 24 * 3600
	units := map[string]int64{"second": 1, "minute": 60, "hour": 3600, "day": day, "week": 7 * day, "month": 30 * day, "year": 365 * day}
	looked := func() { // the node looks at its clock ten times a second
		for {
			r, err := s.ask(t, "d", 0, "hour=x +0")
			if err != nil {
				t.Fatal(err)
			}
			if r.Statuses[0].LimitRemaining == 2 {
				return
			}
		}
	}
	for round := range 2 {
		for unit, length := range units {
			want := time.Duration(length-wall.Load()%length) * time.Second
			for i, code := range []string{"ok: ok 1 of 2/" + unit, "ok: ok 0 of 2/" + unit, "over: over 0 of 2/" + unit} {
				r, err := s.ask(t, "d", 1, unit+"=x")
				if err != nil {
					t.Fatal(err)
				}
				if got := show(r); got != code {
					t.Errorf("round %d, %s, request %d: %s; want %s", round, unit, i+1, got, code)
				}
				if reset := r.Statuses[0].DurationUntilReset.AsDuration(); reset > want+time.Second || reset < want-time.Second {
					t.Errorf("round %d, %s: full in %s; upstream's window ends in %s", round, unit, reset, want)
				}
			}
		}
		// The next window of all of them: 365 days since 1970 divide by no other unit but the day.
		next := wall.Load()/(365*day)*(365*day) + 365*day
		for _, length := range units {
			next = max(next, wall.Load()/length*length+length)
		}
		wall.Store(next + 7)
		looked()
	}
}
