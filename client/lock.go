package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/keystead/keystead/internal/heldset"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

const (
	// DefaultLockTTL is how long a lock outlives a process that died.
	DefaultLockTTL = 10 * time.Second

	// forever is the wait of an Acquire that ends with its context.
	forever = time.Duration(math.MaxInt64)

	maxLockTTL  = 24 * time.Hour
	maxLockWait = 24 * time.Hour
	minLockTTL  = 10 * time.Millisecond
	// marginPart of the TTL is the default margin: work has a tenth of the TTL
	// to stop in before the lock can be another's.
	marginPart = 10
)

// Lock is a named lock that many keys have, each its own. It is a small value: making
// one costs nothing, and it may be copied and kept.
type Lock struct {
	c       *Client
	name    string
	session *Session // that keeps it alive; nil = it is kept alive by itself
}

// Lock names a lock, with at most 128 bytes. name "" = "lock".
func (c *Client) Lock(name string) Lock { return Lock{c: c, name: name} }

// lockOptions are how a lock is acquired and kept.
type lockOptions struct {
	name     string
	ttl      time.Duration
	wait     time.Duration // in the queue; forever = until the context ends
	holder   string
	metadata []byte
	margin   time.Duration
	idem     CallOption
	delay    time.Duration
	ticket   time.Duration // see Ticket; 0 = none
	shared   bool          // of a lock
	now      *lockNow      // of a lock that is granted
	turn     *turn         // of work that is done once
	keep     time.Duration
	keeps    bool       // keep was said
	session  *Session   // that keeps it alive; nil = none
	leave    func()     // of an Acquire under a session: no answer to it can come any more
	resolves bool       // leave is called when the outcome is known
	permits  *permits   // of a semaphore; nil for what is none
	other    otherGrant // of what is neither a lock nor a semaphore; nil for these

	attempts int // made so far
}

// LockOption is how a lock is acquired and kept: TTL, Wait, Ticket, HeldBy, Metadata, Margin,
// Shared, Delay and IdempotencyKey.
type LockOption interface{ lock(*lockOptions) }

type lockOption func(*lockOptions)

func (f lockOption) lock(o *lockOptions) { f(o) }

func (k CallOption) lock(o *lockOptions) {
	if k.given { // the zero one is none
		o.idem = k
	}
}

// TTL is how long the lock is held without a renewal: 10 ms to 24 h, or less if the node
// says so. Half of it, less the margin, must leave room for some renewals over the
// network. Default DefaultLockTTL.
func TTL(d time.Duration) LockOption {
	return lockOption(func(o *lockOptions) { o.ttl = d })
}

// Wait is how long Acquire stands in the queue: up to 24 h; 0 = it does not wait. Without
// it Acquire waits until its context ends. The context counts in any case.
func Wait(d time.Duration) LockOption {
	return lockOption(func(o *lockOptions) { o.wait = d })
}

// HeldBy names the caller to others: at most 128 bytes. Default host:pid, or
// the IdempotencyKey, which another process has to give as well.
func HeldBy(name string) LockOption {
	return lockOption(func(o *lockOptions) { o.holder = name })
}

// Metadata is whatever others may want to see: at most 1,024 bytes.
func Metadata(b []byte) LockOption {
	return lockOption(func(o *lockOptions) { o.metadata = b })
}

// Margin is how long before the end of the lease the lock's context ends, less than half
// the TTL. Default a tenth of the TTL.
func Margin(d time.Duration) LockOption {
	return lockOption(func(o *lockOptions) { o.margin = d })
}

// options returns what the options say, with the defaults.
func (l Lock) options(given []LockOption) lockOptions {
	o := lockOptions{name: l.name, ttl: DefaultLockTTL, wait: forever, margin: -1, session: l.session, now: &lockNow{}}
	if l.session != nil {
		o.ttl = 0 // the session's
	}
	for _, g := range given {
		if g != nil {
			g.lock(&o)
		}
	}
	if o.margin == -1 && o.session == nil {
		o.margin = o.ttl / marginPart
	}
	o.now.share = o.shared
	return o
}

