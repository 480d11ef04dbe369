package handoff

import (
	"log/slog"
	"testing"
	"time"

	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// TestPace has two copies send by turns, under timers that are late. In no time is
// more sent than the rate allows and some that was behind, and in the long run not
// less.
func TestPace(t *testing.T) {
	const rate, step, late = 1_000_000, 700, int64(3 * time.Millisecond)
	p := pace{rate: rate}
	now, sent := int64(0), int64(0)
	free := [2]int64{} // when each may go on
	for now < int64(10*time.Second) {
		at := 0
		if free[1] < free[0] {
			at = 1
		}
		now = max(now, free[at])
		sent += step
		if wait := p.spend(step, now); wait > 0 {
			if wait < paceStep || wait > paceStep+2*step*time.Microsecond {
				t.Fatalf("a pause of %s", wait)
			}
			free[at] = now + int64(wait) + late
		}
		if most := now/1000 + int64(paceBurst+paceStep)/1000 + 2*step; sent > most {
			t.Fatalf("%d bytes within %s", sent, time.Duration(now))
		}
	}
	if sent < 10*rate*95/100 {
		t.Errorf("%d bytes in 10 s", sent)
	}
	// What was not used for long cannot be had at once.
	if now += int64(time.Hour); p.spend(rate, now) < time.Second-paceBurst-time.Millisecond {
		t.Error("an hour of silence was saved up")
	}
	without := pace{}
	if wait := without.spend(1<<40, 0); wait != 0 {
		t.Errorf("a pause of %s without a limit", wait)
	}
}

// TestRetriesAreForgotten: one that could not be reached is remembered until the next
// try, and not for ever.
func TestRetriesAreForgotten(t *testing.T) {
	self := table.Holder{Node: "n1", Incarnation: 1}
	s := New(Config{Rule: serving.New(self), Now: func() int64 { return 5 }, Log: slog.New(slog.DiscardHandler)})
	defer s.Close()
	for i := range uint64(10) {
		s.plan.retry[table.Holder{Node: "n2", Incarnation: i}] = int64(i)
	}
	s.step()
	if len(s.plan.retry) != 4 {
		t.Errorf("%d are remembered: %v", len(s.plan.retry), s.plan.retry)
	}
}
