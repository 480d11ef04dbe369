package client

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	grouppb "github.com/keystead/keystead/proto/keystead/group/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

// joining is what a membership has beside what a lock has.
type joining struct {
	m     *Membership
	after uint64 // token of the one before it; 0 = none
}

func (j *joining) what() string { return "group" }

func (j *joining) delays() bool { return false }

func (j *joining) service(conn grpc.ClientConnInterface) lockpb.LockServiceClient {
	return memberService{j: j, to: grouppb.NewGroupServiceClient(conn)}
}

func (j *joining) refused(r *lockpb.AcquireResponse, key string) *Error {
	e := &Error{Op: "join", Key: key, Node: r.GetOwner(), Code: codes.ResourceExhausted, Reason: ErrGroupFull,
		Message: "the group has as many members as it may have, 500", Hint: "divide it: a group for each part, under a name or key of its own"}
	if r.GetHolder() != nil {
		e.Code, e.Reason, e.Hint = codes.FailedPrecondition, ErrReplaced, "give each process an id of its own"
		e.Message = "another has joined under the id of this member since, and takes its place"
	}
	return e
}

// memberService is a group, asked as a lock is.
type memberService struct {
	lockpb.LockServiceClient // is nil: what is not here is not asked
	j                        *joining
	to                       grouppb.GroupServiceClient
}

func (s memberService) Acquire(ctx context.Context, q *lockpb.AcquireRequest, opts ...grpc.CallOption) (*lockpb.AcquireResponse, error) {
	r, err := s.to.Join(ctx, &grouppb.JoinRequest{Key: q.Key, Name: q.Name, Id: q.Holder, Metadata: q.Metadata, TtlNs: q.TtlNs,
		AfterToken: s.j.after, Session: q.Session, RequestId: q.RequestId}, opts...)
	if err != nil {
		return nil, err
	}
	a := &lockpb.AcquireResponse{Acquired: r.Joined, Token: r.Token, TtlNs: r.TtlNs, Epoch: r.Epoch, Owner: r.Owner, LostEpoch: r.LostEpoch, Replay: r.Replay}
	if r.LaterToken != 0 {
		a.Holder = &lockpb.Holder{Id: q.Holder, Token: r.LaterToken}
	}
	return a, nil
}

func (s memberService) Renew(ctx context.Context, q *lockpb.RenewRequest, opts ...grpc.CallOption) (*lockpb.RenewResponse, error) {
	ask := &grouppb.RenewRequest{Key: q.Key, Name: q.Name, Token: q.Token, TtlNs: q.TtlNs}
	if c := q.Reclaim; c != nil {
		_, metadata, _ := s.j.m.current()
		ask.Reclaim = &grouppb.Reclaim{LeftNs: c.LeftNs, Id: c.Holder, Metadata: metadata, Session: c.Session}
	}
	r, err := s.to.Renew(ctx, ask, opts...)
	if err != nil {
		return nil, err
	}
	return &lockpb.RenewResponse{Renewed: r.Renewed, Reclaimed: r.Reclaimed, TtlNs: r.TtlNs, Epoch: r.Epoch, Owner: r.Owner, LostEpoch: r.LostEpoch}, nil
}

func (s memberService) Release(ctx context.Context, q *lockpb.ReleaseRequest, opts ...grpc.CallOption) (*lockpb.ReleaseResponse, error) {
	r, err := s.to.Leave(ctx, &grouppb.LeaveRequest{Key: q.Key, Name: q.Name, Token: q.Token, RequestId: q.RequestId, IdempotencyKey: q.IdempotencyKey}, opts...)
	if err != nil {
		return nil, err
	}
	return &lockpb.ReleaseResponse{Released: r.Left, Epoch: r.Epoch, Owner: r.Owner, LostEpoch: r.LostEpoch, Replay: r.Replay}, nil
}

