package rpc

import (
	"context"
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/forward"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch/table"
)

// Copies are what answers wait for: a decision is told to nobody before those
// processes have it that would go on from it if this one died.
type Copies interface {
	// Replicated reports whether they have the last that was decided about keys at this
	// position.
	Replicated(hash uint64) bool
	// Await returns true when they have, or need not any more. It returns false if it
	// gave up before, because this node could not answer any more. The decision is
	// not acknowledged then, even if the node may answer again by now.
	Await(hash uint64) bool
	// Behind are those that have not.
	Behind(hash uint64) table.Behind
	// AwaitOf is Await for one of those. It gives up when the context ends, too.
	AwaitOf(ctx context.Context, hash uint64, of table.Holder) bool
}

// What becomes of answers for which Await gave up.
var (
	errUntold = &failure.Error{Reason: failure.OutcomeUnknown, RetryAfter: 200 * time.Millisecond,
		Message: "the node lost its lease before its standby had acknowledged the operation; it may have taken effect",
		Hint:    "try again with the same request id to learn what became of it"}
	errUntoldRead = &failure.Error{Reason: failure.Unavailable, RetryAfter: 200 * time.Millisecond,
		Message: "the node lost its lease before its standby had acknowledged what was to be read; nothing happened",
		Hint:    "try again: the node gets its lease back, or another one takes over"}
	errUnread = &failure.Error{Reason: failure.Unavailable, RetryAfter: time.Second,
		Message: "what was to be read is not on disk, which its durability promises; nothing happened",
		Hint:    "try again; `keystead status` shows what is wrong with the disk"}
)

// await waits until a decision may be told. The error is what the caller gets if it
// may not.
func (s *Server) await(ctx context.Context, o *opMetrics, p owner.Permit) error {
	// gofail: var rpcDecided struct{}

	if o.alone {
		return nil
	}
	//guard:fallback-copies
	if within, ok := ctx.(hasty); ok {
		return s.awaitWithin(within, p.Hash, o.read)
	}
	return s.awaitCopies(p.Hash, o.read)
}

// awaitCopies is await for answers that no setting exempts.
func (s *Server) awaitCopies(hash uint64, read bool) error {
	//guard:answer-not-told true
	if c := s.cfg.Copies; c == nil || c.Replicated(hash) || c.Await(hash) {
		return nil
	}
	return s.untold(read)
}

// untold returns the error of an answer for which Await gave up.
func (s *Server) untold(read bool) error {
	var disk *failure.Error
	if s.cfg.Untold != nil {
		disk = s.cfg.Untold()
	}
	switch {
	case disk != nil && read:
		return errUnread
	case disk != nil:
		return disk
	case read:
		return errUntoldRead
	}
	return errUntold
}

// decision is what was decided, as far as it is needed to confirm it later.
type decision struct {
	o             *opMetrics
	permit        owner.Permit
	yes, replayed bool
}

// unconfirmed are the decisions of one message of another node's.
type unconfirmed = forward.Later[decision]

// confirm does the check before the answer, unless the wait for the copies has failed
// already, and counts the operation. With an error it must not be told.
func (s *Server) confirm(d *decision, now int64, err error) error {
	var t tally
	if err == nil {
		//guard:answer-check-forwarded
		err = s.cfg.Store.Confirm(d.permit, now)
	}
	if err != nil {
		t.errored++
		d.o.failed[wire(err).Reason].Inc()
	} else {
		t.decided(d.yes, d.replayed)
	}
	d.o.add(t)
	return err
}

// one closes a single operation; its error is for the caller, or says that the
// operation belongs elsewhere. With later, the answer is not confirmed yet: later
// has it.
func (s *Server) one(ctx context.Context, later *unconfirmed, o *opMetrics, v verdict, err error) error {
	if err != nil && s.elsewhere(err) {
		return err // the node that does it counts it
	}
	if err == nil && later != nil {
		later.Add(forward.Unconfirmed[decision]{Hash: v.Permit.Hash, Alone: o.alone, Reads: o.read, Decision: decision{o: o, permit: v.Permit, yes: v.yes, replayed: v.Replayed}})
		return nil
	}
	var t tally
	if err == nil {
		//guard:answers-wait-one
		err = s.await(ctx, o, v.Permit)
	}
	if err == nil {
		//guard:answer-check-one
		err = s.cfg.Store.Confirm(v.Permit, s.cfg.Clock.Now())
	}
	if err != nil {
		t.errored++
		o.failed[wire(err).Reason].Inc()
	} else {
		t.decided(v.yes, v.Replayed)
	}
	o.add(t)
	// gofail: var rpcConfirmed struct{}

	return err
}
