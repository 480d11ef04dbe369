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

// TestSteadyKeepsPace: over a moment in which nobody slews by more than a few percent.
func TestSteadyKeepsPace(t *testing.T) {
	c := System()
	steady := SteadyOf(c)
	from, began := steady(), c.Now()
	for c.Now()-began < int64(50*time.Millisecond) {
		last := steady()
		if now := steady(); now < last-int64(time.Millisecond) {
			t.Fatalf("went from %d back to %d", last, now)
		}
	}
	took := c.Now() - began
	if counted := steady() - from; counted < took-took/8-int64(time.Millisecond) {
		t.Errorf("counted %v while %v passed", time.Duration(counted), time.Duration(took))
	}
	p := NewProcess()
	if SteadyOf(p)() > p.Now() {
		t.Error("a clock without a steady reading has its own")
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

func BenchmarkSteady(b *testing.B) {
	steady := SteadyOf(System())
	for b.Loop() {
		steady()
	}
}
