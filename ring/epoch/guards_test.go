package epoch

import (
	"context"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// asks is a renewal of a member that has applied the present table, and names
// whatever was granted last.
func asks(g *Group, h table.Holder, term uint64) *peerv1.RenewRequest {
	return &peerv1.RenewRequest{Node: h.Node, Incarnation: h.Incarnation, Epoch: g.Table().Epoch, LastTerm: term, LastGrant: 1 << 60}
}

// granted reports whether a renewal is granted by a node.
func granted(t *testing.T, g *Group, req *peerv1.RenewRequest) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := g.renew(ctx, req)
	return err == nil && r.Refusal == peerv1.Refusal_REFUSAL_UNSPECIFIED
}

// TestTrap05GrantNeedsProof: a leader that is cut off grants nothing, not even to
// itself, in the time in which it still thinks that it leads.
func TestTrap05GrantNeedsProof(t *testing.T) {
	t.Parallel()
	lines := newNetwork()
	groups := form(t, newPool(), 3, func(c *Config) {
		if c.Node == "n1" {
			lines.use(c)
		}
	})
	g := groups[0]
	voters(t, 3, groups...)
	lead(t, g, groups...)
	eventually(t, "a grant", func() bool { return granted(t, g, asks(g, g.Self(), g.leads())) })
	lines.stall(true, true)
	req := asks(g, g.Self(), g.leads())
	if granted(t, g, req) {
		t.Error("granted without a proof")
	}
	lines.flow()
}

// TestProofAsksVotersOnly: a sole voter proves it alone.
func TestProofAsksVotersOnly(t *testing.T) {
	t.Parallel()
	lines := newNetwork()
	g := form(t, newPool(), 2, func(c *Config) {
		if c.Node == "n1" {
			lines.use(c)
		}
	})[0]
	voters(t, 1, g)
	lines.stall(true, true)
	ctx, cancel := context.WithTimeout(t.Context(), leaderLease)
	defer cancel()
	if err := g.proof(ctx, g.leads()); err != nil {
		t.Error(err)
	}
	lines.flow()
}

// TestProofAfterReceipt: a renewal that comes while a proof runs is not answered by
// it.
func TestProofAfterReceipt(t *testing.T) {
	t.Parallel()
	g := form(t, newPool(), 1, nil)[0]
	first := &renewal{reply: make(chan *peerv1.RenewResponse, 1)}
	second := &renewal{reply: make(chan *peerv1.RenewResponse, 1)}
	done := make(chan bool, 1)
	eventually(t, "a moment without a proof", func() bool {
		if err := g.post(t.Context(), func(k *keeper) {
			if k.proving || len(k.waiting) > 0 {
				done <- false
				return
			}
			for _, r := range []*renewal{first, second} {
				r.req, r.received = asks(g, g.Self(), k.grants.Term()), k.now
			}
			k.proving = true // that of the first one
			k.renewalReceived(second)
			k.proved([]*renewal{first}, k.grants.Term(), nil)
			if len(first.reply) != 1 || len(second.reply) != 0 {
				t.Errorf("the first has %d answers and the second %d", len(first.reply), len(second.reply))
			}
			done <- true
		}); err != nil {
			t.Error(err)
			return true
		}
		return <-done
	})
	if r := <-second.reply; r.Refusal != peerv1.Refusal_REFUSAL_UNSPECIFIED {
		t.Errorf("the second is answered %v", r.Refusal)
	}
}

// TestRefusedAtOnceIsNotRepeatedAtOnce: raft refuses what a leader proposes while
// leadership is passed on, and takes no time for that. What is due is planned again by the
// next tick, not by the answer.
func TestRefusedAtOnceIsNotRepeatedAtOnce(t *testing.T) {
	t.Parallel()
	g := form(t, newPool(), 1, nil)[0]
	done := make(chan bool, 1)
	eventually(t, "a moment in which nothing is proposed", func() bool {
		if err := g.post(t.Context(), func(k *keeper) {
			if k.proposing || !k.grants.IsReady() {
				done <- false
				return
			}
			m := table.Member{Node: "n9", Incarnation: 9, HashKey: "n9", RaftID: "n9/9", RaftAddr: "127.0.0.1:9", GRPCAddr: "127.0.0.1:99"}
			k.candidates[m.Node] = candidate{member: m, at: k.now, epoch: g.Table().Epoch}
			defer delete(k.candidates, m.Node)
			c, due := k.next(g.Table())
			if !due || c.Admit == nil {
				t.Errorf("due: %v, %s", due, c.Kind())
			}
			k.proposing = true
			k.proposed(c, 0, raft.ErrLeadershipTransferInProgress)
			if k.proposing {
				t.Error("it is proposed again at once")
			}
			done <- true
		}); err != nil {
			t.Error(err)
			return true
		}
		return <-done
	})
}

