package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/ids"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch/table"
)

// newIDs returns the source of this node's ids.
func (n *Node) newIDs() *ids.Source {
	claim := n.claimStandalone
	if n.cluster != nil {
		claim = n.cluster.claimEpoch
	}
	return ids.New(ids.Config{Claim: claim, Now: n.cfg.Clock.Now, Log: n.cfg.Log})
}

// Pauses before an epoch is asked for again.
const (
	reclaim = 5 * time.Millisecond // when the last time raised nothing; an election takes a few hundred of them
	// reclaimUnknown is after an unknown outcome, which may have raised the epoch for
	// nobody: these are no more than ten a second.
	reclaimUnknown = 100 * time.Millisecond
)

// claimEpoch has the epoch raised and returns it, if it was this very command that
// raised it to that: nobody else takes it for theirs.
//
// Raise names the epoch that it is to raise, and is refused if there is another. So
// no more than one entry of the log makes an epoch out of the one before, and the
// leader's answer is what the table said when it applied the entry of this proposal,
// after a majority had it. An outcome that is unknown is one epoch less: it is never
// asked for again.
func (c *cluster) claimEpoch(ctx context.Context) (uint64, error) {
	above := uint64(0)
	for {
		t := c.group.Table()
		above = max(above, t.Epoch)
		if above >= owner.MaxEpoch {
			return 0, errIDsUsedUp
		}
		rest, err := reclaim, errors.New("this node has not heard from its cluster yet")
		if t.Cluster != "" && above >= c.standaloneEpoch { // see belongs
			var got uint64
			got, err = c.group.Propose(ctx, table.Command{ID: c.newID(), Raise: &table.Raise{Above: above}})
			switch refused := new(table.Refused); {
			case err == nil && got == above+1:
				return got, nil
			case err == nil:
				return 0, noIDs(fmt.Errorf("the epoch %d was to be raised, and %d came of it", above, got))
			case errors.As(err, &refused):
				//guard:id-epoch -> return got, nil
				above = max(above, got) // somebody was quicker
			case !errors.Is(err, table.ErrNotProposed):
				rest = reclaimUnknown
			}
		}
		if !pause(ctx, rest) {
			return 0, noIDs(err)
		}
	}
}

// claimStandalone is claimEpoch for a standalone node.
func (n *Node) claimStandalone(context.Context) (uint64, error) {
	switch taken, err := n.rule.claim(); {
	case err != nil:
		return 0, &failure.Error{Reason: failure.Unavailable, RetryAfter: time.Second, Message: err.Error() + "; no id was given"}
	case taken == 0:
		return 0, errIDsUsedUp
	default:
		return taken, nil
	}
}

// claim raises the epoch and returns it; no other call gets it, in this process or,
// with a file, in any. It is 0 if there is none left.
func (s *standalone) claim() (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.epoch.Load() + 1
	if next > owner.MaxEpoch {
		return 0, nil
	}
	return next, s.setLocked(next)
}

var errIDsUsedUp = &failure.Error{Reason: failure.Unavailable, RetryAfter: time.Hour,
	Message: fmt.Sprintf("all ids up to epoch %d are used up; none was given", uint64(owner.MaxEpoch)),
	Hint:    "make a new cluster, or start with a new data directory, and give up what came before"}

// noIDs says why there are no ids now.
func noIDs(why error) error {
	return &failure.Error{Reason: failure.Unavailable, RetryAfter: 200 * time.Millisecond,
		Message: fmt.Sprintf("this node has no ids left, and could not get more: %v; no id was given", why),
		Hint:    "try again, or ask another node: it needs a leader that it can reach, and then goes on for a minute without one"}
}
