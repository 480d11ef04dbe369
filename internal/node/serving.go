package node

import (
	"fmt"
	"math"
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch/serving"
)

// inCluster is the serving rule of a node in a cluster, as the store asks for it.
type inCluster struct {
	rule *serving.Rule
	// start is when this process began, by the clock of the store.
	start int64
	// window is how long request ids and idempotency keys are kept, ns, if nothing is agreed.
	window int64
	// raise asks the cluster for an epoch above this one. It does not wait.
	raise func(above uint64)
	// admit says why the disk lets nothing in, nil if it does. nil = there is no disk.
	admit func() error
	// noLease and unknown are the refusals of this node, by name.
	noLease, unknown *failure.Error
}

var errNotOwner = &failure.Error{Reason: failure.NotOwner, RetryAfter: 50 * time.Millisecond,
	Message: "another node owns the key"}

// refusals makes those that name the node.
func (m *inCluster) refusals(node string) {
	m.noLease = &failure.Error{Reason: failure.Unavailable, RetryAfter: 200 * time.Millisecond,
		Message: fmt.Sprintf("the node %q cannot show now that it is the owner of the key; nothing happened", node),
		Hint:    "try again: it hears from the cluster's leader, or another node takes over; if it lasts, `keystead status` at that node says why"}
	m.unknown = &failure.Error{Reason: failure.OutcomeUnknown, RetryAfter: 200 * time.Millisecond,
		Message: fmt.Sprintf("the node %q stopped being able to show that it is the owner while it did this; it may have taken effect", node),
		Hint:    "try again with the same request id to learn what became of it"}
}

// Admit implements owner.Rule.
func (m *inCluster) Admit(hash uint64, now int64) (owner.Permit, error) {
	if m.admit != nil {
		if err := m.admit(); err != nil {
			return owner.Permit{}, err
		}
	}
	e, v := m.rule.Enter(hash, now)
	//guard:admission-of-the-node -> serving.Yes | v&0
	switch v {
	case serving.Yes:
		p := owner.Permit{Epoch: e.Since, Seen: e.Seen, Hash: hash, Lost: e.Lost}
		if e.Lost != 0 {
			p.LostAt = e.LostAt
		}
		if e.Loss != 0 {
			p.Loss, p.LossAt = e.Loss, e.LearnedAt
		}
		p.Since = m.since(&e)
		return p, nil
	case serving.NoLease:
		return owner.Permit{}, m.noLease
	}
	return owner.Permit{}, errNotOwner // frozen rows too: they wait for the next table
}

// since returns the moment before which request ids of a row are unknown, and may be sent
// again.
func (m *inCluster) since(e *serving.Entry) int64 {
	switch agreed := e.Window != 0; {
	case e.Whole: // it came with its request ids, from wherever it came
		return math.MinInt64
	//guard:ids-not-unsure false
	case agreed && !e.Unsure: // those of before the loss are too old
		return math.MinInt64
	case e.Lost != 0: // … are gone
		//guard:lost-ids e.LearnedAt -> m.start
		return max(m.start, e.LearnedAt)
	//guard:lost-short-grace
	case agreed || m.rule.Table().LockTTL < m.window: // the grace is over, and those of before may be sent again
		return e.LearnedAt
	}
	return math.MinInt64 // … and they may not
}

// Confirm implements owner.Rule.
func (m *inCluster) Confirm(p owner.Permit, now int64) error {
	//guard:answer-check-of-the-node true
	if m.rule.Still(p.Hash, p.Seen, now) {
		return nil
	}
	return m.unknown
}

// Owns implements owner.Owners.
func (m *inCluster) Owns(hash uint64) bool {
	t := m.rule.Table()
	i := t.Find(hash)
	return i >= 0 && t.Rows[i].Owner == m.rule.Self()
}

// Uses implements owner.Levels.
func (m *inCluster) Uses(level uint32) bool { return m.rule.Table().Uses(level) }

// Wall implements owner.Dates.
func (m *inCluster) Wall(now int64) (wall int64, ok bool) { return m.rule.Wall(now) }

// Shared implements owner.Owners.
func (m *inCluster) Shared() bool { return len(m.rule.Table().Members) > 1 }

// Terms implements owner.Rule.
func (m *inCluster) Terms() owner.Terms {
	t := m.rule.Table()
	return owner.Terms{LockTTL: t.LockTTL, Grace: t.GraceTime()}
}

// Exhausted implements owner.Rule. Tokens may begin with any epoch up to that of
// the table that the node goes by: a node that owns a row later, owns it since a
// later one.
func (m *inCluster) Exhausted(epoch uint64) (uint64, error) {
	if now := m.rule.Table().Epoch; now > epoch {
		return now, nil
	}
	if epoch >= owner.MaxEpoch {
		return 0, &failure.Error{Reason: failure.Unavailable, RetryAfter: time.Hour,
			Message: fmt.Sprintf("all fencing tokens up to epoch %d are used up", uint64(owner.MaxEpoch)),
			Hint:    "make a new cluster, and tell what the locks protect to forget the tokens it has seen"}
	}
	m.raise(epoch) // as long as Ending has not come to it
	return 0, &failure.Error{Reason: failure.Unavailable, RetryAfter: 50 * time.Millisecond,
		Message: "the fencing tokens of this epoch are used up, and the next one is being agreed on; nothing happened"}
}

// Ending implements owner.Foresight: the next epoch is agreed on while there are tokens of this
// one, so that nobody waits for it.
func (m *inCluster) Ending(epoch uint64) {
	//guard:epoch-ahead
	if epoch < owner.MaxEpoch && m.rule.Table().Epoch <= epoch {
		m.raise(epoch)
	}
}
