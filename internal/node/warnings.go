package node

import "github.com/keystead/keystead/internal/rpc"

// warnings are what is wrong with this node that the table does not tell, the gravest
// first.
func (n *Node) warnings() (all []rpc.Warning) {
	add := func(problem, hint string) {
		if problem != "" {
			all = append(all, rpc.Warning{Problem: problem, Hint: hint})
		}
	}
	add(n.lossWarning())
	add(n.logWarning())
	add(n.keeps.roomWarning())
	return all
}
