package epoch

import (
	"testing"
	"time"

	"github.com/keystead/keystead/ring/epoch/table"
)

// overdue returns for how long a member could have been removed, by its leader.
func overdue(t *testing.T, leader *Group, h table.Holder) (d time.Duration) {
	t.Helper()
	got := make(chan int64, 1)
	if err := leader.post(t.Context(), func(k *keeper) { got <- k.grants.Overdue(h, k.now) }); err != nil {
		t.Fatal(err)
	}
	return time.Duration(<-got)
}

// mutable forms a cluster of three, and returns its leader, another node, and what that
// one's connections go through.
func mutable(t *testing.T, ttl time.Duration) (leader, other *Group, lines *network) {
	t.Helper()
	nets := map[string]*network{}
	groups := form(t, newPool(), 3, func(c *Config) {
		nets[c.Node] = newNetwork()
		nets[c.Node].use(c)
		c.TTL = ttl
	})
	voters(t, 3, groups...)
	leader, others := leading(t, groups...)
	return leader, others[0], nets[others[0].cfg.Node]
}

// TestMuteIsWaitedFor: a node that alone has the state of its rows, and is cut off for a
// moment longer than its lease, comes back with all of it.
func TestMuteIsWaitedFor(t *testing.T) {
	t.Parallel()
	for tries := 0; tries < 5 && !mutedOnce(t); tries++ {
		t.Log("another leader came")
	}
}

// mutedOnce reports whether the leader stayed: on a busy machine another one may come,
// which counts leases from its own election.
func mutedOnce(t *testing.T) bool {
	leader, mute, lines := mutable(t, 4*time.Second)
	was, term := mute.Self(), leader.leads()
	lines.stall(true, true)
	eventually(t, "its lease is over", func() bool {
		return overdue(t, leader, was) > leader.cfg.TTL/8 || leader.leads() != term || !leader.Table().Holds(was)
	})
	lines.flow()
	eventually(t, "it has a lease again", func() bool { return mute.LeaseLeft() > 0 })
	if leader.leads() != term {
		return false
	}
	if tab := leader.Table(); mute.Self() != was || !tab.Holds(was) || lost(tab) > 0 {
		t.Errorf("it came back as %v, not %v; %d rows are lost", mute.Self(), was, lost(tab))
	}
	return true
}

// TestMuteIsNotWaitedFor: where all rows of a member have standbys, these act as soon
// as its lease is over. So they do when its port is closed.
func TestMuteIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	for _, dead := range []bool{false, true} {
		leader, mute, lines := mutable(t, 4*time.Second)
		was := mute.Self()
		if dead {
			mute.Kill()
		} else {
			protect(t, leader, was)
			lines.stall(true, true)
		}
		latest := time.Duration(0)
		eventually(t, "it is removed", func() bool {
			if leader.Table().Holds(was) {
				latest = max(latest, overdue(t, leader, was))
				return false
			}
			return true
		})
		// A member that is waited for is removed as soon as it is one TTL late, most
		// often before it is seen to be that late here.
		if latest >= leader.cfg.TTL*3/4 {
			t.Errorf("dead %v: it was removed more than %s late", dead, latest)
		}
		lines.flow()
	}
}

// protect has each row of a member get its standby.
func protect(t *testing.T, leader *Group, h table.Holder) {
	t.Helper()
	eventually(t, "its rows have standbys", func() bool {
		tab := leader.Table()
		syncs := map[table.Holder][]table.Stamp{}
		for i, r := range tab.Rows {
			if _, standby := tab.Wants(r.End); r.Owner == h && !r.Synced {
				after, upTo := tab.Segment(i)
				syncs[standby] = append(syncs[standby], table.Stamp{After: after, End: upTo, Since: r.Since})
			}
		}
		for standby, rows := range syncs {
			_, _ = leader.Propose(t.Context(), table.Command{Sync: &table.Sync{WantSince: tab.WantSince, Owner: h, Standby: standby, Rows: rows, Kept: tab.Durable != table.Undurable}})
		}
		return len(syncs) == 0
	})
}
