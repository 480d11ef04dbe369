// Package fault draws faults from a seed and does them to a cluster. A fault
// harms some nodes for a while and then heals; the next one comes when the cluster
// has recovered, so that each is judged by itself.
//
// # What is drawn
//
// Kind, victims, duration. Equal seeds draw equal faults; which node owns a key or
// leads, and so who a victim is, is decided by the cluster when the fault begins.
// Objects are split and made whole by an Orderer of their own, at any time: also while
// something is harmed.
// At most a minority of the nodes is harmed, except by pauses, after which all that
// was acknowledged is still in memory, by an orderly stop of all, which keeps it, and by
// a KillAll, after which it is on disk, if the cluster has disks.
package fault

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Kind is what is done.
type Kind string

// The kinds of faults.
const (
	Kill       Kind = "kill"       // kill -9, and start again from the disk
	KillAll    Kind = "killall"    // kill -9 of all at once, and start them again one after the other
	Wipe       Kind = "wipe"       // the same, with the disk wiped
	Pause      Kind = "pause"      // SIGSTOP, shorter or longer than the lease
	Stop       Kind = "stop"       // SIGTERM, and start again
	StopAll    Kind = "stopall"    // SIGTERM to all at once, and start them again one after the other
	Join       Kind = "join"       // a new node; one that came so leaves when there are many
	Drain      Kind = "drain"      // the node is drained, and taken back
	SlowKill   Kind = "slowkill"   // all links are slow, and what is under way is lost with the node that is killed
	Slow       Kind = "slow"       // what goes to the node, and its answers, is late
	KillLeader Kind = "killleader" // kill -9 of the raft leader while a node joins
	Partition  Kind = "partition"  // the node and the others do not hear each other
	Oneway     Kind = "oneway"     // the node does not hear the others, or they not it
	RaftPort   Kind = "raftport"   // the same, of raft and leases alone: the nodes still pass calls on
	FullDisk   Kind = "fulldisk"   // no byte is free on the node's disk
	HungDisk   Kind = "hungdisk"   // writes of the node's disk wait
	HungKill   Kind = "hungkill"   // … of the leader's, and another node is killed meanwhile; with five nodes or more
	Split      Kind = "split"      // a counter or limit is split; an Orderer says so, whatever else happens
	Merge      Kind = "merge"      // … is made whole
)

// Kinds are all kinds, Islands those of them that need network namespaces, Proxied
// those that need links that can be slowed down, Disked those that need disks of their
// own, Ordered those that an Orderer orders.
var (
	Kinds   = []Kind{Kill, Wipe, Pause, Stop, Join, Drain, Slow, SlowKill, KillLeader, Partition, Oneway, RaftPort, FullDisk, HungDisk, HungKill, StopAll, KillAll, Split, Merge}
	Islands = []Kind{Partition, Oneway, RaftPort}
	Proxied = []Kind{Slow, SlowKill}
	Disked  = []Kind{FullDisk, HungDisk, HungKill}
	Ordered = []Kind{Split, Merge}
)

// Default are the kinds that need nothing but the binary.
var Default = []Kind{Kill, Wipe, Pause, Stop, Join, Drain, KillLeader, StopAll, Split, Merge}

// ParseKinds reads kinds with commas in between; "none" is none.
func ParseKinds(text string) ([]Kind, error) {
	if text == "none" {
		return nil, nil
	}
	var kinds []Kind
	for _, word := range strings.Split(text, ",") {
		k := Kind(strings.TrimSpace(word))
		if !slices.Contains(Kinds, k) {
			return nil, fmt.Errorf("fault: %q: choose from %v, or none", word, Kinds)
		}
		kinds = append(kinds, k)
	}
	return kinds, nil
}

// Any reports whether one of these kinds is among those.
func Any(these, those []Kind) bool {
	return slices.ContainsFunc(these, func(k Kind) bool { return slices.Contains(those, k) })
}

// Without are these kinds without those.
func Without(these, those []Kind) []Kind {
	return slices.DeleteFunc(slices.Clone(these), func(k Kind) bool { return slices.Contains(those, k) })
}

