package client

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"iter"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	electionpb "github.com/keystead/keystead/proto/keystead/election/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

// Election is a named election that many keys have, each its own: one leader at a time. It is a
// small value: making one costs nothing, and it may be copied and kept.
type Election struct {
	c       *Client
	name    string
	session *Session // that keeps terms alive; nil = they are kept alive one by one
}

// Election names an election, with at most 128 bytes. name "" = "election".
func (c *Client) Election(name string) Election { return Election{c: c, name: name} }

// Leader is a term of an election.
type Leader struct {
	Candidate string // as it named itself: see HeldBy
	Token     uint64 // fencing token of the term
	Value     []byte // what it says
	// Since the beginning of the term, and until it is over without a renewal. Both are 0 in
	// what Observe tells.
	Led, TTL time.Duration
}

func wireLeader(l *electionpb.Leader) *Leader {
	if l == nil {
		return nil
	}
	return &Leader{l.Candidate, l.Token, l.Value, time.Duration(l.LedNs), time.Duration(l.TtlNs)}
}

// term is what a grant of an election has beside that of a lock.
type term struct {
	delay   time.Duration
	session *Session
	value   atomic.Pointer[[]byte] // as it was proclaimed last
}

func (t *term) what() string { return "election" }

func (t *term) delays() bool { return true }

func (t *term) service(conn grpc.ClientConnInterface) lockpb.LockServiceClient {
	return termService{t: t, to: electionpb.NewElectionServiceClient(conn)}
}

func (t *term) refused(r *lockpb.AcquireResponse, key string) *Error {
	e := &Error{Op: "campaign", Key: key, Node: r.GetOwner(), Code: codes.FailedPrecondition, Reason: ErrNotElected,
		Holder: holderOf(r.GetHolder()), Place: int(r.GetQueuePosition()), Message: "nobody leads yet, and others wait"}
	if e.Holder != nil {
		e.Message = fmt.Sprintf("%q leads", e.Holder.ID)
	}
	return e
}

// termService is an election, asked as a lock is.
type termService struct {
	lockpb.LockServiceClient // is nil: what is not here is not asked
	t                        *term
	to                       electionpb.ElectionServiceClient
}

func (s termService) Acquire(ctx context.Context, q *lockpb.AcquireRequest, opts ...grpc.CallOption) (*lockpb.AcquireResponse, error) {
	r, err := s.to.Campaign(ctx, &electionpb.CampaignRequest{Key: q.Key, Name: q.Name, Candidate: q.Holder, Value: q.Metadata,
		TtlNs: q.TtlNs, WaitNs: q.WaitNs, DelayNs: int64(s.t.delay), RequestId: q.RequestId, IdempotencyKey: q.IdempotencyKey, Session: s.t.session.named()}, opts...)
	if err != nil {
		return nil, err
	}
	a := &lockpb.AcquireResponse{Acquired: r.Elected, Token: r.Token, TtlNs: r.TtlNs, WaitedNs: r.WaitedNs, QueuePosition: r.QueuePosition,
		Epoch: r.Epoch, Owner: r.Owner, LostEpoch: r.LostEpoch, Replay: r.Replay}
	if l := r.Leader; l != nil {
		a.Holder = &lockpb.Holder{Id: l.Candidate, Token: l.Token, HeldNs: l.LedNs, TtlNs: l.TtlNs, Metadata: l.Value}
	}
	return a, nil
}

func (s termService) Renew(ctx context.Context, q *lockpb.RenewRequest, opts ...grpc.CallOption) (*lockpb.RenewResponse, error) {
	ask := &electionpb.RenewRequest{Key: q.Key, Name: q.Name, Token: q.Token, TtlNs: q.TtlNs}
	if c := q.Reclaim; c != nil {
		ask.Reclaim = &electionpb.Reclaim{LeftNs: c.LeftNs, Candidate: c.Holder, Value: c.Metadata, DelayNs: int64(s.t.delay), Session: s.t.session.named()}
		if v := s.t.value.Load(); v != nil {
			ask.Reclaim.Value = *v
		}
	}
	r, err := s.to.Renew(ctx, ask, opts...)
	if err != nil {
		return nil, err
	}
	return &lockpb.RenewResponse{Renewed: r.Renewed, Reclaimed: r.Reclaimed, TtlNs: r.TtlNs, Epoch: r.Epoch, Owner: r.Owner, LostEpoch: r.LostEpoch}, nil
}

