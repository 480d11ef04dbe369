package rpc

import (
	"context"
	"time"

	"github.com/keystead/keystead/internal/drain"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
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
	// Drain has a member give away what it has, or takes that back. It returns
	// when that is agreed on. Its errors are *failure.Error, of the reasons
	// UnknownNode, LastNode, TooFewLeft, Unavailable and OutcomeUnknown, or
	// those of the context.
	Drain(ctx context.Context, o drain.Order) (drain.State, error)
}

// ClusterState is what a node knows of its cluster beside the table.
type ClusterState struct {
	LeaseLeft time.Duration     // 0 = it has no lease
	Leader    string            // node id of the raft leader, or ""
	Voters    []string          // node ids
	Nonvoters []string          // node ids
	Gossip    []Gossiper        // everybody that gossip knows
	RaftAddr  string            // of this node
	Gossips   string            // address at which this node gossips
	Started   time.Time         // when the process started
	Version   string            // of its program
	GRPCAddr  string            // where this node's API listens
	Copies    []*clusterpb.Copy // that this node makes
	ClusterID string            // of which the node is part, whether it has heard of it or not; "" = it runs alone
	Recovery  time.Duration     // until the last grace of its rows is over; 0 = none is in grace
	Awaited   []Awaited         // processes whose disks rows wait for
	Waiting   string            // why it is no member of its cluster yet; "" = it is one
}

// Awaited is a process whose disk rows wait for.
type Awaited struct {
	Holder table.Holder
	For    time.Duration // since this node has known of it
}

// Warning is something that is wrong with this node, for people.
type Warning struct {
	Problem string // what is wrong
	Hint    string // what helps
}

// Alone is what a node that runs alone says of itself.
type Alone struct {
	// Epoch is the one that it serves under. nil = 4, which is that of its table.
	Epoch func() uint64
	// Incarnation is that of the process. Default 1.
	Incarnation uint64
	// Version of the program.
	Version string
}

// Gossiper is somebody in the gossip pool.
type Gossiper struct {
	Node  string // id, or the gossip name of one that is not a node of ours
	Addr  string // host:port
	State string // "alive", "failed", "leaving", "left"
	App   string // host:port of the application beside it, "" if there is none
}
