package drain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/ring/epoch/table"
)

// Order has a member give away all that it has, or takes that back.
type Order struct {
	Node  string // id
	Undo  bool   // take the drain back
	Stop  bool   // the process of this node is about to stop, and can keep what it has
	Force bool   // also if fewer than a majority of the voters are left that are not drained
}

// State is how far a member is with a drain.
type State struct {
	table.DrainState
	Already bool // the order changed nothing
}

// StateOf returns the state of a node by a table; false if it is no member.
func StateOf(t *table.Table, node string) (State, bool) {
	s, ok := t.DrainState(node)
	return State{DrainState: s}, ok
}

var (
	errNoLeader = &failure.Error{Reason: failure.Unavailable, RetryAfter: time.Second,
		Message: "the cluster has no leader that could be asked; nothing happened",
		Hint:    "a majority of the voters has to run and be reached: see `keystead status`"}
	errNoTable = &failure.Error{Reason: failure.Unavailable, RetryAfter: time.Second,
		Message: "this node has not heard from its cluster yet; nothing happened",
		Hint:    "ask another node, or try again"}
	errUnknown = &failure.Error{Reason: failure.OutcomeUnknown, RetryAfter: time.Second,
		Message: "it is not known whether the leader has agreed",
		Hint:    "see `keystead members`, or say it again: that does no harm"}
)

// ErrUnknownNode returns the error of an order about a node that is no member.
func ErrUnknownNode(node string) error {
	return &failure.Error{Reason: failure.UnknownNode, Message: fmt.Sprintf("%q is no member of the cluster", node),
		Hint: "`keystead members` lists those that are"}
}

// ErrLastNode returns the error of a drain after which nobody would own anything.
func ErrLastNode(node string) error {
	return &failure.Error{Reason: failure.LastNode, Message: fmt.Sprintf("nobody would be left to take what %s owns", node),
		Hint: "start another node, or take back the drain of one; to shut the service down, stop the node without a drain (--drain-timeout 0): with --data-dir its next process goes on from what it has, without it that ends"}
}

// ErrTooFewLeft returns the error of a drain after which too few of the voters would be
// left that are not drained.
func ErrTooFewLeft(node string, left, voters int) error {
	return &failure.Error{Reason: failure.TooFewLeft,
		Message: fmt.Sprintf("with %s drained, %d of %d voters would be left that are not, and a majority is %d: when the drained ones are stopped, the cluster stops", node, left, voters, voters/2+1),
		Hint:    "bring the nodes that are drained back first, or start others and wait until they vote; --force drains it all the same"}
}

// errAwaited returns the error of a drain of a node that other rows are to go on from.
func errAwaited(node string) error {
	return &failure.Error{Reason: failure.Unavailable, RetryAfter: time.Second,
		Message: fmt.Sprintf("rows wait for the disk of %s: it is given them first; nothing happened", node),
		Hint:    "try again when `keystead status` does not say so any more"}
}

// errRecovered returns the error of a drain of a node that has rows from its disk, and is on no
// ring yet.
func errRecovered(node string) error {
	return &failure.Error{Reason: failure.Unavailable, RetryAfter: time.Second,
		Message: fmt.Sprintf("%s has just been given rows from its disk, and is not on the ring yet; nothing happened", node),
		Hint:    "try again in some seconds"}
}

// Group is what a Drainer needs of the cluster.
type Group interface {
	// Self is this process.
	Self() table.Holder
	// Table is the table that this node has applied; it is never nil.
	Table() *table.Table
	// Await returns the first table above an epoch, or the error of the context.
	Await(ctx context.Context, after uint64) (*table.Table, error)
	// Propose returns the epoch in which a command took effect. After a *table.Refused
	// and table.ErrNotProposed it has not, after any other error it still may.
	Propose(ctx context.Context, c table.Command) (uint64, error)
	// Servers are the node ids of raft's voters, and of those that do not vote.
	Servers() (voters, nonvoters []string)
	// Leader is the node id of raft's leader, or "".
	Leader() string
}

// Config is what a Drainer works with. All fields but Keeps are required.
type Config struct {
	Node  string        // id of this node
	Group Group         // its cluster
	NewID func() string // of a command
	Ready func() error  // why the node is not ready to serve; nil = it is
	Sent  func() int64  // bytes that copies under way have sent
	Keeps bool          // an orderly stop keeps what the node has for its next process
	Lease time.Duration // how long a lease lasts
	Log   *slog.Logger
}

