package clock

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestSystemNeverGoesBack(t *testing.T) {
	c := System()
	last := c.Now()
	for range 10_000 {
		now := c.Now()
		if now < last {
			t.Fatalf("went from %d back to %d", last, now)
		}
		last = now
	}
}

func TestSystemKeepsPaceWithTheRuntime(t *testing.T) {
	c := System()
	start, from := time.Now(), c.Now()
	for time.Since(start) < 20*time.Millisecond {
		c.Now()
	}
	took, counted := time.Since(start), time.Duration(c.Now()-from)
	if counted < took-time.Millisecond {
		t.Errorf("counted %v while %v passed", counted, took)
	}
}

func TestProcessFollowsTheBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewProcess()
		time.Sleep(time.Hour)
		if got := c.Now(); got != int64(time.Hour) {
			t.Errorf("after an hour it shows %v", time.Duration(got))
		}
	})
}

func BenchmarkSystem(b *testing.B) {
	c := System()
	for b.Loop() {
		c.Now()
	}
}
