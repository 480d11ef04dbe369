package node

import "github.com/keystead/keystead/ring/epoch"

// Group is the node's part in its cluster; nil if it runs alone. It is for
// simulations, which ask it what the node would acknowledge.
func (n *Node) Group() *epoch.Group {
	if n.cluster == nil {
		return nil
	}
	return n.cluster.group
}
