package forward

import (
	"context"
	"errors"
	"time"

	"github.com/keystead/keystead/internal/failure"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// Bounds of forwarding.
const (
	// MaxHops is how often a call is sent before its caller is told to try
	// again: to the owner, and to the next one if the key has moved. More are
	// needed only when tables contradict each other for longer than MaxAwait.
	MaxHops = 4
	// MaxAwait is how long a call waits for a later table: because its row is
	// being handed over, has no owner, or because the owner has a later table.
	MaxAwait = 2 * time.Second
	// MaxBehind is how long a receiver waits for the table that the sender goes
	// by, for one message.
	MaxBehind = 500 * time.Millisecond
	// detachLevel is the level of the cluster from which on a node that stops says so
	// of the calls that it passed on, and the owner keeps their places.
	detachLevel = 3
	// LookAgain is how often a node looks whether it may act for a row that is
	// its own by the table: one that comes back is served when what was there
	// before is discarded, and no table says so.
	LookAgain = 20 * time.Millisecond
)

// newRoute returns the route of a call that came at began; the zero time is now.
func newRoute(ctx context.Context, r *Router, c *Call, began time.Time) *route {
	now := time.Now()
	if began.IsZero() {
		began = now
	}
	return &route{r: r, ctx: ctx, call: c, hash: c.Hash, began: began, over: now.Add(MaxAwait),
		later: now.Sub(began) > LookAgain, stays: StaysHere(ctx)}
}

// route is a call on its way: where it goes next, and what is known of where it went.
type route struct {
	r     *Router
	ctx   context.Context
	call  *Call // as it came; nobody writes to it
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
func (rt *route) run() (Message, error) {
	answer, err := rt.try()
	if err != nil {
		return nil, rt.unknownIfSent(err)
	}
	if add := rt.call.Op.Waited; add != nil && rt.later {
		add(answer, int64(rt.spent), rt.call.ID != nil)
	}
	return answer, nil
}

func (rt *route) try() (Message, error) {
	for rt.hops < MaxHops {
		if wait := rt.first; wait != nil {
			rt.first = nil
			if err := wait(); err != nil {
				return nil, err
			}
		}
		t := rt.r.cfg.Cluster.Table()
		sp, err := rt.aim(t)
		if err != nil {
			return nil, err
		}
		m, since, ok := t.Owner(rt.hash)
		switch {
		case sp != nil && rt.part == nil && sp.Phase == table.Open && rt.call.All:
			answer, again, err := rt.sum(sp)
			if !again {
				return answer, err
			}
		case sp != nil && rt.part == nil:
			if err := rt.await(t.Epoch); err != nil {
				return nil, err
			}
		case ok && m.Holder() == rt.r.cfg.Cluster.Self():
			answer, err := rt.r.cfg.Decide(rt.ctx, rt.current())
			if !isElsewhere(err) {
				return answer, err
			}
			// Frozen, or not clean yet, if the table has not changed meanwhile.
			if err := rt.awaitOnce(t.Epoch); err != nil {
				return nil, err
			}
		case rt.stays:
			return nil, &Remote{rt.r.notOwner(t, rt.hash)}
		case !ok:
			if err := rt.r.cfg.Waiting(t); err != nil {
				return nil, err
			}
			if err := rt.await(t.Epoch); err != nil {
				return nil, err
			}
		default:
			answer, again, err := rt.conclude(rt.send(m, max(since, sinceOf(sp))))
			switch {
			case !again:
				return answer, err
			case rt.once:
				return nil, rt.noOwner()
			}
		}
		rt.later = true
	}
	return nil, rt.noOwner()
}

// send makes an attempt at a member.
func (rt *route) send(m table.Member, since uint64) *Attempt {
	rt.hops++
	now := rt.began
	if rt.later {
		now = time.Now()
	}
	return rt.r.Submit(rt.ctx, rt.hash, m, since, rt.current(), now)
}

// current returns the call as it goes out now: its request id is as old as it is, and
// it waits for as long as is left. Nothing in it is shared with attempts before,
// which may be on their way out still, but what nobody writes to.
func (rt *route) current() *Call {
	if !rt.later && rt.part == rt.call.Part {
		return rt.call
	}
	c := *rt.call
	c.Part = rt.part
	if !rt.later {
		return &c
	}
	rt.spent = time.Since(rt.began)
	if id := c.ID; id != nil && (rt.sent || id.AgeNs > 0) {
		c.ID = &commonpb.RequestId{Client: id.Client, Sequence: id.Sequence, Settled: id.Settled, AgeNs: id.AgeNs + int64(max(rt.spent, 1))}
	}
	if c.Op.Waited != nil {
		c.Wait = max(c.Wait-int64(rt.spent), 0)
	}
	return &c
}

// await waits for a table later than epoch.
func (rt *route) await(epoch uint64) error {
	for {
		if err := rt.awaitOnce(epoch); err != nil || rt.r.cfg.Cluster.Table().Epoch > epoch {
			return err
		}
	}
}

// awaitOnce waits for a table later than epoch, or until it is worth asking again.
func (rt *route) awaitOnce(epoch uint64) error {
	left := time.Until(rt.over)
	switch {
	case rt.r.stopped():
		return rt.r.cfg.Stopped
	case left <= 0:
		return rt.noOwner()
	}
	ctx, cancel := context.WithTimeout(rt.ctx, min(left, LookAgain))
	defer cancel()
	if _, err := rt.r.cfg.Cluster.Await(ctx, epoch); err != nil {
		if rt.ctx.Err() != nil {
			return rt.r.cfg.Gone(rt.ctx)
		}
		<-ctx.Done()
	}
	return nil
}

// noOwner returns the error of a call that nobody answers: unknown, if somebody may
// have received it.
func (rt *route) noOwner() error {
	if rt.sent {
		return ErrUnheard
	}
	return noOwner(rt.r.cfg.Cluster.Table(), rt.hash)
}

// unknownIfSent reports an unknown outcome where an error says that nothing happened, and
// an earlier attempt may have taken effect.
func (rt *route) unknownIfSent(err error) error {
	if !rt.sent {
		return err
	}
	switch rt.r.cfg.Wire(err).Reason {
	case commonpb.Reason_REASON_UNAVAILABLE, commonpb.Reason_REASON_OVERLOADED, commonpb.Reason_REASON_STORE_FULL,
		commonpb.Reason_REASON_TOO_MANY_WAITERS, commonpb.Reason_REASON_GAVE_UP, commonpb.Reason_REASON_NOT_OWNER:
		return ErrUnheard
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
	case errors.Is(err, ErrMoved):
		return moved
	case errors.Is(err, ErrUnsent):
		return unsent
	case errors.Is(err, ErrBroken):
		return unanswered
	case err != nil:
		return abandoned
	case f.GetError() == nil:
		return answered
	case f.GetError().Reason == commonpb.Reason_REASON_NOT_OWNER:
		return declined
	}
	return refused
}

// afterOutcome is what follows each outcome: whether the call is tried again, and what its caller
// is told if it is not. err is that of the attempt, w the error that its answer is.
var afterOutcome = [outcomes]func(rt *route, a *Attempt, err error, w *commonpb.Error) (again bool, _ error){
	answered: func(*route, *Attempt, error, *commonpb.Error) (bool, error) { return false, nil },
	refused: func(rt *route, a *Attempt, _ error, w *commonpb.Error) (bool, error) {
		return w.Reason == commonpb.Reason_REASON_UNAVAILABLE && rt.moved(a), &Remote{w}
	},
	declined:   (*route).afterDeclined,
	moved:      func(*route, *Attempt, error, *commonpb.Error) (bool, error) { return true, nil },
	unsent:     (*route).afterUnsent,
	unanswered: (*route).afterUnanswered,
	abandoned:  func(_ *route, _ *Attempt, err error, _ *commonpb.Error) (bool, error) { return false, err },
}

// conclude waits for an attempt and reports whether the call must be tried again.
func (rt *route) conclude(a *Attempt) (answer Message, again bool, err error) {
	var stopping <-chan struct{}
	if a.Call.Waits() {
		stopping = rt.r.cfg.Stopping
	}
	f, err := a.Wait(rt.ctx, rt.r.cfg.Gone, stopping, rt.r.cfg.Stopped, func() bool { return rt.r.cfg.Cluster.Table().Uses(detachLevel) })
	o := outcomeOf(f, err)
	if again, err = afterOutcome[o](rt, a, err, f.GetError()); o == answered {
		if answer, err = DecodeAnswer(f, a.Call.Op); err != nil {
			return nil, false, rt.unread(err)
		}
	}
	return answer, again, err
}

func (rt *route) afterUnsent(a *Attempt, _ error, _ *commonpb.Error) (again bool, _ error) {
	if rt.sent { // some node must be asked what became of it
		rt.hops--
		rt.first = func() error { return rt.awaitOnce(rt.r.cfg.Cluster.Table().Epoch) }
	}
	free := rt.part != nil && !rt.fixed && rt.call.ID == nil // another part will do
	return rt.sent || free || rt.moved(a), errUnreached
}

func (rt *route) afterUnanswered(a *Attempt, _ error, _ *commonpb.Error) (again bool, _ error) {
	if rt.call.Harmless {
		return false, errUnreached
	}
	rt.sent = true
	if rt.call.ID == nil {
		return false, ErrUnheard
	}
	rt.renew(a)
	// The way to the owner is gone, or the owner: it, or the next one, answers.
	if !rt.moved(a) {
		epoch := rt.r.cfg.Cluster.Table().Epoch
		rt.first = func() error { return rt.awaitOnce(epoch) }
	}
	return true, nil
}

// afterDeclined has whichever node is behind catch up.
func (rt *route) afterDeclined(a *Attempt, _ error, w *commonpb.Error) (again bool, _ error) {
	rt.renew(a)
	t := rt.r.cfg.Cluster.Table()
	after := t.Epoch
	if rt.misrouted(t) {
		return true, nil
	}
	if w.Epoch > 0 && w.Epoch <= t.Epoch {
		if _, since, ok := t.Owner(rt.hash); ok && since > a.Since {
			return true, nil // it is here already
		}
	} else if w.Epoch > 0 {
		after = w.Epoch - 1
	}
	rt.first = func() error { return rt.await(after) }
	return true, nil
}

// unread returns the error of a call whose answer cannot be read.
func (rt *route) unread(err error) error {
	e := &failure.Error{Reason: failure.OutcomeUnknown, Message: err.Error() + "; it may have taken effect",
		Hint: "the nodes are of versions that do not go together: upgrade the older one"}
	if rt.call.Harmless {
		e.Reason, e.Message = failure.Unavailable, err.Error()
	}
	return e
}

// moved reports whether the key has another owner by now than the one of an attempt.
func (rt *route) moved(a *Attempt) bool {
	m, _, ok := rt.r.cfg.Cluster.Table().Owner(rt.hash)
	return ok && m.Holder() != a.To
}

// renew gives a call new patience that has stood in the queue of a lock for long,
// before its owner let it go.
func (rt *route) renew(a *Attempt) {
	if now := time.Now(); a.Call.Waits() && now.Sub(a.Began) > MaxAwait {
		rt.over, rt.hops = now.Add(MaxAwait), 0
	}
}
