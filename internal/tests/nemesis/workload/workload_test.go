package workload

import (
	"testing"
	"time"
)

func TestPauses(t *testing.T) {
	r := &Record{Until: 100, Served: map[string][]Span{
		"a": {{0, 5}, {10, 12}, {50, 60}, {90, 95}},
		"b": nil,
	}}
	pause := func(from, until int64) Pause { return r.Pauses(from, until)[0] }
	if p := pause(0, 100); p != (Pause{Key: "b", From: 0, For: 100}) {
		t.Errorf("%+v", p)
	}
	delete(r.Served, "b")
	for _, tc := range []struct {
		from, until int64
		want        Pause
	}{
		{0, 100, Pause{Key: "a", From: 12, For: 48}},
		{0, 30, Pause{Key: "a", From: 12, For: 18}},
		{55, 100, Pause{Key: "a", From: 55, For: 40}}, // what began before does not count
		{70, 80, Pause{Key: "a", From: 70, For: 10}},
	} {
		if p := pause(tc.from, tc.until); p != tc.want {
			t.Errorf("%d to %d: %+v", tc.from, tc.until, p)
		}
	}
	for from, want := range map[int64]time.Duration{0: 5, 13: 47, 60: 0, 96: 4} {
		if got := r.After(from)["a"]; got != want {
			t.Errorf("after %d: %d", from, got)
		}
	}
}

func TestSettings(t *testing.T) {
	for _, cfg := range []Config{{Clients: 0, Keys: 1}, {Clients: MaxClients + 1, Keys: 1}, {Clients: 1}, {Clients: 1, Keys: MaxKeys + 1}} {
		if w, err := Start(cfg); err == nil {
			w.Stop()
			t.Errorf("%+v is taken", cfg)
		}
	}
}