func (o *lockOptions) validate() error {
	switch {
	case o.ttl < minLockTTL || o.ttl > maxLockTTL:
		return invalid("TTL", "is %s; %s to %s are allowed", o.ttl, minLockTTL, maxLockTTL)
	case o.wait != forever && (o.wait < 0 || o.wait > maxLockWait):
		return invalid("Wait", "is %s; 0 to %s are allowed", o.wait, maxLockWait)
	case o.margin < 0 || o.margin >= o.ttl/2:
		return invalid("Margin", "is %s; it must be less than half of the TTL", o.margin)
	}
	if o.shared && (o.permits != nil || o.turn != nil || o.other != nil) {
		return invalid("Shared", "is an option of locks; a semaphore of N permits has readers of 1 and a writer of N")
	}
	if o.turn != nil && o.delay != 0 {
		return invalid("Delay", "is an option of locks, semaphores and elections")
	}
	if err := cmp.Or(o.permits.validate(o.delay, o.other), o.validateOnce(), o.validateTicket()); err != nil {
		return err
	}
	return o.idem.validate()
}

// Holder is the holder of a lock.
type Holder struct {
	ID       string        // as it named itself: see HeldBy
	Token    uint64        // fencing token of the grant
	Held     time.Duration // since the grant
	TTL      time.Duration // until the lock is free without a renewal
	Metadata []byte
	Shared   bool          // it shares the lock
	Delay    time.Duration // until a lock is free whose holder was lost: see Delay; its TTL is 0 then
	Session  string        // names the session that keeps it alive, the same for all that this holds; "" = none
}

// sessionName returns a name for a session.
func sessionName(s *commonpb.Session) string {
	if s == nil {
		return ""
	}
	return fmt.Sprintf("%x/%d", s.Client, s.Generation)
}

func holderOf(h *lockpb.Holder) *Holder {
	if h == nil {
		return nil
	}
	return &Holder{ID: h.Id, Token: h.Token, Held: time.Duration(h.HeldNs), TTL: time.Duration(h.TtlNs), Metadata: h.Metadata, Shared: h.Shared, Delay: time.Duration(h.DelayNs), Session: sessionName(h.Session)}
}

// HeldLock is a lock that is held, and renewed by itself at a third of its TTL. The lease
// is counted from the first send of the request that was granted (or of the
// renewal that was answered), so that it is over here before it is over for the
// owner. If all nodes that kept the lock die, the next owner gives it back under its
// token, as long as the lease lasts.
type HeldLock struct {
	*lease
	granted Meta
	name    string // of the lock
	now     *lockNow
}

// Token returns the fencing token: greater than that of every earlier grant of this
// lock. Give it to what the lock protects, and have that refuse smaller ones.
func (l *HeldLock) Token() uint64 { return l.token }

// Meta returns which node granted the lock, and in which epoch.
func (l *HeldLock) Meta() Meta { return l.granted }

// Held reports whether the lock is held for certain: the lease, less the margin,
// runs at this moment. A process that was stopped and goes on sees here that its
// time is over.
func (l *HeldLock) Held() bool { return l.held() }

// Context ends before the lease does: with the cause ErrLockLost when the lock
// could not be renewed in time, ErrReleased after Release, ErrClosed after Close.
// Its Err looks at the clock, as Held does.
func (l *HeldLock) Context() context.Context { return l.context() }

// Release gives the lock back and ends its context. The error is ErrLockLost if
// the lock had been lost to its owner before, and that of the call if the owner
// could not be reached; then the lock is free when its TTL ends, and Release may be
// called again. It may be called more than once. ctx must not have ended: give it one
// of its own when the caller's is over, such as context.WithoutCancel(ctx), or the lock is
// kept until its TTL ends. Under an IdempotencyKey, another process that has the same grant
// can release it as well, and both are told that they did.
func (l *HeldLock) Release(ctx context.Context, opts ...CallOption) error {
	key, err := keyOf(opts)
	if err := cmp.Or(l.c.callable(ctx), err); err != nil {
		return about(err, "release", l.key, "")
	}
	return l.giveBack(ctx, key, &Error{Code: codes.Canceled, Reason: ErrReleased, Message: "the " + l.what + " was given back"})
}