func (s termService) Release(ctx context.Context, q *lockpb.ReleaseRequest, opts ...grpc.CallOption) (*lockpb.ReleaseResponse, error) {
	r, err := s.to.Resign(ctx, &electionpb.ResignRequest{Key: q.Key, Name: q.Name, Token: q.Token, RequestId: q.RequestId, IdempotencyKey: q.IdempotencyKey}, opts...)
	if err != nil {
		return nil, err
	}
	return &lockpb.ReleaseResponse{Released: r.Resigned, Epoch: r.Epoch, Owner: r.Owner, LostEpoch: r.LostEpoch, Replay: r.Replay}, nil
}

// Campaign waits in line to lead, until ctx ends or as long as Wait says, and keeps the term until
// Resign. value is what the leader says to all, such as an address: at most 1,024 bytes, in
// place of Metadata. If another leads all that time the error is ErrNotElected, with the leader
// as its Holder; errors.Is finds what ended ctx, too. All else is as with Lock.Acquire.
func (n Election) Campaign(ctx context.Context, key string, value []byte, opts ...LockOption) (*Leadership, error) {
	return n.campaign(ctx, key, value, opts, false)
}

// TryCampaign is Campaign without a wait.
func (n Election) TryCampaign(ctx context.Context, key string, value []byte, opts ...LockOption) (*Leadership, error) {
	return n.campaign(ctx, key, value, opts, true)
}

func (n Election) campaign(ctx context.Context, key string, value []byte, opts []LockOption, try bool) (*Leadership, error) {
	l := Lock(n)
	o := l.options(opts)
	t := &term{session: n.session}
	o.metadata, o.other = value, t
	if try && o.wait != forever {
		return nil, about(invalid("Wait", "is an option of Campaign; TryCampaign does not wait"), o.what(), key, "")
	}
	if try {
		o.wait = 0
	}
	t.delay = o.delay
	held, err := l.acquire(ctx, key, o)
	if err != nil {
		return nil, err
	}
	return &Leadership{held, t}, nil
}

// Leadership is a term that is held, and renewed by itself, as a HeldLock is.
type Leadership struct {
	l *HeldLock
	t *term
}

// Token returns the fencing token: greater than that of every earlier term of this election.
func (h *Leadership) Token() uint64 { return h.l.Token() }

// Meta returns which node began the term, and in which epoch.
func (h *Leadership) Meta() Meta { return h.l.Meta() }

// Held reports whether the term runs for certain: see HeldLock.Held.
func (h *Leadership) Held() bool { return h.l.Held() }

// Context ends before the term does: see HeldLock.Context.
func (h *Leadership) Context() context.Context { return h.l.Context() }

// Resign ends the term and its context; the next in line leads at once. See HeldLock.Release.
func (h *Leadership) Resign(ctx context.Context, opts ...CallOption) error {
	return h.l.Release(ctx, opts...)
}

// Release is Resign.
func (h *Leadership) Release(ctx context.Context, opts ...CallOption) error {
	return h.l.Release(ctx, opts...)
}

// Proclaim replaces what the leader says. The error is ErrLockLost if the term is over, even if
// nobody has led since.
func (h *Leadership) Proclaim(ctx context.Context, value []byte, opts ...CallOption) error {
	const what = "proclaim"
	c := h.l.c
	idem, err := keyOf(opts)
	if err := cmp.Or(c.callable(ctx), err); err != nil {
		return about(err, what, h.l.key, "")
	}
	led, owner, err := c.proclaim(ctx, h.l.key, h.l.name, h.l.token, value, idem)
	if err != nil {
		return err
	}
	if !led {
		return about(h.l.lost("the term is over"), what, h.l.key, owner)
	}
	h.t.value.Store(&value)
	return nil
}

