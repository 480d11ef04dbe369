package client

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
	oncepb "github.com/keystead/keystead/proto/keystead/once/v1"
)

const (
	// MaxResult is the longest result of work that is done once, in bytes.
	MaxResult = 60 << 10
	// DefaultKeep is how long a result is kept, unless Keep says otherwise.
	DefaultKeep = 24 * time.Hour

	maxPrint = 64
	minKeep  = time.Second
	maxKeep  = 7 * 24 * time.Hour
)

// Once is work that is done once for each of many keys, such as the posting of an order. It is a
// small value: making one costs nothing, and it may be copied and kept.
type Once struct {
	c    *Client
	name string
}

// Once names what is done once, with at most 128 bytes. name "" = "once".
func (c *Client) Once(name string) Once { return Once{c, name} }

// Keep is how long the result of work that is done once is kept: 1 s to 7 days. A caller that comes
// later does the work again. Default DefaultKeep.
func Keep(d time.Duration) LockOption {
	return lockOption(func(o *lockOptions) { o.keep, o.keeps = d, true })
}

// turn is what a turn of Once has beside the grant of a lock.
type turn struct {
	print   string
	attempt atomic.Uint32
	done    atomic.Pointer[oncepb.BeginResponse] // the work is done
}

// finished reports whether the work is done.
func (t *turn) finished() bool { return t != nil && t.done.Load() != nil }

func (o *lockOptions) validateOnce() error {
	switch {
	case o.turn == nil && o.keeps:
		return invalid("Keep", "is an option of Once")
	case o.turn == nil:
		return nil
	case o.idem.given:
		return invalid("IdempotencyKey", "is no option of Once: its key is one")
	case o.metadata != nil:
		return invalid("Metadata", "is no option of Once")
	case len(o.turn.print) > maxPrint:
		return invalid("fingerprint", "has %d bytes; at most %d are allowed: use a hash of the request", len(o.turn.print), maxPrint)
	case o.keeps && (o.keep < minKeep || o.keep > maxKeep):
		return invalid("Keep", "is %s; choose %s to %s", o.keep, minKeep, maxKeep)
	}
	return nil
}

// turnService is work that is done once, asked as a lock is.
type turnService struct {
	lockpb.LockServiceClient // is nil: what is not here is not asked
	o                        *lockOptions
	to                       oncepb.OnceServiceClient
}

func (s turnService) Acquire(ctx context.Context, q *lockpb.AcquireRequest, opts ...grpc.CallOption) (*lockpb.AcquireResponse, error) {
	t := s.o.turn
	r, err := s.to.Begin(ctx, &oncepb.BeginRequest{Key: q.Key, Name: q.Name, Fingerprint: t.print, Holder: q.Holder, TtlNs: q.TtlNs, WaitNs: q.WaitNs, RequestId: q.RequestId}, opts...)
	if err != nil {
		return nil, err
	}
	a := &lockpb.AcquireResponse{Acquired: r.Outcome == oncepb.Outcome_OUTCOME_FIRST, Token: r.Token, TtlNs: r.TtlNs, Epoch: r.Epoch, Owner: r.Owner, LostEpoch: r.LostEpoch, Replay: r.Replay}
	switch r.Outcome {
	case oncepb.Outcome_OUTCOME_FIRST:
		t.attempt.Store(r.Attempt)
		// A turn begins after the send of the attempt that it answers, or, in a replay, has
		// that much left after it. The caller counts from its first send.
		a.WaitedNs = q.RequestId.GetAgeNs() + r.WaitedNs + r.TtlNs - q.TtlNs
	case oncepb.Outcome_OUTCOME_BUSY:
		a.Holder = &lockpb.Holder{Id: r.Holder, Token: r.Token, HeldNs: r.AgeNs, TtlNs: r.TtlNs}
	case oncepb.Outcome_OUTCOME_DONE:
		t.done.Store(r)
	}
	return a, nil
}

func (s turnService) claim(c *lockpb.Reclaim) *oncepb.Reclaim {
	if c == nil {
		return nil
	}
	return &oncepb.Reclaim{LeftNs: c.LeftNs, Fingerprint: s.o.turn.print, Holder: c.Holder}
}

func (s turnService) Renew(ctx context.Context, q *lockpb.RenewRequest, opts ...grpc.CallOption) (*lockpb.RenewResponse, error) {
	r, err := s.to.Renew(ctx, &oncepb.RenewRequest{Key: q.Key, Name: q.Name, Token: q.Token, TtlNs: q.TtlNs, Reclaim: s.claim(q.Reclaim)}, opts...)
	if err != nil {
		return nil, err
	}
	return &lockpb.RenewResponse{Renewed: r.Renewed, Reclaimed: r.Reclaimed, TtlNs: r.TtlNs, Epoch: r.Epoch, Owner: r.Owner, LostEpoch: r.LostEpoch}, nil
}

