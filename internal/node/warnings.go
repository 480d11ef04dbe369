package node

import (
	"fmt"

	"github.com/keystead/keystead/internal/rpc"
)

// warnings returns what is wrong with this node that the table does not tell, the gravest
// first.
func (n *Node) warnings() (all []rpc.Warning) {
	add := func(problem, hint string) {
		if problem != "" {
			all = append(all, rpc.Warning{Problem: problem, Hint: hint})
		}
	}
	add(n.lossWarning())
	add(n.logWarning())
	add(n.leftOutWarning())
	add(n.keeps.roomWarning())
	add(n.copyWarning())
	return all
}

// copyWarning says whose store is too full for copies of this node's objects.
func (n *Node) copyWarning() (problem, hint string) {
	if n.cluster == nil {
		return "", ""
	}
	full := n.cluster.state.source.Full()
	if full == "" {
		return "", ""
	}
	return fmt.Sprintf("%s has no room for copies of what %s owns (NOT_TAKEN): the death of %s would lose it", full, n.cfg.ID, n.cfg.ID),
		"raise --max-memory and --max-objects on " + full + ", or add nodes; let counters end by themselves with idle TTLs"
}

// leftOutWhy is what is wrong with a node that had no room for what it was to take over.
const leftOutWhy = "the node gave up joining: it has no room for the rows that it was to take over"

// leftOutWarning returns that the node could not join for want of room.
func (n *Node) leftOutWarning() (problem, hint string) {
	if n.cluster == nil || n.cluster.group.LeftOut() == 0 {
		return "", ""
	}
	return leftOutWhy, "give it as much room as the others have (--max-memory, --max-objects); it asks again after a pause of up to 10 minutes"
}
