package client

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

const (
	// movedGrace is how long a node that does not own a lock any more may still
	// answer the callers that wait there, before the new owner is asked as well.
	movedGrace = 200 * time.Millisecond
	// maxStanding bounds the attempts of one Acquire that are under way. Each but the
	// last one is at a node that has lost the lock meanwhile.
	maxStanding = 4
)

// acquire is one Acquire and its retries, which keep the place in the queue.
func (c *Client) acquire(ctx context.Context, key string, o *lockOptions, op *operation, end int64) (*lockpb.AcquireResponse, error) {
	to := toKey(key, false).of(o.what())
	s := &standing{c: c, hash: to.hash, service: o.service, ended: make(chan *acquisition, maxStanding)}
	defer s.leave()
	err := c.insist(ctx, to, func(ctx context.Context, n *node, v *view) (sent bool, err error) {
		o.attempts++
		wait := time.Duration(max(end-c.clock.Now(), 0))
		req := &lockpb.AcquireRequest{Key: key, Name: o.name, Holder: o.holder, TtlNs: int64(o.ttl), WaitNs: int64(wait),
			Metadata: o.metadata, Shared: o.shared, DelayNs: int64(o.delay), Session: o.session.named(), IdempotencyKey: o.idem.text, TicketTtlNs: int64(min(o.ticket, maxLockWait-wait))}
		if o.gathered() {
			if s.answer, sent, err = n.acquires.do(ctx, req, op); err == nil {
				c.answered(v, n, s.answer.GetOwner(), s.answer.GetEpoch())
			}
			return sent, err
		}
		req.RequestId = unlessKeyed(op.stamp(), o.idem.text)
		a, err := s.ask(ctx, n, v, wait, req)
		if err != nil {
			return false, err
		}
		return s.await(a)
	})
	return s.answer, err
}

// gathered reports whether calls may share a message with others: those of a lock that do not wait.
func (o *lockOptions) gathered() bool {
	return o.wait == 0 && o.permits == nil && o.turn == nil && o.other == nil
}

// standing is the attempts of one Acquire. An attempt that waits at a node that does not
// own the lock any more goes on while the next one is made: the node may have passed it
// on, and it has the place in the queue at the new owner. The next attempt takes that
// place over and ends it. Cancelling it before would be leaving the queue.
type standing struct {
	c       *Client
	service func(grpc.ClientConnInterface) lockpb.LockServiceClient
	hash    uint64
	open    []*acquisition    // under way, the latest last
	ended   chan *acquisition // attempts that have ended; has room for all that are open
	answer  *lockpb.AcquireResponse
}

// acquisition is one attempt. The result is there when it has come by standing.ended.
type acquisition struct {
	n      *node
	v      *view
	cancel context.CancelFunc
	r      *lockpb.AcquireResponse
	sent   bool
	err    error
}

// ask begins an attempt.
func (s *standing) ask(ctx context.Context, n *node, v *view, wait time.Duration, req *lockpb.AcquireRequest) (*acquisition, error) {
	if len(s.open) == maxStanding {
		s.open[0].cancel()
		for len(s.open) == maxStanding {
			s.remove(<-s.ended)
		}
	}
	c := s.c
	ctx, cancel := context.WithCancel(ctx)
	a := &acquisition{n: n, v: v, cancel: cancel}
	c.pool.retain(n)
	started := c.start(func() {
		defer c.pool.release(n)
		a.sent, a.err = c.unary(ctx, n, wait, func(ctx context.Context, opts ...grpc.CallOption) (err error) {
			a.r, err = s.service(n.conn()).Acquire(ctx, req, opts...)
			return err
		})
		s.ended <- a
	})
	if !started {
		cancel()
		c.pool.release(n)
		return nil, errClosed()
	}
	s.open = append(s.open, a)
	return a, nil
}

// await returns when an attempt has ended, or when another node owns the lock and the
// next attempt is due. An earlier attempt may bring the answer after all.
func (s *standing) await(a *acquisition) (sent bool, err error) {
	v := a.v
	var moved <-chan time.Time
	for {
		var changed chan struct{}
		if v != nil && moved == nil {
			changed = v.changed
		}
		select {
		case e := <-s.ended:
			s.remove(e)
			if e.err == nil {
				s.answer = e.r
				s.c.answered(e.v, e.n, e.r.GetOwner(), e.r.GetEpoch())
			}
			if e == a || e.err == nil {
				return e.sent, e.err
			}
		case <-changed:
			if v = s.c.view.Load(); v.owner(s.hash) != nil && v.owner(s.hash).addr == a.n.addr {
				continue
			}
			grace := time.NewTimer(movedGrace)
			defer grace.Stop()
			moved = grace.C
		//guard:standing-attempt insert a.cancel()
		case <-moved:
			return true, status.Error(codes.Unavailable, "the lock has another owner now")
		}
	}
}

func (s *standing) remove(a *acquisition) {
	a.cancel()
	s.open = slices.DeleteFunc(s.open, func(o *acquisition) bool { return o == a })
}

// leave ends what is under way.
func (s *standing) leave() {
	for _, a := range s.open {
		a.cancel()
	}
}
