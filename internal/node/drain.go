package node

import (
	"context"
	"errors"
	"time"

	"github.com/keystead/keystead/internal/drain"
	"github.com/keystead/keystead/ring/member"
)

// newDrainer returns what gives this node's orders to drain, and follows them.
func (c *cluster) newDrainer() *drain.Drainer {
	return drain.New(drain.Config{
		Node: c.cfg.ID, Group: c.group, NewID: c.newID, Ready: c.ready, Sent: c.state.sent,
		Keeps: keepsState(c.cfg), Lease: c.cfg.Cluster.LeaseTTL, Log: c.log,
	})
}

// Drain implements rpc.Cluster.
func (c *cluster) Drain(ctx context.Context, o drain.Order) (drain.State, error) {
	return c.drains.Give(ctx, o)
}

// handleEvents does what events of the pool order, one after the other.
func (c *cluster) handleEvents() {
	for {
		select {
		case e := <-c.pool.Events():
			c.drains.Heard(c.ctx, drain.Event{Name: e.Name, Payload: e.Payload, Fresh: func(ctx context.Context) (bool, error) {
				err := c.pool.Fresh(ctx, e)
				return errors.Is(err, member.ErrStale), err
			}})
		case <-c.ctx.Done():
			return
		}
	}
}

// Drain has this node give away all that it owns and stands by for, and waits
// until that is done, or the node stops. See drain.Drainer.Drain.
func (n *Node) Drain(ctx context.Context) (drain.State, error) {
	if n.cluster == nil {
		return drain.NoState(n.cfg.ID), drain.ErrAlone
	}
	ctx, release := n.untilStop(ctx)
	defer release()
	return n.cluster.drains.Drain(ctx)
}

// DrainState returns how far this node is with a drain; of a node that is not being
// drained, what it has.
func (n *Node) DrainState() drain.State {
	if n.cluster == nil {
		return drain.NoState(n.cfg.ID)
	}
	return n.cluster.drains.State()
}

// DrainBeforeStop drains a node that is about to stop, for so long at most, or
// until the context ends or Hurry is called; 0 is not at all. What became of it is
// in the log.
func (n *Node) DrainBeforeStop(ctx context.Context, within time.Duration) {
	if n.cluster == nil || within <= 0 {
		return
	}
	ctx, release := n.keeps.unlessHurried(ctx)
	defer release()
	ctx, end := n.untilStop(ctx)
	defer end()
	n.cluster.drains.BeforeStop(ctx, within)
}

// untilStop returns a context that ends when the node begins to stop.
func (n *Node) untilStop(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	unlink := context.AfterFunc(n.halt, cancel)
	return ctx, func() { unlink(); cancel() }
}
