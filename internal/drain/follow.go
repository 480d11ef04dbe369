package drain

import (
	"context"
	"errors"
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/ring/epoch/table"
)

// ErrAlone is the error of a drain of a node that runs alone.
var ErrAlone = errors.New("this node runs alone: there is nobody to take what it keeps")

// Errors of a wait for a drain.
var (
	errRemoved   = errors.New("the node was removed from the cluster meanwhile")
	errTakenBack = errors.New("the drain was taken back")
	errAllStop   = errors.New("all nodes stop, and each keeps what it has")
	errAllLeave  = errors.New("nobody is left to take anything: all nodes are drained")
	errStuck     = errors.New("nothing has moved")
)

// Final reports whether the error of a drain says that there will be none, unless it is
// ordered again.
func Final(err error) bool {
	return failure.ReasonOf(err) == failure.LastNode || errors.Is(err, ErrAlone) || errors.Is(err, errTakenBack) || errors.Is(err, errAllLeave)
}

const (
	// logEvery is the least time between two lines of the log that tell how far a drain
	// is.
	logEvery = time.Second
	// stuckAfter is how long a drain may stand still, beside two leases: no commit, and
	// no byte of a copy. Where no disk can be written, nothing is agreed on.
	stuckAfter = 10 * time.Second
	// stuckPoll is between two looks at that.
	stuckPoll = 500 * time.Millisecond
	// leaderless is how long the last node waits for a leader: some elections.
	leaderless = 3 * time.Second
)

// Drain has this node give away all that it owns and stands by for, and waits until that
// is done. It may be called again, and by several at once. With an error that comes after
// others have begun to take over, the state tells what was left.
func (d *Drainer) Drain(ctx context.Context) (State, error) { return d.drain(ctx, false) }

// drain is Drain, also for a process that is about to stop and can keep what it has.
func (d *Drainer) drain(ctx context.Context, stop bool) (State, error) {
	log := d.cfg.Log
	// What follows is that this process ends: how many voters are left is not
	// for this node to decide any more.
	first, err := d.Give(ctx, Order{Node: d.cfg.Node, Force: true, Stop: stop})
	if err != nil {
		first.Member.Node = d.cfg.Node
		return first, err
	}
	if first.Member.Holder() != d.cfg.Group.Self() {
		return first, errRemoved
	}
	if !first.Already {
		log.Info("draining: others take over what this node has", "rows", first.Owned, "standby rows", first.Standby)
	}
	var said time.Time
	s, err := d.awaitEmpty(ctx, first.Member.Holder(), func(s State) {
		if time.Since(said) >= logEvery {
			said = time.Now()
			log.Info("draining", "rows left", s.Owned, "standby rows left", s.Standby, "epoch", s.Epoch)
		}
	})
	s.Already = first.Already
	if err == nil {
		log.Info("drained: this node owns nothing and stands by for nothing", "epoch", s.Epoch)
	}
	return s, err
}

// awaitEmpty waits until a process that is being drained has given all away. It calls
// changed with each state on the way. When it cannot come to that any more, or the
// context ends, it returns the last state and why.
func (d *Drainer) awaitEmpty(ctx context.Context, h table.Holder, changed func(State)) (s State, err error) {
	for t := d.cfg.Group.Table(); ; {
		now, ok := StateOf(t, h.Node)
		switch {
		case !ok || now.Member.Holder() != h:
			return s, errRemoved
		case t.Stopped(h):
			return now, errAllStop
		case !now.Member.Leaves():
			return now, errTakenBack
		case now.Empty:
			return now, nil
		case !t.HasTakers(h.Node):
			return now, errAllLeave
		}
		s = now
		changed(s)
		if t, err = d.cfg.Group.Await(ctx, t.Epoch); err != nil {
			return s, err
		}
	}
}

// State returns how far this process is with a drain; if it is not being drained, what it
// has. Of a process that is no member, it has the node's id alone.
func (d *Drainer) State() State {
	s, ok := StateOf(d.cfg.Group.Table(), d.cfg.Node)
	if !ok || s.Member.Holder() != d.cfg.Group.Self() {
		return NoState(d.cfg.Node)
	}
	return s
}

// NoState returns the state of a node that is no member of a cluster.
func NoState(node string) State {
	return State{DrainState: table.DrainState{Member: table.Member{Node: node}}}
}