// Membership is being a member of a group, until Leave. It is renewed by itself, and joined anew
// if it is lost: because nobody could renew it in time, or another has removed it. Each time it has
// another token.
type Membership struct {
	g    Group
	key  string
	opts []LockOption
	ctx  context.Context // ends when it is over for good, with the cause why
	stop context.CancelCauseFunc
	kept chan struct{} // closed when it is not joined anew any more

	mu       sync.Mutex    // guards what follows
	now      *HeldLock     // as it was joined last
	metadata []byte        // what others are to be told
	changed  chan struct{} // closed when now is another
}

// Join makes the caller a member of the group of a key under the id of HeldBy, and keeps it one
// until Leave. Metadata is what others are told of it, such as an address. Nobody waits: if the
// group has MaxMembers, the error is ErrGroupFull. Another member of the id is one no longer. TTL is
// how long others see a member whose process died; Margin is as with locks.
//
// The membership outlives ctx, and inherits its values but not its end.
func (g Group) Join(ctx context.Context, key string, opts ...LockOption) (*Membership, error) {
	if err := g.c.callable(ctx); err != nil {
		return nil, about(err, "join", key, "")
	}
	m := &Membership{g: g, key: key, opts: opts, kept: make(chan struct{}), changed: make(chan struct{})}
	o := m.options()
	switch {
	case o.wait != forever:
		return nil, about(invalid("Wait", "is none of Join, which does not wait"), "join", key, "")
	case o.idem.given:
		return nil, about(invalid("IdempotencyKey", "is none of Join: another Join under an id takes the place of its member anyway"), "join", key, "")
	}
	m.metadata = bytes.Clone(o.metadata)
	held, err := m.join(ctx, 0)
	if err != nil {
		return nil, err
	}
	m.now = held
	m.ctx, m.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	if !g.c.start(m.keep) {
		held.abandon()
		return nil, about(errClosed(), "join", key, "")
	}
	return m, nil
}

func (m *Membership) options() lockOptions {
	return Lock{c: m.g.c, name: m.g.name, session: m.g.session}.options(m.opts)
}

// join joins once, after the membership of a token.
func (m *Membership) join(ctx context.Context, after uint64) (*HeldLock, error) {
	o := m.options()
	_, o.metadata, _ = m.current()
	o.other, o.wait = &joining{m, after}, 0
	return Lock{c: m.g.c, name: m.g.name, session: m.g.session}.acquire(ctx, m.key, o)
}

// current returns the membership as it was joined last, what others are to be told, and what is
// closed when it is another.
func (m *Membership) current() (now *HeldLock, metadata []byte, changed <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now, m.metadata, m.changed
}

// keep joins anew whenever the membership is lost, until it is over for good.
func (m *Membership) keep() {
	defer close(m.kept)
	for m.ctx.Err() == nil {
		now, _, _ := m.current()
		select {
		case <-now.inner.Done():
		case <-m.ctx.Done():
			return
		}
		//guard:member-joins-anew
		if cause := context.Cause(now.inner); !errors.Is(cause, ErrLockLost) || m.g.session != nil {
			m.stop(cause)
			return
		}
		m.again(now.token)
	}
}

// again joins until it is a member, or that is over for good.
func (m *Membership) again(after uint64) {
	var unsure int64 // until then, a later membership of the id may be its own, of which it was not told
	for pause := firstPause; m.ctx.Err() == nil; pause = min(2*pause, maxPause) {
		//guard:member-after after -> 0
		held, err := m.join(m.ctx, after)
		if err == nil {
			m.mu.Lock()
			m.now = held
			close(m.changed)
			m.changed = make(chan struct{})
			m.mu.Unlock()
			return
		}
		now := m.g.c.clock.Now()
		if errors.Is(err, ErrOutcomeUnknown) { // it is asked once more in the background, for a Timeout at most
			unsure = now + int64(m.options().ttl+2*m.g.c.cfg.Timeout)
		}
		//guard:member-unsure now >= unsure -> now >= 0*unsure
		if errors.Is(err, ErrReplaced) && now >= unsure || errors.Is(err, ErrInvalid) || errors.Is(err, ErrKindMismatch) || errors.Is(err, ErrClosed) {
			m.stop(err)
			return
		}
		if m.ctx.Err() == nil {
			m.g.c.cfg.Log.Warn("a membership was lost, and could not be joined anew; it is tried again", "key", m.key, "err", err)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-m.ctx.Done():
		case <-m.g.c.ctx.Done():
			m.stop(errClosed())
		}
		timer.Stop()
	}
}