// Drainer gives the orders that one node is asked for, and follows those that are about
// itself.
type Drainer struct{ cfg Config }

// New returns the Drainer of a node.
func New(cfg Config) *Drainer { return &Drainer{cfg} }

const (
	// patience is how long an order may take to be agreed on: an election and a
	// second.
	patience = 5 * time.Second
	// tryTime bounds one try.
	tryTime = time.Second
	// tryPause is the longest one between tries.
	tryPause = 50 * time.Millisecond
)

// Give has an order agreed on. Its errors are *failure.Error, of the reasons UnknownNode,
// LastNode, TooFewLeft, Unavailable and OutcomeUnknown, or those of the context.
func (d *Drainer) Give(ctx context.Context, o Order) (State, error) {
	g := d.cfg.Group
	within, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	id := d.cfg.NewID()
	proposed := false // at least once, and the outcome is unknown
	for {
		t := g.Table()
		voters, _ := g.Servers()
		s, done, err := judge(t, voters, o)
		if err != nil || done {
			s.Already = done && !proposed
			return s, err
		}
		c := table.Command{ID: id, Drain: &table.Drain{Member: s.Member.Holder(), Undo: o.Undo, Stop: o.Stop}}
		//guard:drain-stop-known
		if t.Knows(c) != nil { // an older node would not understand that it stops
			c.Drain.Stop = false
		}
		at, err := d.propose(within, c)
		switch {
		case err == nil:
			return d.stateAt(within, o, at)
		case errors.As(err, new(*table.Refused)): // the leader's table is a later one
		case !errors.Is(err, table.ErrNotProposed):
			proposed = true
		}
		// Whatever became of it, the table tells, if only a little later.
		wait, cancel := context.WithTimeout(within, tryPause)
		_, _ = g.Await(wait, t.Epoch)
		cancel()
		switch {
		case within.Err() == nil:
		case proposed:
			return s, errUnknown
		case ctx.Err() == nil:
			return s, errNoLeader
		default:
			return s, ctx.Err()
		}
	}
}

func (d *Drainer) propose(ctx context.Context, c table.Command) (uint64, error) {
	try, cancel := context.WithTimeout(ctx, tryTime)
	defer cancel()
	return d.cfg.Group.Propose(try, c)
}

// stateAt returns the state of a member when this node has applied the epoch in which an
// order took effect.
func (d *Drainer) stateAt(ctx context.Context, o Order, at uint64) (State, error) {
	t, err := d.cfg.Group.Await(ctx, at-1)
	if err != nil {
		return State{}, errUnknown
	}
	s, ok := StateOf(t, o.Node)
	if !ok {
		return s, ErrUnknownNode(o.Node)
	}
	return s, nil
}

// judge reports whether an order has nothing to do any more, and why it must not be
// given, by a table and the nodes that vote.
func judge(t *table.Table, voters []string, o Order) (s State, done bool, err error) {
	if t.Cluster == "" {
		return s, false, errNoTable
	}
	s, ok := StateOf(t, o.Node)
	if !ok {
		return s, false, ErrUnknownNode(o.Node)
	}
	if o.Undo == !s.Member.Leaves() || o.Stop && t.Stopped(s.Member.Holder()) {
		return s, true, nil
	}
	if o.Undo {
		return s, false, nil
	}
	//guard:drain-needs-takers
	if !t.HasTakers(o.Node) {
		if o.Stop && t.OthersStop(o.Node) {
			return s, false, nil
		}
		return s, false, ErrLastNode(o.Node)
	}
	switch {
	case !o.Stop && len(t.Awaited(o.Node)) > 0:
		return s, false, errAwaited(o.Node)
	case t.Recovered(s.Member):
		return s, false, errRecovered(o.Node)
	}
	left := 0
	for _, v := range voters {
		if m, ok := t.Member(v); ok && v != o.Node && !m.Leaves() {
			left++
		}
	}
	//guard:drain-keeps-majority
	if !o.Force && left < len(voters)/2+1 {
		return s, false, ErrTooFewLeft(o.Node, left, len(voters))
	}
	return s, false, nil
}

// GiveAlone is Give for a node that runs alone, by its table: it has nobody to give
// anything to.
func GiveAlone(t *table.Table, o Order) (State, error) {
	s, ok := StateOf(t, o.Node)
	switch {
	case !ok:
		return State{}, ErrUnknownNode(o.Node)
	case o.Undo:
		s.Already = true
		return s, nil
	}
	return State{}, ErrLastNode(o.Node)
}
