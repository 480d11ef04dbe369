package rpc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/keystead/keystead/owner"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	pb "github.com/keystead/keystead/proto/keystead/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// NoForward is the header by which a caller asks for NOT_OWNER instead of being
// forwarded. Its value does not matter.
const NoForward = "x-keystead-no-forward"

// Bounds of forwarding.
const (
	// maxHops is how often a call is sent before its caller is told to try
	// again: to the owner, and to the next one if the key has moved. More are
	// needed only when tables contradict each other for longer than maxAwait.
	maxHops = 4
	// maxAwait is how long a call waits for a later table: because its row is
	// being handed over, has no owner, or because the owner has a later table.
	maxAwait = 2 * time.Second
	// maxBehind is how long a receiver waits for the table that the sender goes
	// by, for one message.
	maxBehind = 500 * time.Millisecond
)

// elsewhere says whether an operation was not let in because this node does not
// act for its key, and there are nodes that might.
func (s *Server) elsewhere(err error) bool {
	var e *owner.Error
	return s.cfg.Cluster != nil && errors.As(err, &e) && e.Reason == owner.NotOwner
}

// notOwner is the error of a call that must not be forwarded: who owns the key.
func notOwner(t *table.Table, hash uint64) *pb.Error {
	w := wire(errNotOwner)
	if m, since, ok := t.Owner(hash); ok {
		w.Owner, w.OwnerAddr, w.Epoch = m.Node, m.GRPCAddr, since
	}
	return w
}

var errNotOwner = &owner.Error{Reason: owner.NotOwner, RetryAfter: 50 * time.Millisecond,
	Message: "another node owns the key; nothing happened",
	Hint:    "call that node, or leave out the header " + NoForward}

var errNoOwner = &owner.Error{Reason: owner.Unavailable, RetryAfter: 200 * time.Millisecond,
	Message: "nobody serves the key now: its owner is gone, or it is being handed over; nothing happened",
	Hint:    "try again: another node takes over within seconds"}

var errUnreached = &owner.Error{Reason: owner.Unavailable, RetryAfter: 200 * time.Millisecond,
	Message: "the owner of the key cannot be reached; nothing happened",
	Hint:    "try again: it comes back, or another node takes over within seconds"}

var errUnheard = &owner.Error{Reason: owner.OutcomeUnknown, RetryAfter: 200 * time.Millisecond,
	Message: "the call was passed on to the owner of the key and no answer came; it may have taken effect",
	Hint:    "try again with the same request id to learn what became of it"}

// staysHere says whether the caller asked not to be forwarded.
func staysHere(ctx context.Context) bool {
	return len(metadata.ValueFromIncomingContext(ctx, NoForward)) > 0
}

// key is what a call is about.
func key(c *peerv1.ForwardCall) string {
	switch x := c.Call.(type) {
	case *peerv1.ForwardCall_Check:
		return x.Check.Key
	case *peerv1.ForwardCall_Add:
		return x.Add.Key
	case *peerv1.ForwardCall_Get:
		return x.Get.Key
	case *peerv1.ForwardCall_SetIf:
		return x.SetIf.Key
	case *peerv1.ForwardCall_Reset_:
		return x.Reset_.Key
	case *peerv1.ForwardCall_Acquire:
		return x.Acquire.Key
	case *peerv1.ForwardCall_Renew:
		return x.Renew.Key
	case *peerv1.ForwardCall_Release:
		return x.Release.Key
	case *peerv1.ForwardCall_Inspect:
		return x.Inspect.Key
	}
	return ""
}

// identified returns the request id of a call; nil if it has none.
func identified(c *peerv1.ForwardCall) *pb.RequestId {
	switch x := c.Call.(type) {
	case *peerv1.ForwardCall_Check:
		return x.Check.RequestId
	case *peerv1.ForwardCall_Add:
		return x.Add.RequestId
	case *peerv1.ForwardCall_SetIf:
		return x.SetIf.RequestId
	case *peerv1.ForwardCall_Reset_:
		return x.Reset_.RequestId
	case *peerv1.ForwardCall_Acquire:
		return x.Acquire.RequestId
	case *peerv1.ForwardCall_Release:
		return x.Release.RequestId
	}
	return nil
}

// changesNothing says whether a call is a read.
func changesNothing(c *peerv1.ForwardCall) bool {
	switch x := c.Call.(type) {
	case *peerv1.ForwardCall_Get, *peerv1.ForwardCall_Inspect:
		return true
	case *peerv1.ForwardCall_Check:
		return x.Check.Peek
	}
	return false
}

