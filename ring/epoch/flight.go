package epoch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// A command is proposed again when its outcome is unknown, and its outcome is unknown
// as long as the leader is busy. If each repeat were another entry of the log, work
// would make work: of the commands by which 24 nodes form a cluster, each was proposed
// twenty times, and the leader lost its term over them. So there is one flight for each
// command at a time, at the node that asks and at the leader: a repeat waits for the
// first.

// Bounds of flights, with their reasons.
const (
	// atOnce bounds the commands of others that a leader has in raft: as many as raft
	// writes at once. What the leader plans itself does not queue behind them.
	atOnce = 64
	// maxFlights bounds the commands that wait at a leader, and at a node that asks: 16
	// of each member. A node has fewer than that under way: see handoff.
	maxFlights = 16 * table.MaxMembers
	// askTime bounds how long a node waits for the answer of one leader. A repeat while
	// it waits does not ask again; a leader that is gone is noticed by gRPC, or by
	// another one being elected.
	askTime = 10 * time.Second
)

// flight is a command that is under way.
type flight struct {
	to     raft.ServerID // the leader that was asked; "" at the leader itself
	cancel context.CancelFunc
	done   chan struct{} // closed when the outcome is there

	// The outcome. Written before done is closed.
	epoch uint64
	err   error
}

// flights are the commands under way, by id.
type flights struct {
	mu sync.Mutex
	by map[string]*flight // guarded by mu
}

// errCrowded is the error of a command that came while too many were under way.
var errCrowded = errors.New("too many commands are under way")

// join returns the flight of a command to a leader. If there is none, it makes one,
// which do has to bring to its end; one to another leader is given up.
func (f *flights) join(ctx context.Context, id string, to raft.ServerID, do func(context.Context) (uint64, error)) (*flight, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.by[id]
	switch {
	//guard:flight-one
	case was != nil && was.to == to:
		return was, nil
	case was != nil:
		was.cancel()
	//guard:flight-bound
	case len(f.by) >= maxFlights:
		return nil, errCrowded
	}
	fl := &flight{to: to, done: make(chan struct{})}
	ctx, fl.cancel = context.WithCancel(ctx)
	if f.by == nil {
		f.by = map[string]*flight{}
	}
	f.by[id] = fl
	go func() {
		fl.epoch, fl.err = do(ctx)
		fl.cancel()
		f.mu.Lock()
		if f.by[id] == fl {
			delete(f.by, id)
		}
		f.mu.Unlock()
		close(fl.done)
	}()
	return fl, nil
}

// count returns how many commands are under way.
func (f *flights) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.by)
}

// wait returns the outcome of a flight, or the context's error.
func (fl *flight) wait(ctx context.Context) (uint64, error) {
	select {
	case <-fl.done:
		return fl.epoch, fl.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// bring has a command that somebody proposes agreed on, by this node as the leader. The
// errors are those of apply; the context's says that the outcome is unknown.
func (g *Group) bring(ctx context.Context, c table.Command) (uint64, error) {
	fl, err := g.leading.join(g.halt, c.ID, "", func(ctx context.Context) (uint64, error) {
		select {
		case g.places <- struct{}{}:
		case <-ctx.Done():
			return 0, raft.ErrNotLeader // nothing was proposed
		}
		defer func() { <-g.places }()
		return g.apply(c)
	})
	if err != nil {
		return 0, raft.ErrNotLeader
	}
	return fl.wait(ctx)
}

// Propose brings a command before the leader and returns when the leader has
// applied it. table.ErrNotProposed and a *table.Refused say that it changes nothing;
// after any other error it may still take effect. One that is proposed again under its
// id, while it is under way to the same leader, waits for what becomes of the first.
func (g *Group) Propose(ctx context.Context, c table.Command) (epoch uint64, err error) {
	if c.ID == "" {
		c.ID = draw()
	}
	addr, id := g.raft.LeaderWithID()
	if id == g.self {
		if epoch, err = g.bring(ctx, c); errors.Is(err, raft.ErrNotLeader) {
			return 0, table.ErrNotProposed
		}
		return epoch, err
	}
	if id == "" {
		return 0, table.ErrNotProposed
	}
	client, err := g.peers.client(addr)
	if err != nil {
		return 0, table.ErrNotProposed
	}
	fl, err := g.asking.join(g.halt, c.ID, id, func(ctx context.Context) (uint64, error) {
		ctx, cancel := context.WithTimeout(ctx, askTime)
		defer cancel()
		return ask(ctx, client, c)
	})
	if err != nil {
		return 0, table.ErrNotProposed
	}
	return fl.wait(ctx)
}

// ask proposes a command to a leader.
func ask(ctx context.Context, client peerv1.LeaseServiceClient, c table.Command) (uint64, error) {
	r, err := client.Propose(ctx, &peerv1.ProposeRequest{Command: c.Encode()})
	switch {
	case err != nil:
		return 0, fmt.Errorf("the outcome is unknown: %w", err)
	case !r.Leader:
		return 0, table.ErrNotProposed
	case r.Refused != "":
		return r.Epoch, &table.Refused{Why: r.Refused}
	}
	return r.Epoch, nil
}
