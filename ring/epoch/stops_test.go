package epoch

import (
	"testing"
	"time"

	"github.com/keystead/keystead/ring/epoch/table"
)

// markStopping marks a node as one that is about to stop.
func markStopping(t *testing.T, by *Group, h table.Holder) *table.Table {
	t.Helper()
	eventually(t, h.Node+" stops", func() bool {
		_, _ = by.Propose(t.Context(), table.Command{Drain: &table.Drain{Member: h, Stop: true}})
		m, ok := by.Table().Member(h.Node)
		return ok && m.Stopping
	})
	return by.Table()
}

// TestStopsAreCollected: nothing is given away before it is clear that somebody stays.
func TestStopsAreCollected(t *testing.T) {
	t.Parallel()
	const settle = 4 * time.Second
	groups := form(t, newPool(), 3, func(c *Config) { c.Settle = settle })
	<-time.After(settle + settle/8) // nothing is waited for any more but stops
	for i, g := range groups {
		if i == 1 { // time to begin something
			<-time.After(settle / 8)
		}
		if tab := markStopping(t, groups[0], g.Self()); tab.Transition != nil {
			t.Fatalf("%s stops, and a transition runs: %+v", g.cfg.Node, tab.Transition)
		}
	}
	for _, g := range groups {
		until(t, g, "all keep what they have", func(tab *table.Table) bool {
			return tab.Stopped(groups[0].Self()) && tab.Stopped(groups[1].Self()) && tab.Stopped(groups[2].Self())
		})
	}
}

// TestAllStopAreWaitedFor: one that stops late, and leads, does not take what the
// others keep; they come back with it.
func TestAllStopAreWaitedFor(t *testing.T) {
	t.Parallel()
	p := newPool()
	groups := form(t, p, 3, nil)
	voters(t, 3, groups...)
	leader, others := leading(t, groups...)
	for _, g := range groups {
		markStopping(t, leader, g.Self())
	}
	for _, g := range groups {
		until(t, g, "all keep what they have", func(tab *table.Table) bool { return tab.Stopped(leader.Self()) && tab.Stopped(others[0].Self()) })
	}
	first, second := others[0], others[1]
	first.Silence() // it goes on voting
	second.Silence()
	second.Stop(t.Context())
	<-time.After(3 * leader.cfg.TTL)
	if tab := leader.Table(); !tab.Holds(first.Self()) || !tab.Holds(second.Self()) || lost(tab) > 0 {
		t.Fatalf("they were not waited for: %d rows lost, members %+v", lost(tab), tab.Members)
	}
	back := again(t, p, second, true, nil)
	until(t, leader, "it is back", func(tab *table.Table) bool { return tab.Holds(back.Self()) })
	if n := lost(leader.Table()); n > 0 {
		t.Errorf("%d rows were lost", n)
	}
}
