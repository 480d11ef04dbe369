package node

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/keystead/keystead/internal/admin"
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/rpc"
	"github.com/keystead/keystead/ring/epoch"
	"github.com/keystead/keystead/ring/epoch/table"
)

const (
	// drainPatience is how long a drain may take to be agreed on: an election and
	// a second.
	drainPatience = 5 * time.Second
	// drainTry bounds one try.
	drainTry = time.Second
	// drainPause is the longest one between tries.
	drainPause = 50 * time.Millisecond
	// drainLogEvery is the least time between two lines of the log that tell how
	// far a drain is.
	drainLogEvery = time.Second
)

var (
	errNoLeader = &failure.Error{Reason: failure.Unavailable, RetryAfter: time.Second,
		Message: "the cluster has no leader that could be asked; nothing happened",
		Hint:    "a majority of the voters has to run and be reached: see `keystead status`"}
	errNoTable = &failure.Error{Reason: failure.Unavailable, RetryAfter: time.Second,
		Message: "this node has not heard from its cluster yet; nothing happened",
		Hint:    "ask another node, or try again"}
	errDrainUnknown = &failure.Error{Reason: failure.OutcomeUnknown, RetryAfter: time.Second,
		Message: "it is not known whether the leader has agreed",
		Hint:    "see `keystead members`, or say it again: that does no harm"}
)

// Errors of a wait for a drain.
var (
	errAlone     = errors.New("this node runs alone: there is nobody to take what it keeps")
	errRemoved   = errors.New("the node was removed from the cluster meanwhile")
	errTakenBack = errors.New("the drain was taken back")
	errAllStop   = errors.New("all nodes stop, and each keeps what it has")
	errAllLeave  = errors.New("nobody is left to take anything: all nodes are drained")
)

// Drain implements rpc.Cluster.
func (c *cluster) Drain(ctx context.Context, o rpc.DrainOrder) (rpc.DrainState, error) {
	within, cancel := context.WithTimeout(ctx, drainPatience)
	defer cancel()
	command := table.Command{ID: c.newID()}
	proposed := false // at least once, and the outcome is unknown
	for {
		t := c.group.Table()
		voters, _ := c.group.Servers()
		s, done, err := judgeDrain(t, voters, o)
		if err != nil || done {
			s.Already = done && !proposed
			return s, err
		}
		command.Drain = &table.Drain{Member: s.Member.Holder(), Undo: o.Undo, Stop: o.Stop}
		if t.Knows(command) != nil { // an older node would not understand that it stops
			command.Drain.Stop = false
		}
		at, err := c.proposeDrain(within, command)
		switch {
		case err == nil:
			return c.drainedAt(within, o, at)
		case errors.As(err, new(*table.Refused)): // the leader's table is a later one
		case !errors.Is(err, epoch.ErrNotProposed):
			proposed = true
		}
		// Whatever became of it, the table tells, if only a little later.
		wait, cancel := context.WithTimeout(within, drainPause)
		_, _ = c.group.Await(wait, t.Epoch)
		cancel()
		switch {
		case within.Err() == nil:
		case proposed:
			return s, errDrainUnknown
		case ctx.Err() == nil:
			return s, errNoLeader
		default:
			return s, ctx.Err()
		}
	}
}

func (c *cluster) proposeDrain(ctx context.Context, command table.Command) (uint64, error) {
	try, cancel := context.WithTimeout(ctx, drainTry)
	defer cancel()
	return c.group.Propose(try, command)
}

// drainedAt is how a member stands when this node has learnt of the epoch in
// which an order took effect.
func (c *cluster) drainedAt(ctx context.Context, o rpc.DrainOrder, at uint64) (rpc.DrainState, error) {
	t, err := c.group.Await(ctx, at-1)
	if err != nil {
		return rpc.DrainState{}, errDrainUnknown
	}
	s, ok := rpc.DrainStateOf(t, o.Node)
	if !ok {
		return s, rpc.ErrUnknownNode(o.Node)
	}
	return s, nil
}

// judgeDrain says whether an order may be given, or has nothing to do any more,
// by a table and the nodes that vote.
func judgeDrain(t *table.Table, voters []string, o rpc.DrainOrder) (s rpc.DrainState, done bool, err error) {
	if t.Cluster == "" {
		return s, false, errNoTable
	}
	s, ok := rpc.DrainStateOf(t, o.Node)
	if !ok {
		return s, false, rpc.ErrUnknownNode(o.Node)
	}
	if o.Undo == !leaves(s.Member) || o.Stop && t.Stopped(s.Member.Holder()) {
		return s, true, nil
	}
	if o.Undo {
		return s, false, nil
	}
	if !hasTakers(t, o.Node) {
		if o.Stop && othersStop(t, o.Node) {
			return s, false, nil
		}
		return s, false, rpc.ErrLastNode(o.Node)
	}
	left := 0
	for _, v := range voters {
		if m, ok := t.Member(v); ok && v != o.Node && !leaves(m) {
			left++
		}
	}
	if !o.Force && left < len(voters)/2+1 {
		return s, false, rpc.ErrTooFewLeft(o.Node, left, len(voters))
	}
	return s, false, nil
}

