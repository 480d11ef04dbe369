package client

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// The rule by which every lease is kept, in parts of its TTL. An owner that dies just
// before a renewal has until the margin to be replaced: with the default margin, more
// than half of the TTL.
const (
	// renewPart of the TTL after the send that counts, the lease is renewed.
	renewPart = 3
	// An attempt gets a tryPart of the time that is left, so that there is always
	// time for another, at another node if there is one, …
	tryPart = 2
	// … but minTry at least, however short the TTL is.
	minTry = 20 * time.Millisecond
	// pausePart of the TTL, to twice that, is between an attempt that failed and the next.
	pausePart = 40
	// watchPart of the TTL is the longest time between two readings of the clock: timers
	// stand still while the machine is suspended, and leases do not.
	watchPart = 10
)

// grant is what an owner gives for a time, and what differs from kind to kind.
type grant struct {
	what, undo  string // for errors, such as "lock" and "unlock"
	key         string
	token       uint64
	ttl, margin time.Duration
	// renew makes one attempt to prolong the grant; left is what is left of the lease.
	renew func(ctx context.Context, conn *grpc.ClientConn, left time.Duration, opts ...grpc.CallOption) (renewed, error)
	// release gives the grant back, with as many attempts as ctx leaves time for. It reports
	// whether the owner still had it.
	release func(ctx context.Context, how releasing) (bool, error)
}

// releasing is how a grant is given back.
type releasing struct {
	key   string               // an idempotency key; "" = none
	left  func() time.Duration // what is left of the lease
	quiet bool                 // no Observer is told: the program did not ask for it
}

// renewed is the answer to a renewal.
type renewed struct {
	held bool // false: the owner does not have the grant any more
	// reclaimed says that the owner had lost the grant and took it back. It is held for as
	// long as was left, and to be renewed at once.
	reclaimed bool
	holder    *Holder // that has it instead; nil if it is not known
	owner     string  // by which node and …
	epoch     uint64  // … in which epoch it was answered
}

// lease keeps a grant until it is given back or lost. It is counted from the first send
// of the request that was granted, or of the renewal that was answered, so that it is over
// here before it is over for the owner.
type lease struct {
	grant
	c *Client

	until atomic.Int64 // end of the lease, by the client's clock
	// Invariant: inner ends before until, by the margin, unless it is prolonged.
	inner  context.Context
	cancel context.CancelCauseFunc
	kept   chan struct{} // closed when no renewal is under way any more
	// session keeps it, if it has one, under the hash: set before anybody else has the lease.
	session *Session
	hash    uint64
	failed  atomic.Pointer[Error] // of the last renewal; nil if it was answered

	mu      sync.Mutex // guards what follows: one release at a time
	over    bool       // the release was answered
	unknown bool       // an earlier release may have been done
	err     error      // its outcome
}

func (c *Client) newLease(values context.Context, g grant, until int64) *lease {
	l := &lease{grant: g, c: c, kept: make(chan struct{})}
	l.inner, l.cancel = context.WithCancelCause(values)
	l.until.Store(until)
	return l
}

// left returns the time until the margin before the end of the lease.
func (l *lease) left() time.Duration {
	//guard:client-lease-margin l.rest() - l.margin -> l.rest()
	return l.rest() - l.margin
}

// rest returns the time until the end of the lease.
func (l *lease) rest() time.Duration { return time.Duration(l.until.Load() - l.c.clock.Now()) }

// held reports whether the lease, less the margin, runs at this moment. If not, it ends
// the context.
func (l *lease) held() bool {
	if l.inner.Err() != nil {
		return false
	}
	if l.left() > 0 {
		return true
	}
	l.finish(l.expired())
	return false
}

// expired returns the cause with which a lease ends that was not renewed in time.
func (l *lease) expired() error {
	e := l.lost("this machine stood still for longer than the TTL")
	if failed := l.failed.Load(); failed != nil {
		e.Message = "the lease could not be renewed in time: " + failed.said()
	}
	return e
}

func (l *lease) lost(why string) *Error {
	return &Error{Code: codes.Aborted, Reason: ErrLockLost, Op: l.what, Key: l.key, Message: why}
}

// finish ends the context; only the first cause counts.
func (l *lease) finish(cause error) {
	l.cancel(cause)
	if l.session != nil {
		l.session.finished(l)
	}
}

