package rpc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/forward"
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
	// detachLevel is the level of the cluster from which on a node that stops says so
	// of the calls that it passed on, and the owner keeps their places.
	detachLevel = 3
	// lookAgain is how often a node looks whether it may act for a row that is
	// its own by the table: one that comes back is served when what was there
	// before is discarded, and no table says so.
	lookAgain = 20 * time.Millisecond
)

// elsewhere reports whether an operation was not let in because this node does not
// act for its key, and there are nodes that might.
func (s *Server) elsewhere(err error) bool {
	var e *failure.Error
	return s.cfg.Cluster != nil && errors.As(err, &e) && e.Reason == failure.NotOwner
}

// notOwner returns the error of a call that must not be forwarded: who owns the key.
func notOwner(t *table.Table, hash uint64) *pb.Error {
	w := wire(errNotOwner)
	if m, since, ok := t.Owner(hash); ok {
		w.Owner, w.OwnerAddr, w.Epoch = m.Node, m.GRPCAddr, since
	}
	return w
}

var errNotOwner = &failure.Error{Reason: failure.NotOwner, RetryAfter: 50 * time.Millisecond,
	Message: "another node owns the key; nothing happened",
	Hint:    "call that node, or leave out the header " + NoForward}

var errNoOwner = &failure.Error{Reason: failure.Unavailable, RetryAfter: 200 * time.Millisecond,
	Message: "nobody serves the key now: its owner is gone, or it is being handed over; nothing happened",
	Hint:    "try again: another node takes over within seconds"}

var errUnreached = &failure.Error{Reason: failure.Unavailable, RetryAfter: 200 * time.Millisecond,
	Message: "the owner of the key cannot be reached; nothing happened",
	Hint:    "try again: it comes back, or another node takes over within seconds"}

const (
	// startTime is how long after the start of the process calls wait for its cluster.
	startTime = 2 * time.Second
	// waitingRetry is when to try again at a node that has none: people have to mend that.
	waitingRetry = 15 * time.Second
)

// waiting returns the error of a node that has not heard of its cluster, nil if it has, or
// starts.
func (s *Server) waiting(t *table.Table) error {
	if t.Cluster != "" {
		return nil
	}
	st := s.cfg.Cluster.State()
	//guard:waiting-said true
	if st.Waiting == "" || time.Since(st.Started) < startTime {
		return nil
	}
	return &failure.Error{Reason: failure.Unavailable, RetryAfter: waitingRetry,
		Message: fmt.Sprintf("the node %q is no member of the cluster %q yet: %s; nothing happened", s.cfg.Node, st.ClusterID, st.Waiting),
		Hint:    "compare --cluster-id, --founders, --join and --bootstrap of the nodes, or ask another node: see `keystead status`"}
}

// staysHere reports whether the caller asked not to be forwarded.
func staysHere(ctx context.Context) bool {
	return len(metadata.ValueFromIncomingContext(ctx, NoForward)) > 0
}

// pass gets a call answered that this node could not let in: by the owner of its
// key, or here, when the key has come here meanwhile. The error is one for the
// caller; nothing has been counted for it yet. The call came at began.
func (s *Server) pass(ctx context.Context, c *forward.Call, began time.Time) (forward.Message, error) {
	return newPassage(ctx, s, c, began).run()
}

func newPassage(ctx context.Context, s *Server, c *forward.Call, began time.Time) *passage {
	now := time.Now()
	return &passage{s: s, ctx: ctx, call: c, hash: c.Hash, began: began, over: now.Add(maxAwait),
		later: now.Sub(began) > lookAgain, stays: staysHere(ctx)}
}

// passage is a call on its way.
type passage struct {
	s     *Server
	ctx   context.Context
	call  *forward.Call // as it came; nobody writes to it
	hash  uint64
	began time.Time
	over  time.Time     // when it stops waiting for tables
	hops  int           // attempts sent
	later bool          // the next attempt is not made at once
	spent time.Duration // from began to the last attempt
	sent  bool          // an attempt may have been received, and what became of it is unknown
	stays bool          // the caller does not want it to be forwarded
	first func() error  // waits for what the next attempt needs; nil = nothing
	part  *peerv1.Part  // where the next attempt goes, if the object is split
	fixed bool          // part does not change: the call is about it
	once  bool          // there is one attempt
}

// run tries until the call is answered or there is no point.
func (p *passage) run() (forward.Message, error) {
	answer, err := p.try()
	if err != nil {
		return nil, p.unknownIfSent(err)
	}
	if add := p.call.Op.Waited; add != nil && p.later {
		add(answer, int64(p.spent), p.call.ID != nil)
	}
	return answer, nil
}