// leaves says whether a member is being drained, or has been.
func leaves(m table.Member) bool { return m.Phase == table.Leaving || m.Phase == table.Drained }

// hasTakers says whether somebody beside a node may be given what it has.
func hasTakers(t *table.Table, but string) bool {
	return slices.ContainsFunc(t.Members, func(m table.Member) bool { return m.Node != but && m.Takes() })
}

// othersStop reports whether all others that have something are about to stop and can
// keep it.
func othersStop(t *table.Table, but string) bool {
	stop := false
	for _, m := range t.Members {
		if m.Node == but || m.Phase == table.Drained {
			continue
		}
		if !m.Stopping {
			return false
		}
		stop = true
	}
	return stop && t.Uses(3)
}

// emptied says whether a member has given all away, and is given nothing more.
func emptied(t *table.Table, s rpc.DrainState) bool {
	return s.Member.Phase == table.Drained ||
		s.Member.Phase == table.Leaving && s.Owned+s.Standby == 0 && !slices.Contains(t.WantedNodes(), s.Member.Node)
}

// awaitEmpty waits until a process that is being drained has given all away. It
// calls changed with each state on the way. When it cannot come to that any more,
// or the context ends, it returns the last state and why.
func (c *cluster) awaitEmpty(ctx context.Context, h table.Holder, changed func(rpc.DrainState)) (s rpc.DrainState, err error) {
	for t := c.group.Table(); ; {
		now, ok := rpc.DrainStateOf(t, h.Node)
		switch {
		case !ok || now.Member.Holder() != h:
			return s, errRemoved
		case t.Stopped(h):
			return now, errAllStop
		case !leaves(now.Member):
			return now, errTakenBack
		case emptied(t, now):
			return now, nil
		case !hasTakers(t, h.Node):
			return now, errAllLeave
		}
		s = now
		changed(s)
		if t, err = c.group.Await(ctx, t.Epoch); err != nil {
			return s, err
		}
	}
}

// Drain has this node give away all that it owns and stands by for, and waits
// until that is done. It may be called again, and by several at once. With an error
// that comes after others have begun to take over, the state tells what was left.
func (n *Node) Drain(ctx context.Context) (rpc.DrainState, error) { return n.drain(ctx, false) }

