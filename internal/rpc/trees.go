package rpc

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/gather"
	barrierpb "github.com/keystead/keystead/proto/keystead/barrier/v1"
)

const (
	// treeTurn is between two rounds while children wait for the phases of their parents, treeRest
	// while none does, and treePause the least.
	treeTurn  = 20 * time.Millisecond
	treeRest  = time.Second
	treePause = 5 * time.Millisecond
	// treeCall bounds one call to the owner of a parent, and treeRetry is after one that failed.
	treeCall  = 2 * time.Second
	treeRetry = 200 * time.Millisecond
	// treeCalls is how many are under way at a time.
	treeCalls = 16
	// childTTL is how long a child is a party of its parent when nothing is heard of it: several
	// failovers. It is renewed three times meanwhile.
	childTTL = 10 * time.Second
)

// trees has the phasers that this node owns, and that are parties of others, arrive there, and ends
// their phases with those. It keeps nothing that the next owner has to know: that is in the
// records of the children, and all that is sent may be sent again.
type trees struct {
	s     *Server
	known map[owner.Ref]*knownChild // only of children that are here
	round uint64

	mu    sync.Mutex
	fates map[parentPhase]barrierpb.Verdict // that were asked for in this round
}

// knownChild spares calls.
type knownChild struct {
	round      uint64    // in which it was here
	phase      uint64    // of the child, of which the rest is true
	arrived    uint64    // the phase of the parent for which it has heard that it arrived
	registered time.Time // the last time that it has heard so
	after      time.Time // the next try, after one that failed
}

type parentPhase struct {
	key, name string
	phase     uint64
}

// Trees has the children of phasers that are here arrive at their parents, until the context ends
// or the server stops.
func (s *Server) Trees(ctx context.Context) {
	x := &trees{s: s, known: map[owner.Ref]*knownChild{}}
	timer := time.NewTimer(treeRest)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.stopping:
			return
		case <-s.cfg.Store.ChildrenChanged():
		case <-timer.C:
		}
		pause := treeRest
		if x.all(ctx) {
			pause = treeTurn
		}
		timer.Reset(pause)
		if !rest(ctx, s, treePause) {
			return
		}
	}
}

// all does what all children have to do now, and reports whether any waits for its parent.
func (x *trees) all(ctx context.Context) (waits bool) {
	refs := x.s.cfg.Store.AppendChildren(nil)
	x.round++
	x.fates = map[parentPhase]barrierpb.Verdict{}
	todo := make(chan *child)
	var wg sync.WaitGroup
	var mu sync.Mutex
	for range min(treeCalls, len(refs)) {
		wg.Go(func() {
			for c := range todo {
				w := c.step(ctx)
				mu.Lock()
				waits = waits || w
				mu.Unlock()
			}
		})
	}
	for _, ref := range refs {
		k := x.known[ref]
		if k == nil {
			k = &knownChild{}
			x.known[ref] = k
		}
		k.round = x.round
		todo <- &child{x: x, s: x.s, ref: ref, known: k}
	}
	close(todo)
	wg.Wait()
	for ref, k := range x.known {
		if k.round != x.round {
			delete(x.known, ref)
		}
	}
	return waits
}

// child is a phaser in a step.
type child struct {
	x     *trees
	s     *Server
	ref   owner.Ref
	known *knownChild
	gather.Child
}

// errStaleChild is that another owner has begun another phase: this one is not asked any more.
var errStaleChild = errors.New("the child has begun another phase elsewhere")

// step does what the child has to do now, and reports whether it waits for its parent.
func (c *child) step(ctx context.Context) (waits bool) {
	now := time.Now()
	if now.Before(c.known.after) || !c.look() {
		return false
	}
	if c.known.phase != c.Phase {
		*c.known = knownChild{round: c.known.round, phase: c.Phase}
	}
	ctx, cancel := context.WithTimeout(ctx, treeCall)
	defer cancel()
	var err error
	switch fresh := now.Sub(c.known.registered) < childTTL/3; {
	case c.Empty && !c.Sent:
		err = c.leave(ctx)
	case c.Above == 0 || !fresh:
		err = c.register(ctx, now)
	case c.Sent && c.known.arrived != c.Above:
		err = c.arrive(ctx)
	default:
		err = c.conclude(ctx)
	}
	if err != nil {
		c.known.after = now.Add(treeRetry)
	}
	return c.Sent || c.Above == 0 && !c.Empty
}