// Token returns the fencing token of the membership as it was joined last.
func (m *Membership) Token() uint64 {
	now, _, _ := m.current()
	return now.Token()
}

// Held reports whether the caller is a member for certain: see HeldLock.Held. It may be one again
// when it is not.
func (m *Membership) Held() bool {
	now, _, _ := m.current()
	return now.Held()
}

// Done is closed when the membership is over for good: after Leave, after another has joined under
// its id, or when the client, or the session that keeps it, is closed.
func (m *Membership) Done() <-chan struct{} { return m.ctx.Done() }

// Err returns why the membership is over for good: ErrReleased after Leave, ErrReplaced if another
// has joined under its id, ErrClosed; ErrLockLost if a session kept it; nil while it is not.
func (m *Membership) Err() error {
	if m.ctx.Err() == nil {
		return nil
	}
	return context.Cause(m.ctx)
}

// Context ends when Done is closed, with the cause Err.
func (m *Membership) Context() context.Context { return m.ctx }

// Leave ends the membership. See HeldLock.Release.
func (m *Membership) Leave(ctx context.Context, opts ...CallOption) error {
	key, err := keyOf(opts)
	if err := cmp.Or(m.g.c.callable(ctx), err); err != nil {
		return about(err, "leave", m.key, "")
	}
	cause := &Error{Op: "group", Key: m.key, Code: codes.Canceled, Reason: ErrReleased, Message: "it has left the group"}
	m.stop(cause)
	select {
	case <-m.kept:
	case <-ctx.Done():
		return about(&Error{Code: codeOf(ctx), Reason: ErrGaveUp, Message: ctx.Err().Error(), cause: ctx.Err()}, "leave", m.key, "")
	}
	now, _, _ := m.current()
	return now.giveBack(ctx, key, cause)
}

// Release is Leave.
func (m *Membership) Release(ctx context.Context, opts ...CallOption) error {
	return m.Leave(ctx, opts...)
}

// Update replaces what others are told of the member. If the membership was lost, they are told when
// it is joined anew, and Update waits for that. The error is that of Err if it is over for good.
func (m *Membership) Update(ctx context.Context, metadata []byte) error {
	if err := m.g.c.callable(ctx); err != nil {
		return about(err, updateGroup, m.key, "")
	}
	if len(metadata) > MaxMetadata {
		return about(invalid("Metadata", "has %d bytes; at most %d are allowed", len(metadata), MaxMetadata), updateGroup, m.key, "")
	}
	metadata = bytes.Clone(metadata)
	m.mu.Lock()
	m.metadata = metadata
	m.mu.Unlock()
	for {
		now, _, changed := m.current()
		if m.ctx.Err() != nil {
			return about(context.Cause(m.ctx), updateGroup, m.key, "")
		}
		r, err := m.g.update(ctx, m.key, now.token, metadata, "")
		if err != nil || r.GetUpdated() {
			return err
		}
		now.finish(now.lost("the membership is over"))
		select {
		case <-changed:
		case <-m.ctx.Done():
		case <-ctx.Done():
			return about(&Error{Code: codeOf(ctx), Reason: ErrGaveUp, Message: ctx.Err().Error(), cause: ctx.Err()}, updateGroup, m.key, "")
		}
	}
}
