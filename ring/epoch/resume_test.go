package epoch

import (
	"net"
	"testing"
	"time"

	"github.com/keystead/keystead/ring/epoch/table"
)

// stopAll stops processes as if all of a cluster were told to stop at once: each
// keeps its rows for the one that comes after it.
func stopAll(t *testing.T, groups []*Group) {
	t.Helper()
	for _, g := range groups {
		g.Silence()
	}
	for _, g := range groups {
		g.Stop(t.Context())
	}
}

// listenAt has a node listen where the process before it did, as those of machines do. It
// is free, as a rule. (hashicorp/raft 1.8.0 writes the new address of a server while it
// replicates to it, and reads it without the lock for that: the race detector sees it.)
func (c *Config) listenAt(addr string) {
	if l, err := net.Listen("tcp", addr); err == nil {
		_ = c.Listener.Close()
		c.Listener, c.RaftAddr = l, addr
	}
}

// again starts the process that comes after another one, with its log, at its address,
// and with what it held or not.
func again(t *testing.T, p *pool, was *Group, has bool, change func(*Config)) *Group {
	t.Helper()
	g := join(t, p, was.cfg.Node, func(c *Config) {
		if change != nil {
			change(c)
		}
		c.Storage, c.Incarnation = was.cfg.Storage, was.Self().Incarnation+1
		c.listenAt(was.cfg.RaftAddr)
		if has {
			c.Resume = was.Self().Incarnation
		}
	})
	if has {
		g.rule.Load(was.Table().Epoch)
	}
	flips(t, g)
	return g
}

// lost counts the rows whose state was lost.
func lost(t *table.Table) (n int) {
	for _, r := range t.Rows {
		if r.Lost > 0 {
			n++
		}
	}
	return n
}

// TestResume: a cluster of one node, stopped and started, has all that it had, and
// at once: nobody has to wait for a lease to end.
func TestResume(t *testing.T) {
	t.Parallel()
	p := newPool()
	was := form(t, p, 1, func(c *Config) { c.TTL = 20 * time.Second })
	h := was[0].Table().Rows[0].End
	stopAll(t, was)
	g := again(t, p, was[0], true, nil)
	tab := until(t, g, "it is back", func(tab *table.Table) bool { return tab.Holds(g.Self()) })
	if lost(tab) > 0 || len(tab.Members) != 1 || tab.Members[0].Phase != table.Active {
		t.Errorf("%d rows lost; members %+v", lost(tab), tab.Members)
	}
	eventually(t, "it acts", func() bool { return acts(g, h) })
	g.Silence()
	g.Stop(t.Context())
	late := again(t, p, was[0], true, func(c *Config) { c.TTL = 20 * time.Second }) // from a copy of the same file
	until(t, late, "it follows the log", func(tab *table.Table) bool { return tab.Epoch >= g.Table().Epoch })
	if late.Table().Holds(table.Holder{Node: "n1", Incarnation: was[0].Self().Incarnation}) || lost(late.Table()) > 0 {
		t.Error("the state counted twice")
	}
}

// TestResumeOneAfterTheOther: all nodes are stopped, and come back one after the
// other, long after their leases are over. The first ones wait for the last.
func TestResumeOneAfterTheOther(t *testing.T) {
	t.Parallel()
	p := newPool()
	was := form(t, p, 3, nil)
	voters(t, 3, was...)
	stopAll(t, was)
	first := again(t, p, was[0], true, nil)
	again(t, p, was[1], true, nil)
	until(t, first, "two are back", func(tab *table.Table) bool {
		return tab.Holds(table.Holder{Node: "n1", Incarnation: was[0].Self().Incarnation + 1}) && tab.Holds(table.Holder{Node: "n2", Incarnation: was[1].Self().Incarnation + 1})
	})
	waited := time.Now()
	eventually(t, "a while passes", func() bool { return time.Since(waited) > 3*first.cfg.TTL })
	if !first.Table().Holds(was[2].Self()) {
		t.Fatal("the third one was not waited for")
	}
	last := again(t, p, was[2], true, nil)
	tab := until(t, first, "all are back", func(tab *table.Table) bool { return tab.Holds(last.Self()) })
	if lost(tab) > 0 || len(tab.Members) != 3 {
		t.Errorf("%d rows lost; members %+v", lost(tab), tab.Members)
	}
}

// TestResumeNotAll: one that comes back without its state, and who does not come at
// all, has lost it; the first is not waited for any longer.
func TestResumeNotAll(t *testing.T) {
	t.Parallel()
	p := newPool()
	was := form(t, p, 3, nil)
	voters(t, 3, was...)
	stopAll(t, was)
	brief := func(c *Config) { c.ResumeWait = 4 * time.Second }
	first := again(t, p, was[0], true, brief)
	second := again(t, p, was[1], false, brief)
	gone := func(h table.Holder) func(*table.Table) bool {
		// The tables of long ago, which the log brings back one by one, do not name it either.
		return func(tab *table.Table) bool { return tab.Epoch > was[0].Table().Epoch && without(h)(tab) }
	}
	tab := until(t, first, "the second one's state is given up", gone(was[1].Self()))
	if n := lost(tab); n == 0 || n == len(tab.Rows) || !tab.Holds(was[2].Self()) {
		t.Errorf("%d of %d rows lost; members %+v", n, len(tab.Rows), tab.Members)
	}
	until(t, first, "the second one is admitted", func(tab *table.Table) bool { return tab.Holds(second.Self()) })
	until(t, first, "the third one's state is given up", gone(was[2].Self()))
}

