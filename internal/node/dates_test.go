package node

import (
	"testing"
	"time"
)

// TestOwnTimeOfDay: a node alone goes by its wall clock, wherever that is set.
func TestOwnTimeOfDay(t *testing.T) {
	var now int64
	set := time.Date(2026, 11, 23, 10, 0, 0, 0, time.UTC)
	d := &dates{clock: func() int64 { return now }, wall: func() time.Time { return set.Add(time.Duration(now)) }}
	shows := func(want string) {
		t.Helper()
		wall, ok := d.Wall(now)
		if got := time.Unix(0, wall).UTC().Format(time.RFC3339); !ok || got != want {
			t.Errorf("%s, %v; want %s", got, ok, want)
		}
	}
	shows("2026-11-23T10:00:00Z")
	now += 90_000_000
	shows("2026-11-23T10:00:00Z")
	set = set.AddDate(3, 0, 0)
	now += looksAfter
	shows("2029-11-23T10:00:00Z")
	set = set.AddDate(-5, 0, 0)
	now += int64(time.Hour)
	shows("2024-11-23T11:00:00Z")
	if _, ok := (&standalone{}).Wall(now); ok {
		t.Error("a rule without a clock knows the time")
	}
}
