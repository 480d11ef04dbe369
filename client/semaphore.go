package client

import (
	"bytes"
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
	oncepb "github.com/keystead/keystead/proto/keystead/once/v1"
	semaphorepb "github.com/keystead/keystead/proto/keystead/semaphore/v1"
)

const (
	// MaxCapacity is the most permits that a semaphore can have.
	MaxCapacity = 1 << 20

	maxDelay = time.Minute
)

// Semaphore is a named semaphore that many keys have, each its own. It is a small value:
// making one costs nothing, and it may be copied and kept.
type Semaphore struct {
	c        *Client
	name     string
	capacity int
	session  *Session // that keeps the permits alive; nil = they are kept alive one by one
}

// Semaphore names a semaphore with a capacity, 1 to MaxCapacity. All who acquire have to say
// the same one; 0 means the one that the semaphore has. name "" = "semaphore".
func (c *Client) Semaphore(name string, capacity int) Semaphore {
	return Semaphore{c: c, name: name, capacity: capacity}
}

// Delay is for how long a lock, or permits, are granted to nobody when their holder is lost, so that it
// can learn of it and stop: up to a minute, in whole milliseconds. A Release has none. Default
// 0.
func Delay(d time.Duration) LockOption {
	return lockOption(func(o *lockOptions) { o.delay = d })
}

// permits is what a grant of a semaphore has beside that of a lock.
type permits struct {
	n        int           // that were asked for
	capacity int           // as the program says it; 0 = it does not
	have     atomic.Uint32 // that the grant has: fewer after a Downgrade
	seen     atomic.Uint32 // … and as the owner said it
	metadata atomic.Pointer[[]byte]
}

// lower has the grant have no more than so many.
func (p *permits) lower(to uint32) {
	for have := p.have.Load(); to < have && !p.have.CompareAndSwap(have, to); have = p.have.Load() {
	}
}

func (p *permits) validate(delay time.Duration, other otherGrant) error {
	switch {
	case p == nil && delay != 0 && other != nil && !other.delays():
		return invalid("Delay", "is an option of locks, semaphores and elections")
	case delay < 0 || delay > maxDelay || delay%time.Millisecond != 0:
		return invalid("Delay", "is %s; choose 0 to %s, in whole milliseconds", delay, maxDelay)
	case p == nil:
		return nil
	case p.capacity < 0 || p.capacity > MaxCapacity:
		return invalid("capacity", "is %d; choose 1 to %d, or 0 for the one that it has", p.capacity, MaxCapacity)
	case p.n < 1 || p.n > MaxCapacity || p.capacity != 0 && p.n > p.capacity:
		return invalid("permits", "are %d; choose 1 to the capacity", p.n)
	}
	return nil
}

// what returns what is acquired, for errors.
func (o *lockOptions) what() string {
	switch {
	case o.permits != nil:
		return "semaphore"
	case o.turn != nil:
		return "once"
	case o.other != nil:
		return o.other.what()
	}
	return "lock"
}

// otherGrant is what is kept as a lock is, and is neither a lock nor a semaphore: it takes the calls
// of a lock.
type otherGrant interface {
	what() string // for errors
	delays() bool // Delay is one of its options
	service(conn grpc.ClientConnInterface) lockpb.LockServiceClient
	// refused returns the error of one that was not to be had.
	refused(r *lockpb.AcquireResponse, key string) *Error
}

// service returns what keeps the grants of a connection. What waits for a grant and what keeps
// it are the same for locks, semaphores and what else is held: these take the calls of a lock.
func (o *lockOptions) service(conn grpc.ClientConnInterface) lockpb.LockServiceClient {
	switch {
	case o.permits != nil:
		return permitService{o: o, to: semaphorepb.NewSemaphoreServiceClient(conn)}
	case o.turn != nil:
		return turnService{o: o, to: oncepb.NewOnceServiceClient(conn)}
	case o.other != nil:
		return o.other.service(conn)
	}
	return lockpb.NewLockServiceClient(conn)
}

// permitService is a semaphore, asked as a lock is.
type permitService struct {
	lockpb.LockServiceClient // is nil: what is not here is not asked
	o                        *lockOptions
	to                       semaphorepb.SemaphoreServiceClient
}

