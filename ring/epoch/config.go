package epoch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/keystead/keystead/internal/clock"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/lease"
	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// Defaults of Config, with their reasons.
const (
	DefaultTTL    = 2 * time.Second        // short enough that a dead owner is replaced within 4 s, long enough for 3 tries
	DefaultMargin = 50 * time.Millisecond  // 2.5% of the TTL: a hundred times what clocks drift
	DefaultSettle = 300 * time.Millisecond // joins that come together become one change of the ring
	CompactAfter  = time.Second            // rows are joined when nothing has changed for this long

	DefaultLockTTL = 10 * time.Minute // a lost row grants no lock for so long

	DefaultIDWindow = 5 * time.Minute // a retry that is as old is rare

	DefaultPatience = time.Minute
	// DefaultResumeWait is time for machines to come up again one after the other.
	DefaultResumeWait = 30 * time.Second
	// DefaultAdoptAfter is what a node takes to be started again.
	DefaultAdoptAfter = 10 * time.Second
	// DefaultRecoverWait is time for a machine to be repaired that only needs a hand.
	DefaultRecoverWait = 5 * time.Minute

	minTTL = 200 * time.Millisecond
	maxTTL = time.Minute

	maxLockTTL     = 24 * time.Hour
	maxRecoverWait = 24 * time.Hour
)

// Config is what a Group needs.
type Config struct {
	Cluster  string // name; all nodes of a cluster are given the same
	Node     string // id of this node
	HashKey  string // of its points on the ring
	GRPCAddr string // where others reach its API
	RaftAddr string // where others reach Listener
	Version  string // of the program
	// Incarnation of this process: see NewIncarnation.
	Incarnation uint64
	// Resume is the incarnation of an earlier process of this node which has stopped
	// for good and whose state this one has: see serving.Rule.Load. 0 = none.
	Resume    uint64
	Bootstrap bool // make the cluster, if the storage is empty
	// EpochFloor is the least epoch to begin a new cluster with, and up to the clock's
	// the least one to become a member in.
	EpochFloor uint64

	// Storage keeps the log; it is closed by Stop.
	Storage *Storage
	// Listener takes in connections of other nodes; it is closed by Stop.
	Listener net.Listener
	// Dial connects to another node's listener.
	Dial func(ctx context.Context, addr string) (net.Conn, error)

	// Peers are the nodes that gossip knows. Hints, all of them.
	Peers func() []Peer
	// Discard forgets what the node holds of these ranges. It is called by one
	// goroutine.
	Discard func([]serving.Range)
	// Rule is the serving rule to feed, of this node and incarnation. Default: a
	// new one.
	Rule *serving.Rule
	// Before is told of each table, in order, before this node acts by it. It
	// must be quick. Default: none.
	Before func(*table.Table)
	// Policies is told of those that the cluster has agreed on, in order, before this node
	// acts by any later table. It must be quick. Default: none.
	Policies func(*table.Policies)

	TTL    time.Duration // of leases. Default 2 s
	Margin time.Duration // how much clocks may drift apart within a TTL. Default 50 ms
	Settle time.Duration // how long joins are collected. Default 300 ms
	// LockTTL is the longest TTL of locks, which a cluster that this node makes
	// agrees on. Default 10 min.
	LockTTL time.Duration
	// IDWindow is how long request ids are kept, which a cluster that this node makes agrees
	// on, or one that has agreed on nothing. Default 5 min.
	IDWindow time.Duration
	// Patience is for how long a transition that has moved all rows stays open for standbys
	// that have not caught up, since the table changed last.
	// Default 1 min: longer than the copy of a large node takes.
	Patience time.Duration

	// ResumeWait is how long a leader that has found nobody of the table alive waits
	// for them to come back with their state before it removes them, and for how long it waits
	// for the second of two disks that a row may go on from. Default 30 s.
	ResumeWait time.Duration
	// RecoverWait is how long a leader waits for the disk of a process that had a row, before the row
	// is given up. Where answers wait for disks, none is ever given up like that. Default 5 min.
	RecoverWait time.Duration

	// Disk returns what the disk of this process says of itself: all of it, or whether it is
	// whole, and what it promises. It must not wait. nil = there is none.
	Disk func(full bool) *peerv1.DiskReport
	// Enlist has the disk know that this incarnation has it, before the process asks to be
	// admitted as that. It returns when that is on the disk; should it fail, it is called again.
	// nil = there is no disk.
	Enlist func(incarnation uint64) error

	// AdoptAfter is for how long nothing must have changed before the leader commits a level that all
	// members know, or what all their disks promise: a node of an older program, or without a disk, that
	// is started again comes back meanwhile, instead of finding the door closed. Default 10 s.
	AdoptAfter time.Duration

	// Snapshots of the table, which let the log be short. Default: see defaultSnapshots.
	Snapshots Snapshots

	Clock clock.Clock      // boot time
	Wall  func() time.Time // Default time.Now. It has a vote on the time of day, and is watched for jumps
	Log   *slog.Logger
}