func (c *Client) proclaim(ctx context.Context, key, name string, token uint64, value []byte, idem string) (led bool, owner string, err error) {
	op := c.ops.begin()
	defer op.finish()
	r, err := ask(ctx, c, toKey(key, false).of("proclaim"), op, func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId, opts ...grpc.CallOption) (*electionpb.ProclaimResponse, error) {
		return electionpb.NewElectionServiceClient(conn).Proclaim(ctx, &electionpb.ProclaimRequest{Key: key, Name: name, Token: token, Value: value,
			RequestId: unlessKeyed(id, idem), IdempotencyKey: idem}, opts...)
	})
	return r.GetProclaimed(), r.GetOwner(), err
}

// Proclaim replaces what the leader under a token says, such as another process of the same program
// has, and reports whether that leads. See Leadership.Proclaim.
func (n Election) Proclaim(ctx context.Context, key string, token uint64, value []byte, opts ...CallOption) (bool, error) {
	idem, err := keyOf(opts)
	if err := cmp.Or(n.c.judge(ctx, key, n.name), err); err != nil {
		return false, about(err, "proclaim", key, "")
	}
	led, _, err := n.c.proclaim(ctx, key, n.name, token, value, idem)
	return led, err
}

// Verify reports whether a token still leads: what a job asks that may have outlived its lease.
// It was so when the owner answered; what is written after that needs the token all the same.
func (n Election) Verify(ctx context.Context, key string, token uint64) (bool, error) {
	const what = "verify election"
	if err := n.c.judge(ctx, key, n.name); err != nil {
		return false, about(err, what, key, "")
	}
	r, err := ask(ctx, n.c, toKey(key, true).of(what), nil, func(ctx context.Context, conn *grpc.ClientConn, _ *commonpb.RequestId, opts ...grpc.CallOption) (*electionpb.VerifyResponse, error) {
		return electionpb.NewElectionServiceClient(conn).Verify(ctx, &electionpb.VerifyRequest{Key: key, Name: n.name, Token: token}, opts...)
	})
	return r.GetLeads(), err
}

// Revoke ends another's term, and reports whether it was in force. The Delay of its leader runs.
func (n Election) Revoke(ctx context.Context, key string, token uint64, opts ...CallOption) (bool, error) {
	const what = "revoke election"
	idem, err := keyOf(opts)
	if err := cmp.Or(n.c.judge(ctx, key, n.name), err); err != nil {
		return false, about(err, what, key, "")
	}
	op := n.c.ops.begin()
	defer op.finish()
	r, err := ask(ctx, n.c, toKey(key, false).of(what), op, func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId, opts ...grpc.CallOption) (*electionpb.RevokeResponse, error) {
		return electionpb.NewElectionServiceClient(conn).Revoke(ctx, &electionpb.RevokeRequest{Key: key, Name: n.name, Token: token, RequestId: unlessKeyed(id, idem), IdempotencyKey: idem}, opts...)
	})
	return r.GetRevoked(), err
}

// Resign ends the term of a token, such as another process of the same program has, and reports
// whether it was in force. No delay runs: the leader has to have stopped.
func (n Election) Resign(ctx context.Context, key string, token uint64, opts ...CallOption) (bool, error) {
	const what = "resign"
	idem, err := keyOf(opts)
	if err := cmp.Or(n.c.judge(ctx, key, n.name), err); err != nil {
		return false, about(err, what, key, "")
	}
	op := n.c.ops.begin()
	defer op.finish()
	r, err := ask(ctx, n.c, toKey(key, false).of(what), op, func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId, opts ...grpc.CallOption) (*electionpb.ResignResponse, error) {
		return electionpb.NewElectionServiceClient(conn).Resign(ctx, &electionpb.ResignRequest{Key: key, Name: n.name, Token: token, RequestId: unlessKeyed(id, idem), IdempotencyKey: idem}, opts...)
	})
	return r.GetResigned(), err
}