func (s permitService) Acquire(ctx context.Context, q *lockpb.AcquireRequest, opts ...grpc.CallOption) (*lockpb.AcquireResponse, error) {
	p := s.o.permits
	r, err := s.to.Acquire(ctx, &semaphorepb.AcquireRequest{Key: q.Key, Name: q.Name, Holder: q.Holder, Permits: uint32(p.n), Capacity: uint32(p.capacity),
		TtlNs: q.TtlNs, WaitNs: q.WaitNs, DelayNs: int64(s.o.delay), Metadata: q.Metadata, RequestId: q.RequestId, IdempotencyKey: q.IdempotencyKey, Session: s.o.session.named(), TicketTtlNs: q.TicketTtlNs}, opts...)
	if err != nil {
		return nil, err
	}
	if r.Capacity != 0 {
		p.seen.Store(r.Capacity)
	}
	//guard:client-key-permits
	if r.Permits != 0 { // another process may have given some back, under an idempotency key
		p.lower(r.Permits)
	}
	return &lockpb.AcquireResponse{Acquired: r.Acquired, Token: r.Token, TtlNs: r.TtlNs, WaitedNs: r.WaitedNs, QueuePosition: r.QueuePosition,
		DelayNs: int64(s.o.delay), Session: r.Session, Epoch: r.Epoch, Owner: r.Owner, LostEpoch: r.LostEpoch, Replay: r.Replay, Waiting: r.Waiting}, nil
}

func (s permitService) Renew(ctx context.Context, q *lockpb.RenewRequest, opts ...grpc.CallOption) (*lockpb.RenewResponse, error) {
	p := s.o.permits
	ask := &semaphorepb.RenewRequest{Key: q.Key, Name: q.Name, Token: q.Token, TtlNs: q.TtlNs}
	if c := q.Reclaim; c != nil && p.seen.Load() != 0 {
		ask.Reclaim = &semaphorepb.Reclaim{LeftNs: c.LeftNs, Holder: c.Holder, Permits: p.have.Load(), Capacity: p.seen.Load(), DelayNs: int64(s.o.delay), Metadata: c.Metadata, Session: s.o.session.named()}
		if m := p.metadata.Load(); m != nil {
			ask.Reclaim.Metadata = *m
		}
	}
	r, err := s.to.Renew(ctx, ask, opts...)
	if err != nil {
		return nil, err
	}
	return &lockpb.RenewResponse{Renewed: r.Renewed, Reclaimed: r.Reclaimed, TtlNs: r.TtlNs, Epoch: r.Epoch, Owner: r.Owner, LostEpoch: r.LostEpoch}, nil
}

func (s permitService) Release(ctx context.Context, q *lockpb.ReleaseRequest, opts ...grpc.CallOption) (*lockpb.ReleaseResponse, error) {
	r, err := s.to.Release(ctx, &semaphorepb.ReleaseRequest{Key: q.Key, Name: q.Name, Token: q.Token, RequestId: q.RequestId, IdempotencyKey: q.IdempotencyKey}, opts...)
	if err != nil {
		return nil, err
	}
	return &lockpb.ReleaseResponse{Released: r.Released, Epoch: r.Epoch, Owner: r.Owner, LostEpoch: r.LostEpoch, Replay: r.Replay}, nil
}

// Acquire takes permits of the semaphore of a key and keeps them until Release, waiting in its
// queue if it must: until ctx ends, or as long as Wait says. Who comes later does not pass, not
// even for fewer permits. If they are not to be had in that time, the error is ErrNoPermits;
// errors.Is finds what ended ctx, too. If the semaphore has another capacity it is
// ErrCapacityMismatch. All else is as with Lock.Acquire.
func (s Semaphore) Acquire(ctx context.Context, key string, permits int, opts ...LockOption) (*HeldPermits, error) {
	return s.acquire(ctx, key, permits, opts, false)
}

// TryAcquire is Acquire without a wait.
func (s Semaphore) TryAcquire(ctx context.Context, key string, permits int, opts ...LockOption) (*HeldPermits, error) {
	return s.acquire(ctx, key, permits, opts, true)
}

func (s Semaphore) acquire(ctx context.Context, key string, n int, opts []LockOption, try bool) (*HeldPermits, error) {
	l := Lock{s.c, s.name, s.session}
	o := l.options(opts)
	o.permits = &permits{n: n, capacity: s.capacity}
	o.permits.have.Store(uint32(n)) // not when an answer comes: one that is late must not undo a Downgrade
	if try && o.wait != forever {
		return nil, about(invalid("Wait", "is an option of Acquire; TryAcquire does not wait"), o.what(), key, "")
	}
	if try {
		o.wait = 0
	}
	held, err := l.acquire(ctx, key, o)
	if err != nil {
		return nil, err
	}
	return &HeldPermits{held, o.permits}, nil
}

// HeldPermits are permits that are held, and renewed by themselves, as a HeldLock is.
type HeldPermits struct {
	l *HeldLock
	p *permits
}

// Token returns the fencing token: greater than that of every earlier grant of this semaphore.
func (h *HeldPermits) Token() uint64 { return h.l.Token() }