// drain is Drain, also for a process that is about to stop and can keep what it has.
func (n *Node) drain(ctx context.Context, stop bool) (rpc.DrainState, error) {
	if n.cluster == nil {
		return rpc.DrainState{Member: table.Member{Node: n.cfg.ID}}, errAlone
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(n.halt, cancel)()
	c := n.cluster
	// What follows is that this process ends: how many voters are left is not
	// for this node to decide any more.
	first, err := c.Drain(ctx, rpc.DrainOrder{Node: n.cfg.ID, Force: true, Stop: stop})
	if err != nil {
		return first, err
	}
	if first.Member.Holder() != c.Self() {
		return first, errRemoved
	}
	if !first.Already {
		c.log.Info("draining: others take over what this node has", "rows", first.Owned, "standby rows", first.Standby)
	}
	var said time.Time
	s, err := c.awaitEmpty(ctx, first.Member.Holder(), func(s rpc.DrainState) {
		if time.Since(said) >= drainLogEvery {
			said = time.Now()
			c.log.Info("draining", "rows left", s.Owned, "standby rows left", s.Standby, "epoch", s.Epoch)
		}
	})
	s.Already = first.Already
	if err == nil {
		c.log.Info("drained: this node owns nothing and stands by for nothing", "epoch", s.Epoch)
	}
	return s, err
}

// DrainState is how far this node is with a drain; of a node that is not being
// drained, what it has.
func (n *Node) DrainState() rpc.DrainState {
	if n.cluster == nil {
		return rpc.DrainState{Member: table.Member{Node: n.cfg.ID}}
	}
	s, ok := rpc.DrainStateOf(n.cluster.Table(), n.cfg.ID)
	if !ok || s.Member.Holder() != n.cluster.Self() {
		return rpc.DrainState{Member: table.Member{Node: n.cfg.ID}}
	}
	return s
}

// DrainBeforeStop drains a node that is about to stop, for so long at most, or
// until the context ends or Hurry is called; 0 is not at all. A node that nobody can relieve is left
// as it is. What became of it is in the log.
func (n *Node) DrainBeforeStop(ctx context.Context, within time.Duration) {
	if n.cluster == nil || within <= 0 {
		return
	}
	ctx, release := n.keeps.unlessHurried(ctx)
	defer release()
	log := n.cluster.log
	switch err := n.cluster.ready(); {
	case leaves(n.DrainState().Member): // already; it may not be done
	case err != nil:
		log.Info("leaves without a drain: the node is not ready", "why", err)
		return
	case !hasTakers(n.cluster.Table(), n.cfg.ID) && !(n.KeepsState() && othersStop(n.cluster.Table(), n.cfg.ID)):
		n.cluster.awaitGivers(ctx, within)
		return
	case n.cluster.group.Leader() == "":
		log.Warn("leaves without a drain: the cluster has no leader")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	moving, end := n.cluster.whileMoving(ctx)
	defer end()
	s, err := n.drain(moving, n.KeepsState())
	var refused *failure.Error
	switch {
	case err == nil:
	case errors.Is(err, errAllStop):
		log.Info("leaves without a drain: all nodes stop, and each keeps what it has", "rows left", s.Owned, "standby rows left", s.Standby)
	case errors.Is(context.Cause(moving), errStuck):
		log.Warn("leaves before it was drained: "+errStuck.Error(), "for", drainStuck, "rows left", s.Owned, "standby rows left", s.Standby)
	case errors.Is(err, context.DeadlineExceeded):
		log.Warn("leaves before it was drained: --drain-timeout is over", "timeout", within, "rows left", s.Owned, "standby rows left", s.Standby)
	case errors.Is(err, context.Canceled):
		log.Warn("leaves before it was drained: it was told to", "rows left", s.Owned, "standby rows left", s.Standby)
	case errors.Is(err, errAllLeave):
		log.Info("leaves without a drain: nobody is left to take what it keeps", "rows left", s.Owned)
	case errors.As(err, &refused) && refused.Reason == failure.LastNode:
		n.cluster.awaitGivers(ctx, within)
	default:
		log.Warn("leaves without a drain", "why", err, "rows left", s.Owned, "standby rows left", s.Standby)
	}
}

// awaitGivers has the last node, which is about to stop, wait until those who are
// being drained have given it all that they have, and are done: all are told to
// stop at once at times.
func (c *cluster) awaitGivers(ctx context.Context, within time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	led := time.Now()
	for t := c.group.Table(); ; {
		givers := 0
		for _, m := range t.Members {
			if m.Phase == table.Leaving && m.Holder() != c.Self() {
				givers++
			}
		}
		if c.group.Leader() != "" {
			led = time.Now()
		}
		if givers == 0 || time.Since(led) > leaderless {
			c.log.Info("leaves without a drain: this is the last node", "being drained still", givers)
			return
		}
		c.log.Debug("this is the last node: it waits for those who give it what they have", "nodes", givers)
		try, stop := context.WithTimeout(ctx, drainTry)
		next, err := c.group.Await(try, t.Epoch)
		stop()
		switch {
		case err == nil:
			t = next
		case ctx.Err() != nil:
			c.log.Warn("leaves before others have given it all that they have", "being drained still", givers)
			return
		}
	}
}

// errStuck ends a drain that gets nowhere: where no disk can be written, nothing is
// agreed on.
var errStuck = errors.New("nothing has moved")

const (
	// drainStuck is how long a drain may stand still, beside two leases: no commit, and
	// no byte of a copy.
	drainStuck = 10 * time.Second
	// drainLook is how often that is looked at.
	drainLook = 500 * time.Millisecond
)

// whileMoving returns a context that ends when nothing has moved for drainStuck: the
// table is the same, and copies stand still.
func (c *cluster) whileMoving(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		var epoch uint64
		var bytes int64
		for still := time.Now(); pause(ctx, drainLook); {
			sent := int64(0)
			for _, y := range c.state.source.Progress().Copies {
				sent += y.Bytes
			}
			if now := c.group.Table().Epoch; now != epoch || sent != bytes {
				epoch, bytes, still = now, sent, time.Now()
			}
			if time.Since(still) >= drainStuck+2*c.cfg.Cluster.LeaseTTL {
				cancel(errStuck)
			}
		}
	}()
	return ctx, func() { cancel(nil); <-done }
}

// leaderless is how long the last node waits for a leader: some elections.
const leaderless = 3 * time.Second

// drainHook is the node's drain for the admin server.
type drainHook struct{ n *Node }

// State implements admin.Drainer.
func (d drainHook) State() admin.Drain { return d.page(d.n.DrainState()) }

// Drain implements admin.Drainer.
func (d drainHook) Drain(ctx context.Context) (admin.Drain, error) {
	s, err := d.n.Drain(ctx)
	page := d.page(s)
	var refused *failure.Error
	switch {
	case err == nil:
		page.Drained = true
	case errors.As(err, &refused) && refused.Reason == failure.LastNode, errors.Is(err, errAlone), errors.Is(err, errTakenBack), errors.Is(err, errAllLeave):
		err = &admin.Refused{Why: err}
	}
	return page, err
}

func (d drainHook) page(s rpc.DrainState) admin.Drain {
	p := admin.Drain{Node: d.n.cfg.ID, RowsOwned: s.Owned, RowsStandby: s.Standby, Already: s.Already, Drained: s.Member.Phase == table.Drained}
	if s.Member.Phase != 0 {
		p.Phase = s.Member.Phase.String()
	}
	return p
}

// drained says why a node that was drained is not ready; nil as long as it owns
// anything. Afterwards it goes on forwarding, but whoever routes by readiness is to
// route past it before it stops.
func (c *cluster) drained() error {
	s, ok := rpc.DrainStateOf(c.group.Table(), c.cfg.ID)
	if ok && leaves(s.Member) && s.Owned == 0 {
		return errors.New("not ready: draining: the node owns nothing more, and others have taken over")
	}
	return nil
}
