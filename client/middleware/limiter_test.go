package middleware

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keystead/keystead/client"
)

// When Keystead does not answer, most requests do not wait for it; one a second tries.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &Limiter{reach: reach{cfg: Config{Log: slog.New(slog.DiscardHandler)}, began: time.Now()}}
		asked := func() (n int) {
			for range 10 {
				if l.mayAsk() {
					n++
				}
			}
			return n
		}
		gone := errors.New("gone")
		for range failuresInARow - 1 {
			l.failure(gone)
		}
		if n := asked(); n != 10 {
			t.Errorf("after a failure or two, %d of 10 ask", n)
		}
		l.answered()
		for range failuresInARow {
			l.failure(gone)
		}
		for second := range 5 {
			if n := asked(); n != min(second, 1) {
				t.Errorf("second %d: %d of 10 ask", second, n)
			}
			l.failure(gone)
			time.Sleep(pause)
		}
		l.answered()
		if n := asked(); n != 10 {
			t.Errorf("when it is back, %d of 10 ask", n)
		}
	})
}

func TestLocal(t *testing.T) {
	now := time.Unix(1e9, 0)
	l := newLocal(client.PerSecond(10).WithBurst(40), 0.5) // 20, and 5 a second
	for i, tc := range []struct {
		after time.Duration
		cost  uint64
		want  client.Decision
	}{
		{0, 19, client.Decision{Allowed: true, Remaining: 1, ResetAfter: 3800 * time.Millisecond}},
		{0, 2, client.Decision{Remaining: 1, RetryAfter: 200 * time.Millisecond, ResetAfter: 3800 * time.Millisecond}},
		{200 * time.Millisecond, 2, client.Decision{Allowed: true, ResetAfter: 4 * time.Second}},
		{time.Hour, 20, client.Decision{Allowed: true, ResetAfter: 4 * time.Second}},
		{-time.Hour, 1, client.Decision{RetryAfter: 200 * time.Millisecond, ResetAfter: 4 * time.Second}},
	} {
		now = now.Add(tc.after)
		got := l.check(now, "k", tc.cost)
		if tc.want.Capacity = 20; got != tc.want {
			t.Errorf("%d: %+v, want %+v", i, got, tc.want)
		}
	}
	for i := range 3 * maxLocalKeys {
		l.check(now, fmt.Sprint(i), 1)
	}
	if len(l.keys) != maxLocalKeys {
		t.Errorf("%d keys", len(l.keys))
	}
	if d := newLocal(client.PerHour(3), 0.01).check(now, "k", 1); !d.Allowed || d.Capacity != 1 {
		t.Errorf("a small share: %+v", d)
	}
	if d := newLocal(client.Per(1, math.MaxInt64), 0.001).check(now, "k", 2); d.Allowed || d.RetryAfter <= 0 {
		t.Errorf("a slow limit: %+v", d)
	}
}

func TestFields(t *testing.T) {
	for _, tc := range []struct {
		what          string
		name          string
		rate          client.Rate
		d             client.Decision
		policy, field string
	}{
		{"bucket", "api", client.PerMinute(20), client.Decision{Allowed: true, Capacity: 20, Remaining: 15, ResetAfter: 14 * time.Second},
			`"api";q=20;w=60`, `"api";r=15;t=2`},
		{"full", "api", client.PerMinute(20), client.Decision{Allowed: true, Capacity: 20, Remaining: 20},
			`"api";q=20;w=60`, `"api";r=20`},
		{"refused", "api", client.PerMinute(20), client.Decision{Capacity: 20, RetryAfter: 2100 * time.Millisecond, ResetAfter: 59 * time.Second},
			`"api";q=20;w=60`, `"api";r=0;t=3`},
		{"burst", "api", client.PerSecond(100).WithBurst(500), client.Decision{Allowed: true, Capacity: 500, Remaining: 499, ResetAfter: time.Millisecond},
			`"api";q=100;w=1;keystead-burst=500`, `"api";r=499;t=1`},
		{"window", "day", client.PerDay(1000).Windowed(), client.Decision{Allowed: true, Capacity: 1000, Remaining: 1, ResetAfter: time.Hour},
			`"day";q=1000;w=86400`, `"day";r=1;t=3600`},
		{"sliding", "day", client.PerDay(1000).Sliding(), client.Decision{Allowed: true, Capacity: 1000, Remaining: 1, ResetAfter: time.Hour},
			`"day";q=1000;w=86400`, `"day";r=1`},
		{"no whole seconds", "x", client.Per(5, 1500*time.Millisecond), client.Decision{Allowed: true, Capacity: 5, Remaining: 5},
			`"x";q=5`, `"x";r=5`},
		{"large", "x", client.PerSecond(math.MaxUint64), client.Decision{Allowed: true, Capacity: math.MaxUint64, Remaining: math.MaxUint64},
			`"x";q=999999999999999;w=1`, `"x";r=999999999999999`},
		{"a name that needs care", "a\"b\\c\r\né", client.PerSecond(1), client.Decision{Allowed: true, Capacity: 1, Remaining: 1},
			`"a\"b\\c";q=1;w=1`, `"a\"b\\c";r=1`},
	} {
		l, err := New((*client.Client)(nil).Limit(tc.name, tc.rate), Config{})
		if err != nil {
			t.Fatal(err)
		}
		if got := l.limitField(&tc.d); l.policy != tc.policy || got != tc.field {
			t.Errorf("%s: %s and %s, want %s and %s", tc.what, l.policy, got, tc.policy, tc.field)
		}
	}
}

func TestNew(t *testing.T) {
	limit := (*client.Client)(nil).Limit("api", client.PerMinute(20))
	for what, new := range map[string]func() (*Limiter, error){
		"no rate": func() (*Limiter, error) { return New(client.Limit{}, Config{}) },
		"it waits": func() (*Limiter, error) {
			return New((*client.Client)(nil).Limit("api", client.PerMinute(20).Spaced()), Config{})
		},
		"timeout":      func() (*Limiter, error) { return New(limit, Config{Timeout: -1}) },
		"on failure":   func() (*Limiter, error) { return New(limit, Config{OnFailure: 7}) },
		"share":        func() (*Limiter, error) { return New(limit, Config{LocalShare: 1.5}) },
		"no share":     func() (*Limiter, error) { return New(limit, Config{LocalShare: math.NaN()}) },
		"fewer than 0": func() (*Limiter, error) { return New(limit, Config{LocalShare: -1}) },
	} {
		if _, err := new(); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}