// Permits returns how many they are, and Capacity of how many.
func (h *HeldPermits) Permits() int { return int(h.p.have.Load()) }

// Capacity returns that of the semaphore, as the owner said it when it granted the permits.
func (h *HeldPermits) Capacity() int { return int(h.p.seen.Load()) }

// Meta returns which node granted the permits, and in which epoch.
func (h *HeldPermits) Meta() Meta { return h.l.Meta() }

// Held reports whether the permits are held for certain: see HeldLock.Held.
func (h *HeldPermits) Held() bool { return h.l.Held() }

// Context ends before the lease does: see HeldLock.Context.
func (h *HeldPermits) Context() context.Context { return h.l.Context() }

// Release gives the permits back and ends their context: see HeldLock.Release.
func (h *HeldPermits) Release(ctx context.Context, opts ...CallOption) error {
	return h.l.Release(ctx, opts...)
}

// Downgrade gives some of the permits back and keeps so many, under the same token: a writer that
// held all becomes a reader, and nobody else writes in between. A grant never gets more permits:
// ErrInvalid, also if a Downgrade whose answer was lost has left it fewer. The error is
// ErrLockLost if they are not held any more.
func (h *HeldPermits) Downgrade(ctx context.Context, permits int) error {
	const what = "downgrade semaphore"
	if permits < 1 || permits > h.Permits() {
		return about(invalid("permits", "are %d; the grant has %d, and never gets more", permits, h.Permits()), what, h.l.key, "")
	}
	r, err := ask(ctx, h.l.c, toKey(h.l.key, false).of(what), nil, func(ctx context.Context, conn *grpc.ClientConn, _ *commonpb.RequestId, opts ...grpc.CallOption) (*semaphorepb.DowngradeResponse, error) {
		return semaphorepb.NewSemaphoreServiceClient(conn).Downgrade(ctx, &semaphorepb.DowngradeRequest{Key: h.l.key, Name: h.l.name, Token: h.l.token, Permits: uint32(permits)}, opts...)
	})
	if err != nil {
		return err
	}
	switch {
	case r.Permits == 0:
		return h.over(what, r.Owner)
	//guard:client-downgrade-unheard
	case !r.Downgraded: // an earlier one was done, and its answer lost
		h.p.lower(r.Permits)
		return about(invalid("permits", "are %d; the grant has %d, and never gets more", permits, r.Permits), what, h.l.key, r.Owner)
	}
	h.p.lower(uint32(permits))
	return nil
}

// Update replaces the metadata that others see. The error is ErrLockLost if the permits are not
// held any more.
func (h *HeldPermits) Update(ctx context.Context, metadata []byte) error {
	const what = "update semaphore"
	op := h.l.c.ops.begin()
	defer op.finish()
	r, err := ask(ctx, h.l.c, toKey(h.l.key, false).of(what), op, func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId, opts ...grpc.CallOption) (*semaphorepb.UpdateResponse, error) {
		return semaphorepb.NewSemaphoreServiceClient(conn).Update(ctx, &semaphorepb.UpdateRequest{Key: h.l.key, Name: h.l.name, Token: h.l.token, Metadata: metadata, RequestId: id}, opts...)
	})
	if err != nil {
		return err
	}
	if !r.Updated {
		return h.over(what, r.Owner)
	}
	metadata = bytes.Clone(metadata) // they are shown again if they are lost
	h.p.metadata.Store(&metadata)
	return nil
}

// over ends the context of permits that are held no more, as their owner has said, and returns
// the error.
func (h *HeldPermits) over(what, node string) error {
	//guard:client-permits-over
	h.l.finish(h.l.lost("the permits are not held any more"))
	return about(h.l.lost("the permits are not held any more"), what, h.l.key, node)
}

// Verify reports whether a token still holds permits of a key: what a job asks that may have
// outlived its lease. It was so when the owner answered; what is written after that needs the
// token all the same.
func (s Semaphore) Verify(ctx context.Context, key string, token uint64) (bool, error) {
	const what = "verify semaphore"
	if err := s.c.judge(ctx, key, s.name); err != nil {
		return false, about(err, what, key, "")
	}
	r, err := ask(ctx, s.c, toKey(key, true).of(what), nil, func(ctx context.Context, conn *grpc.ClientConn, _ *commonpb.RequestId, opts ...grpc.CallOption) (*semaphorepb.VerifyResponse, error) {
		return semaphorepb.NewSemaphoreServiceClient(conn).Verify(ctx, &semaphorepb.VerifyRequest{Key: key, Name: s.name, Token: token}, opts...)
	})
	return r.GetHeld(), err
}

