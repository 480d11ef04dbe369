package client

import (
	"cmp"
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

const (
	// DefaultLockTTL is how long a lock outlives a process that died.
	DefaultLockTTL = 10 * time.Second
	// NoWait as LockOptions.Wait tries once.
	NoWait = time.Duration(-1)

	maxLockTTL  = 24 * time.Hour
	maxLockWait = 24 * time.Hour
	minLockTTL  = 10 * time.Millisecond
	// marginPart of the TTL is the default margin: work has a tenth of the TTL
	// to stop in before the lock can be another's.
	marginPart = 10
)

// LockOptions are how a lock is acquired and kept. The zero LockOptions are good
// ones.
type LockOptions struct {
	// Name tells locks of one key apart: at most 128 bytes. Default "lock".
	Name string
	// TTL is how long the lock is held without a renewal: 10 ms to 24 h, or less
	// if the node says so. Half of it, less the margin, must leave room for some
	// renewals over the network. Default DefaultLockTTL.
	TTL time.Duration
	// Wait is how long to stand in the queue: up to 24 h, which is the default;
	// NoWait tries once. The context of Lock counts as well.
	Wait time.Duration
	// Holder names the caller to others: at most 128 bytes. Default host:pid.
	Holder string
	// Metadata is whatever others may want to see: at most 1,024 bytes.
	Metadata []byte
	// Margin is how long before the end of the lease the lock's context ends,
	// less than half the TTL. Default a tenth of the TTL.
	Margin time.Duration
}

func (o LockOptions) withDefaults(holder string) LockOptions {
	if o.TTL == 0 {
		o.TTL = DefaultLockTTL
	}
	if o.Wait == 0 {
		o.Wait = maxLockWait
	}
	if o.Holder == "" {
		o.Holder = holder
	}
	if o.Margin == 0 {
		o.Margin = o.TTL / marginPart
	}
	return o
}

func (o *LockOptions) validate() error {
	switch {
	case o.TTL < minLockTTL || o.TTL > maxLockTTL:
		return invalid("TTL", "is %s; %s to %s are allowed", o.TTL, minLockTTL, maxLockTTL)
	case o.Wait > maxLockWait:
		return invalid("Wait", "is %s; at most %s are allowed", o.Wait, maxLockWait)
	case o.Margin < 0 || o.Margin >= o.TTL/2:
		return invalid("Margin", "is %s; it must be less than half of the TTL", o.Margin)
	}
	return nil
}

// Holder is the holder of a lock.
type Holder struct {
	Holder   string
	Token    uint64        // fencing token of the grant
	Held     time.Duration // since the grant
	TTL      time.Duration // until the lock is free without a renewal
	Metadata []byte
}

func holderOf(h *lockpb.Holder) *Holder {
	if h == nil {
		return nil
	}
	return &Holder{Holder: h.Holder, Token: h.Token, Held: time.Duration(h.HeldNs), TTL: time.Duration(h.TtlNs), Metadata: h.Metadata}
}

// Lock is a lock that is held, and renewed by itself at a third of its TTL. The lease
// is counted from the first send of the request that was granted (or of the
// renewal that was answered), so that it is over here before it is over for the
// owner. If all nodes that kept the lock die, the next owner gives it back under its
// token, as long as the lease lasts.
type Lock struct {
	*lease
	granted Meta
}

// Token returns the fencing token: greater than that of every earlier grant of this
// lock. Give it to what the lock protects, and have that refuse smaller ones.
func (l *Lock) Token() uint64 { return l.token }

// Meta returns which node granted the lock, and in which epoch.
func (l *Lock) Meta() Meta { return l.granted }

// Held reports whether the lock is held for certain: the lease, less the margin,
// runs at this moment. A process that was stopped and goes on sees here that its
// time is over.
func (l *Lock) Held() bool { return l.held() }

// Context ends before the lease does: with the cause ErrLockLost when the lock
// could not be renewed in time, ErrUnlocked after Unlock, ErrClosed after Close.
// Its Err looks at the clock, as Held does.
func (l *Lock) Context() context.Context { return l.context() }

// Unlock gives the lock back and ends its context. The error is ErrLockLost if
// the lock had been lost to its owner before, and that of the call if the owner
// could not be reached; then the lock is free when its TTL ends, and Unlock may be
// called again. It may be called more than once. ctx must not have ended: give it one
// of its own when the caller's is over, such as context.WithoutCancel(ctx), or the lock is
// kept until its TTL ends.
func (l *Lock) Unlock(ctx context.Context) error {
	return l.giveBack(ctx, &Error{Code: codes.Canceled, Reason: ErrUnlocked, Message: "the lock was given back"})
}

func (c *Client) newLock(values context.Context, key string, o LockOptions, r *lockpb.AcquireResponse, until int64) *Lock {
	return &Lock{c.newLease(values, c.lockGrant(key, o, r.GetToken()), until), metaOf(r, r.GetReplay())}
}

// lockGrant returns how a lock is kept.
func (c *Client) lockGrant(key string, o LockOptions, token uint64) grant {
	// A renewal carries what is left of the lease, so that an owner that has lost the
	// lock can give it back.
	renewal := func(left time.Duration) *lockpb.RenewRequest {
		req := &lockpb.RenewRequest{Key: key, Name: o.Name, Token: token, TtlNs: int64(o.TTL)}
		if left > 0 {
			req.Reclaim = &lockpb.Reclaim{LeftNs: int64(left), Holder: o.Holder, Metadata: o.Metadata}
		}
		return req
	}
	return grant{
		what: "lock", undo: "unlock", key: key, token: token, ttl: o.TTL, margin: o.Margin,
		renew: func(ctx context.Context, conn *grpc.ClientConn, left time.Duration, opts ...grpc.CallOption) (renewed, error) {
			r, err := lockpb.NewLockServiceClient(conn).Renew(ctx, renewal(left), opts...)
			return renewed{held: r.GetRenewed(), reclaimed: r.GetReclaimed(), holder: holderOf(r.GetHolder()),
				owner: r.GetOwner(), epoch: r.GetEpoch()}, err
		},
		release: func(ctx context.Context, left func() time.Duration) (bool, error) {
			op := c.ops.begin()
			defer op.finish()
			r, err := ask(ctx, c, toKey(key, false).of("unlock"), op, func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId, opts ...grpc.CallOption) (*lockpb.ReleaseResponse, error) {
				node := lockpb.NewLockServiceClient(conn)
				req := &lockpb.ReleaseRequest{Key: key, Name: o.Name, Token: token, RequestId: id}
				r, err := node.Release(ctx, req, opts...)
				if claim := renewal(left()); err != nil && claim.Reclaim != nil && fromCall(err, true).Reason == ErrRecovering {
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

// Lock takes the lock of a key, waiting in its queue if it must, and keeps it
// until Unlock. If another has it when the wait is over the error is ErrLockHeld.
//
// The wait ends with ctx, also with ErrLockHeld: errors.Is finds what ended ctx, too. If
// the outcome of the request cannot be learnt, the error is ErrOutcomeUnknown; a grant
// that was on its way is then given back in the background.
// The lock outlives ctx, and inherits its values but not its end.
func (c *Client) Lock(ctx context.Context, key string, o LockOptions) (*Lock, error) {
	o = o.withDefaults(c.holder)
	if err := cmp.Or(address(key, o.Name), o.validate()); err != nil {
		return nil, about(err, "lock", key, "")
	}
	values := context.WithoutCancel(ctx)
	ctx, cancel := c.bounded(ctx, max(o.Wait, 0)+c.cfg.Timeout)
	defer cancel()
	if err := c.enter(ctx, c.waitSlots); err != nil {
		return nil, about(err, "lock", key, "")
	}
	defer func() { <-c.waitSlots }()
	inQueue := timeInQueue(ctx, o.Wait)
	for end := c.clock.Now() + int64(inQueue); ; {
		op := c.waits.begin()
		r, err := c.acquire(ctx, key, &o, op, end)
		first := op.firstSent()
		//guard:client-settle
		if errors.Is(err, ErrOutcomeUnknown) && c.ctx.Err() == nil {
			return nil, c.resolve(values, key, o, op, err) // and finishes op
		}
		op.finish()
		switch {
		case errors.Is(err, ErrRequestTooOld):
			continue // a grant whose answer was lost ends by its TTL
		case err != nil:
			return nil, err
		case !r.GetAcquired():
			e := heldBy(r, key)
			if inQueue < o.Wait {
				e.cause = c.outlast(ctx)
			}
			return nil, e
		}
		// The grant was not before the first attempt plus the time in the queue.
		l := c.newLock(values, key, o, r, first+r.GetWaitedNs()+int64(o.TTL))
		if r.GetTtlNs() > 0 && l.left() > 0 {
			if !c.start(l.keep) {
				return nil, errClosed()
			}
			return l, nil
		}
		// It came too late to be of use. Give it back rather than wait for its end.
		l.finish(ErrLockLost)
		if r.GetTtlNs() > 0 {
			_, _ = l.release(ctx, l.rest)
		}
	}
}

// LockState is a lock as it is.
type LockState struct {
	Holder  *Holder // nil if the lock is free
	Waiters []string
	Waiting int // in all; Waiters lists the first
	Meta
}

// Inspect returns who has a lock, and who waits for it. name "" = "lock".
func (c *Client) Inspect(ctx context.Context, key, name string) (LockState, error) {
	if err := address(key, name); err != nil {
		return LockState{}, about(err, "inspect", key, "")
	}
	r, err := ask(ctx, c, toKey(key, true).of("inspect"), nil, func(ctx context.Context, conn *grpc.ClientConn, _ *commonpb.RequestId, opts ...grpc.CallOption) (*lockpb.InspectResponse, error) {
		return lockpb.NewLockServiceClient(conn).Inspect(ctx, &lockpb.InspectRequest{Key: key, Name: name}, opts...)
	})
	if err != nil {
		return LockState{}, err
	}
	s := LockState{Holder: holderOf(r.Holder), Waiting: int(r.Waiting), Meta: metaOf(r, nil)}
	for _, w := range r.Waiters {
		s.Waiters = append(s.Waiters, w.Holder)
	}
	return s, nil
}
