package epoch

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/keystead/keystead/ring/epoch/table"
)

func TestForms(t *testing.T) {
	t.Parallel()
	began := WallEpoch(time.Now())
	groups := form(t, newPool(), 3, nil)
	for _, g := range groups {
		tab := g.Table()
		if err := tab.Check(); err != nil {
			t.Error(err)
		}
		if tab.Epoch < began || tab.Cluster != "test" || tab.UID == "" {
			t.Errorf("epoch %d of cluster %q, %q", tab.Epoch, tab.Cluster, tab.UID)
		}
		eventually(t, "a lease", func() bool { return g.LeaseLeft() > 0 })
	}
	// Each position has one that acts for it.
	for h := uint64(1); h < 1<<63; h <<= 3 {
		eventually(t, "one owner", func() bool {
			n := 0
			for _, g := range groups {
				if acts(g, h) {
					n++
				}
			}
			return n == 1
		})
	}
}

// TestMemberKilled: its rows go to the survivors when its lease is over, and
// theirs stay as they are.
func TestMemberKilled(t *testing.T) {
	t.Parallel()
	p := newPool()
	groups := form(t, p, 3, nil)
	before := until(t, groups[0], "all", stableWith(3))
	dead, lease := groups[2].Self(), groups[2].Rule().Until()
	groups[2].Kill()
	p.dead("n3")
	after := until(t, groups[0], "removed", without(dead))
	if now := groups[0].cfg.Clock.Now(); now < lease {
		t.Errorf("removed with %s of its lease left", time.Duration(lease-now))
	}
	for i, r := range before.Rows {
		switch now := after.Rows[i]; {
		case r.Owner != dead && now != r:
			t.Fatalf("row %d was %+v and is %+v", i, r, now)
		case r.Owner == dead && (now.Owner.None() || now.Owner == dead || now.Lost != after.Epoch):
			t.Fatalf("row %d of the dead is %+v", i, now)
		}
	}
	for _, g := range groups[:2] { // one of them leads
		c := &table.EndGrace{Owner: g.Self()}
		for i, r := range after.Rows {
			if lost := before.Rows[i].Owner == dead; r.Grace != lost {
				t.Fatalf("row %d: lost %v, in grace %v", i, lost, r.Grace)
			} else if lost && r.Owner == c.Owner {
				c.Rows = append(c.Rows, table.Loss{End: r.End, Lost: r.Lost})
			}
		}
		if _, err := g.Propose(t.Context(), table.Command{EndGrace: c}); err != nil {
			t.Fatal(err)
		}
	}
	until(t, groups[1], "tidy", func(t *table.Table) bool { return len(t.Rows) == 512 })
}

// TestLeaderKilled: another leads, removes it and goes on granting.
func TestLeaderKilled(t *testing.T) {
	t.Parallel()
	p := newPool()
	groups := form(t, p, 3, nil)
	voters(t, 3, groups...)
	dead, lease := groups[0].Self(), groups[0].Rule().Until()
	groups[0].Kill()
	p.dead("n1")
	after := until(t, groups[1], "removed", without(dead))
	if now := groups[1].cfg.Clock.Now(); now < lease {
		t.Errorf("removed with %s of its lease left", time.Duration(lease-now))
	}
	if len(after.Members) != 2 {
		t.Errorf("the survivors were removed too: %+v", after.Members)
	}
	for _, g := range groups[1:] {
		eventually(t, "a lease", func() bool { return g.LeaseLeft() > 0 && g.Leader() != "n1" && g.Leader() != "" })
	}
}

// TestStopIsQuick: nobody waits for the lease of one that gave it up, leader or
// not.
func TestStopIsQuick(t *testing.T) {
	t.Parallel()
	const ttl = 30 * time.Second
	groups := form(t, newPool(), 3, func(c *Config) { c.TTL = ttl })
	voters(t, 3, groups...)
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), ttl)
	defer cancel()
	gone := groups[0].Self()
	groups[0].Stop(ctx)
	until(t, groups[1], "the leader is gone", without(gone))
	eventually(t, "another leader", func() bool { return groups[1].Leader() != "" && groups[1].Leader() != "n1" })
	gone = groups[2].Self()
	groups[2].Retire(ctx)
	if tab := groups[2].Table(); tab.Holds(gone) || groups[2].LeaseLeft() != 0 {
		t.Errorf("retired, %v is a member: %v, lease %s", gone, tab.Holds(gone), groups[2].LeaseLeft())
	}
	until(t, groups[1], "the other is gone", without(gone))
	if took := time.Since(began); took > ttl/3 {
		t.Errorf("it took %s", took)
	}
}

