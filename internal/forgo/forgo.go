// Package forgo gives up disks that rows wait for, as an operator says.
//
// Where disks count, a row whose owner and standby are both dead is cold: it waits for the disk
// of one of them (table.Row.Was and Stood). A disk that never comes back has its rows wait for
// ever, if some answers were to outlive a power cut: only somebody who knows can say that it is
// gone.
//
// # Promise
//
// Give returns when that is agreed on, or an error whose reason reports whether anything
// happened. It names processes, not nodes: those whose disks rows wait for at that moment, or
// those of them that the order names. So an order that comes late does not strike the next
// trouble's. A row that waits for another disk, too, goes on waiting for that one; one that does
// not is lost, and its loss is declared.
package forgo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/ring/epoch/table"
)

// Order gives up the disk of a node.
type Order struct {
	Node         string
	Incarnations []uint64 // of its processes whose disks are given up; none = all that rows wait for
	DryRun       bool     // only count
	Reason       string   // for people
}

// State is what an order does.
type State struct {
	Node         string
	Incarnations []uint64 // that were given up, in order
	Rows         int      // that waited for them
	Other        int      // of these, rows that wait for another disk still
	Lost         int      // … and that are lost
	Epoch        uint64   // of the table that says so
}

// Group is what a Giver needs of the cluster.
type Group interface {
	// Table is the table that this node has applied; it is never nil.
	Table() *table.Table
	// Await returns the first table above an epoch, or the error of the context.
	Await(ctx context.Context, after uint64) (*table.Table, error)
	// Propose returns the epoch in which a command took effect. After a *table.Refused
	// and table.ErrNotProposed it has not, after any other error it still may.
	Propose(ctx context.Context, c table.Command) (uint64, error)
}

// Giver gives such orders. All fields are required.
type Giver struct {
	Group Group
	NewID func() string // of a command
}

const (
	// patience is how long an order may take to be agreed on: an election and a second.
	patience = 5 * time.Second
	// tryTime bounds one try.
	tryTime = time.Second
	// tryPause is the longest one between tries.
	tryPause = 50 * time.Millisecond
)

var (
	errNoLeader = &failure.Error{Reason: failure.Unavailable, RetryAfter: time.Second,
		Message: "the cluster has no leader that could be asked; nothing happened",
		Hint:    "a majority of the voters has to run and be reached: see `keystead status`"}
	errUnknown = &failure.Error{Reason: failure.OutcomeUnknown, RetryAfter: time.Second,
		Message: "it is not known whether the leader has agreed",
		Hint:    "see `keystead status`, or say it again: that does no harm"}
)

// ErrNothingWaits returns the error of an order about a node for whose disk no row waits.
func ErrNothingWaits(node string) error {
	return &failure.Error{Reason: failure.UnknownNode, Message: fmt.Sprintf("no row waits for the disk of %q, or of the process of it that was named", node),
		Hint: "`keystead status` says which disks rows wait for"}
}

// Of returns what an order does by a table, and which processes it gives up.
func Of(t *table.Table, o Order) (State, []table.Holder) {
	s := State{Node: o.Node, Epoch: t.Epoch}
	given := slices.DeleteFunc(t.Awaited(o.Node), func(h table.Holder) bool {
		//guard:forgo-named false
		return len(o.Incarnations) > 0 && !slices.Contains(o.Incarnations, h.Incarnation)
	})
	for _, h := range given {
		s.Incarnations = append(s.Incarnations, h.Incarnation)
	}
	for _, c := range t.ColdRows() {
		was, stood := slices.Contains(given, c.Was), slices.Contains(given, c.Stood)
		switch {
		case !was && !stood:
			continue
		case was && (stood || c.Stood.None()):
			s.Lost += len(c.Rows)
		default:
			s.Other += len(c.Rows)
		}
		s.Rows += len(c.Rows)
	}
	return s, given
}

// Give has an order agreed on. Its errors are *failure.Error, of the reasons UnknownNode (no
// row waits for it), Unavailable and OutcomeUnknown, or those of the context.
func (g *Giver) Give(ctx context.Context, o Order) (State, error) {
	within, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	id := g.NewID()
	var proposed *State // at least once, and the outcome is unknown
	for {
		t := g.Group.Table()
		s, given := Of(t, o)
		switch {
		case len(given) == 0 && proposed != nil: // it took effect
			proposed.Epoch = t.Epoch
			return *proposed, nil
		case len(given) == 0:
			return s, ErrNothingWaits(o.Node)
		case o.DryRun:
			return s, nil
		}
		try, stop := context.WithTimeout(within, tryTime)
		at, err := g.Group.Propose(try, table.Command{ID: id, Forgo: &table.Forgo{Holders: given, Reason: o.Reason}})
		stop()
		switch {
		case err == nil:
			s.Epoch = at
			if _, err := g.Group.Await(within, at-1); err != nil {
				return s, errUnknown
			}
			return s, nil
		case errors.As(err, new(*table.Refused)): // the leader's table is a later one
		case !errors.Is(err, table.ErrNotProposed):
			proposed = &s
		}
		wait, cancel := context.WithTimeout(within, tryPause)
		_, _ = g.Group.Await(wait, t.Epoch)
		cancel()
		switch {
		case within.Err() == nil:
		case proposed != nil:
			return s, errUnknown
		case ctx.Err() == nil:
			return s, errNoLeader
		default:
			return s, ctx.Err()
		}
	}
}
