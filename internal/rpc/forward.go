package rpc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/keystead/keystead/internal/failure"
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
	// detachLevel is the level of the cluster from which on a node that stops says so
	// of the calls that it passed on, and the owner keeps their places.
	detachLevel = 3
	// lookAgain is how often a node looks whether it may act for a row that is
	// its own by the table: one that comes back is served when what was there
	// before is discarded, and no table says so.
	lookAgain = 20 * time.Millisecond
)

// elsewhere says whether an operation was not let in because this node does not
// act for its key, and there are nodes that might.
func (s *Server) elsewhere(err error) bool {
	var e *failure.Error
	return s.cfg.Cluster != nil && errors.As(err, &e) && e.Reason == failure.NotOwner
}

// notOwner is the error of a call that must not be forwarded: who owns the key.
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

var errUnheard = &failure.Error{Reason: failure.OutcomeUnknown, RetryAfter: 200 * time.Millisecond,
	Message: "the call was passed on to the owner of the key and no answer came; it may have taken effect",
	Hint:    "try again with the same request id to learn what became of it"}

const (
	// startTime is how long after the start of the process calls wait for its cluster.
	startTime = 2 * time.Second
	// waitingRetry is when to try again at a node that has none: people have to mend that.
	waitingRetry = 15 * time.Second
)

// waiting is the error of a node that has not heard of its cluster, nil if it has, or
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
	case *peerv1.ForwardCall_Get, *peerv1.ForwardCall_Inspect, *peerv1.ForwardCall_ReadPart, *peerv1.ForwardCall_Plant:
		return true // to plant twice is the same as once
	case *peerv1.ForwardCall_Check:
		return x.Check.Peek
	}
	return false
}

// waits says whether a call may stand in the queue of a lock.
func waits(c *peerv1.ForwardCall) bool {
	a := c.GetAcquire()
	return a != nil && a.WaitNs > 0
}

// pass gets a call answered that this node could not let in: by the owner of its
// key, or here, when the key has come here meanwhile. The error is one for the
// caller; nothing has been counted for it yet. The call came at began.
func (s *Server) pass(ctx context.Context, c *peerv1.ForwardCall, began time.Time) (*peerv1.ForwardAnswer, error) {
	return newPassage(ctx, s, c, began).run()
}

func newPassage(ctx context.Context, s *Server, c *peerv1.ForwardCall, began time.Time) *passage {
	now := time.Now()
	return &passage{s: s, ctx: ctx, call: c, hash: hashOf(c), began: began, over: now.Add(maxAwait),
		later: now.Sub(began) > lookAgain, stays: staysHere(ctx)}
}

