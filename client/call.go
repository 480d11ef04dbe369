package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// noForwardHeader asks a node to answer NOT_OWNER rather than to forward.
const noForwardHeader = "x-keystead-no-forward"

// bounded gives a context a deadline if it has none, unless timeout is forever.
func (c *Client) bounded(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if c.cfg.noForward {
		ctx = metadata.AppendToOutgoingContext(ctx, noForwardHeader, "1")
	}
	if _, has := ctx.Deadline(); has || timeout == forever {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, timeout)
}

// enter takes a slot among the calls under way.
func (c *Client) enter(ctx context.Context, slots chan struct{}) *Error {
	if ctx.Err() == nil {
		select {
		case slots <- struct{}{}:
			return nil
		default:
		}
	}
	select {
	case slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return &Error{Code: codeOf(ctx), Reason: ErrGaveUp, Message: ctx.Err().Error(), cause: ctx.Err()}
	case <-c.ctx.Done():
		return errClosed()
	}
}

// attempt makes one attempt at a node. sent reports whether it was given to a
// connection.
type attempt func(ctx context.Context, n *node, v *view) (sent bool, err error)

// do makes attempts until there is an answer, an error that trying again does not
// cure, or no time left.
func (c *Client) do(ctx context.Context, r route, try attempt) error {
	if err := c.callable(ctx); err != nil {
		return about(err, r.what, r.key, "")
	}
	if c.observed() && !r.quiet {
		return c.doObserved(ctx, r, try)
	}
	return c.perform(ctx, r, try)
}

// perform is do without an Observer.
func (c *Client) perform(ctx context.Context, r route, try attempt) error {
	ctx, cancel := c.bounded(ctx, c.cfg.Timeout)
	defer cancel()
	if err := c.enter(ctx, c.opSlots); err != nil {
		return about(err, r.what, r.key, "")
	}
	defer func() { <-c.opSlots }()
	return c.insist(ctx, r, try)
}

// insist is perform without a bound on the time or on the calls under way.
func (c *Client) insist(ctx context.Context, r route, try attempt) error {
	unknown := false
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		n, v, err := c.pick(&r)
		if err != nil {
			return about(c.closedOr(err), r.what, r.key, "")
		}
		c.stats.attempts.Add(1)
		sent, err := try(ctx, n, v)
		c.pool.release(n)
		if err == nil {
			return nil
		}
		if c.ctx.Err() != nil {
			return about(c.closedAfter(unknown || sent && !r.reads), r.what, r.key, v.nameOf(n.addr))
		}
		e := fromCall(err, sent)
		unknown = unknown || e.unknown && !r.reads
		if over := ctx.Err(); over != nil {
			return about(final(e, unknown, over), r.what, r.key, v.nameOf(n.addr))
		}
		if !e.retry() {
			return about(final(e, unknown, nil), r.what, r.key, v.nameOf(n.addr))
		}
		r.learn(c, e, v, n.addr)
		if err := c.rest(ctx, &r, v, max(pause, e.RetryAfter)); err != nil {
			return about(final(e, unknown, err), r.what, r.key, v.nameOf(n.addr))
		}
		if unknown && r.op.outlived() { //guard:client-key-time
			return about(final(e, unknown, errKeyTime), r.what, r.key, v.nameOf(n.addr))
		}
		c.stats.retries.Add(1)
	}
}

// rest waits before the next attempt: about d, or until the key has another
// owner. It fails if ctx ends before.
func (c *Client) rest(ctx context.Context, r *route, v *view, d time.Duration) error {
	d += time.Duration(rand.Int64N(int64(min(d, 2*maxPause))/2 + 1)) // calls that failed together must not come back together
	if end, has := ctx.Deadline(); has && time.Until(end) < d {
		return errNoTime // waiting for it would gain nothing
	}
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		var changed chan struct{}
		if v != nil {
			changed = v.changed
		}
		select {
		case <-t.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-c.ctx.Done():
			return c.ctx.Err()
		case <-changed:
			next := c.view.Load()
			if r.moved(v, next) {
				return nil
			}
			v = next
		}
	}
}

func sameOwner(a, b *member) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.id == b.id && a.incarnation == b.incarnation && a.addr == b.addr
}

// closedOr is err, or that the client was closed.
func (c *Client) closedOr(err error) error {
	if c.ctx.Err() != nil {
		return errClosed()
	}
	return err
}

func (c *Client) closedAfter(unknown bool) error {
	e := errClosed()
	if unknown {
		e.Message = "the client was closed; whether the operation took effect is unknown"
	}
	return e
}

// limited bounds one attempt, by extra more than usual.
func (c *Client) limited(ctx context.Context, extra time.Duration) (context.Context, context.CancelFunc) {
	d := c.cfg.AttemptTimeout + extra
	if end, has := ctx.Deadline(); has && time.Until(end) <= d {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, d)
}

// unary is one attempt of a call in a message of its own. The time that it waits
// for a lock does not count as latency.
func (c *Client) unary(ctx context.Context, n *node, wait time.Duration, f func(ctx context.Context, opts ...grpc.CallOption) error) (sent bool, err error) {
	actx, cancel := c.limited(ctx, wait)
	defer cancel()
	var p peer.Peer
	begin := c.clock.Now()
	n.load.Begin(begin)
	err = f(actx, grpc.Peer(&p))
	n.load.End(begin, c.clock.Now(), outcome(ctx, err, wait > 0))
	return p.Addr != nil, err
}

// codeOf returns the code of a context that has ended.
func codeOf(ctx context.Context) codes.Code {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return codes.DeadlineExceeded
	}
	return codes.Canceled
}
