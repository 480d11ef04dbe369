package epoch

import (
	"testing"
	"time"

	"github.com/keystead/keystead/ring/epoch/table"
)

// strip has the standby of a node's rows taken out, as the node itself would, so
// that the table says something of them that it has to apply.
func strip(t *testing.T, by *Group, of table.Holder) {
	t.Helper()
	eventually(t, "a change of its rows", func() bool {
		tab := by.Table()
		ends := []uint64{}
		for _, r := range tab.Rows {
			if r.Owner == of {
				ends = append(ends, r.End)
			}
		}
		c := table.Command{Unsync: &table.Unsync{Owner: of, Standby: by.Self(), Ends: ends}}
		_, err := by.Propose(t.Context(), c)
		return err == nil
	})
}

// TestLogStandsStill: a node that does not apply what the table says of its rows is
// removed, although it renews its lease.
func TestLogStandsStill(t *testing.T) {
	t.Parallel()
	groups, disks := onPlatters(t, 3)
	leader, others := leading(t, groups...)
	still := others[0]
	was := still.Self()
	disks[still.cfg.Node].hang()
	strip(t, leader, was)
	until(t, leader, "removed", without(was))
	if left := still.LeaseLeft(); left > 0 {
		t.Errorf("it was removed with %s of its lease left", left)
	}
	disks[still.cfg.Node].thaw()
	eventually(t, "it is back", func() bool { return still.Self() != was && still.LeaseLeft() > 0 })
}

// TestLogStandsStillElsewhere: a node that misses what does not concern it keeps its
// lease.
func TestLogStandsStillElsewhere(t *testing.T) {
	t.Parallel()
	groups, disks := onPlatters(t, 3, steady)
	leader, others := leading(t, groups...)
	still, other := others[0], others[1]
	disks[still.cfg.Node].hang()
	strip(t, leader, other.Self())
	stays(t, 3*lagTTLs*leader.cfg.TTL, leader, still)
}

// stays fails if one of the groups has no lease within a time, as long as the leader
// leads: a node whose disk hangs cannot follow another one.
func stays(t *testing.T, within time.Duration, leader *Group, groups ...*Group) {
	t.Helper()
	term := leader.leads()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for over := time.After(within); ; {
		select {
		case <-tick.C:
			for _, g := range groups {
				if g.LeaseLeft() == 0 && leader.leads() == term {
					t.Fatalf("%s has no lease", g.cfg.Node)
				}
			}
		case <-over:
			return
		}
	}
}