// TestTrap02GrantsAfterTheBarrier: a new leader that has not applied all that was
// committed before its term grants nothing.
func TestTrap02GrantsAfterTheBarrier(t *testing.T) {
	t.Parallel()
	on := make(chan struct{})
	var last atomic.Uint64 // the epoch of the last table that followers apply
	last.Store(math.MaxUint64)
	groups := form(t, newPool(), 3, func(c *Config) {
		if c.Node != "n1" {
			c.Before = func(tab *table.Table) {
				if tab.Epoch > last.Load() {
					<-on
				}
			}
		}
	})
	voters(t, 3, groups...)
	n1 := groups[0]
	lead(t, n1, groups...)
	last.Store(n1.Table().Epoch)
	if _, err := n1.Propose(t.Context(), table.Command{Raise: &table.Raise{Above: n1.Table().Epoch}}); err != nil {
		t.Fatal(err)
	}
	n1.Kill()
	var leader *Group
	eventually(t, "another leader", func() bool {
		for _, g := range groups[1:] {
			if g.leads() != 0 {
				leader = g
			}
		}
		return leader != nil
	})
	ask := func() {
		req := asks(leader, leader.Self(), 0)
		ctx, cancel := context.WithTimeout(t.Context(), leaderLease)
		defer cancel()
		if r, err := leader.renew(ctx, req); err == nil && r.Refusal == peerv1.Refusal_REFUSAL_UNSPECIFIED {
			t.Error("granted before what was committed is applied")
		}
	}
	for range 4 {
		ask()
	}
	close(on)
	eventually(t, "a grant", func() bool { return granted(t, leader, asks(leader, leader.Self(), leader.leads())) })
}

// TestTrap03ProposedRemoval: a leader that has proposed to remove a member grants it
// nothing, although the table does not show the removal yet.
func TestTrap03ProposedRemoval(t *testing.T) {
	t.Parallel()
	lines := newNetwork()
	on, within := make(chan struct{}), make(chan struct{})
	var ghost table.Holder
	groups := form(t, newPool(), 3, func(c *Config) {
		switch c.Node {
		case "n1":
			admitted, once := false, false
			c.Before = func(tab *table.Table) {
				if m, is := tab.Member("n3"); is {
					admitted, ghost = true, m.Holder()
				} else if admitted && !once {
					once = true
					close(within)
					<-on
				}
			}
		case "n3":
			lines.use(c)
		}
	})
	g := groups[0]
	voters(t, 3, g)
	lines.stall(true, true)
	select {
	case <-within:
	case <-time.After(patience):
		t.Fatal("the node is not removed")
	}
	if !g.Table().Holds(ghost) {
		t.Error("the table shows the removal")
	}
	if granted(t, g, asks(g, ghost, g.leads())) {
		t.Error("granted after the removal was proposed")
	}
	close(on)
	lines.flow()
	until(t, g, "all again", stableWith(3))
}

// TestEpochOfANewCluster: without a floor it is that of the wall clock.
func TestEpochOfANewCluster(t *testing.T) {
	t.Parallel()
	least := WallEpoch(time.Now())
	if e := form(t, newPool(), 1, nil)[0].Table().Epoch; e < least {
		t.Errorf("it begins at %d, below %d", e, least)
	}
}

// TestLeaseIsDroppedAtAJump: when wall time and boot time part, there is no lease
// before another renewal.
func TestLeaseIsDroppedAtAJump(t *testing.T) {
	t.Parallel()
	g := form(t, newPool(), 1, nil)[0]
	eventually(t, "a lease", func() bool { return g.LeaseLeft() > 0 })
	done := make(chan struct{})
	if err := g.post(t.Context(), func(k *keeper) {
		defer close(done)
		k.skew -= int64(k.cfg.TTL)
		k.checkWall()
		if left := g.LeaseLeft(); left > 0 || k.holding.Until() > 0 {
			t.Errorf("there is a lease of %s", left)
		}
	}); err != nil {
		t.Fatal(err)
	}
	<-done
	if n := g.ClockJumps(); n != 1 {
		t.Errorf("%d jumps were counted", n)
	}
	eventually(t, "a lease again", func() bool { return g.LeaseLeft() > 0 })
}