func (s turnService) Release(ctx context.Context, q *lockpb.ReleaseRequest, opts ...grpc.CallOption) (*lockpb.ReleaseResponse, error) {
	r, err := s.to.Abandon(ctx, &oncepb.AbandonRequest{Key: q.Key, Name: q.Name, Token: q.Token, RequestId: q.RequestId, IdempotencyKey: q.IdempotencyKey}, opts...)
	if err != nil {
		return nil, err
	}
	return &lockpb.ReleaseResponse{Released: r.Abandoned, Epoch: r.Epoch, Owner: r.Owner, LostEpoch: r.LostEpoch, Replay: r.Replay}, nil
}

// Begun is the answer to Begin: a Turn, or the result of work that is done.
type Begun struct {
	// Turn is the caller's, to be ended by Complete or Abandon; nil if the work is done.
	Turn *Turn
	// Result is what came of the work, if it is done. It is not the caller's to change.
	Result []byte
	Token  uint64        // under which that was done, or is to be
	Age    time.Duration // since it was done
	Meta
}

// Begin asks for the turn of doing the work of a key, and waits while another has it: until ctx
// ends, or as long as Wait says. The fingerprint tells this work from other work under the same
// key: a hash of the request. Options are TTL, Wait, Keep, HeldBy and Margin.
//
// If another has the turn when the wait is over, the error is ErrOnceBusy, with the holder. If the
// key stands for another fingerprint, it is ErrOtherFingerprint. While the grace period of a loss
// runs, it is ErrRecovering.
func (n Once) Begin(ctx context.Context, key, fingerprint string, opts ...LockOption) (Begun, error) {
	l := Lock{c: n.c, name: n.name}
	o := l.options(opts)
	o.turn = &turn{print: fingerprint}
	held, err := l.acquire(ctx, key, o)
	switch r := o.turn.done.Load(); {
	case err != nil:
		return Begun{}, err
	case held == nil:
		return Begun{Result: r.GetResult(), Token: r.GetToken(), Age: time.Duration(r.GetAgeNs()), Meta: metaOf(r, nil)}, nil
	}
	return Begun{Turn: &Turn{l: held, of: o.turn, keep: o.keep}, Token: held.Token(), Meta: held.Meta()}, nil
}

// Turn is the turn of doing the work of a key. Its lease is renewed by itself, until it is ended or
// lost, as that of a HeldLock is.
type Turn struct {
	l    *HeldLock
	of   *turn
	keep time.Duration // 0 = the default

	mu   sync.Mutex // one Complete at a time
	over bool       // guarded by mu: it was completed
}

// Token returns the fencing token: greater than that of every earlier turn of this key. Give it to
// what the work changes, and have that refuse smaller ones.
func (t *Turn) Token() uint64 { return t.l.Token() }

// Attempt returns which turn of the work it is, from 1 on. If it is not the first, a holder before has
// not concluded the work, and may have done it in part or in whole.
func (t *Turn) Attempt() int { return int(t.of.attempt.Load()) }

// Meta returns which node gave the turn, and in which epoch.
func (t *Turn) Meta() Meta { return t.l.Meta() }

// Held reports whether the turn is the caller's for certain: see HeldLock.Held.
func (t *Turn) Held() bool { return t.l.Held() }

// Context ends before the lease does: see HeldLock.Context.
func (t *Turn) Context() context.Context { return t.l.Context() }

// Complete ends the turn with a result of at most MaxResult bytes, which all who ask are told until
// its retention ends. The error is ErrLockLost if another has begun since: the work may be done
// twice then. It is no error that the lease is over, if nobody else has begun. After any other
// error it may be called again, with the same result.
func (t *Turn) Complete(ctx context.Context, result []byte) error {
	const what = "complete"
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return nil
	}
	l := t.l
	if err := cmp.Or(l.c.callable(ctx), resultFits(result)); err != nil {
		return about(err, what, l.key, "")
	}
	op := l.c.ops.begin()
	defer op.finish()
	r, err := ask(ctx, l.c, toKey(l.key, false).of(what), op, func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId, opts ...grpc.CallOption) (*oncepb.CompleteResponse, error) {
		return oncepb.NewOnceServiceClient(conn).Complete(ctx, &oncepb.CompleteRequest{Key: l.key, Name: l.name, Token: l.token, Result: result, KeepNs: int64(t.keep), RequestId: id,
			Reclaim: &oncepb.Reclaim{LeftNs: max(int64(l.rest()), 1), Fingerprint: t.of.print}}, opts...)
	})
	if err != nil {
		return err
	}
	t.over = true
	l.finish(&Error{Code: codes.Canceled, Reason: ErrReleased, Message: "the work was completed"})
	if !r.Completed {
		t.over = false
		return about(l.lost("another has begun since, or completed the work: it may be done twice"), what, l.key, r.Owner)
	}
	return nil
}

func resultFits(result []byte) error {
	if len(result) > MaxResult {
		return invalid("result", "has %d bytes; at most %d are allowed: store it elsewhere, and complete with where it is", len(result), MaxResult)
	}
	return nil
}

// Abandon ends the turn as if it had never begun: the next caller is first. It is for work that has
// had no effect. The error is ErrLockLost if the turn had been lost before.
func (t *Turn) Abandon(ctx context.Context) error { return t.l.Release(ctx) }

