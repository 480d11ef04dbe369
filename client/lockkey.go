package client

import (
	"context"
	"time"

	"google.golang.org/grpc"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

// takeKeyed returns the lock that was granted under an idempotency key, first sent at a
// moment of the clock. Unless it was granted to this very call, and at once, it is not known
// here since when it is held: it is renewed, and counted from there.
func (c *Client) takeKeyed(ctx, values context.Context, key string, o *lockOptions, r *lockpb.AcquireResponse, first int64) (*HeldLock, error) {
	until := first + int64(o.ttl)
	if e := o.unheeded(r, key); e != nil {
		return nil, e // it ends by its TTL: another process may go on with it
	}
	//guard:client-lock-keyed
	if r.GetReplay() != nil || r.GetWaitedNs() != 0 {
		var sent int64
		to := toKey(key, true).of(o.what())
		to.quiet = true // it is part of the call that an Observer was told of
		renewed, err := ask(ctx, c, to, nil, func(ctx context.Context, conn *grpc.ClientConn, _ *commonpb.RequestId, opts ...grpc.CallOption) (*lockpb.RenewResponse, error) {
			sent = c.clock.Now()
			return o.service(conn).Renew(ctx, &lockpb.RenewRequest{Key: key, Name: o.name, Token: r.GetToken(), TtlNs: int64(o.ttl)}, opts...)
		})
		if err != nil {
			return nil, granted(err)
		}
		if until = sent + int64(o.ttl); !renewed.GetRenewed() {
			until = 0
		}
	}
	held := c.newLock(values, key, o, r, until)
	if held.left() <= 0 {
		e := held.lost("the grant under this IdempotencyKey is over; choose another key to acquire the lock again")
		e.Node = r.GetOwner()
		held.finish(e)
		return nil, e
	}
	if !c.start(held.keep) {
		return nil, errClosed()
	}
	return held, nil
}

// granted returns the error of a lock that was granted under an idempotency key, and could
// not be renewed: that call did nothing, and the lock may be held.
func granted(err error) error {
	e, ok := err.(*Error)
	if !ok || e.Reason == ErrClosed {
		return err
	}
	e.Reason, e.Hint = ErrOutcomeUnknown, "acquire it again under the same key; it ends with its TTL"
	e.Message = "the lock was granted under this IdempotencyKey, and could not be renewed: " + e.Message
	return e
}

// abandon gives back a lock that nobody was given.
func (l *HeldLock) abandon() {
	l.finish(ErrReleased)
	l.c.start(func() {
		ctx, cancel := context.WithTimeout(l.c.ctx, min(l.ttl, l.c.cfg.Timeout))
		defer cancel()
		<-l.kept
		_, _ = l.release(ctx, releasing{left: func() time.Duration { return 0 }, quiet: true}) // else it ends by its TTL
	})
}