func (c *Client) newLock(values context.Context, key string, o *lockOptions, r *lockpb.AcquireResponse, until int64) *HeldLock {
	//guard:client-key-shared
	if r.GetShared() { // also if another process has downgraded it, under an idempotency key
		o.now.becomeShared()
	}
	return &HeldLock{c.newLease(values, c.lockGrant(key, o, r.GetToken()), until), metaOf(r, r.GetReplay()), o.name, o.now}
}

// lockGrant returns how a lock is kept.
func (c *Client) lockGrant(key string, o *lockOptions, token uint64) grant {
	// A renewal carries what is left of the lease, so that an owner that has lost the
	// lock can give it back.
	renewal := func(left time.Duration) *lockpb.RenewRequest {
		req := &lockpb.RenewRequest{Key: key, Name: o.name, Token: token, TtlNs: int64(o.ttl)}
		if left > 0 {
			req.Reclaim = &lockpb.Reclaim{LeftNs: int64(left), Holder: o.holder, Metadata: o.metadata, DelayNs: int64(o.delay), Session: o.session.named()}
			o.now.reclaim(req.Reclaim)
		}
		return req
	}
	return grant{
		what: o.what(), undo: "release", key: key, token: token, ttl: o.ttl, margin: o.margin,
		renew: func(ctx context.Context, conn *grpc.ClientConn, left time.Duration, opts ...grpc.CallOption) (renewed, error) {
			r, err := o.service(conn).Renew(ctx, renewal(left), opts...)
			return renewed{held: r.GetRenewed(), reclaimed: r.GetReclaimed(), holder: holderOf(r.GetHolder()),
				owner: r.GetOwner(), epoch: r.GetEpoch()}, err
		},
		release: func(ctx context.Context, how releasing) (bool, error) {
			op := c.ops.begin()
			defer op.finish()
			to := toKey(key, false).of("release")
			to.quiet = how.quiet
			if o.permits == nil && o.turn == nil && o.other == nil {
				return c.releaseLock(ctx, to, op, &lockpb.ReleaseRequest{Key: key, Name: o.name, Token: token, IdempotencyKey: how.key},
					func() *lockpb.RenewRequest { return renewal(how.left()) })
			}
			r, err := ask(ctx, c, to, op, func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId, opts ...grpc.CallOption) (*lockpb.ReleaseResponse, error) {
				node := o.service(conn)
				req := &lockpb.ReleaseRequest{Key: key, Name: o.name, Token: token, RequestId: unlessKeyed(id, how.key), IdempotencyKey: how.key}
				r, err := node.Release(ctx, req, opts...)
				if claim := renewal(how.left()); err != nil && claim.Reclaim != nil && fromCall(err, true).Reason == ErrRecovering {
					// The owner must know the lock before it can release it.
					if _, again := node.Renew(ctx, claim, opts...); again == nil {
						return node.Release(ctx, req, opts...)
					}
				}
				return r, err
			})
			return r.GetReleased(), err
		},
	}
}

// releaseLock gives a lock back, in one message with others that are given back meanwhile. It
// reports whether the owner still had it.
func (c *Client) releaseLock(ctx context.Context, to route, op *operation, req *lockpb.ReleaseRequest, renewal func() *lockpb.RenewRequest) (released bool, err error) {
	to.op = op
	err = c.do(ctx, to, func(ctx context.Context, n *node, v *view) (sent bool, err error) {
		r, sent, err := n.releases.do(ctx, proto.CloneOf(req), op)
		if claim := renewal(); err != nil && claim.Reclaim != nil && fromCall(err, sent).Reason == ErrRecovering {
			// The owner must know the lock before it can release it.
			_, again := c.unary(ctx, n, 0, func(ctx context.Context, opts ...grpc.CallOption) error {
				_, err := lockpb.NewLockServiceClient(n.conn()).Renew(ctx, claim, opts...)
				return err
			})
			if again == nil {
				r, sent, err = n.releases.do(ctx, proto.CloneOf(req), op)
			}
		}
		if err == nil {
			released = r.GetReleased()
			c.answered(v, n, r.GetOwner(), r.GetEpoch())
		}
		return sent, err
	})
	return released, err
}

