package client

import (
	"context"
	"errors"
	"io"
	"iter"
	"math/rand/v2"
	"sync"
	"time"

	registerpb "github.com/keystead/keystead/proto/keystead/register/v1"
)

// Watched is a register as a watch sees it.
type Watched struct {
	// RegisterState is the latest state. Its Version is that of a state to go on from, also if
	// the register does not exist; see Register.Watch.
	RegisterState
	// Stale reports that the state may not be the latest any more: nothing was heard for a
	// lease.
	Stale bool
}

// firstStale is when a watch is stale that no node has told another time.
const firstStale = 2 * time.Second

// Watch follows the key's register until ctx ends or the caller stops: the state as it is, and
// each later one, the latest if several have come. after is the Version of the last state that
// the caller has from an earlier watch, so that what is not newer is left out; 0 = it has
// none. Versions never fall, whatever becomes of nodes and connections.
//
// A state comes again with Stale set when no node says that it is the latest, and without when
// one does again. After a loss of the key's state, a state that does not exist is
// Unknown until the grace period is over.
//
// It goes on by itself at other nodes. An error that this does not cure comes last, such as
// ErrInvalid or ErrKindMismatch; that ctx has ended is none.
func (n Register) Watch(ctx context.Context, key string, after uint64) iter.Seq2[Watched, error] {
	return func(yield func(Watched, error) bool) {
		const what = "watch register"
		if err := n.c.judge(ctx, key, n.name); err != nil {
			yield(Watched{}, about(err, what, key, ""))
			return
		}
		w := watching{n: n, key: key, after: after, yield: yield, patience: firstStale}
		w.route = toKey(key, true).of(what)
		if err := w.follow(ctx); err != nil && ctx.Err() == nil {
			yield(Watched{}, err)
		}
	}
}

// watching is a watch of a register.
type watching struct {
	n     Register
	key   string
	route route
	yield func(Watched, error) bool

	after    uint64 // version of what the caller has
	latest   Watched
	known    bool  // there is a latest state
	heard    int64 // when a node was heard last
	patience time.Duration
	stale    *time.Timer
	over     bool // the caller has stopped
}

// mailbox has what a stream has brought and the caller has not taken: the latest, however busy
// the caller is.
type mailbox struct {
	ready chan struct{} // capacity 1: there is something

	mu    sync.Mutex
	state *registerpb.WatchResponse // guarded by mu: the latest that is no heartbeat; nil = taken
	last  *registerpb.WatchResponse // guarded by mu: the latest message
	at    int64                     // guarded by mu: when it came
	err   error                     // guarded by mu: the end of the stream
}

// put puts a message in, or the end.
func (m *mailbox) put(r *registerpb.WatchResponse, err error, now int64) {
	m.mu.Lock()
	if m.err = err; err == nil {
		if m.last, m.at = r, now; !r.Heartbeat {
			m.state = r
		}
	}
	m.mu.Unlock()
	select {
	case m.ready <- struct{}{}:
	default:
	}
}

// take returns what is there, and takes the state out.
func (m *mailbox) take() (state, last *registerpb.WatchResponse, at int64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	state, m.state = m.state, nil
	return state, m.last, m.at, m.err
}

// follow watches at one node after the other. The error is one that this does not cure.
func (w *watching) follow(ctx context.Context) error {
	c := w.n.c
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(c.ctx, cancel)
	defer stop()
	w.stale = time.NewTimer(w.patience)
	defer w.stale.Stop()
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		n, v, err := c.pick(&w.route)
		if err != nil {
			return about(c.closedOr(err), w.route.what, w.key, "")
		}
		heard, err := w.at(ctx, n)
		c.pool.release(n)
		switch e := fromCall(err, true); {
		case w.over:
			return nil
		case c.ctx.Err() != nil:
			return about(errClosed(), w.route.what, w.key, "")
		case ctx.Err() != nil:
			return ctx.Err()
		case !e.retry() && !errors.Is(err, io.EOF) && (e.Reason != "" || !heard):
			return about(e, w.route.what, w.key, v.nameOf(n.addr))
		default:
			w.route.learn(c, e, v, n.addr)
		}
		if heard {
			pause = firstPause
		}
		if !w.idle(ctx, pause/2+time.Duration(rand.Int64N(int64(pause)))) {
			return ctx.Err()
		}
	}
}

// at watches at one node until that ends. heard reports whether it has told anything.
func (w *watching) at(ctx context.Context, n *node) (heard bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	m := &mailbox{ready: make(chan struct{}, 1)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.receive(ctx, n, m)
	}()
	defer func() { cancel(); <-done }()
	for {
		select {
		case <-m.ready:
		case <-w.stale.C:
		case <-ctx.Done():
			return heard, ctx.Err()
		}
		state, last, at, err := m.take()
		news := last != nil && (state != nil || at != w.heard)
		if news {
			heard = true
			w.takes(state, last, at, n)
		}
		switch {
		case w.over || err != nil:
			return heard, err
		case news:
			w.stale.Reset(0) // the caller may have been busy: look again before it is told that this is stale
		default:
			if w.tires(); w.over {
				return heard, nil
			}
		}
	}
}

// receive puts what a stream brings into a mailbox.
func (w *watching) receive(ctx context.Context, n *node, to *mailbox) {
	stream, err := registerpb.NewRegisterServiceClient(n.conn()).Watch(ctx, &registerpb.WatchRequest{Key: w.key, Name: w.n.name, AfterVersion: w.after})
	for err == nil {
		var r *registerpb.WatchResponse
		if r, err = stream.Recv(); err == nil {
			to.put(r, nil, w.n.c.clock.Now())
		}
	}
	to.put(nil, err, 0)
}

// takes takes in what a node has said: a state, if there is one, and its last message, which
// came at a moment.
func (w *watching) takes(state, last *registerpb.WatchResponse, at int64, n *node) {
	if d := time.Duration(last.StaleAfterNs); d > 0 {
		w.patience = d
	}
	w.heard = at
	w.n.c.answered(w.n.c.view.Load(), n, last.Owner, last.Epoch)
	fresh := w.latest.Stale
	w.latest.Stale = false
	if state != nil && !w.has(state) {
		w.after, w.known, fresh = state.Version, true, true
		w.latest.RegisterState = RegisterState{Stored: Stored{state.Exists, state.Value, state.Version}, Fence: state.Fence}
	}
	w.latest.Meta = metaOf(last, nil)
	if w.known && fresh {
		w.over = !w.yield(w.latest, nil)
	}
}

// has reports whether a state is no news: an earlier one, or what the caller has.
func (w *watching) has(r *registerpb.WatchResponse) bool {
	switch {
	case r.Version < w.after:
		return true
	case r.Exists:
		return r.Version == w.after
	}
	return w.known && !w.latest.Exists && (w.latest.LostEpoch != 0) == (r.LostEpoch != 0)
}

// tires tells that nothing was heard for a lease, if so, and when to look again.
func (w *watching) tires() {
	left := w.heard + int64(w.patience) - w.n.c.clock.Now()
	if left > 0 {
		w.stale.Reset(time.Duration(left))
		return
	}
	if w.known && !w.latest.Stale {
		w.latest.Stale = true
		w.over = !w.yield(w.latest, nil)
	}
}

// idle waits, and notices meanwhile that the state gets stale. It returns false if ctx ends.
func (w *watching) idle(ctx context.Context, d time.Duration) bool {
	rest := time.NewTimer(d)
	defer rest.Stop()
	for !w.over {
		select {
		case <-rest.C:
			return true
		case <-w.stale.C:
			w.tires()
		case <-ctx.Done():
			return false
		}
	}
	return true
}
