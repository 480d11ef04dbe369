package node

// Serf's facts and raft's truth meet in this file, and in those that it names: what gossip
// shows is never acted by as if it were agreed on. found.go asks founders once more before
// it makes a cluster by what is seen of them, drain.go has an event's age judged before its
// order goes to raft, xds.go tells of applications beside the members that the table
// names, and waiting.go says why a node is in no cluster yet.

import (
	"time"

	"github.com/keystead/keystead/internal/rpc"
	"github.com/keystead/keystead/ring/epoch"
	"github.com/keystead/keystead/ring/epoch/table"
	"github.com/keystead/keystead/ring/member"
)

// probeTime is how long a node that is to make a cluster looks whether there is
// one already, when it was told where.
const probeTime = 3 * time.Second

// mayBootstrap reports whether this node makes the cluster: it was told to, its log
// is empty, and the nodes that it was told to join know of no cluster.
func (c *cluster) mayBootstrap(s *epoch.Storage) (bool, error) {
	empty, err := s.Empty()
	if err == nil && empty && !c.cfg.Cluster.Bootstrap && len(c.cfg.Cluster.Founders) == 0 && len(c.cfg.Cluster.Join) == 0 {
		c.log.Warn("this node belongs to no cluster, and was told neither to make one nor whom to join: it waits for others to join it; start the first node with --bootstrap, the others with --join HOST:PORT",
			"cluster", c.cfg.Cluster.ID)
	}
	if err != nil || !c.cfg.Cluster.Bootstrap || !empty {
		return false, err
	}
	if len(c.cfg.Cluster.Join) == 0 {
		return true, nil
	}
	for over := time.After(probeTime); ; {
		changed := c.pool.Changed()
		for _, f := range c.pool.Facts() {
			if f.Ours && f.Self.UID != "" {
				c.log.Warn("there is a cluster already: this node joins it, and does not make one", "cluster", c.cfg.Cluster.ID, "known by", f.Name)
				return false, nil
			}
		}
		select {
		case <-changed:
		case <-over:
			return true, nil
		}
	}
}

// peers returns the nodes of the cluster that gossip knows.
func (c *cluster) peers() []epoch.Peer {
	facts := c.pool.Facts()
	peers := make([]epoch.Peer, 0, len(facts))
	for _, f := range facts {
		if f.Ours {
			peers = append(peers, epoch.Peer{Node: f.Self.Node, UID: f.Self.UID, RaftID: f.Self.RaftID, RaftAddr: f.Self.RaftAddr, Level: f.Self.Level, Alive: f.State == member.Alive})
		}
	}
	return peers
}

// warnOfOthers warns of a second cluster of the same name. It was made by a node
// that was told to although there was one; nothing here joins the two.
func (c *cluster) warnOfOthers() {
	warned := map[string]bool{}
	for {
		changed := c.pool.Changed()
		uid := c.group.Table().UID
		for _, f := range c.pool.Facts() {
			if other := f.Self.UID; f.Ours && other != "" && uid != "" && other != uid && !warned[f.Name+other] && len(warned) < 2*table.MaxMembers {
				warned[f.Name+other] = true
				c.log.Error("a node is of another cluster of the same name: it was started with --bootstrap although there was one, and is not admitted here; stop it, and let it --join with an empty --data-dir",
					"its node", f.Name, "its cluster", other, "this cluster", uid)
			}
		}
		select {
		case <-changed:
		case <-c.ctx.Done():
			return
		}
	}
}

// follow tells gossip what becomes of this process, and people what was lost.
func (c *cluster) follow() {
	for after := uint64(0); ; {
		t, err := c.group.Await(c.ctx, after)
		if err != nil {
			return
		}
		if now := c.group.Self(); now.Incarnation != c.self.Incarnation || t.UID != c.self.UID {
			c.self.Incarnation, c.self.UID = now.Incarnation, t.UID
			if err := c.pool.SetSelf(c.self); err != nil {
				c.log.Warn("telling gossip of this process", "error", err)
			}
		}
		c.awaited.learn(t, time.Now())
		rows, partly := 0, 0
		for _, r := range t.Rows {
			switch {
			case r.Owner != c.group.Self() || r.Lost <= after || after == 0:
			case r.Gone > after:
				rows++
			default:
				partly++
			}
		}
		c.lost.Add(int64(rows + partly))
		if c.lostInPart.Add(int64(partly)); partly > 0 {
			c.log.Warn("rows go on from a disk that may lack the last moments before its process died", "rows", partly, "epoch", t.Epoch)
		}
		if rows > 0 {
			c.log.Warn("rows came to this node without their state: counts, limits and locks of their keys begin anew", "rows", rows, "epoch", t.Epoch)
		}
		after = t.Epoch
	}
}

// hotNodes returns the nodes that are for hot keys.
func (c *cluster) hotNodes() map[string]bool {
	hot := map[string]bool{}
	for _, f := range c.pool.Facts() {
		if f.Ours && f.Self.Hot {
			hot[f.Self.Node] = true
		}
	}
	return hot
}

// gossipers returns all that gossip knows, for people.
func (c *cluster) gossipers() []rpc.Gossiper {
	var all []rpc.Gossiper
	for _, f := range c.pool.Facts() {
		all = append(all, rpc.Gossiper{Node: f.Name, Addr: f.Addr, State: f.State.String(), App: f.Self.AppAddr})
	}
	return all
}