// Gone returns why a node that was drained is not ready; nil as long as it owns anything.
// Afterwards it goes on forwarding, but a balancer that goes by readiness is to route
// past it before it stops.
func (d *Drainer) Gone() error {
	s, ok := StateOf(d.cfg.Group.Table(), d.cfg.Node)
	if ok && s.Member.Leaves() && s.Owned == 0 {
		return errors.New("not ready: draining: the node owns nothing more, and others have taken over")
	}
	return nil
}

// BeforeStop drains a node that is about to stop, for so long at most, or until the
// context ends. A node that nobody can relieve is left as it is. What became of it is in
// the log.
func (d *Drainer) BeforeStop(ctx context.Context, within time.Duration) {
	g, log := d.cfg.Group, d.cfg.Log
	switch err := d.cfg.Ready(); {
	case d.State().Member.Leaves(): // already; it may not be done
	case err != nil:
		log.Info("leaves without a drain: the node is not ready", "why", err)
		return
	case !g.Table().HasTakers(d.cfg.Node) && !(d.cfg.Keeps && g.Table().OthersStop(d.cfg.Node)):
		d.awaitGivers(ctx, within)
		return
	case g.Leader() == "":
		log.Warn("leaves without a drain: the cluster has no leader")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	moving, end := d.whileMoving(ctx)
	defer end()
	s, err := d.drain(moving, d.cfg.Keeps)
	switch {
	case err == nil:
	case errors.Is(err, errAllStop):
		log.Info("leaves without a drain: all nodes stop, and each keeps what it has", "rows left", s.Owned, "standby rows left", s.Standby)
	case errors.Is(context.Cause(moving), errStuck):
		log.Warn("leaves before it was drained: "+errStuck.Error(), "for", stuckAfter, "rows left", s.Owned, "standby rows left", s.Standby)
	case errors.Is(err, context.DeadlineExceeded):
		log.Warn("leaves before it was drained: --drain-timeout is over", "timeout", within, "rows left", s.Owned, "standby rows left", s.Standby)
	case errors.Is(err, context.Canceled):
		log.Warn("leaves before it was drained: it was told to", "rows left", s.Owned, "standby rows left", s.Standby)
	case errors.Is(err, errAllLeave):
		log.Info("leaves without a drain: nobody is left to take what it keeps", "rows left", s.Owned)
	case failure.ReasonOf(err) == failure.LastNode:
		d.awaitGivers(ctx, within)
	default:
		log.Warn("leaves without a drain", "why", err, "rows left", s.Owned, "standby rows left", s.Standby)
	}
}

// awaitGivers has the last node, which is about to stop, wait until those that are being
// drained have given it all that they have, and are done: all are told to stop at once at
// times.
func (d *Drainer) awaitGivers(ctx context.Context, within time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	g, log, led := d.cfg.Group, d.cfg.Log, time.Now()
	for t := g.Table(); ; {
		givers := 0
		for _, m := range t.Members {
			if m.Phase == table.Leaving && m.Holder() != g.Self() {
				givers++ //guard:drain-awaits-givers
			}
		}
		if g.Leader() != "" {
			led = time.Now()
		}
		if givers == 0 || time.Since(led) > leaderless {
			log.Info("leaves without a drain: this is the last node", "being drained still", givers)
			return
		}
		log.Debug("this is the last node: it waits for the nodes that give it what they have", "nodes", givers)
		try, stop := context.WithTimeout(ctx, tryTime)
		next, err := g.Await(try, t.Epoch)
		stop()
		switch {
		case err == nil:
			t = next
		case ctx.Err() != nil:
			log.Warn("leaves before others have given it all that they have", "being drained still", givers)
			return
		}
	}
}

// whileMoving returns a context that ends when nothing has moved for stuckAfter: the
// table is the same, and copies stand still.
func (d *Drainer) whileMoving(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		poll := time.NewTicker(stuckPoll)
		defer poll.Stop()
		var epoch uint64
		var bytes int64
		for still := time.Now(); ; {
			select {
			case <-poll.C:
			case <-ctx.Done():
				return
			}
			if now, sent := d.cfg.Group.Table().Epoch, d.cfg.Sent(); now != epoch || sent != bytes {
				epoch, bytes, still = now, sent, time.Now()
			}
			//guard:drain-gives-up
			if time.Since(still) >= stuckAfter+2*d.cfg.Lease {
				cancel(errStuck)
				return
			}
		}
	}()
	return ctx, func() { cancel(nil); <-done }
}
