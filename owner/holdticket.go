package owner

import (
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/reqid"
)

// TicketLevel is the level of the cluster from which on places stand without their callers.
const TicketLevel = 7

var (
	errTickets = &failure.Error{Reason: failure.TooManyWaiters, RetryAfter: retrySoon, Field: "ticket_ttl_ns",
		Message: "half as many callers wait for locks on this node as may, and the other half is for those that need no ticket",
		Hint:    "wait without a ticket, try again later, or raise --max-waiters"}
	errTicketOver = &failure.Error{Reason: failure.Unavailable, RetryAfter: retrySoon,
		Message: "the node stood still until the ticket was over: the place in the queue is lost, and nothing was acquired",
		Hint:    "acquire again, under the same id: it queues anew"}
)

// mostWaiting returns how many callers may wait here for an acquire to have a place. A ticket costs
// its caller no connection: with those of a day, one caller would keep all others from waiting.
func (s *Store) mostWaiting(op *hold.Acquire) int64 {
	//guard:tickets-leave-room op.Keep > 0 -> false
	if op.Keep > 0 {
		return (s.cfg.MaxWaiters + 1) / 2
	}
	return s.cfg.MaxWaiters
}

// mayKeep returns the error of an acquire whose place cannot stand without its caller.
func (s *Store) mayKeep(op *hold.Acquire, id *reqid.ID) error {
	switch {
	case op.Keep == 0:
		return nil
	case !id.Given():
		return invalid("ticket_ttl_ns", "needs a request_id or an idempotency_key: nobody could come back to the place")
	}
	//guard:ticket-level
	if err := s.uses(TicketLevel); err != nil {
		return err
	}
	return nil
}

// queuedLocked returns what an acquire that has a place says: one that does not wait is parked at
// once, if its place stands.
func (t *target) queuedLocked(op *hold.Acquire, w *Wait[GrantAnswer], err error) (GrantAnswer, *Wait[GrantAnswer], error) {
	if w == nil || op.Keep == 0 || op.Wait != 0 {
		return GrantAnswer{}, w, err
	}
	a, err := t.parkLocked(w)
	return a, nil, err
}

// Park ends the wait of a call whose place stands without it, and returns its answer: what it was
// granted by now, or its place. The place is there for the next call under the same id.
func Park(w *Wait[GrantAnswer], now int64) (GrantAnswer, error) {
	t := target{ref: w.ref, kind: w.kind, now: now}
	if err := t.enter(w.sh.store); err != nil {
		w.GiveUp(now)
		if a, was := w.Answer(); was != errGaveUp {
			return a, was
		}
		return GrantAnswer{}, err
	}
	defer t.leave()
	return t.parkLocked(w)
}

func (t *target) parkLocked(w *Wait[GrantAnswer]) (GrantAnswer, error) {
	if w.finished() {
		return w.Answer()
	}
	err := t.expireHoldLocked() // it may be its turn in this very moment
	if w.finished() {
		return w.Answer()
	}
	state := t.sh.holds.At(t.e.rest)
	held, blocked := state.Held(t.now)
	a := GrantAnswer{
		Waiting: true, Place: state.Queue.Position(w.ticket, t.now), Held: held + blocked, Holder: state.First(t.now), Capacity: state.Capacity,
		Meta: Meta{Permit: t.permit},
	}
	w.keepLocked(t, t.sh.lineLocked(t.e))
	if err != nil {
		return GrantAnswer{}, err
	}
	return a, nil
}