func (p *passage) try() (forward.Message, error) {
	for p.hops < maxHops {
		if wait := p.first; wait != nil {
			p.first = nil
			if err := wait(); err != nil {
				return nil, err
			}
		}
		t := p.s.cfg.Cluster.Table()
		sp, err := p.aim(t)
		if err != nil {
			return nil, err
		}
		m, since, ok := t.Owner(p.hash)
		switch {
		case sp != nil && p.part == nil && sp.Phase == table.Open && p.call.Op.Sum != nil:
			answer, again, err := p.sum(sp)
			if !again {
				return answer, err
			}
		case sp != nil && p.part == nil:
			if err := p.await(t.Epoch); err != nil {
				return nil, err
			}
		case ok && m.Holder() == p.s.cfg.Cluster.Self():
			answer, err := p.s.decide(p.ctx, p.current(), nil)
			if !p.s.elsewhere(err) {
				return answer, err
			}
			// Frozen, or not clean yet, if the table has not changed meanwhile.
			if err := p.look(t.Epoch); err != nil {
				return nil, err
			}
		case p.stays:
			return nil, asError(notOwner(t, p.hash))
		case !ok:
			if err := p.s.waiting(t); err != nil {
				return nil, err
			}
			if err := p.await(t.Epoch); err != nil {
				return nil, err
			}
		default:
			answer, again, err := p.conclude(p.send(m, max(since, sinceOf(sp))))
			switch {
			case !again:
				return answer, err
			case p.once:
				return nil, p.noOwner()
			}
		}
		p.later = true
	}
	return nil, p.noOwner()
}

// send makes an attempt at a member.
func (p *passage) send(m table.Member, since uint64) *forward.Attempt {
	p.hops++
	return p.s.links.Submit(p.ctx, p.hash, m, since, p.current())
}

// current returns the call as it goes out now: its request id is as old as it is, and
// it waits for as long as is left. Nothing in it is shared with attempts before,
// which may be on their way out still, but what nobody writes to.
func (p *passage) current() *forward.Call {
	if !p.later && p.part == p.call.Part {
		return p.call
	}
	c := *p.call
	c.Part = p.part
	if !p.later {
		return &c
	}
	p.spent = time.Since(p.began)
	if id := c.ID; id != nil && (p.sent || id.AgeNs > 0) {
		c.ID = &pb.RequestId{Client: id.Client, Sequence: id.Sequence, Settled: id.Settled, AgeNs: id.AgeNs + int64(max(p.spent, 1))}
	}
	if c.Op.Waited != nil {
		c.Wait = max(c.Wait-int64(p.spent), 0)
	}
	return &c
}

// await waits for a table later than epoch.
func (p *passage) await(epoch uint64) error {
	for {
		if err := p.look(epoch); err != nil || p.s.cfg.Cluster.Table().Epoch > epoch {
			return err
		}
	}
}

// look waits for a table later than epoch, or until it is worth looking again.
func (p *passage) look(epoch uint64) error {
	left := time.Until(p.over)
	switch {
	case p.s.stopped.Load():
		return errStopping
	case left <= 0:
		return p.noOwner()
	}
	ctx, cancel := context.WithTimeout(p.ctx, min(left, lookAgain))
	defer cancel()
	if _, err := p.s.cfg.Cluster.Await(ctx, epoch); err != nil {
		if p.ctx.Err() != nil {
			return gaveUp(p.ctx)
		}
		<-ctx.Done()
	}
	return nil
}

// noOwner returns the error of a call that nobody answers: unknown, if somebody may
// have received it.
func (p *passage) noOwner() error {
	if p.sent {
		return forward.ErrUnheard
	}
	return errNoOwner
}

// unknownIfSent reports an unknown outcome where an error says that nothing happened, and
// an earlier attempt may have taken effect.
func (p *passage) unknownIfSent(err error) error {
	if !p.sent {
		return err
	}
	switch wire(err).Reason {
	case pb.Reason_REASON_UNAVAILABLE, pb.Reason_REASON_OVERLOADED, pb.Reason_REASON_STORE_FULL,
		pb.Reason_REASON_TOO_MANY_WAITERS, pb.Reason_REASON_GAVE_UP, pb.Reason_REASON_NOT_OWNER:
		return forward.ErrUnheard
	}
	return err
}

// outcome is what became of an attempt.
type outcome uint8

const (
	answered   outcome = iota // with a response
	refused                   // with an error of the owner's
	declined                  // the receiver does not act for the key: nothing happened
	moved                     // it was never sent, and the key has another owner now
	unsent                    // it was never sent
	unanswered                // it was sent, and no answer came
	abandoned                 // the caller has left, or this node stops
	outcomes
)

func outcomeOf(f *peerv1.ForwardAnswer, err error) outcome {
	switch {
	case errors.Is(err, forward.ErrMoved):
		return moved
	case errors.Is(err, forward.ErrUnsent):
		return unsent
	case errors.Is(err, forward.ErrBroken):
		return unanswered
	case err != nil:
		return abandoned
	case f.GetError() == nil:
		return answered
	case f.GetError().Reason == pb.Reason_REASON_NOT_OWNER:
		return declined
	}
	return refused
}

