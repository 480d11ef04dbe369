package epoch

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/keystead/keystead/internal/clock"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/lease"
)

// slewing is a clock that can be slewed.
type slewing struct {
	clock.Clock
	ahead atomic.Int64
}

func (c *slewing) Now() int64    { return c.Clock.Now() + c.ahead.Load() }
func (c *slewing) Steady() int64 { return c.Clock.Now() }

// TestTrap45LeaseOfASlewedClock: the rule is never told to act for longer than the lease
// lasts, should its clock run as slow as it can from now on; and how long that is follows
// the steady clock, whatever the other one has been slewed by.
func TestTrap45LeaseOfASlewedClock(t *testing.T) {
	t.Parallel()
	c := &slewing{Clock: clock.NewProcess()}
	g := form(t, newPool(), 1, func(cfg *Config) { cfg.Clock = c })[0]
	eventually(t, "a lease", func() bool { return g.LeaseLeft() > 0 })
	check := func(what string) {
		t.Helper()
		done := make(chan struct{})
		if err := g.post(t.Context(), func(k *keeper) {
			defer close(done)
			k.extend()
			left, acts := k.holding.Until()-k.now, k.g.rule.Until()-k.boot
			if left <= 0 {
				t.Errorf("%s: there is no lease", what)
			} else if slow := float64(acts) / (1 - clock.MaxSlew); acts <= 0 || slow > float64(left)*1.001 {
				t.Errorf("%s: %v of the lease are left, the rule acts for %v", what, time.Duration(left), time.Duration(acts))
			}
		}); err != nil {
			t.Fatal(err)
		}
		<-done
	}
	check("as it is")
	c.ahead.Add(-int64(time.Hour)) // much at once: no tick sees anything in between
	eventually(t, "a lease again", func() bool { return g.LeaseLeft() > 0 })
	check("slow")
	c.ahead.Add(int64(2 * time.Hour))
	eventually(t, "a lease again", func() bool { return g.LeaseLeft() > 0 })
	check("fast")
}

// TestLeaseIsDroppedWhenTheLeadersClockGains: the answer that shows it counts for nothing,
// nor does what was granted before. Then the lease is asked for again.
func TestLeaseIsDroppedWhenTheLeadersClockGains(t *testing.T) {
	t.Parallel()
	g := form(t, newPool(), 1, nil)[0]
	eventually(t, "a lease", func() bool { return g.LeaseLeft() > 0 })
	done := make(chan struct{})
	if err := g.post(t.Context(), func(k *keeper) {
		defer close(done)
		term, ttl := k.grants.Term(), int64(k.cfg.TTL)
		answer := func(leader int64) {
			s := k.holding.Send(k.now)
			k.sent++
			k.renewed(g.Self(), s, k.boot, &peerv1.RenewResponse{Term: term, Grant: 1 << 40, TtlNs: ttl, ReceivedNs: leader}, nil)
		}
		k.pace = lease.Pace{}
		answer(5 * ttl)
		if k.holding.Until() < k.now {
			t.Error("there is no lease")
		}
		k.now += int64(k.cfg.TTL / 10)
		answer(6 * ttl) // a whole TTL later, it says
		if left := g.LeaseLeft(); left > 0 || k.holding.Until() > 0 {
			t.Errorf("there is a lease of %s", left)
		}
		k.pace = lease.Pace{} // that was made up
	}); err != nil {
		t.Fatal(err)
	}
	<-done
	if now, times := g.ClocksDiffer(); now || times != 1 {
		t.Errorf("%v, %d times", now, times)
	}
	eventually(t, "a lease again", func() bool { return g.LeaseLeft() > 0 })
}

// TestNoLeaseAfterAFailure: a node that cannot go on is given no more of a lease that still
// runs, by no tick.
func TestNoLeaseAfterAFailure(t *testing.T) {
	t.Parallel()
	g := form(t, newPool(), 1, nil)[0]
	eventually(t, "a lease", func() bool { return g.LeaseLeft() > 0 })
	done := make(chan struct{})
	if err := g.post(t.Context(), func(k *keeper) {
		defer close(done)
		g.over.Store(true) // what fail does first, beside the keeper
		g.rule.Extend(0)
		k.ticked()
		if left := g.LeaseLeft(); left > 0 {
			t.Errorf("%s of it are left", left)
		}
		g.over.Store(false)
	}); err != nil {
		t.Fatal(err)
	}
	<-done
}