// older adds the time since the first send to the age that a request id states,
// for an attempt that is made here on behalf of the caller.
func older(c *peerv1.ForwardCall, by time.Duration) {
	if id := identified(c); id != nil {
		id.AgeNs += int64(max(by, 1))
	}
}

// pass gets a call answered that this node could not let in: by the owner of its
// key, or here, when the key has come here meanwhile. The error is one for the
// caller; nothing has been counted for it yet.
func (s *Server) pass(ctx context.Context, c *peerv1.ForwardCall) (*peerv1.ForwardAnswer, error) {
	p := passage{s: s, ctx: ctx, call: c, hash: hashOf(c), began: time.Now()}
	if staysHere(ctx) {
		return nil, asError(notOwner(s.cfg.Cluster.Table(), p.hash))
	}
	return p.run()
}

// passage is a call on its way.
type passage struct {
	s     *Server
	ctx   context.Context
	call  *peerv1.ForwardCall
	hash  uint64
	began time.Time
	aged  time.Duration // that its request id states already
	sent  bool          // an attempt may have been received
}

// run tries until the call is answered or there is no point.
func (p *passage) run() (*peerv1.ForwardAnswer, error) {
	for range maxHops {
		t := p.s.cfg.Cluster.Table()
		m, since, ok := t.Owner(p.hash)
		p.age()
		switch {
		case !ok:
			if err := p.await(t.Epoch); err != nil {
				return nil, err
			}
		case m.Holder() == p.s.cfg.Cluster.Self():
			answer, err := p.s.decide(p.ctx, p.call)
			if !p.s.elsewhere(err) {
				return answer, err
			}
			// Frozen, most likely, if the table has not changed meanwhile.
			if err := p.await(t.Epoch); err != nil {
				return nil, err
			}
		default:
			answer, again, err := p.settle(p.s.links.submit(p.ctx, p.hash, m, since, p.call))
			if !again {
				return answer, err
			}
		}
	}
	return nil, p.noOwner()
}

// await waits for a table later than epoch.
func (p *passage) await(epoch uint64) error {
	left := maxAwait - time.Since(p.began)
	if left <= 0 {
		return p.noOwner()
	}
	ctx, cancel := context.WithTimeout(p.ctx, left)
	defer cancel()
	if _, err := p.s.cfg.Cluster.Await(ctx, epoch); err != nil {
		if p.ctx.Err() != nil && !p.sent {
			return gaveUp(p.ctx)
		}
		return p.noOwner()
	}
	return nil
}

// noOwner is the error of a call that nobody answers: unknown, if somebody may
// have received it.
func (p *passage) noOwner() error {
	if p.sent {
		return errUnheard
	}
	return errNoOwner
}

// age brings the age in the request id up to date before a further attempt.
func (p *passage) age() {
	if p.sent {
		now := time.Since(p.began)
		older(p.call, now-p.aged)
		p.aged = now
	}
}

// settle waits for an attempt and says whether the call must be tried again.
func (p *passage) settle(a *attempt) (answer *peerv1.ForwardAnswer, again bool, err error) {
	answer, err = a.wait(p.ctx)
	switch {
	case err == nil:
	case errors.Is(err, errMoved):
		return nil, true, nil
	case errors.Is(err, errUnsent) && p.sent:
		return nil, false, errUnheard
	case errors.Is(err, errUnsent):
		return nil, false, errUnreached
	case errors.Is(err, errBroken):
		p.sent = true
		if changesNothing(p.call) {
			return nil, false, errUnreached
		}
		if identified(p.call) == nil {
			return nil, false, errUnheard
		}
		if p.ctx.Err() != nil || time.Since(p.began) > maxAwait {
			return nil, false, errUnheard
		}
		// The owner is gone, or the way to it: whoever comes next answers.
		t := p.s.cfg.Cluster.Table()
		if m, _, ok := t.Owner(p.hash); ok && m.Holder() == a.to && p.await(t.Epoch) != nil {
			return nil, false, errUnheard
		}
		return nil, true, nil
	default:
		return nil, false, err
	}
	w := answer.GetError()
	if w == nil || w.Reason != pb.Reason_REASON_NOT_OWNER {
		if w != nil {
			return nil, false, asError(w)
		}
		return answer, false, nil
	}
	// Nothing happened. Whoever is behind catches up.
	t := p.s.cfg.Cluster.Table()
	after := t.Epoch
	if w.Epoch > 0 && w.Epoch <= t.Epoch {
		if _, since, ok := t.Owner(p.hash); ok && since > a.since {
			return nil, true, nil // it is here already
		}
	} else if w.Epoch > 0 {
		after = w.Epoch - 1
	}
	if err := p.await(after); err != nil {
		return nil, false, err
	}
	return nil, true, nil
}