// afterOutcome is what follows each outcome: whether the call is tried again, and what its caller
// is told if it is not. err is that of the attempt, w the error that its answer is.
var afterOutcome = [outcomes]func(p *passage, a *forward.Attempt, err error, w *pb.Error) (again bool, _ error){
	answered: func(*passage, *forward.Attempt, error, *pb.Error) (bool, error) { return false, nil },
	refused: func(p *passage, a *forward.Attempt, _ error, w *pb.Error) (bool, error) {
		return w.Reason == pb.Reason_REASON_UNAVAILABLE && p.moved(a), asError(w)
	},
	declined:   (*passage).afterDeclined,
	moved:      func(*passage, *forward.Attempt, error, *pb.Error) (bool, error) { return true, nil },
	unsent:     (*passage).afterUnsent,
	unanswered: (*passage).afterUnanswered,
	abandoned:  func(_ *passage, _ *forward.Attempt, err error, _ *pb.Error) (bool, error) { return false, err },
}

// conclude waits for an attempt and reports whether the call must be tried again.
func (p *passage) conclude(a *forward.Attempt) (answer forward.Message, again bool, err error) {
	var stopping <-chan struct{}
	if a.Call.Waits() {
		stopping = p.s.stopping
	}
	f, err := a.Wait(p.ctx, callerGone, stopping, errStopping, func() bool { return p.s.cfg.Cluster.Table().Uses(detachLevel) })
	o := outcomeOf(f, err)
	if again, err = afterOutcome[o](p, a, err, f.GetError()); o == answered {
		if answer, err = forward.DecodeAnswer(f, a.Call.Op); err != nil {
			return nil, false, p.unread(err)
		}
	}
	return answer, again, err
}

// callerGone is gaveUp as an error.
func callerGone(ctx context.Context) error { return gaveUp(ctx) }

func (p *passage) afterUnsent(a *forward.Attempt, _ error, _ *pb.Error) (again bool, _ error) {
	if p.sent { // some node must be asked what became of it
		p.hops--
		p.first = func() error { return p.look(p.s.cfg.Cluster.Table().Epoch) }
	}
	free := p.part != nil && !p.fixed && p.call.ID == nil // another part will do
	return p.sent || free || p.moved(a), errUnreached
}

func (p *passage) afterUnanswered(a *forward.Attempt, _ error, _ *pb.Error) (again bool, _ error) {
	if p.call.Harmless {
		return false, errUnreached
	}
	p.sent = true
	if p.call.ID == nil {
		return false, forward.ErrUnheard
	}
	p.renew(a)
	// The way to the owner is gone, or the owner: it, or the next one, answers.
	if !p.moved(a) {
		epoch := p.s.cfg.Cluster.Table().Epoch
		p.first = func() error { return p.look(epoch) }
	}
	return true, nil
}

// afterDeclined has whichever node is behind catch up.
func (p *passage) afterDeclined(a *forward.Attempt, _ error, w *pb.Error) (again bool, _ error) {
	p.renew(a)
	t := p.s.cfg.Cluster.Table()
	after := t.Epoch
	if p.misrouted(t) {
		return true, nil
	}
	if w.Epoch > 0 && w.Epoch <= t.Epoch {
		if _, since, ok := t.Owner(p.hash); ok && since > a.Since {
			return true, nil // it is here already
		}
	} else if w.Epoch > 0 {
		after = w.Epoch - 1
	}
	p.first = func() error { return p.await(after) }
	return true, nil
}

// unread returns the error of a call whose answer cannot be read.
func (p *passage) unread(err error) error {
	e := &failure.Error{Reason: failure.OutcomeUnknown, Message: err.Error() + "; it may have taken effect",
		Hint: "the nodes are of versions that do not go together: upgrade the older one"}
	if p.call.Harmless {
		e.Reason, e.Message = failure.Unavailable, err.Error()
	}
	return e
}

// moved reports whether the key has another owner by now than the one of an attempt.
func (p *passage) moved(a *forward.Attempt) bool {
	m, _, ok := p.s.cfg.Cluster.Table().Owner(p.hash)
	return ok && m.Holder() != a.To
}

// renew gives a call new patience that has stood in the queue of a lock for long,
// before its owner let it go.
func (p *passage) renew(a *forward.Attempt) {
	if now := time.Now(); a.Call.Waits() && now.Sub(a.Began) > maxAwait {
		p.over, p.hops = now.Add(maxAwait), 0
	}
}

// remote is an error that came from another node; it goes on as it is.
type remote struct{ w *pb.Error }

func (r *remote) Error() string { return r.w.Message }

func asError(w *pb.Error) error { return &remote{w} }

// decide does a call on this node, and confirms its answer.
func (s *Server) decide(ctx context.Context, c *forward.Call, later *pendingAnswers) (forward.Message, error) {
	return s.sent[c.Op.Number].decide(ctx, s, c, later)
}

// forward gets one call of a caller answered, and counts how it ended. The call
// came at began.
func (s *Server) forward(ctx context.Context, c *forward.Call, began time.Time) (forward.Message, error) {
	a, err := s.pass(ctx, c, began)
	s.cfg.Metrics.forwarded(err)
	if err != nil {
		s.cfg.Metrics.failed[wire(err).Reason].Inc()
	}
	return a, Status(err)
}