// Revoke ends another's grant, and reports whether it was in force. The Delay of its holder
// runs.
func (s Semaphore) Revoke(ctx context.Context, key string, token uint64, opts ...CallOption) (bool, error) {
	const what = "revoke semaphore"
	idem, err := keyOf(opts)
	if err := cmp.Or(s.c.judge(ctx, key, s.name), err); err != nil {
		return false, about(err, what, key, "")
	}
	op := s.c.ops.begin()
	defer op.finish()
	r, err := ask(ctx, s.c, toKey(key, false).of(what), op, func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId, opts ...grpc.CallOption) (*semaphorepb.RevokeResponse, error) {
		return semaphorepb.NewSemaphoreServiceClient(conn).Revoke(ctx, &semaphorepb.RevokeRequest{Key: key, Name: s.name, Token: token, RequestId: unlessKeyed(id, idem), IdempotencyKey: idem}, opts...)
	})
	return r.GetRevoked(), err
}

// SetCapacity makes the capacity of a key's semaphore another one, whatever the handle says, from
// now on and also while nobody holds or waits; 0 leaves it to the next Acquire. An
// Acquire under another capacity gets ErrCapacityMismatch.
func (s Semaphore) SetCapacity(ctx context.Context, key string, capacity int, opts ...CallOption) error {
	const what = "set capacity"
	idem, err := keyOf(opts)
	if err == nil && (capacity < 0 || capacity > MaxCapacity) {
		err = invalid("capacity", "is %d; choose 1 to %d, or 0 to leave it to the next Acquire", capacity, MaxCapacity)
	}
	if err := cmp.Or(s.c.judge(ctx, key, s.name), err); err != nil {
		return about(err, what, key, "")
	}
	op := s.c.ops.begin()
	defer op.finish()
	_, err = ask(ctx, s.c, toKey(key, false).of(what), op, func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId, opts ...grpc.CallOption) (*semaphorepb.SetCapacityResponse, error) {
		return semaphorepb.NewSemaphoreServiceClient(conn).SetCapacity(ctx, &semaphorepb.SetCapacityRequest{Key: key, Name: s.name, Capacity: uint32(capacity), RequestId: unlessKeyed(id, idem), IdempotencyKey: idem}, opts...)
	})
	return err
}

// SemaphoreState is a semaphore as it is.
type SemaphoreState struct {
	Capacity int  // 0 = it is what the next who acquires says
	Set      bool // SetCapacity said so
	Held     int  // permits that are held
	Delayed  int  // … that are kept because their holder was lost: see Delay
	Holders  []PermitHolder
	Holding  int // how many there are in all; Holders lists the first
	Waiters  []PermitWaiter
	Waiting  int // in all; Waiters lists the first
	Meta
}

// PermitHolder holds permits.
type PermitHolder struct {
	Holder
	Permits int
	Delay   time.Duration // until they are free, if their holder was lost; its TTL is 0 then
}

func permitHolderOf(h *semaphorepb.Holder) PermitHolder {
	return PermitHolder{Holder{ID: h.Id, Token: h.Token, Held: time.Duration(h.HeldNs), TTL: time.Duration(h.TtlNs), Metadata: h.Metadata, Session: sessionName(h.Session)}, int(h.Permits), time.Duration(h.DelayNs)}
}

// PermitWaiter waits for permits.
type PermitWaiter struct {
	Waiter
	Permits int
}

// Inspect returns the holders and the waiters of a key's semaphore.
func (s Semaphore) Inspect(ctx context.Context, key string) (SemaphoreState, error) {
	const what = "inspect semaphore"
	if err := s.c.judge(ctx, key, s.name); err != nil {
		return SemaphoreState{}, about(err, what, key, "")
	}
	r, err := ask(ctx, s.c, toKey(key, true).of(what), nil, func(ctx context.Context, conn *grpc.ClientConn, _ *commonpb.RequestId, opts ...grpc.CallOption) (*semaphorepb.InspectResponse, error) {
		return semaphorepb.NewSemaphoreServiceClient(conn).Inspect(ctx, &semaphorepb.InspectRequest{Key: key, Name: s.name}, opts...)
	})
	if err != nil {
		return SemaphoreState{}, err
	}
	v := SemaphoreState{Capacity: int(r.Capacity), Set: r.CapacitySet, Held: int(r.Held), Delayed: int(r.Delayed), Holding: int(r.Holding), Waiting: int(r.Waiting), Meta: metaOf(r, nil)}
	for _, h := range r.Holders {
		v.Holders = append(v.Holders, permitHolderOf(h))
	}
	for _, w := range r.Waiters {
		v.Waiters = append(v.Waiters, PermitWaiter{Waiter{Name: w.Id, Waited: time.Duration(w.WaitedNs)}, int(w.Permits)})
	}
	return v, nil
}