// prolong counts the lease until a moment, if that is later.
func (l *lease) prolong(until int64) {
	for was := l.until.Load(); was < until && !l.until.CompareAndSwap(was, until); was = l.until.Load() {
	}
	l.failed.Store(nil)
}

// context ends before the lease does.
func (l *lease) context() context.Context { return leaseContext{l.inner, l} }

// leaseContext is the context of a lease.
type leaseContext struct {
	context.Context
	l *lease
}

// Err implements context.Context. It ends the context if its time has come and
// the timer that should have done so has not run yet.
func (x leaseContext) Err() error {
	x.l.held()
	return x.Context.Err()
}

// keep renews until the context ends. It never waits for longer than the lease
// lasts, so that it is also what ends the context.
func (l *lease) keep() {
	defer close(l.kept)
	r := toKey(l.key, true).of("renew")
	for next := l.due(); l.sleep(next); {
		if l.attempt(&r) {
			next = l.due()
		} else {
			next = l.c.clock.Now() + l.pause()
		}
	}
}

// due returns when a lease is to be renewed.
func (l *lease) due() int64 { return l.until.Load() - int64(l.ttl-l.ttl/renewPart) }

// pause returns the time between an attempt that failed and the next.
func (l *lease) pause() int64 {
	p := int64(max(l.ttl/pausePart, time.Millisecond))
	return p + rand.Int64N(p)
}

// sleep waits until a moment of the clock. It reports whether the lease still runs then.
func (l *lease) sleep(until int64) bool {
	for l.held() {
		now := l.c.clock.Now()
		if now >= until {
			return true
		}
		//guard:client-lease-watched max(l.ttl/watchPart, time.Millisecond) -> time.Hour
		t := time.NewTimer(min(time.Duration(until-now), l.left(), max(l.ttl/watchPart, time.Millisecond)))
		select {
		case <-t.C:
		case <-l.inner.Done():
		case <-l.c.ctx.Done():
			l.finish(errClosed())
		}
		t.Stop()
	}
	return false
}

// attempt makes one attempt to renew, and reports whether it was answered. If the grant
// is lost, it ends the context.
func (l *lease) attempt(r *route) (answered bool) {
	ctx, cancel := context.WithTimeout(l.inner, l.tryTime())
	defer cancel()
	n, v, err := l.c.pick(r)
	if err != nil { // the client was closed
		l.finish(errClosed())
		return false
	}
	sent, rest := l.c.clock.Now(), l.rest()
	var a renewed
	_, err = l.c.unary(ctx, n, 0, func(ctx context.Context, opts ...grpc.CallOption) (err error) {
		a, err = l.renew(ctx, n.conn(), rest, opts...)
		return err
	})
	l.c.pool.release(n)
	r.avoid, r.hint = "", ""
	switch {
	case err == nil && !a.held:
		e := l.lost("its time ran out, or another holder has it")
		e.Holder = a.holder
		l.finish(e)
		return true
	case err == nil:
		l.c.answered(v, n, a.owner, a.epoch)
		if !a.reclaimed { //guard:client-lease-reclaimed true
			l.until.Store(max(l.until.Load(), sent+int64(l.ttl)))
		}
		l.failed.Store(nil)
		return true
	case l.c.ctx.Err() != nil:
		l.finish(errClosed())
		return false
	}
	e := fromCall(err, true)
	r.learn(l.c, e, v, n.addr)
	l.failed.Store(e)
	l.c.cfg.Log.Warn("a lease could not be renewed; it is tried again", "of", l.what, "key", l.key, "left", l.left(), "err", e)
	return false
}

// tryTime returns what an attempt to renew gets.
func (l *lease) tryTime() time.Duration {
	left := max(l.left(), 1)
	return min(l.c.cfg.AttemptTimeout, max(left/tryPart, minTry), left)
}

// giveBack ends the lease and gives the grant back, once, under an idempotency key if that
// is not "". The error is ErrLockLost if it had been lost before.
func (l *lease) giveBack(ctx context.Context, key string, cause error) error {
	defer l.session.releases(l)()
	l.finish(cause)
	<-l.kept // soon: its context has ended
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return l.err
	}
	released, err := l.release(ctx, releasing{key: key, left: l.rest})
	if err != nil {
		l.unknown = true
		return err
	}
	l.over = true
	if !released && !l.unknown {
		e := l.lost("the " + l.what + " had been lost when it was given back")
		e.Op = l.undo
		l.err = e
	}
	return l.err
}
