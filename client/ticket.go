package client

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"

	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

// Ticket has the caller's place in the queue stand for so long after an Acquire that was not granted,
// whatever becomes of the process: 10 ms to 24 h, together with Wait. The next Acquire under the same
// IdempotencyKey, which a ticket needs, with the same options and from any process, takes the place
// up. Until then the error is ErrLockHeld or ErrNoPermits, with Error.Waiting and Error.Place.
//
// Nothing is granted while nobody asks. When it is the caller's turn, the lock or the permits are kept
// for it for its TTL, and go to the next if it has not asked again by then: its place is lost, and its
// next Acquire queues anew. So ask more often than the TTL. An Acquire that was granted and whose answer
// was lost is answered again. TryAcquire under the key without a ticket leaves the queue; the key
// is used up then.
func Ticket(d time.Duration) LockOption {
	return lockOption(func(o *lockOptions) { o.ticket = d })
}

func (o *lockOptions) validateTicket() error {
	switch {
	case o.ticket == 0:
	case o.turn != nil || o.other != nil:
		return invalid("Ticket", "is an option of locks and semaphores")
	case !o.idem.given:
		return invalid("Ticket", "needs an IdempotencyKey, under which the place is found again")
	case o.ticket < minLockTTL || o.ticket > maxLockWait:
		return invalid("Ticket", "is %s; %s to %s are allowed", o.ticket, minLockTTL, maxLockWait)
	case o.wait != forever && o.wait > maxLockWait-o.ticket:
		return invalid("Ticket", "and Wait are %s; together they may be %s", o.wait+o.ticket, maxLockWait)
	}
	return nil
}

// longestWait is that of one call: with its ticket it is as long as a queue has waits for. A ticket
// that leaves no room for a wait is the shorter for it.
func (o *lockOptions) longestWait() time.Duration {
	return max(maxLockWait-o.ticket, time.Minute)
}

// inQueue returns how long a call waits in the queue.
func (o *lockOptions) inQueue(ctx context.Context) time.Duration {
	return min(timeInQueue(ctx, o.wait), o.longestWait())
}

// unheededTicket returns the error of an Acquire whose place does not stand, for the node is of a
// version that does not know tickets; nil if it does, or has left the queue under the key before.
func (o *lockOptions) unheededTicket(r *lockpb.AcquireResponse, key string) *Error {
	//guard:client-ticket-unheeded
	if o.ticket != 0 && !r.GetWaiting() && r.GetReplay() == nil {
		return &Error{Op: o.what(), Key: key, Node: r.GetOwner(), Code: codes.Unavailable, Reason: ErrUnavailable,
			Message: "the node does not know tickets yet; the place does not stand", Hint: "upgrade all nodes: `keystead status` shows their versions"}
	}
	return nil
}