// remote is an error that came from another node; it goes on as it is.
type remote struct{ w *pb.Error }

func (r *remote) Error() string { return r.w.Message }

func asError(w *pb.Error) error { return &remote{w} }

// decide does a call on this node, and confirms its answer.
func (s *Server) decide(ctx context.Context, c *peerv1.ForwardCall) (*peerv1.ForwardAnswer, error) {
	switch x := c.Call.(type) {
	case *peerv1.ForwardCall_Check:
		r, err := s.limits.decide(x.Check)
		return &peerv1.ForwardAnswer{Answer: &peerv1.ForwardAnswer_Check{Check: r}}, err
	case *peerv1.ForwardCall_Add:
		r, err := s.counters.decideAdd(x.Add)
		return &peerv1.ForwardAnswer{Answer: &peerv1.ForwardAnswer_Add{Add: r}}, err
	case *peerv1.ForwardCall_Get:
		r, err := s.counters.decideGet(x.Get)
		return &peerv1.ForwardAnswer{Answer: &peerv1.ForwardAnswer_Get{Get: r}}, err
	case *peerv1.ForwardCall_SetIf:
		r, err := s.counters.decideSetIf(x.SetIf)
		return &peerv1.ForwardAnswer{Answer: &peerv1.ForwardAnswer_SetIf{SetIf: r}}, err
	case *peerv1.ForwardCall_Reset_:
		r, err := s.counters.decideReset(x.Reset_)
		return &peerv1.ForwardAnswer{Answer: &peerv1.ForwardAnswer_Reset_{Reset_: r}}, err
	case *peerv1.ForwardCall_Acquire:
		r, err := s.locks.decideAcquire(ctx, x.Acquire)
		return &peerv1.ForwardAnswer{Answer: &peerv1.ForwardAnswer_Acquire{Acquire: r}}, err
	case *peerv1.ForwardCall_Renew:
		r, err := s.locks.decideRenew(x.Renew)
		return &peerv1.ForwardAnswer{Answer: &peerv1.ForwardAnswer_Renew{Renew: r}}, err
	case *peerv1.ForwardCall_Release:
		r, err := s.locks.decideRelease(x.Release)
		return &peerv1.ForwardAnswer{Answer: &peerv1.ForwardAnswer_Release{Release: r}}, err
	case *peerv1.ForwardCall_Inspect:
		r, err := s.locks.decideInspect(x.Inspect)
		return &peerv1.ForwardAnswer{Answer: &peerv1.ForwardAnswer_Inspect{Inspect: r}}, err
	}
	return nil, &owner.Error{Reason: owner.Invalid, Field: "call", Message: "is of a kind that this node does not know", Hint: fmt.Sprintf("upgrade this node (code %d)", codes.Unimplemented)}
}

// call forwards one call of a caller and counts how it ended.
func (s *Server) forward(ctx context.Context, c *peerv1.ForwardCall) (*peerv1.ForwardAnswer, error) {
	c = s.private(c)
	a, err := s.pass(ctx, c)
	s.cfg.Metrics.forwarded(err)
	if err != nil {
		s.cfg.Metrics.failed[wire(err).Reason].Inc()
	}
	return a, Status(err)
}

// private gives a call a request id of its own, whose age may be changed: the
// message belongs to grpc and the caller's interceptors.
func (s *Server) private(c *peerv1.ForwardCall) *peerv1.ForwardCall {
	id := identified(c)
	if id == nil {
		return c
	}
	own := &pb.RequestId{Client: id.Client, Sequence: id.Sequence, Settled: id.Settled, AgeNs: id.AgeNs}
	switch x := c.Call.(type) {
	case *peerv1.ForwardCall_Check:
		x.Check.RequestId = own
	case *peerv1.ForwardCall_Add:
		x.Add.RequestId = own
	case *peerv1.ForwardCall_SetIf:
		x.SetIf.RequestId = own
	case *peerv1.ForwardCall_Reset_:
		x.Reset_.RequestId = own
	case *peerv1.ForwardCall_Acquire:
		x.Acquire.RequestId = own
	case *peerv1.ForwardCall_Release:
		x.Release.RequestId = own
	}
	return c
}

// hashOf is the position of the key that a call is about.
func hashOf(c *peerv1.ForwardCall) uint64 { return owner.Hash(key(c)) }
