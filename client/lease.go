package client

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	pb "github.com/keystead/keystead/proto/keystead/v1"
)

const (
	// A renewal is tried for renewTry of the TTL before it is tried again, and
	// again after a pause of about pausePart of it.
	renewTry  = 8
	pausePart = 40
	// minTry is what an attempt gets at least, however short the TTL is.
	minTry = 20 * time.Millisecond
)

// Lock is a lock that is held, and renewed by itself at half its TTL. The lease
// is counted from the first send of the request that was granted (or of the
// renewal that was answered), so that it is over here before it is over for the
// owner. If all who kept the lock die, it is taken back under its token from the
// next owner, as long as the lease lasts.
type Lock struct {
	c       *Client
	key     string
	o       LockOptions
	token   uint64
	granted Meta

	until atomic.Int64 // end of the lease, by the client's clock
	// Invariant: inner ends before until, by the margin, unless it is prolonged.
	inner  context.Context
	cancel context.CancelCauseFunc
	kept   chan struct{} // closed when no renewal is under way any more

	mu      sync.Mutex // guards what follows: one release at a time
	over    bool       // the release was answered
	unknown bool       // an earlier release may have been done
	err     error      // its outcome
}

func (c *Client) newLock(values context.Context, key string, o LockOptions, r *pb.AcquireResponse, until int64) *Lock {
	l := &Lock{c: c, key: key, o: o, token: r.GetToken(), kept: make(chan struct{}),
		granted: metaOf(r, r.GetReplay())}
	l.inner, l.cancel = context.WithCancelCause(values)
	l.until.Store(until)
	return l
}

// Token is the fencing token: greater than that of every earlier grant of this
// lock. Give it to what the lock protects, and have that refuse smaller ones.
func (l *Lock) Token() uint64 { return l.token }

// Meta says by whom and in which epoch the lock was granted.
func (l *Lock) Meta() Meta { return l.granted }

// left is the time until the margin before the end of the lease.
func (l *Lock) left() time.Duration {
	return time.Duration(l.until.Load()-l.c.clock.Now()) - l.o.Margin
}

// Held says whether the lock is held for certain: the lease, less the margin,
// runs at this moment. A process that was stopped and goes on sees here that its
// time is over.
func (l *Lock) Held() bool {
	l.look()
	return l.inner.Err() == nil
}

// Context ends before the lease does: with the cause ErrLockLost when the lock
// could not be renewed in time, ErrUnlocked after Unlock, ErrClosed after Close.
// Its Err looks at the clock, as Held does.
func (l *Lock) Context() context.Context { return leaseContext{l.inner, l} }

// leaseContext is the context of a lock.
type leaseContext struct {
	context.Context
	l *Lock
}

// Err implements context.Context. It ends the context if its time has come and
// the timer that should have done so has not run yet.
func (x leaseContext) Err() error {
	x.l.look()
	return x.Context.Err()
}

// look ends the context if its time has come.
func (l *Lock) look() {
	if l.left() <= 0 {
		l.finish(&Error{Code: codes.Aborted, Reason: ErrLockLost, Op: "lock", Key: l.key, Message: "the lease could not be renewed in time"})
	}
}

// finish ends the context; only the first cause counts.
func (l *Lock) finish(cause error) { l.cancel(cause) }

// keep renews until the context ends. It never waits for longer than the lease
// lasts, so that it is also what ends the context.
func (l *Lock) keep() {
	defer close(l.kept)
	r := toKey(l.key, true).of("renew")
	for {
		// Half of the TTL after the send that counts.
		if !l.sleep(time.Duration(l.until.Load()-l.c.clock.Now()) - l.o.TTL/2) {
			return
		}
		for {
			wait, ok := l.renew(&r)
			if !ok {
				return
			}
			if wait == 0 {
				break
			}
			if !l.sleep(wait) {
				return
			}
		}
	}
}

// sleep waits; false if the lock is over.
func (l *Lock) sleep(d time.Duration) bool {
	t := time.NewTimer(min(d, l.left()))
	defer t.Stop()
	select {
	case <-t.C:
		return l.Held()
	case <-l.inner.Done():
		return false
	case <-l.c.ctx.Done():
		l.finish(errClosed())
		return false
	}
}

