package epoch

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"time"

	"github.com/keystead/keystead/ring/epoch/table"
)

// A member whose lease is over may be dead, or only mute: cut off from the leader, or
// paused. If it is the only one that has the state of a row, its removal loses that
// state, and a dead one has lost it anyway. So the leader waits a TTL longer for such a
// member. It has not been removed then when it comes back, gets a lease again, and goes
// on with all that it had. Nobody waits for one that is known to be gone: it gave its
// lease up, gossip says so, its port is closed, or its node asks anew.

// mutes is what a leader knows of members that it waits for.
type mutes map[table.Holder]bool // whether it is known to be gone; asked if it is in there

// forget leaves out those that are no members any more, or have a lease again.
func (m mutes) forget(over []table.Holder) {
	for h := range m {
		if !slices.Contains(over, h) {
			delete(m, h)
		}
	}
}

// waitsFor reports whether a member whose lease is over, as those of these are, is to be
// waited for.
func (k *keeper) waitsFor(h table.Holder, over []table.Holder) bool {
	if k.grants.Overdue(h, k.now) >= int64(k.cfg.TTL) || //guard:mute-bounded
		!k.synced.Strands(h, over) { //guard:mute-only-stranded
		return false
	}
	gone, asked := k.mutes[h]
	if !asked {
		k.mutes[h] = false
		k.cfg.Log.Warn("a node is mute, and nobody else has the state of some of its rows: it is waited for", "node", h.Node, "for", k.cfg.TTL)
		k.knock(h)
	}
	return !gone && !k.gossipGone(h)
}

// gossipGone reports whether gossip says that a node is gone.
func (k *keeper) gossipGone(h table.Holder) bool {
	return slices.ContainsFunc(k.cfg.Peers(), func(p Peer) bool { return p.Node == h.Node && !p.Alive })
}

// knock looks whether the port of a member is closed: its process is dead then.
func (k *keeper) knock(h table.Holder) {
	m, ok := k.synced.Member(h.Node)
	if !ok {
		return
	}
	k.g.running.Go(func() {
		ctx, cancel := context.WithTimeout(k.g.halt, time.Second)
		defer cancel()
		conn, err := k.cfg.Dial(ctx, m.RaftAddr)
		if err == nil {
			_ = conn.Close()
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			k.post(func(k *keeper) {
				if _, asked := k.mutes[h]; asked {
					k.mutes[h] = true
				}
			})
		}
	})
}