// Acquire takes the lock of a key and keeps it until Release, waiting in its queue if it
// must: until ctx ends, or as long as Wait says. If another has it then the error is
// ErrLockHeld, with the holder; errors.Is finds what ended ctx, too. A key has 1 to 512
// bytes of UTF-8.
//
// If the outcome of the request cannot be learnt, the error is ErrOutcomeUnknown; a grant
// that was on its way is then given back in the background. Under an IdempotencyKey it is
// left to its TTL, for the next Acquire under the key.
// The lock outlives ctx, and inherits its values but not its end.
func (l Lock) Acquire(ctx context.Context, key string, opts ...LockOption) (*HeldLock, error) {
	return l.acquire(ctx, key, l.options(opts))
}

// TryAcquire is Acquire without a wait: the error is ErrLockHeld if another has the lock.
func (l Lock) TryAcquire(ctx context.Context, key string, opts ...LockOption) (*HeldLock, error) {
	o := l.options(opts)
	if o.wait != forever {
		return nil, about(invalid("Wait", "is an option of Acquire; TryAcquire does not wait"), o.what(), key, "")
	}
	o.wait = 0
	return l.acquire(ctx, key, o)
}

func (l Lock) acquire(ctx context.Context, key string, o lockOptions) (held *HeldLock, err error) {
	if err := l.c.callable(ctx); err != nil {
		return nil, about(err, o.what(), key, "")
	}
	observed := false
	defer func() {
		if !observed && held != nil { // an observer has panicked, and nobody is given the lock
			//guard:client-observer-panics
			held.abandon()
		}
	}()
	err = l.c.observe(ctx, Call{Op: o.what(), Key: key}, func(ctx context.Context) (out Outcome) {
		held, out.Err = l.take(ctx, key, &o)
		out.Attempts = o.attempts
		return out
	})
	observed = true
	return held, err
}

// take is obtain, and counts the call in at the session, if there is one.
func (l Lock) take(ctx context.Context, key string, o *lockOptions) (*HeldLock, error) {
	s := o.session
	if s == nil {
		return l.obtain(ctx, key, o)
	}
	err := s.take(o)
	if err == nil {
		ctx, o.leave, err = s.enter(ctx, objectAt(o.what(), key, o.name))
	}
	if err != nil {
		return nil, about(err, o.what(), key, "")
	}
	held, err := l.obtain(ctx, key, o)
	if !o.resolves {
		o.leave()
	}
	if err != nil && s.ctx.Err() != nil {
		err = about(s.gone(), o.what(), key, "")
	}
	return held, err
}

func (l Lock) obtain(ctx context.Context, key string, o *lockOptions) (*HeldLock, error) {
	if err := cmp.Or(address(key, o.name), o.validate()); err != nil {
		return nil, about(err, o.what(), key, "")
	}
	c, values := l.c, context.WithoutCancel(ctx)
	o.holder = cmp.Or(o.holder, o.idem.text, c.holder)
	most := o.wait
	if most != forever {
		most += c.cfg.Timeout
	}
	ctx, cancel := c.bounded(ctx, most)
	defer cancel()
	if err := c.enter(ctx, c.waitSlots); err != nil {
		return nil, about(err, o.what(), key, "")
	}
	defer func() { <-c.waitSlots }()
	inQueue := o.inQueue(ctx)
	for end := c.clock.Now() + int64(inQueue); ; {
		op := c.waits.begin()
		r, err := c.acquire(ctx, key, o, op, end)
		first := op.firstSent()
		//guard:client-settle
		if errors.Is(err, ErrOutcomeUnknown) && c.ctx.Err() == nil && !o.idem.given {
			again := *o
			o.resolves = true
			return nil, c.resolve(values, key, &again, op, err) // and finishes op
		}
		op.finish()
		switch {
		case errors.Is(err, ErrRequestTooOld):
			continue // a grant whose answer was lost ends by its TTL
		case err != nil || o.turn.finished():
			return nil, err
		case r.GetAcquired() && o.idem.given:
			return c.takeKeyed(ctx, values, key, o, r, first)
		case !r.GetAcquired() && o.wait == forever && inQueue == o.longestWait() && (!o.idem.given || r.GetWaiting()):
			inQueue = o.inQueue(ctx) // a queue has no longer waits than that
			end = c.clock.Now() + int64(inQueue)
			continue
		case !r.GetAcquired():
			if e := o.unheededTicket(r, key); e != nil {
				return nil, e
			}
			e := o.heldBy(r, key)
			if inQueue < o.wait {
				e.cause = c.outlast(ctx)
			}
			return nil, e
		}
		if held, err := c.take(ctx, values, key, o, r, first); held != nil || err != nil {
			return held, err
		}
	}
}