// passage is a call on its way.
type passage struct {
	s     *Server
	ctx   context.Context
	call  *peerv1.ForwardCall // as it came; nobody writes to it
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
func (p *passage) run() (*peerv1.ForwardAnswer, error) {
	answer, err := p.try()
	if err != nil {
		return nil, p.honest(err)
	}
	if r := answer.GetAcquire(); r != nil && r.Acquired && r.Replay == nil && p.later {
		// It waited here, and with former owners, as well. A place that moved with the
		// lock brought that time along: it must not count twice, for the caller takes
		// its lease to begin so long after it sent the call.
		if identified(p.call) == nil {
			r.WaitedNs += int64(p.spent)
		} else {
			r.WaitedNs = max(r.WaitedNs, int64(p.spent))
		}
	}
	return answer, nil
}

func (p *passage) try() (*peerv1.ForwardAnswer, error) {
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
		case sp != nil && p.part == nil && sp.Phase == table.Open && p.call.GetGet() != nil:
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
			answer, again, err := p.settle(p.send(m, max(since, sinceOf(sp))))
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
func (p *passage) send(m table.Member, since uint64) *attempt {
	p.hops++
	return p.s.links.submit(p.ctx, p.hash, m, since, p.current())
}

// current is the call as it goes out now: its request id is as old as it is, and
// it waits for as long as is left. Nothing in it is shared with attempts before,
// which may be on their way out still.
func (p *passage) current() *peerv1.ForwardCall {
	if !p.later {
		if p.part == p.call.Part {
			return p.call
		}
		return &peerv1.ForwardCall{Call: p.call.Call, Part: p.part}
	}
	p.spent = time.Since(p.began)
	c := proto.Clone(p.call).(*peerv1.ForwardCall)
	c.Part = p.part
	if id := identified(c); id != nil && (p.sent || id.AgeNs > 0) {
		id.AgeNs += int64(max(p.spent, 1))
	}
	if a := c.GetAcquire(); a != nil {
		a.WaitNs = max(a.WaitNs-int64(p.spent), 0)
	}
	return c
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

// noOwner is the error of a call that nobody answers: unknown, if somebody may
// have received it.
func (p *passage) noOwner() error {
	if p.sent {
		return errUnheard
	}
	return errNoOwner
}

// honest turns an error by which nothing happened into an unknown outcome, if an
// attempt before may have taken effect.
func (p *passage) honest(err error) error {
	if !p.sent {
		return err
	}
	switch wire(err).Reason {
	case pb.Reason_REASON_UNAVAILABLE, pb.Reason_REASON_OVERLOADED, pb.Reason_REASON_STORE_FULL,
		pb.Reason_REASON_TOO_MANY_WAITERS, pb.Reason_REASON_GAVE_UP, pb.Reason_REASON_NOT_OWNER:
		return errUnheard
	}
	return err
}

// settle waits for an attempt and says whether the call must be tried again.
func (p *passage) settle(a *attempt) (answer *peerv1.ForwardAnswer, again bool, err error) {
	var stopping <-chan struct{}
	if waits(a.call) {
		stopping = p.s.stopping
	}
	answer, err = a.wait(p.ctx, stopping, func() bool { return p.s.cfg.Cluster.Table().Uses(detachLevel) })
	switch {
	case err == nil:
	case errors.Is(err, errMoved):
		return nil, true, nil
	case errors.Is(err, errUnsent):
		if p.sent { // somebody must be asked what became of it
			p.hops--
			p.first = func() error { return p.look(p.s.cfg.Cluster.Table().Epoch) }
		}
		free := p.part != nil && !p.fixed && identified(p.call) == nil // another part will do
		return nil, p.sent || free || p.moved(a), errUnreached
	case errors.Is(err, errBroken):
		if changesNothing(p.call) {
			return nil, false, errUnreached
		}
		p.sent = true
		if identified(p.call) == nil {
			return nil, false, errUnheard
		}
		p.renew(a)
		// The way to the owner is gone, or the owner: it, or the next one, answers.
		if !p.moved(a) {
			epoch := p.s.cfg.Cluster.Table().Epoch
			p.first = func() error { return p.look(epoch) }
		}
		return nil, true, nil
	default:
		return nil, false, err
	}
	w := answer.GetError()
	if w == nil || w.Reason != pb.Reason_REASON_NOT_OWNER {
		if w != nil {
			return nil, w.Reason == pb.Reason_REASON_UNAVAILABLE && p.moved(a), asError(w)
		}
		return answer, false, nil
	}
	// Nothing happened. Whoever is behind catches up.
	p.renew(a)
	t := p.s.cfg.Cluster.Table()
	after := t.Epoch
	if p.astray(t) {
		return nil, true, nil
	}
	if w.Epoch > 0 && w.Epoch <= t.Epoch {
		if _, since, ok := t.Owner(p.hash); ok && since > a.since {
			return nil, true, nil // it is here already
		}
	} else if w.Epoch > 0 {
		after = w.Epoch - 1
	}
	p.first = func() error { return p.await(after) }
	return nil, true, nil
}

// moved says whether the key has another owner by now than the one of an attempt.
func (p *passage) moved(a *attempt) bool {
	m, _, ok := p.s.cfg.Cluster.Table().Owner(p.hash)
	return ok && m.Holder() != a.to
}

// renew gives a call new patience that has stood in the queue of a lock for long,
// before its owner let it go.
func (p *passage) renew(a *attempt) {
	if now := time.Now(); waits(a.call) && now.Sub(a.began) > maxAwait {
		p.over, p.hops = now.Add(maxAwait), 0
	}
}

// remote is an error that came from another node; it goes on as it is.
type remote struct{ w *pb.Error }

func (r *remote) Error() string { return r.w.Message }

func asError(w *pb.Error) error { return &remote{w} }

// decide does a call on this node, and confirms its answer.
func (s *Server) decide(ctx context.Context, c *peerv1.ForwardCall, later *promises) (*peerv1.ForwardAnswer, error) {
	switch x := c.Call.(type) {
	case *peerv1.ForwardCall_Check:
		r, err := s.limits.decide(x.Check, c.Part, later)
		return &peerv1.ForwardAnswer{Answer: &peerv1.ForwardAnswer_Check{Check: r}}, err
	case *peerv1.ForwardCall_Add:
		r, err := s.counters.decideAdd(x.Add, c.Part, later)
		return &peerv1.ForwardAnswer{Answer: &peerv1.ForwardAnswer_Add{Add: r}}, err
	case *peerv1.ForwardCall_Get:
		r, err := s.counters.decideGet(x.Get, c.Part, later)
		return &peerv1.ForwardAnswer{Answer: &peerv1.ForwardAnswer_Get{Get: r}}, err
	case *peerv1.ForwardCall_SetIf:
		r, err := s.counters.decideSetIf(x.SetIf, later)
		return &peerv1.ForwardAnswer{Answer: &peerv1.ForwardAnswer_SetIf{SetIf: r}}, err
	case *peerv1.ForwardCall_Reset_:
		r, err := s.counters.decideReset(x.Reset_, later)
		return &peerv1.ForwardAnswer{Answer: &peerv1.ForwardAnswer_Reset_{Reset_: r}}, err
	case *peerv1.ForwardCall_Acquire:
		r, err := s.locks.decideAcquire(ctx, x.Acquire, later)
		return &peerv1.ForwardAnswer{Answer: &peerv1.ForwardAnswer_Acquire{Acquire: r}}, err
	case *peerv1.ForwardCall_Renew:
		r, err := s.locks.decideRenew(x.Renew, later)
		return &peerv1.ForwardAnswer{Answer: &peerv1.ForwardAnswer_Renew{Renew: r}}, err
	case *peerv1.ForwardCall_Release:
		r, err := s.locks.decideRelease(x.Release, later)
		return &peerv1.ForwardAnswer{Answer: &peerv1.ForwardAnswer_Release{Release: r}}, err
	case *peerv1.ForwardCall_Inspect:
		r, err := s.locks.decideInspect(x.Inspect, later)
		return &peerv1.ForwardAnswer{Answer: &peerv1.ForwardAnswer_Inspect{Inspect: r}}, err
	case *peerv1.ForwardCall_Plant:
		r, err := s.plant(c.Part, x.Plant)
		return &peerv1.ForwardAnswer{Answer: &peerv1.ForwardAnswer_Plant{Plant: r}}, err
	case *peerv1.ForwardCall_ReadPart:
		r, err := s.readPart(c.Part, x.ReadPart)
		return &peerv1.ForwardAnswer{Answer: &peerv1.ForwardAnswer_ReadPart{ReadPart: r}}, err
	}
	return nil, &failure.Error{Reason: failure.Invalid, Field: "call", Message: "is of a kind that this node does not know", Hint: fmt.Sprintf("upgrade this node (code %d)", codes.Unimplemented)}
}

// forward gets one call of a caller answered, and counts how it ended. The call
// came at began.
func (s *Server) forward(ctx context.Context, c *peerv1.ForwardCall, began time.Time) (*peerv1.ForwardAnswer, error) {
	a, err := s.pass(ctx, c, began)
	s.cfg.Metrics.forwarded(err)
	if err != nil {
		s.cfg.Metrics.failed[wire(err).Reason].Inc()
	}
	return a, Status(err)
}

// hashOf is the position of the key that a call is about.
func hashOf(c *peerv1.ForwardCall) uint64 { return owner.Hash(key(c)) }
