package heat

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const second = int64(time.Second)

// pollOnce is a look at keys with exact rates beside many that have one operation a second.
func pollOnce(w *Watch[string], now int64, rates map[string]float64) string {
	load := Load{Rate: 10_000, Keys: 10_000 + int64(len(rates))}
	var seen []Seen[string]
	for k, r := range rates {
		load.Rate += r
		seen = append(seen, Seen[string]{k, r, r})
	}
	var b strings.Builder
	for _, c := range w.Update(now, load, seen) {
		fmt.Fprintf(&b, "%s:%v ", c.Key, c.Hot)
	}
	return strings.TrimSpace(b.String())
}

func TestWatch(t *testing.T) {
	w, err := NewWatch[string](Policy{})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		at   int64 // seconds
		rate float64
		says string
		why  string
	}{
		{0, 999, "", "below the floor"},
		{1, 1000, "a:true", "at the floor"},
		{5, 500, "", "half of it is enough to stay"},
		{8, 499, "", "below half, not for long"},
		{14, 499, "", "it stays for 10 s after it was last at half"},
		{15, 499, "a:false", "for 10 s below half"},
		{16, 700, "", "half is not enough to get hot"},
		{17, 90_000, "a:true", ""},
		{18, 0, "", "it was hot for a second only"},
		{26, 0, "", ""},
		{27, 0, "a:false", ""},
	} {
		if says := pollOnce(w, step.at*second, map[string]float64{"a": step.rate}); says != step.says {
			t.Errorf("at %d s with %g: %q, want %q: %s", step.at, step.rate, says, step.says, step.why)
		}
	}
}

// What is compared is the others: one busy key of an idle node is hot, a hundred that
// are as busy as each other are not.
func TestThreshold(t *testing.T) {
	p := Policy{}.WithDefaults()
	for _, c := range []struct {
		load Load
		rate float64
		want float64
	}{
		{Load{50_000, 1}, 50_000, 1000},
		{Load{50_000, 0}, 50_000, 1000}, // a lock that came and went
		{Load{100 * 5000, 100}, 5000, 50_000},
		{Load{50_000 + 1_000_000, 1_000_001}, 50_000, 1000},
		{Load{50_000 + 99*1000, 100}, 50_000, 10_000},
		{Load{10, 5}, 50_000, 1000}, // looked at a little earlier
	} {
		if got := p.Threshold(c.load, c.rate); got != c.want {
			t.Errorf("%+v, %g: %g, want %g", c.load, c.rate, got, c.want)
		}
	}
}

// Debts of a sketch make nothing hot, and keep nothing from staying so.
func TestDebts(t *testing.T) {
	w, _ := NewWatch[string](Policy{})
	if c := w.Update(0, Load{5000, 2}, []Seen[string]{{"a", 4000, 900}}); len(c) != 0 {
		t.Errorf("%v: it may have 900 only", c)
	}
	if c := w.Update(0, Load{5000, 100_000}, []Seen[string]{{"a", 4000, 1000}}); len(c) != 1 {
		t.Errorf("%v: it surely has 1,000", c)
	}
	w.Update(20*second, Load{5000, 100_000}, []Seen[string]{{"a", 4000, 10}})
	if h := w.Hot(); len(h) != 1 || h[0].Rate != 4000 || h[0].Since != 0 {
		t.Errorf("%+v: it may have 4,000 still", h)
	}
}

func TestRoom(t *testing.T) {
	w, _ := NewWatch[string](Policy{Max: 2})
	if says := pollOnce(w, 0, map[string]float64{"a": 3000, "b": 5000, "c": 4000}); says != "b:true c:true" {
		t.Errorf("%q: the hottest come first", says)
	}
	if n := w.LeftOut(); n != 1 {
		t.Errorf("%d are left out, want 1", n)
	}
	if h := w.Hot(); len(h) != 2 || h[0].Key != "b" || h[1].Key != "c" {
		t.Errorf("%+v: want b before c", h)
	}
}

func TestPolicyRefused(t *testing.T) {
	for says, p := range map[string]Policy{
		"floor 0.5: choose 1 to 1,000,000,000 operations a second": {Floor: 0.5},
		"factor 0.9: choose 1 to":                                  {Factor: 0.9},
		"stay 1ms: choose 1s to 1h0m0s":                            {Stay: 1e6},
		"max -1: choose 1 to 1000":                                 {Max: -1},
	} {
		if _, err := NewWatch[string](p); !errors.Is(err, errPolicy) || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v, want %q", p, err, says)
		}
	}
}

// Whatever is seen, a key that gets hot stays so for Stay at least, changes take turns,
// and what is hot is bounded.
func TestWatchInAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Policy{Max: rapid.IntRange(1, 4).Draw(t, "max"), Stay: 3 * second}
		w, err := NewWatch[string](p)
		if err != nil {
			t.Fatal(err)
		}
		p = p.WithDefaults()
		now, since := int64(0), map[string]int64{}
		for range rapid.IntRange(1, 60).Draw(t, "looks") {
			now += rapid.Int64Range(0, 2*second).Draw(t, "later")
			load := Load{rapid.Float64Range(0, 1e6).Draw(t, "all"), rapid.Int64Range(0, 1000).Draw(t, "keys")}
			var seen []Seen[string]
			for _, k := range []string{"a", "b", "c", "d", "e"} {
				if most := rapid.Float64Range(0, 5000).Draw(t, "most"); rapid.Bool().Draw(t, "shown") {
					seen = append(seen, Seen[string]{k, most, rapid.Float64Range(0, most).Draw(t, "sure")})
				}
			}
			for _, c := range w.Update(now, load, seen) {
				at, hot := since[c.Key]
				switch {
				case c.Hot == hot:
					t.Fatalf("%s was %v, and gets %v", c.Key, hot, c.Hot)
				case c.Hot:
					since[c.Key] = now
				case now-at < p.Stay:
					t.Fatalf("%s was hot for %v only", c.Key, time.Duration(now-at))
				default:
					delete(since, c.Key)
				}
			}
			if hot := w.Hot(); len(hot) != len(since) || len(hot) > p.Max {
				t.Fatalf("%d keys are hot, and %d became so", len(hot), len(since))
			}
		}
	})
}
