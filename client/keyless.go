package client

import (
	"context"
	"math/rand/v2"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/client/p2c"
)

// keyless is a call that any node may answer. Each attempt goes to one of the
// members that two random choices give (package p2c), by what all calls to them
// showed, and after a failure to another than before. r reports whether the call only
// reads; f makes one attempt, and is called again while the error may go away.
func (c *Client) keyless(ctx context.Context, r route, f func(ctx context.Context, conn grpc.ClientConnInterface, opts ...grpc.CallOption) error) error {
	r.keyed = false
	return c.do(ctx, r, func(ctx context.Context, n *node, _ *view) (bool, error) {
		return c.unary(ctx, n, 0, func(ctx context.Context, opts ...grpc.CallOption) error {
			return f(ctx, n.conn(), opts...)
		})
	})
}

// newLoad returns that of a node that was not called yet.
func newLoad(now int64) *p2c.Load {
	cfg, _ := p2c.Config{}.WithDefaults() // has no errors
	return p2c.NewLoad(cfg, now)
}

// lighter returns the one of some addresses that a call without a key goes to; "" if
// there are none. A node that was never called is like a new one.
func (p *pool) lighter(addrs []string, now int64) string {
	if len(addrs) == 0 {
		return ""
	}
	var few [64]*p2c.Load // enough for most, without an allocation
	loads := few[:0]
	p.mu.Lock()
	for _, a := range addrs {
		if n := p.nodes[a]; n != nil {
			loads = append(loads, n.load)
		} else {
			loads = append(loads, newLoad(now))
		}
	}
	p.mu.Unlock()
	return addrs[p2c.Next(loads, now, rand.Uint64())]
}

// outcome returns what an attempt tells about its node, given the context of the call.
// waits means that the node was asked to wait.
func outcome(ctx context.Context, err error, waits bool) p2c.Outcome {
	if err == nil && !waits {
		return p2c.Answered
	}
	if err == nil {
		return p2c.Unknown // the lock was held for so long
	}
	e := fromCall(err, false)
	switch {
	case e.Reason == ErrUnavailable, e.Reason == ErrOverloaded:
		return p2c.Failed // it may not act, or has no room, and says so at once
	case e.Reason != "":
		return p2c.Unknown // it speaks of the key, or passes on what the owner says
	case ctx.Err() == nil:
		return p2c.OutcomeOf(err)
	case waits:
		return p2c.Unknown
	}
	return p2c.Abandoned // by the caller, not for the time of an attempt
}