// take has a grant kept alive that was first asked for at a moment of the clock. It returns nil if
// that came too late to be of use.
func (c *Client) take(ctx, values context.Context, key string, o *lockOptions, r *lockpb.AcquireResponse, first int64) (*HeldLock, error) {
	// The grant was not before the first attempt plus the time in the queue.
	held := c.newLock(values, key, o, r, first+r.GetWaitedNs()+int64(o.ttl))
	other := o.unheeded(r, key)
	if other == nil && r.GetTtlNs() > 0 && held.left() > 0 {
		if err := o.sustain(held); err != nil {
			return nil, err
		}
		return held, nil
	}
	// Give it back rather than wait for its end.
	held.finish(ErrLockLost)
	if r.GetTtlNs() > 0 {
		_, _ = held.release(ctx, releasing{left: held.rest, quiet: true})
	}
	if other != nil {
		return nil, other
	}
	return nil, nil
}

// sustain has a grant kept alive.
func (o *lockOptions) sustain(l *HeldLock) error {
	if o.session == nil {
		if !l.c.start(l.lease.keep) {
			return errClosed()
		}
		return nil
	}
	if o.session.keeps(l.lease, heldset.Hash(l.key, cmp.Or(o.name, o.what()), l.token)) {
		return nil
	}
	e := o.session.gone()
	l.finish(e)
	close(l.kept)
	l.abandon()
	return e
}

// LockState is a lock as it is.
type LockState struct {
	Holder  *Holder // nil if the lock is free; of those that share it, the first
	Holders []Holder
	Holding int // how many there are in all; Holders lists the first
	Waiters []Waiter
	Waiting int // in all; Waiters lists the first
	Meta
}

// Waiter waits for a lock.
type Waiter struct {
	Name   string
	Waited time.Duration
	Shared bool // it wants to share the lock
}

// Inspect returns the holder of the lock of a key, and its waiters.
func (l Lock) Inspect(ctx context.Context, key string) (LockState, error) {
	if err := l.c.judge(ctx, key, l.name); err != nil {
		return LockState{}, about(err, "inspect", key, "")
	}
	r, err := ask(ctx, l.c, toKey(key, true).of("inspect"), nil, func(ctx context.Context, conn *grpc.ClientConn, _ *commonpb.RequestId, opts ...grpc.CallOption) (*lockpb.InspectResponse, error) {
		return lockpb.NewLockServiceClient(conn).Inspect(ctx, &lockpb.InspectRequest{Key: key, Name: l.name}, opts...)
	})
	if err != nil {
		return LockState{}, err
	}
	s := LockState{Holder: holderOf(r.Holder), Holding: int(r.Holding), Waiting: int(r.Waiting), Meta: metaOf(r, nil)}
	for _, h := range r.Holders {
		s.Holders = append(s.Holders, *holderOf(h))
	}
	for _, w := range r.Waiters {
		s.Waiters = append(s.Waiters, Waiter{w.Id, time.Duration(w.WaitedNs), w.Shared})
	}
	return s, nil
}