// Role is who the first victim is.
type Role string

// The roles.
const (
	Leader Role = "leader" // of raft
	Owner  Role = "owner"  // of a key of the history
	Member Role = "member" // one that is drawn
)

// Fault is one that was drawn.
type Fault struct {
	Kind    Kind          `json:"kind"`
	Role    Role          `json:"role"`
	Victims int           `json:"victims"` // how many nodes
	Draw    int           `json:"draw"`    // decides among nodes and keys
	For     time.Duration `json:"for"`     // until it heals, or the next step
	// Late is the delay of Slow and SlowKill, and of KillLeader after the join began.
	Late time.Duration `json:"late,omitempty"`
	// Reverse turns a Oneway round: the others do not hear the node. A Stop or StopAll
	// then signals each process twice, within milliseconds.
	Reverse bool `json:"reverse,omitempty"`
}

// String is short.
func (f Fault) String() string {
	s := fmt.Sprintf("%s of %s for %s", f.Kind, f.Role, f.For)
	if f.Victims > 1 {
		s = fmt.Sprintf("%s and %d more", s, f.Victims-1)
	}
	return s
}

// Gentle reports whether all that is acknowledged survives the fault: it harms one node
// alone, only pauses, or stops all in order.
func (f Fault) Gentle() bool {
	return f.Victims == 1 && f.Kind != HungKill && f.Kind != KillAll || f.Kind == Pause
}

// LeavesDisks reports whether all that is on disks survives the fault, however many nodes it harms.
func (f Fault) LeavesDisks() bool { return f.Kind != Wipe }

const (
	shortest = 200 * time.Millisecond
	// mostLate is the longest delay of Slow: more than a standby may be late by,
	// and less than what makes calls fail.
	mostLate = 400 * time.Millisecond
	// mostSlowKill leaves a standby in time, there and back.
	mostSlowKill = 80 * time.Millisecond
)

// Drawer draws faults.
type Drawer struct {
	rng   *rand.Rand
	kinds []Kind
	nodes int
	lease time.Duration
}

// NewDrawer draws from kinds, of which there must be one at least, for a cluster
// of so many nodes with leases of this length.
func NewDrawer(seed uint64, kinds []Kind, nodes int, lease time.Duration) *Drawer {
	return &Drawer{rng: rand.New(rand.NewPCG(seed, 0xfa017)), kinds: kinds, nodes: nodes, lease: lease}
}

// Next draws the next fault.
func (d *Drawer) Next() Fault {
	f := Fault{
		Kind: d.kinds[d.rng.IntN(len(d.kinds))], Role: []Role{Leader, Owner, Owner, Member}[d.rng.IntN(4)],
		Victims: 1, Draw: d.rng.IntN(1 << 20), For: d.between(shortest, 2*d.lease), Reverse: d.rng.IntN(2) == 0,
	}
	few, many := d.rng.IntN(max(1, (d.nodes-1)/2)), d.rng.IntN(d.nodes)
	switch f.Kind {
	case Kill, Wipe:
		f.Victims += few
	case Pause:
		// Half of them shorter than the lease.
		if d.rng.IntN(2) == 0 {
			f.For = d.between(shortest, d.lease)
		} else {
			f.For = d.between(d.lease, 5*d.lease/2)
		}
		if d.rng.IntN(4) == 0 {
			f.Victims += many
		}
	case Slow:
		f.Late = d.between(5*time.Millisecond, mostLate)
	case SlowKill:
		f.Role, f.Late = Owner, d.between(10*time.Millisecond, mostSlowKill)
	case KillLeader:
		f.Role, f.Late = Leader, d.between(0, time.Second)
	case Partition, Oneway, RaftPort:
		f.For = d.between(d.lease/2, 2*d.lease)
	case HungKill:
		f.Role, f.For = Leader, d.between(2*d.lease, 5*d.lease/2)
	}
	return f
}

func (d *Drawer) between(least, most time.Duration) time.Duration {
	return (least + time.Duration(d.rng.Int64N(int64(most-least)))).Round(time.Millisecond)
}
