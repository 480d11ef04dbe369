package epoch

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	autopilot "github.com/hashicorp/raft-autopilot"

	"github.com/keystead/keystead/ring/epoch/table"
)

// TestLeaderAdoptsLevel: when nothing has changed for a while, the leader commits
// the level that all members know, and all nodes learn of it.
func TestLeaderAdoptsLevel(t *testing.T) {
	t.Parallel()
	groups := form(t, newPool(), 2, nil)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, g := range groups {
		for tab := g.Table(); !tab.Uses(table.Level); {
			next, err := g.Await(ctx, tab.Epoch)
			if err != nil {
				t.Fatalf("level %d of %d: %v", tab.Level, table.Level, err)
			}
			tab = next
		}
	}
}

// TestMadeWithALevel: a cluster is made at the level that all nodes know of which gossip
// tells, and agrees on how long ids are kept. If one of them is of before levels were told,
// it adopts that later, and what the leader was told is what holds.
func TestMadeWithALevel(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		other Peer
		old   bool
	}{
		"alone":               {},
		"a new one":           {other: Peer{Node: "n2", Alive: true, Level: table.Level}},
		"a later one":         {other: Peer{Node: "n2", Alive: true, Level: table.Level + 1}},
		"an old one":          {other: Peer{Node: "n2", Alive: true}, old: true},
		"an old one, as late": {other: Peer{Node: "n2", Alive: true, Level: table.WindowLevel - 1}, old: true},
		"one that is gone":    {other: Peer{Node: "n2"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPool()
			if tc.other.Node != "" {
				p.set(tc.other)
			}
			g := join(t, p, "n1", func(c *Config) {
				peers := c.Peers
				c.IDWindow = time.Hour
				c.Peers = func() []Peer { return slices.DeleteFunc(peers(), func(q Peer) bool { return q.Node == c.Node }) }
			})
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			tab := g.Table()
			for tab.Cluster == "" {
				next, err := g.Await(ctx, tab.Epoch)
				if err != nil {
					t.Fatal(err)
				}
				tab = next
			}
			if tab.Uses(2) == tc.old || (tab.IDWindow == int64(time.Hour)) == tc.old {
				t.Errorf("made at level %d, with ids for %s", tab.Level, time.Duration(tab.IDWindow))
			}
			for !tab.Uses(table.Level) {
				next, err := g.Await(ctx, tab.Epoch)
				if err != nil {
					t.Fatal(err)
				}
				tab = next
			}
			if tab.IDWindow != int64(time.Hour) {
				t.Errorf("ids are kept for %s", time.Duration(tab.IDWindow))
			}
		})
	}
}

// TestOldNeverVotes: a server whose program cannot read the log gets it, says so and ends, each
// time that it is started. It does not vote, or the cluster would stop with it.
func TestOldNeverVotes(t *testing.T) {
	t.Parallel()
	p := newPool()
	g := join(t, p, "n1", func(c *Config) {
		c.Peers = func() []Peer { return slices.DeleteFunc(p.list(), func(q Peer) bool { return q.Node == c.Node }) }
	})
	tab := until(t, g, "a cluster", func(t *table.Table) bool { return t.Cluster != "" })
	if !tab.Uses(table.WindowLevel) {
		t.Fatalf("made at level %d", tab.Level)
	}
	for node, level := range map[string]uint32{"n2": 0, "n3": table.Level} {
		p.set(Peer{Node: node, RaftID: node + "/1", RaftAddr: "127.0.0.1:1", Level: level, Alive: true})
		want := autopilot.NodeAlive
		if level == 0 {
			want = autopilot.NodeFailed
		}
		if got := g.pilot.KnownServers()[raft.ServerID(node+"/1")]; got == nil || got.NodeStatus != want {
			t.Errorf("%s, of level %d: %+v, want %s", node, level, got, want)
		}
	}
}
