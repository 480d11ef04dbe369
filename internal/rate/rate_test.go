package rate

import (
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]Rate{
		"20/1m": {20, time.Minute}, "100/s": {100, time.Second}, "5_000/24h": {5000, 24 * time.Hour},
		"1000/7d": {1000, 7 * day}, " 3/250ms ": {3, 250 * time.Millisecond}, "1/day": {1, day}, "9/1h30m": {9, 90 * time.Minute},
	} {
		if got, err := Parse(text); err != nil || got != want {
			t.Errorf("%q is %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "20", "20/", "/1m", "0/1m", "-1/1m", "20/0s", "20/-1m", "20/0d", "x/1m", "1/fortnight"} {
		if got, err := Parse(text); err == nil || !strings.Contains(err.Error(), "COUNT/PERIOD") {
			t.Errorf("%q is %v, %v", text, got, err)
		}
	}
}

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"10s": 10 * time.Second, "1.5s": 1500 * time.Millisecond, "0s": 0, "0": 0, "0d": 0, "7d": 7 * day, "2h45m": 165 * time.Minute,
	} {
		if got, err := ParseDuration(text); err != nil || got != want {
			t.Errorf("%q is %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "10", "1 s", "d", "1.5d", "106752d", "99999999999999999999d", "ten"} {
		if got, err := ParseDuration(text); err == nil || !strings.Contains(err.Error(), "write a duration as") {
			t.Errorf("%q is %v, %v", text, got, err)
		}
	}
}
