package client

import (
	"context"
	"time"

	"google.golang.org/grpc"
)

// awaitTurn is how long one call waits at a node. An await asks again and again: what it is told
// does not depend on where it asks, nor how often.
const awaitTurn = 20 * time.Second

// await asks until there is an answer that ends it, or ctx ends.
func await[R interface {
	GetEpoch() uint64
	GetOwner() string
}](ctx context.Context, c *Client, to route, f func(ctx context.Context, conn *grpc.ClientConn, wait time.Duration, opts ...grpc.CallOption) (R, error), ends func(R) bool) (r R, err error) {
	if err := c.callable(ctx); err != nil {
		return r, about(err, to.what, to.key, "")
	}
	ctx, cancel := c.bounded(ctx, forever)
	defer cancel()
	for {
		wait := time.Duration(0)
		err = c.insist(ctx, to, func(ctx context.Context, n *node, v *view) (sent bool, err error) {
			wait = timeInQueue(ctx, awaitTurn)
			sent, err = c.unary(ctx, n, wait, func(ctx context.Context, opts ...grpc.CallOption) (err error) {
				r, err = f(ctx, n.conn(), wait, opts...)
				return err
			})
			if err == nil {
				c.answered(v, n, r.GetOwner(), r.GetEpoch())
			}
			return sent, err
		})
		if err != nil || ends(r) {
			return r, err
		}
		if wait < awaitTurn { // ctx ends soon
			if over := c.outlast(ctx); over != nil {
				return r, about(&Error{Code: codeOf(ctx), Reason: ErrGaveUp, Message: "it was not so by then: " + over.Error(), cause: over}, to.what, to.key, r.GetOwner())
			}
			return r, about(errClosed(), to.what, to.key, r.GetOwner())
		}
	}
}
