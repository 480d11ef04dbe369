package console

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The ring of samples forgets the oldest, and its rates are those of the time between two.
func TestSamples(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(Config{})
		ctx, cancel := context.WithCancel(t.Context())
		upper, n := []float64{0.001, 0.002, 0.01}, uint64(0)
		c.cfg.Totals = func() Totals {
			n++
			calls := []uint64{100 * n, 0, 0, 0}
			if n > 70 { // the last intervals are slower
				calls = []uint64{7000, 100 * (n - 70), 0, 0}
			}
			return Totals{Operations: 500 * n, Upper: upper, Calls: calls}
		}
		go c.Run(ctx)
		time.Sleep(sampleEvery / 2)
		if points, last := c.samples.history(); len(points) != 0 || last != (point{}) {
			t.Error(points, last)
		}
		time.Sleep(100 * sampleEvery)
		points, last := c.samples.history()
		if len(points) != maxSamples-1 || c.samples.n != maxSamples {
			t.Errorf("%d points", len(points))
		}
		for i, p := range points {
			want := point{rate: 100, called: true, p99: 990 * time.Microsecond}
			if i >= len(points)-31 {
				want.p99 = 1990 * time.Microsecond
			}
			if p != want {
				t.Fatalf("point %d: %+v, want %+v", i, p, want)
			}
		}
		if last.rate != 100 || last.p99 != 1990*time.Microsecond {
			t.Error(last)
		}
		cancel()
		synctest.Wait()
	})
}

func TestQuantile(t *testing.T) {
	upper := []float64{0.001, 0.01, 0.1}
	for _, tc := range []struct {
		calls []uint64
		want  time.Duration
		ok    bool
	}{
		{[]uint64{0, 0, 0, 0}, 0, false},
		{[]uint64{100, 0, 0, 0}, 990 * time.Microsecond, true},
		{[]uint64{98, 2, 0, 0}, 5500 * time.Microsecond, true},
		{[]uint64{0, 0, 0, 5}, 100 * time.Millisecond, true}, // beyond all bounds
		{[]uint64{0, 0, 100, 0}, 99100 * time.Microsecond, true},
	} {
		got, ok := quantile(0.99, upper, tc.calls)
		if ok != tc.ok || (got-tc.want).Abs() > time.Microsecond {
			t.Errorf("%v: %v %v, want %v", tc.calls, got, ok, tc.want)
		}
	}
}

// A line breaks where nothing is known.
func TestChart(t *testing.T) {
	rate, p99 := charts([]point{{rate: 130}, {rate: 20, called: true, p99: time.Millisecond}, {rate: 10}, {called: true, p99: 3 * time.Millisecond}}, point{rate: 40})
	if rate.Top != "200" || rate.Value != "40" || strings.Count(rate.Line, "M") != 1 || strings.Count(rate.Area, "Z") != 1 || !strings.Contains(rate.Line, "L600.0 120.0") {
		t.Errorf("%+v", rate)
	}
	if p99.Top != "5ms" || p99.Value != none || strings.Count(p99.Line, "M") != 2 || strings.Count(p99.Area, "Z") != 2 {
		t.Errorf("%+v", p99)
	}
	if rate, p99 := charts(nil, point{}); rate.Line != "" || p99.Value != none {
		t.Error(rate, p99)
	}
	for x, want := range map[float64]float64{1: 1, 1.5: 2, 20: 20, 21: 50, 0.00005: 0.00005, 600: 1000} {
		if got := roundUp(x); got/want < 0.999 || got/want > 1.001 {
			t.Errorf("%v: %v, want %v", x, got, want)
		}
	}
}
