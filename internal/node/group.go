package node

import (
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch"
)

// Group returns the node's part in its cluster; nil if it runs alone. It is for
// simulations, which ask it what the node would acknowledge.
func (n *Node) Group() *epoch.Group {
	if n.cluster == nil {
		return nil
	}
	return n.cluster.group
}

// Held calls f with every object that the node's store holds, for itself or as a copy,
// one at a time, under the lock of its shard: what the record points to is valid until f
// returns. It is for simulations, which look for what ought to be gone.
func (n *Node) Held(f func(r *owner.Record)) {
	n.store.Export(n.cfg.Clock.Now, func(uint64) bool { return true }, func(r *owner.Record, _ int64) bool {
		if r.Whole {
			f(r)
		}
		return true
	}, func() bool { return true })
}