// ElectionState is an election as it is.
type ElectionState struct {
	Leader     *Leader       // nil: nobody leads, or that is Unknown
	Delay      time.Duration // until somebody can be elected, after a leader was lost: see Delay
	Candidates []Waiter
	Waiting    int // in all; Candidates lists the first
	Meta
}

// Unknown reports whether somebody may lead whose term was lost with all nodes that kept it.
func (s *ElectionState) Unknown() bool { return s.Leader == nil && s.LostEpoch != 0 }

// Inspect returns the leader and the waiters.
func (n Election) Inspect(ctx context.Context, key string) (ElectionState, error) {
	const what = "inspect election"
	if err := n.c.judge(ctx, key, n.name); err != nil {
		return ElectionState{}, about(err, what, key, "")
	}
	r, err := ask(ctx, n.c, toKey(key, true).of(what), nil, func(ctx context.Context, conn *grpc.ClientConn, _ *commonpb.RequestId, opts ...grpc.CallOption) (*electionpb.InspectResponse, error) {
		return electionpb.NewElectionServiceClient(conn).Inspect(ctx, &electionpb.InspectRequest{Key: key, Name: n.name}, opts...)
	})
	if err != nil {
		return ElectionState{}, err
	}
	s := ElectionState{Leader: wireLeader(r.Leader), Delay: time.Duration(r.DelayNs), Waiting: int(r.Waiting), Meta: metaOf(r, nil)}
	for _, w := range r.Candidates {
		s.Candidates = append(s.Candidates, Waiter{Name: w.Id, Waited: time.Duration(w.WaitedNs)})
	}
	return s, nil
}

// Observed is an election as an observer sees it.
type Observed struct {
	Leader  *Leader // nil: nobody leads, or that is Unknown
	Version uint64  // of a state to go on from; see Election.Observe
	// Stale reports that the state may not be the latest any more: nothing was heard for a
	// lease.
	Stale bool
	Meta
}

// Unknown reports whether somebody may lead whose term was lost with all nodes that kept it:
// "nobody leads" is no answer then.
func (o *Observed) Unknown() bool { return o.Leader == nil && o.LostEpoch != 0 }

// Observe follows who leads a key until ctx ends or the caller stops: the state as it is, and each
// later one, the latest if several have come; that nobody leads is one of them. after is the
// Version of the last state that the caller has from an earlier Observe, so that what is not
// newer is left out; 0 = it has none. Versions never fall, whatever becomes of nodes and
// connections.
//
// A state comes again with Stale set when no node says that it is the latest, and without when
// one does again. Who leads by the latest state may have been replaced since: what a leader
// alone may do needs its token.
//
// It goes on by itself at other nodes. An error that this does not cure comes last, such as
// ErrInvalid or ErrKindMismatch; that ctx has ended is none.
func (n Election) Observe(ctx context.Context, key string, after uint64) iter.Seq2[Observed, error] {
	return func(yield func(Observed, error) bool) {
		w := watching[*electionpb.ObserveResponse]{c: n.c, key: key, after: after,
			exists: func(r *electionpb.ObserveResponse) bool { return r.GetLeader() != nil },
			same: func(a, b *electionpb.ObserveResponse) bool {
				return a.Leader != nil && b.Leader != nil && a.Leader.Token == b.Leader.Token && bytes.Equal(a.Leader.Value, b.Leader.Value)
			},
			open: func(ctx context.Context, at *node, after uint64) (stream[*electionpb.ObserveResponse], error) {
				return electionpb.NewElectionServiceClient(at.conn()).Observe(ctx, &electionpb.ObserveRequest{Key: key, Name: n.name, AfterVersion: after})
			},
			yield: func(r, last *electionpb.ObserveResponse, stale bool) bool {
				return yield(Observed{wireLeader(r.Leader), r.Version, stale, metaOf(last, nil)}, nil)
			},
		}
		if err := w.watch(ctx, n.name, "observe"); err != nil {
			yield(Observed{}, err)
		}
	}
}