// look reports whether this node owns the child, which owes something. What is told to the parent
// is what the copies have: a next owner that did not would have the parties arrive once more, for a
// phase that the parent has passed by then.
func (c *child) look() bool {
	owes, m, err := c.s.cfg.Store.ChildOf(c.s.cfg.Clock.Now(), c.ref)
	if err != nil || !owes.Owes() {
		return false
	}
	//guard:tree-told-when-copied
	if c.s.await(context.Background(), c.s.row(barrierArrive.operation), m.Permit) != nil || c.s.cfg.Store.Confirm(m.Permit, c.s.cfg.Clock.Now()) != nil {
		return false
	}
	c.Child = owes
	return true
}

func (c *child) leave(ctx context.Context) error {
	_, err := barrierLeave.atOwner(ctx, c.s, &barrierpb.LeaveRequest{Key: c.Parent.Key, Name: c.Parent.Name, Party: c.Parent.Party, Child: c.Phase})
	if err != nil {
		return err
	}
	return c.s.cfg.Store.ChildLeft(c.s.cfg.Clock.Now(), c.ref, c.Phase)
}

// register makes the child a party of its parent, or goes on with that.
func (c *child) register(ctx context.Context, now time.Time) error {
	ttl := min(int64(childTTL), c.s.cfg.Store.MaxTTL())
	r, err := barrierRegister.atOwner(ctx, c.s, &barrierpb.RegisterRequest{Key: c.Parent.Key, Name: c.Parent.Name, Party: c.Parent.Party, TtlNs: ttl, Loss: barrierpb.Loss_LOSS_BREAK, Child: c.Phase})
	if err != nil {
		return err
	}
	if !r.Registered {
		return errStaleChild
	}
	if c.known.registered = now; c.Above == 0 {
		err = c.s.cfg.Store.BindChild(c.s.cfg.Clock.Now(), c.ref, c.Phase, r.Phase)
	}
	return err
}

func (c *child) arrive(ctx context.Context) error {
	r, err := barrierArrive.atOwner(ctx, c.s, &barrierpb.ArriveRequest{Key: c.Parent.Key, Name: c.Parent.Name, Party: c.Parent.Party, Phase: c.Above, Child: c.Phase})
	switch {
	case err != nil:
		return err
	case r.Refusal == barrierpb.Refusal_REFUSAL_NOT_REGISTERED:
		c.known.registered = time.Time{}
		return nil
	case r.Arrived:
		c.known.arrived = c.Above
	}
	return c.end(r.Verdict)
}

// conclude asks what became of the phase of the parent.
func (c *child) conclude(ctx context.Context) error {
	of := parentPhase{c.Parent.Key, c.Parent.Name, c.Above}
	c.x.mu.Lock()
	v, ok := c.x.fates[of]
	c.x.mu.Unlock()
	if !ok {
		r, err := barrierAwait.atOwner(ctx, c.s, &barrierpb.AwaitRequest{Key: of.key, Name: of.name, Phase: of.phase})
		if err != nil {
			return err
		}
		v = r.Verdict
		c.x.mu.Lock()
		c.x.fates[of] = v
		c.x.mu.Unlock()
	}
	return c.end(v)
}

// end ends the phase of the child if that of the parent has ended.
func (c *child) end(v barrierpb.Verdict) error {
	for of, w := range verdicts {
		if w == v && of != gather.UnderWay {
			return c.s.cfg.Store.ConcludeChild(c.s.cfg.Clock.Now(), c.ref, c.Phase, c.Above, of)
		}
	}
	return nil
}