// Leave keeps the lease no longer: the turn ends with it, and the next caller is told that it is not
// the first attempt. It is for work of which nobody knows whether it has had an effect.
func (t *Turn) Leave() {
	//guard:client-once-panics
	t.l.finish(&Error{Code: codes.Aborted, Reason: ErrReleased, Message: "the turn was left to its lease"})
}

// Do has work be done once for a key, and returns its result: that of now, or that of the caller who
// has done it. While another does it, Do waits, as Begin does.
//
// The context that work is given ends with ctx, and before the lease does; the token is for what the
// work changes. An error of work is returned, and says that the work has had no effect: the turn is
// abandoned, and the next caller does the work. One that may have had an effect has a result that
// says so. If work panics, its turn ends with its lease.
//
// If a result could not be stored, it is returned with the error: the work is done, and may be done
// again.
func (n Once) Do(ctx context.Context, key, fingerprint string, work func(ctx context.Context, token uint64) ([]byte, error), opts ...LockOption) ([]byte, error) {
	b, err := n.Begin(ctx, key, fingerprint, opts...)
	if err != nil || b.Turn == nil {
		return b.Result, err
	}
	return b.Turn.do(ctx, work)
}

func (t *Turn) do(ctx context.Context, work func(ctx context.Context, token uint64) ([]byte, error)) ([]byte, error) {
	working, stop := context.WithCancelCause(t.Context())
	defer stop(nil)
	defer context.AfterFunc(ctx, func() { stop(context.Cause(ctx)) })()
	returned := false
	defer func() {
		if !returned {
			t.Leave()
		}
	}()
	result, err := work(working, t.Token())
	returned = true
	after := context.WithoutCancel(ctx)
	if err != nil {
		_ = t.Abandon(after) // else its lease ends it
		return nil, err
	}
	if err := t.Complete(after, result); err != nil {
		t.l.finish(err)
		return result, err
	}
	return result, nil
}

// OnceState is what is known of the work of a key.
type OnceState struct {
	// Begun says that somebody has begun, and Done that the work is done.
	Begun, Done bool
	Token       uint64 // of the last turn
	Attempt     int    // which that is, from 1 on
	Holder      string // whose turn it is
	Fingerprint string
	Result      []byte
	Age         time.Duration // since the turn began, or the work was done
	TTL         time.Duration // of the lease; 0 = it is over. If the work is done, until it is forgotten
	Meta
}

// Get returns what is known of the work of a key.
func (n Once) Get(ctx context.Context, key string) (OnceState, error) {
	const what = "get once"
	if err := n.c.judge(ctx, key, n.name); err != nil {
		return OnceState{}, about(err, what, key, "")
	}
	r, err := ask(ctx, n.c, toKey(key, true).of(what), nil, func(ctx context.Context, conn *grpc.ClientConn, _ *commonpb.RequestId, opts ...grpc.CallOption) (*oncepb.GetResponse, error) {
		return oncepb.NewOnceServiceClient(conn).Get(ctx, &oncepb.GetRequest{Key: key, Name: n.name}, opts...)
	})
	if err != nil {
		return OnceState{}, err
	}
	return OnceState{Begun: r.Phase != oncepb.Phase_PHASE_UNSPECIFIED, Done: r.Phase == oncepb.Phase_PHASE_DONE, Token: r.Token, Attempt: int(r.Attempt), Holder: r.Holder,
		Fingerprint: r.Fingerprint, Result: r.Result, Age: time.Duration(r.AgeNs), TTL: time.Duration(r.TtlNs), Meta: metaOf(r, nil)}, nil
}

// Forget has nothing be known of the work of a key any more, and reports whether something was: the
// next caller does the work. A turn whose lease runs it ends only if underWay is true: another may
// begin then while its holder works, until that learns of it.
func (n Once) Forget(ctx context.Context, key string, underWay bool, opts ...CallOption) (bool, error) {
	const what = "forget once"
	idem, err := keyOf(opts)
	if err := cmp.Or(n.c.judge(ctx, key, n.name), err); err != nil {
		return false, about(err, what, key, "")
	}
	op := n.c.ops.begin()
	defer op.finish()
	r, err := ask(ctx, n.c, toKey(key, false).of(what), op, func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId, opts ...grpc.CallOption) (*oncepb.ForgetResponse, error) {
		return oncepb.NewOnceServiceClient(conn).Forget(ctx, &oncepb.ForgetRequest{Key: key, Name: n.name, UnderWay: underWay, RequestId: unlessKeyed(id, idem), IdempotencyKey: idem}, opts...)
	})
	return r.GetForgotten(), err
}

// busyWith returns the error of work that another does.
func busyWith(r *lockpb.AcquireResponse, key string) *Error {
	e := &Error{Op: "once", Key: key, Node: r.GetOwner(), Code: codes.FailedPrecondition, Reason: ErrOnceBusy, Holder: holderOf(r.GetHolder()), Message: "another does the work"}
	if e.Holder != nil && e.Holder.ID != "" {
		e.Message = fmt.Sprintf("%q does the work", e.Holder.ID)
	}
	return e
}
