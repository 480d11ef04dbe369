package client

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

const (
	// Of the time that a caller of Acquire has, an answerPart, but at most maxAnswer, is
	// left for the answer that says who has the lock when the wait is over.
	answerPart = 10
	maxAnswer  = 100 * time.Millisecond
	// resolveTime is how long after its end an Acquire waits for the outcome of its last
	// attempt. After that it reports the outcome as unknown.
	resolveTime = 100 * time.Millisecond
)

// timeInQueue returns how long to wait at the owner: as long as was asked for, but not up
// to the very end of ctx. A caller that leaves the queue by itself does not know whether
// it was granted the lock at that moment.
func timeInQueue(ctx context.Context, wait time.Duration) time.Duration {
	wait = min(wait, maxLockWait)
	if end, has := ctx.Deadline(); has {
		left := time.Until(end)
		wait = min(wait, left-min(left/answerPart, maxAnswer))
	}
	return max(wait, 0)
}

// outlast waits for the end of ctx, which is near, and returns why it ended.
func (c *Client) outlast(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-c.ctx.Done():
		return nil
	}
}

// heldBy returns the error of a lock that another has.
func (o *lockOptions) heldBy(r *lockpb.AcquireResponse, key string) *Error {
	if o.turn != nil {
		return busyWith(r, key)
	}
	if o.other != nil {
		return o.other.refused(r, key)
	}
	if o.permits != nil {
		return &Error{Op: o.what(), Key: key, Node: r.GetOwner(), Code: codes.FailedPrecondition, Reason: ErrNoPermits,
			Place: int(r.GetQueuePosition()), Waiting: r.GetWaiting(), Message: fmt.Sprintf("%d permits are not free for this caller", o.permits.n)}
	}
	e := &Error{Op: "lock", Key: key, Node: r.GetOwner(), Code: codes.FailedPrecondition, Reason: ErrLockHeld,
		Holder: holderOf(r.GetHolder()), Place: int(r.GetQueuePosition()), Waiting: r.GetWaiting(), Message: "another has the lock"}
	if e.Holder != nil {
		e.Message = fmt.Sprintf("%q holds the lock", e.Holder.ID)
	}
	return e
}

// resolve learns the outcome of an acquire that ended with the error unknown, by
// asking once more under its request id and without a wait, and gives the lock back if
// it was granted. It goes on in the background, and returns the better error if it
// knows one soon. It finishes op.
func (c *Client) resolve(values context.Context, key string, o *lockOptions, op *operation, unknown error) error {
	heard := make(chan error, 1)
	started := c.start(func() {
		if o.leave != nil {
			defer o.leave()
		}
		defer op.finish()
		ctx, cancel := c.bounded(c.ctx, c.cfg.Timeout)
		defer cancel()
		r, err := c.acquire(ctx, key, o, op, c.clock.Now())
		switch {
		case err != nil:
		case !r.GetAcquired():
			heard <- o.heldBy(r, key)
		case r.GetTtlNs() > 0:
			l := c.newLock(values, key, o, r, c.clock.Now()+r.GetTtlNs())
			l.finish(ErrLockLost)
			if _, err := l.release(ctx, releasing{left: l.rest, quiet: true}); err == nil { // else it ends by its TTL
				heard <- &Error{Op: o.what(), Key: key, Node: r.GetOwner(), Code: codes.Canceled, Reason: ErrGaveUp,
					Message: "the " + o.what() + " was granted when the caller had left, and was given back"}
			}
		}
	})
	if !started {
		op.finish()
		if o.leave != nil {
			o.leave()
		}
		return unknown
	}
	e := *unknown.(*Error)
	e.Message += "; if the " + o.what() + " was granted, it is given back in the background"
	timer := time.NewTimer(resolveTime)
	defer timer.Stop()
	select {
	case err := <-heard:
		better := err.(*Error)
		better.cause = e.cause
		return better
	case <-timer.C:
	case <-c.ctx.Done():
	}
	return &e
}
