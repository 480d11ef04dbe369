package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"google.golang.org/grpc/codes"
)

// Wait waits for the turn of one token of the key's: see WaitN.
func (l Limit) Wait(ctx context.Context, key string, opts ...CallOption) (Decision, error) {
	return l.WaitN(ctx, key, 1, opts...)
}

// WaitN waits until n tokens of the key's may run, of a limit that is Spaced, and returns nil
// then. It asks for a turn that comes in time, before the deadline of ctx and within the MaxDelay
// of the limit: if there is none, it returns ErrNoTurn at once, with the Decision, and holds no
// place. It never comes back before its turn, and never sleeps past the deadline.
//
// If ctx ends while it waits, it returns ErrGaveUp, and its turn passes unused: giving it to
// another would let two run at a time.
func (l Limit) WaitN(ctx context.Context, key string, n uint64, opts ...CallOption) (Decision, error) {
	switch {
	case n == 0:
		return Decision{}, about(invalid("cost", "is 0, which waits for nothing; ask for 1 or more"), "wait", key, "")
	case l.policy == "" && l.rate.Algorithm != LeakyBucket:
		return Decision{}, about(invalid("algorithm", "is %s, which has no turns: use a rate that is Spaced", l.rate.Algorithm), "wait", key, "")
	case ctx == nil:
		return Decision{}, about(errNoContext(), "wait", key, "")
	}
	most := l.maxDelay
	if most == 0 {
		most = math.MaxInt64
	}
	w := &spaced{most: most}
	w.end, w.ends = ctx.Deadline()
	d, err := l.c.check(ctx, Check{Key: key, Limit: l, Cost: n, Options: opts, wait: w})
	if e := (*Error)(nil); l.policy != "" && errors.As(err, &e) && e.Reason == ErrInvalid && e.Field == "max_delay_ns" {
		return d, about(invalid("policy", "%q is no leaky bucket, so it has no turns to wait for; check it, or have its file say algorithm: leaky-bucket", l.policy), "wait", key, "")
	}
	if err != nil {
		return d, err
	}
	if !d.Allowed {
		return d, about(noTurn(&d, n), "wait", key, d.Owner)
	}
	if w.ends && time.Until(w.end) < d.Delay { // the answer was long on its way
		return d, about(turnPassed(context.DeadlineExceeded), "wait", key, d.Owner)
	}
	over := time.NewTimer(d.Delay)
	defer over.Stop()
	select {
	case <-over.C:
		return d, nil
	case <-ctx.Done():
		return d, about(turnPassed(ctx.Err()), "wait", key, d.Owner)
	case <-l.c.ctx.Done():
		return d, about(errClosed(), "wait", key, d.Owner)
	}
}

// spaced is how long a call waits for its turn.
type spaced struct {
	most time.Duration
	end  time.Time // the deadline of its caller, if it ends
	ends bool
}

// left returns what an attempt asks for: less time is left than at the one before.
func (w *spaced) left() int64 {
	left := w.most
	if w.ends {
		//guard:client-turn-left w.end -> w.end.Add(time.Hour)
		left = max(0, min(left, time.Until(w.end)))
	}
	return int64(left)
}

// maxDelay returns how long the check waits for its turn, ns.
func (q *Check) maxDelay() int64 {
	if q.Refund != 0 {
		return 0
	}
	return int64(q.Limit.maxDelay)
}

// noTurn is the error of a wait for a turn that there is not in time, or no place to wait for it.
func noTurn(d *Decision, n uint64) *Error {
	if d.Remaining < n {
		room := d.RetryAfter.String() + " from now there is room"
		if d.RetryAfter == math.MaxInt64 {
			room = "there never is room for so many"
		}
		return &Error{Code: codes.ResourceExhausted, Reason: ErrNoTurn, RetryAfter: d.RetryAfter,
			Message: fmt.Sprintf("its queue is full: %d of %d places are free, and %s", d.Remaining, d.Capacity, room),
			Hint:    "give the limit a greater burst, for how many tokens there are places, or try again later"}
	}
	return &Error{Code: codes.ResourceExhausted, Reason: ErrNoTurn, RetryAfter: d.RetryAfter,
		Message: fmt.Sprintf("no turn comes in time: %d of %d places are free, and all turns that were given are over in %s", d.Remaining, d.Capacity, d.ResetAfter),
		Hint:    "wait for longer, or try again later"}
}

// turnPassed is the error of a wait that ended before its turn.
func turnPassed(cause error) *Error {
	code := codes.Canceled
	if cause == context.DeadlineExceeded {
		code = codes.DeadlineExceeded
	}
	return &Error{Code: code, Reason: ErrGaveUp, Message: "the context ended before its turn, which passes unused", cause: cause}
}
