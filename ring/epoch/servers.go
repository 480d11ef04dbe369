package epoch

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/keystead/keystead/ring/epoch/table"
)

// Anybody who reaches the gossip port can tell of servers. So what gossip says of one
// counts only under its own name, which no other process can have while it is there; and
// a server is added to raft's configuration when a process has answered at its address
// under its identity, as one of this cluster.

// Bounds of servers, with their reasons.
const (
	// maxServers bounds raft's configuration: twice the members, for those that come
	// while earlier identities of theirs have still to be taken out.
	maxServers = 2 * table.MaxMembers
	// helloTime bounds the question whether a server is there, and silentPause is how
	// long it is not asked again when it did not answer. Others are asked first.
	helloTime   = time.Second
	silentPause = 2 * time.Second
	// silentKept is how long the leader remembers that, in nanoseconds.
	silentKept = int64(time.Minute)
)

// servers returns the peers that say which server of raft they are, each under its own name.
func (g *Group) servers() []Peer {
	return slices.DeleteFunc(slices.Clone(g.cfg.Peers()), func(p Peer) bool {
		return p.RaftID == "" || p.RaftAddr == "" ||
			nodeOf(raft.ServerID(p.RaftID)) != p.Node //guard:server-name
	})
}

// ServerAddr implements raft.ServerAddressProvider: where gossip has seen a server last
// counts for more than where it was when it was added. If gossip does not know the
// server, raft takes the address of its configuration.
func (g *Group) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	for _, p := range g.servers() {
		if p.RaftID == string(id) {
			return joinAddr(id, p.RaftAddr), nil
		}
	}
	return "", errors.New("gossip does not know " + string(id))
}

// tendServers makes raft's configuration follow gossip, one change at a time:
// every live node is a server, at its present address, under its present
// identity. Which servers vote is the autopilot's business.
func (k *keeper) tendServers() {
	if k.changing {
		return
	}
	f := k.g.raft.GetConfiguration()
	if f.Error() != nil {
		return
	}
	id, change := k.serverChange(f.Configuration())
	if change == nil {
		return
	}
	k.changing = true
	k.g.running.Go(func() {
		err := change()
		k.post(func(k *keeper) {
			k.changing = false
			switch {
			case err == nil:
				delete(k.silentAt, id)
				k.compareAt = k.now // many nodes may have come at once
			case errors.Is(err, errSilent):
				k.silentAt[id], k.compareAt = k.now, k.now // the next one may be there
				k.cfg.Log.Debug("gossip tells of a server that does not answer", "server", id, "error", err)
			default:
				k.cfg.Log.Info("raft's configuration was not changed", "error", err)
			}
		})
	})
}

// errSilent is the error of a server that does not answer where gossip says that it is.
var errSilent = errors.New("no answer")

// serverChange returns the next change of raft's configuration, and the server that it is about.
// Of several servers to add, the one goes first that was not asked for the longest time.
func (k *keeper) serverChange(conf raft.Configuration) (id raft.ServerID, change func() error) {
	t := k.g.Table()
	asked := int64(0)
	maps.DeleteFunc(k.silentAt, func(_ raft.ServerID, at int64) bool { return k.now-at > silentKept })
	for _, p := range k.g.servers() {
		if !p.Alive || p.UID != "" && p.UID != t.UID {
			continue
		}
		to := raft.ServerID(p.RaftID)
		addr := joinAddr(to, p.RaftAddr)
		i := slices.IndexFunc(conf.Servers, func(s raft.Server) bool { return s.ID == to })
		if i < 0 && len(conf.Servers) >= maxServers {
			continue
		}
		if i < 0 || conf.Servers[i].Address != addr {
			at := k.silentAt[to]
			if at != 0 && k.now-at < int64(silentPause) || change != nil && at >= asked {
				continue
			}
			id, asked, change = to, at, func() error { return k.g.addServer(to, addr) }
			continue
		}
		// An older identity of the same node, whose process is no member any more.
		for _, s := range conf.Servers {
			m, member := t.Member(p.Node)
			if nodeOf(s.ID) == p.Node && s.ID != to && s.ID != k.g.self && !(member && m.RaftID == string(s.ID)) {
				return to, func() error { return k.g.await(k.g.raft.RemoveServer(s.ID, 0, applyWait)) }
			}
		}
	}
	return id, change
}

// addServer makes a server follow the log, or changes its address, if it answers there.
func (g *Group) addServer(id raft.ServerID, addr raft.ServerAddress) error {
	ctx, cancel := context.WithTimeout(g.halt, helloTime)
	defer cancel()
	//guard:server-answers
	if id != g.self {
		conn, err := g.wire.connect(ctx, kindLease, string(addr))
		if err != nil {
			return errors.Join(errSilent, err)
		}
		_ = conn.Close()
	}
	return g.await(g.raft.AddNonvoter(id, addr, 0, applyWait))
}
