package rpc

import (
	"context"
	"time"

	"github.com/keystead/keystead/ring/epoch/table"
)

// Cluster is what the server needs to know of the nodes beside it.
type Cluster interface {
	// Self is this process. Its incarnation changes when the node was removed
	// and asks to be admitted again.
	Self() table.Holder
	// Table is the ownership table as this node knows it; it is never nil.
	Table() *table.Table
	// Await returns the first table that it learns of whose epoch is above
	// after, or the error of the context. A row that this node has frozen, and
	// so does not serve although the table names it, changes with a later one.
	Await(ctx context.Context, after uint64) (*table.Table, error)
	// State tells the rest, for people.
	State() ClusterState
}

// ClusterState is what a node knows of its cluster beside the table.
type ClusterState struct {
	LeaseLeft time.Duration // 0 = it has no lease
	Leader    string        // node id of the raft leader, or ""
	Voters    []string      // node ids
	Nonvoters []string      // node ids
	Gossip    []Gossiper    // everybody that gossip knows
	RaftAddr  string        // of this node
	Gossips   string        // address at which this node gossips
	Started   time.Time     // when the process started
	Version   string        // of its program
	GRPCAddr  string        // where this node's API listens
}

// Gossiper is somebody in the gossip pool.
type Gossiper struct {
	Node  string // id, or the gossip name of one that is not a node of ours
	Addr  string // host:port
	State string // "alive", "failed", "leaving", "left"
}