// TestResumeTooLate: others have taken over. The state of the one that comes back
// counts for nothing, and it joins like any other.
func TestResumeTooLate(t *testing.T) {
	t.Parallel()
	p := newPool()
	was := form(t, p, 3, nil)
	voters(t, 3, was...)
	old := was[2].Self()
	was[2].Silence()
	was[2].Stop(t.Context())
	until(t, was[0], "it is removed", without(old))
	g := again(t, p, was[2], true, nil)
	until(t, was[0], "it joins", func(tab *table.Table) bool {
		m, is := tab.Member(g.Self().Node)
		return is && m.Holder() == g.Self() && m.Phase == table.Active
	})
}

// adopted has the cluster commit the newest level at once.
func adopted(t *testing.T, groups ...*Group) {
	t.Helper()
	for _, g := range groups {
		if g.leads() == 0 {
			continue
		}
		eventually(t, "the level is used", func() bool {
			_, _ = g.Propose(t.Context(), table.Command{Adopt: &table.Adopt{Level: table.Level}})
			return g.Table().Uses(table.Level)
		})
	}
	for _, g := range groups {
		until(t, g, "the level is used", func(tab *table.Table) bool { return tab.Uses(table.Level) })
	}
}

// twoOfThree stops a cluster of three and has two come back, with their state.
func twoOfThree(t *testing.T) (p *pool, was []*Group, leader, other *Group) {
	t.Helper()
	p = newPool()
	was = form(t, p, 3, nil)
	voters(t, 3, was...)
	adopted(t, was...)
	stopAll(t, was)
	leader, other = again(t, p, was[0], true, nil), again(t, p, was[1], true, nil)
	for _, g := range []*Group{leader, other} {
		until(t, g, "two are back", func(tab *table.Table) bool {
			return tab.Holds(table.Holder{Node: "n1", Incarnation: was[0].Self().Incarnation + 1}) && tab.Holds(table.Holder{Node: "n2", Incarnation: was[1].Self().Incarnation + 1})
		})
	}
	if other.leads() != 0 {
		leader, other = other, leader
	}
	return p, was, leader, other
}

// TestTrap40LeaderChangesWhileOneIsWaitedFor: the next leader waits for the third one
// as well. Those that are back already are no processes of before, although they were
// members before this leader.
func TestTrap40LeaderChangesWhileOneIsWaitedFor(t *testing.T) {
	t.Parallel()
	p, was, leader, other := twoOfThree(t)
	if err := leader.raft.LeadershipTransfer().Error(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the other leads", func() bool { return other.leads() != 0 })
	since := time.Now()
	eventually(t, "a while passes", func() bool { return time.Since(since) > 3*other.cfg.TTL || lost(other.Table()) > 0 })
	if n := lost(other.Table()); n > 0 {
		t.Fatalf("the third one was not waited for: %d of %d rows lost, %s after the change", n, len(other.Table().Rows), time.Since(since))
	}
	last := again(t, p, was[2], true, nil)
	tab := until(t, other, "all are back", func(tab *table.Table) bool { return tab.Holds(last.Self()) })
	if lost(tab) > 0 || len(tab.Members) != 3 || tab.Returning() {
		t.Errorf("%d rows lost; members %+v", lost(tab), tab.Members)
	}
}

// TestReleaseWhileOneIsWaitedFor: one that has come back is stopped again and gives its
// lease up. That does not show that the third one will not come.
func TestReleaseWhileOneIsWaitedFor(t *testing.T) {
	t.Parallel()
	_, was, leader, other := twoOfThree(t)
	retired := make(chan struct{})
	go func() { defer close(retired); other.Retire(t.Context()) }()
	until(t, leader, "its rows are given to others", func(tab *table.Table) bool { return !tab.Holds(other.Self()) })
	<-retired
	n, since := lost(leader.Table()), time.Now()
	eventually(t, "a while passes", func() bool { return time.Since(since) > 3*leader.cfg.TTL || lost(leader.Table()) > n })
	if !leader.Table().Holds(was[2].Self()) {
		t.Errorf("the third one was not waited for: %d of %d rows lost", lost(leader.Table()), len(leader.Table().Rows))
	}
}

// TestWaitEnds: a process of before did not stop. Those that come back to it are like all
// others soon, for the next time.
func TestWaitEnds(t *testing.T) {
	t.Parallel()
	_, was, leader, _ := twoOfThree(t)
	if !leader.Table().Returning() {
		t.Error("the table does not say who has returned")
	}
	eventually(t, "nobody is waited for", func() bool {
		granted(t, leader, asks(leader, was[2].Self(), leader.leads()))
		return !leader.Table().Returning()
	})
	if !leader.Table().Holds(was[2].Self()) {
		t.Error("it was removed, although it renews its lease")
	}
}