// TestProposals: a follower brings commands before the leader.
func TestProposals(t *testing.T) {
	t.Parallel()
	groups := form(t, newPool(), 2, nil)
	for _, g := range groups {
		was := g.Table().Epoch
		raise := table.Command{Raise: &table.Raise{Above: was}}
		got, err := g.Propose(t.Context(), raise)
		if err != nil || got != was+1 {
			t.Errorf("%v: epoch %d after %d, %v", g.Self(), got, was, err)
		}
		for _, g := range groups {
			until(t, g, "raised", func(t *table.Table) bool { return t.Epoch == was+1 })
		}
		if got, err := g.Propose(t.Context(), raise); !errors.As(err, new(*table.Refused)) || got != was+1 {
			t.Errorf("%v: once more: epoch %d, %v", g.Self(), got, err)
		}
	}
	// What only the leader may propose it does not take from others.
	_, err := groups[1].Propose(t.Context(), table.Command{Remove: &table.Remove{Members: []table.Holder{groups[0].Self()}}})
	if err == nil || !groups[1].Table().Holds(groups[0].Self()) {
		t.Errorf("a follower removed the leader: %v", err)
	}
}

// TestNoLeader: one that belongs to no cluster waits, and makes none.
func TestNoLeader(t *testing.T) {
	t.Parallel()
	g := join(t, newPool(), "n2", nil)
	if _, err := g.Propose(t.Context(), table.Command{Compact: &table.Compact{}}); !errors.Is(err, table.ErrNotProposed) {
		t.Errorf("proposed to nobody: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*election)
	defer cancel()
	if tab, err := g.Await(ctx, 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it has a table: %+v, %v", tab, err)
	}
	if g.Leader() != "" || g.LeaseLeft() != 0 {
		t.Errorf("leader %q, lease %s", g.Leader(), g.LeaseLeft())
	}
}

// TestSixNodes: five vote, and never an even number.
func TestSixNodes(t *testing.T) {
	t.Parallel()
	groups := form(t, newPool(), 6, func(c *Config) { c.TTL = 3 * time.Second })
	eventually(t, "five voters", func() bool {
		v, n := groups[0].Servers()
		return len(v) == 5 && len(n) == 1
	})
	seen := until(t, groups[5], "all", stableWith(6))
	var nodes []string
	for _, m := range seen.Members {
		nodes = append(nodes, m.Node)
	}
	if !slices.Equal(nodes, []string{"n1", "n2", "n3", "n4", "n5", "n6"}) || len(seen.Rows) != 6*256 {
		t.Errorf("%v, %d rows", nodes, len(seen.Rows))
	}
}

// TestUnknownCommandStops: a node that does not know what the log says does not
// guess, and does not act any more.
func TestUnknownCommandStops(t *testing.T) {
	t.Parallel()
	g := form(t, newPool(), 1, func(c *Config) { c.TTL = 300 * time.Millisecond })[0]
	eventually(t, "a lease", func() bool { return g.LeaseLeft() > 0 })
	was := g.Table()
	if err := g.raft.Apply([]byte(`{"v":1,"id":"x","split":{"key":"k"}}`), time.Second).Error(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-g.Failed():
		if !errors.Is(err, table.ErrUnknown) {
			t.Errorf("failed with %v", err)
		}
	case <-time.After(patience):
		t.Fatal("it goes on")
	}
	_, _ = g.Propose(t.Context(), table.Command{Raise: &table.Raise{Above: was.Epoch}})
	if g.Table() != was {
		t.Errorf("the table went on to epoch %d", g.Table().Epoch)
	}
	if _, err := g.fsm.Snapshot(); err == nil {
		t.Error("it writes down a table that is not whole")
	}
	eventually(t, "no lease", func() bool { return g.LeaseLeft() == 0 })
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for over := time.After(2 * g.cfg.TTL); ; {
		if g.LeaseLeft() > 0 || acts(g, 1) {
			t.Fatal("it acts again")
		}
		select {
		case <-tick.C:
			continue
		case <-over:
		}
		break
	}
}

// TestAwait ends with its context.
func TestAwait(t *testing.T) {
	t.Parallel()
	g := form(t, newPool(), 1, nil)[0]
	now := g.Table()
	if tab, err := g.Await(t.Context(), now.Epoch-1); err != nil || tab.Epoch < now.Epoch {
		t.Errorf("%+v, %v", tab, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := g.Await(ctx, 1<<62); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	later := make(chan uint64, 1)
	go func() {
		tab, _ := g.Await(t.Context(), now.Epoch)
		later <- tab.Epoch
	}()
	if _, err := g.Propose(t.Context(), table.Command{Raise: &table.Raise{Above: now.Epoch}}); err != nil {
		t.Fatal(err)
	}
	if got := <-later; got != now.Epoch+1 {
		t.Errorf("woken at epoch %d", got)
	}
}