// Snapshots says when the table is written down, and how much of the log remains.
type Snapshots struct {
	Every    time.Duration // how often the log is looked at; up to twice as long
	After    uint64        // entries since the last snapshot
	Trailing uint64        // entries that are kept for followers that are behind
}

// defaultSnapshots: a log of some thousand entries is read in a moment, and a follower
// that was away for a restart needs no snapshot.
var defaultSnapshots = Snapshots{Every: 30 * time.Second, After: 2048, Trailing: 1024}

// Peer is a node that gossip knows.
type Peer struct {
	Node     string
	UID      string // of its cluster; "" = it does not know yet
	RaftID   string
	RaftAddr string
	Level    uint32 // table.Level of its program; 0 = it is of before nodes told
	Alive    bool
}

func (c Config) lease() lease.Config { return lease.Config{TTL: int64(c.TTL), Margin: int64(c.Margin)} }

// reads reports whether the program of a peer can read the log, as far as that is known: those
// that know WindowLevel tell their level. One that cannot ends as soon as it gets the log, and
// if it voted, the others would be short of it.
func (p *Peer) reads(t *table.Table) bool { return p.Level != 0 || !t.Uses(table.WindowLevel) }

func (c Config) withDefaults() Config {
	if c.TTL == 0 {
		c.TTL = DefaultTTL
	}
	if c.Margin == 0 {
		c.Margin = DefaultMargin
	}
	if c.LockTTL == 0 {
		c.LockTTL = DefaultLockTTL
	}
	if c.IDWindow == 0 {
		c.IDWindow = DefaultIDWindow
	}
	if c.Patience == 0 {
		c.Patience = DefaultPatience
	}
	if c.ResumeWait == 0 {
		c.ResumeWait = DefaultResumeWait
	}
	if c.AdoptAfter == 0 {
		c.AdoptAfter = DefaultAdoptAfter
	}
	if c.RecoverWait == 0 {
		c.RecoverWait = DefaultRecoverWait
	}
	if c.Snapshots == (Snapshots{}) {
		c.Snapshots = defaultSnapshots
	}
	if c.Settle == 0 {
		c.Settle = DefaultSettle
	}
	if c.Wall == nil {
		c.Wall = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Rule == nil {
		c.Rule = serving.New(table.Holder{Node: c.Node, Incarnation: c.Incarnation})
		if c.Clock != nil {
			c.Rule.Clock(c.Clock.Now)
		}
	}
	if c.Before == nil {
		c.Before = func(*table.Table) {}
	}
	if c.Policies == nil {
		c.Policies = func(*table.Policies) {}
	}
	if c.Peers == nil {
		c.Peers = func() []Peer { return nil }
	}
	return c
}

func (c Config) validate() error {
	switch {
	case c.Cluster == "" || len(c.Cluster) > maxName:
		return fmt.Errorf("a cluster's name of %d bytes: 1 to %d are allowed", len(c.Cluster), maxName)
	case c.Node == "" || len(c.Node) > maxName:
		return fmt.Errorf("a node's id of %d bytes: 1 to %d are allowed", len(c.Node), maxName)
	case c.Incarnation == 0:
		return errors.New("epoch: a process needs an incarnation")
	case c.TTL < minTTL || c.TTL > maxTTL:
		return fmt.Errorf("a lease TTL of %s: choose %s to %s", c.TTL, minTTL, maxTTL)
	case c.Margin < 0 || c.Margin > c.TTL/2:
		return fmt.Errorf("a drift margin of %s: choose 0 to half of the lease TTL, %s", c.Margin, c.TTL/2)
	case c.Settle < 0 || c.Settle > time.Minute:
		return fmt.Errorf("a debounce of joins of %s: choose 0 to 1m", c.Settle)
	case c.ResumeWait < 0 || c.ResumeWait > time.Hour:
		return fmt.Errorf("a wait of %s for nodes to resume: choose 0 to 1h", c.ResumeWait)
	case c.RecoverWait < 0 || c.RecoverWait > maxRecoverWait:
		return fmt.Errorf("a wait of %s for disks: choose 0 to 24h", c.RecoverWait)
	case c.LockTTL < 0 || c.LockTTL > maxLockTTL:
		return fmt.Errorf("locks of %s at most: choose up to %s", c.LockTTL, maxLockTTL)
	case c.IDWindow < 0:
		return fmt.Errorf("request ids that are kept for %s", c.IDWindow)
	case c.Storage == nil, c.Listener == nil, c.Dial == nil, c.Discard == nil, c.Clock == nil:
		return errors.New("epoch: the configuration is not whole")
	}
	return nil
}