// renew makes one attempt to renew. wait is the pause before the next attempt, 0
// if it worked; ok is false if the lock is over.
func (l *Lock) renew(r *route) (wait time.Duration, ok bool) {
	ctx, cancel := context.WithTimeout(l.inner, min(l.c.cfg.AttemptTimeout, max(l.o.TTL/renewTry, minTry), max(l.left(), 1)))
	defer cancel()
	n, v, err := l.c.pick(r)
	if err != nil { // the client was closed
		l.finish(errClosed())
		return 0, false
	}
	sent := l.c.clock.Now()
	var answer *pb.RenewResponse
	_, err = l.c.unary(ctx, n, 0, func(ctx context.Context, opts ...grpc.CallOption) (err error) {
		answer, err = pb.NewLockServiceClient(n.conn()).Renew(ctx, l.renewal(sent), opts...)
		return err
	})
	l.c.pool.release(n)
	r.avoid, r.hint = "", ""
	switch {
	case err == nil && !answer.GetRenewed():
		l.finish(&Error{Code: codes.Aborted, Reason: ErrLockLost, Holder: holderOf(answer.GetHolder()), Op: "lock", Key: l.key, Message: "the lock is not held any more"})
		return 0, false
	case err == nil:
		l.c.answered(v, n, answer.GetOwner(), answer.GetEpoch())
		if !answer.GetReclaimed() { // else it is held for as long as was left, and renewed at once
			l.until.Store(max(l.until.Load(), sent+int64(l.o.TTL)))
		}
		return 0, l.Held()
	case l.c.ctx.Err() != nil:
		l.finish(errClosed())
		return 0, false
	}
	e := fromCall(err, true)
	r.learn(l.c, e, n.addr)
	l.c.cfg.Log.Warn("a lock could not be renewed; it is tried again", "key", l.key, "left", l.left(), "err", e)
	pause := max(l.o.TTL/pausePart, time.Millisecond)
	return pause + time.Duration(rand.Int64N(int64(pause))), l.Held()
}

// renewal is a Renew that is sent at a moment. It says what is left of the lease, so
// that the owner gives the lock back if it was lost with those who kept it.
func (l *Lock) renewal(now int64) *pb.RenewRequest {
	req := &pb.RenewRequest{Key: l.key, Name: l.o.Name, Token: l.token, TtlNs: int64(l.o.TTL)}
	if left := l.until.Load() - now; left > 0 {
		req.Reclaim = &pb.Reclaim{LeftNs: left, Holder: l.o.Holder, Metadata: l.o.Metadata}
	}
	return req
}

// Unlock gives the lock back and ends its context. The error is ErrLockLost if
// the lock had been lost to its owner before, and that of the call if the owner
// could not be reached; then the lock is free when its TTL ends, and Unlock may be
// called again. It may be called more than once. ctx must not have ended: give it one
// of its own when the caller's is over, such as context.WithoutCancel(ctx), or the lock is
// kept until its TTL ends.
func (l *Lock) Unlock(ctx context.Context) error {
	l.finish(&Error{Code: codes.Canceled, Reason: ErrUnlocked, Message: "the lock was given back"})
	<-l.kept // soon: its context has ended
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return l.err
	}
	released, err := l.release(ctx)
	if err != nil {
		l.unknown = true
		return err
	}
	l.over = true
	if !released && !l.unknown {
		l.err = &Error{Code: codes.Aborted, Reason: ErrLockLost, Op: "unlock", Key: l.key, Message: "the lock had been lost when it was given back"}
	}
	return l.err
}

func (l *Lock) release(ctx context.Context) (bool, error) {
	op := l.c.ops.begin()
	defer op.finish()
	r, err := ask(ctx, l.c, toKey(l.key, false).of("unlock"), op, func(ctx context.Context, conn *grpc.ClientConn, id *pb.RequestId, opts ...grpc.CallOption) (*pb.ReleaseResponse, error) {
		node := pb.NewLockServiceClient(conn)
		req := &pb.ReleaseRequest{Key: l.key, Name: l.o.Name, Token: l.token, RequestId: id}
		r, err := node.Release(ctx, req, opts...)
		if renewal := l.renewal(l.c.clock.Now()); err != nil && renewal.Reclaim != nil && fromCall(err, true).Reason == ErrRecovering {
			// What the owner does not know it cannot take back.
			if _, again := node.Renew(ctx, renewal, opts...); again == nil {
				return node.Release(ctx, req, opts...)
			}
		}
		return r, err
	})
	return r.GetReleased(), err
}
