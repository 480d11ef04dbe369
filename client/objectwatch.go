package client

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
)

// firstStale is when a watch is stale that no node has told another time.
const firstStale = 2 * time.Second

// leases is for how many of these a node may be silent until the watch goes on at another one:
// it may be cut off from those that know.
const leases = 2

// told is what a node says of an object that is watched: a state, or a heartbeat.
type told interface {
	marked
	GetHeartbeat() bool
	GetVersion() uint64
	GetStaleAfterNs() int64
}

// watching is a watch of an object, whose node says R.
type watching[R told] struct {
	c     *Client
	key   string
	route route
	// open begins a stream of what is above a version.
	open func(ctx context.Context, n *node, after uint64) (stream[R], error)
	// exists reports whether a state is one of an object that exists.
	exists func(R) bool
	parts  bool // what exists may be known in parts, after a loss
	// same reports whether two states show the same, under whatever versions; nil = no two do.
	same func(a, b R) bool
	// yield gives a state to the caller, with the last message, by which it is the latest. It
	// returns false if the caller has stopped.
	yield func(state, last R, stale bool) bool

	after    uint64 // version of what the caller has
	latest   R      // that the caller was given
	last     R      // message
	isStale  bool   // the caller was told
	known    bool   // there is a latest state
	heard    int64  // when a node was heard last
	patience time.Duration
	stale    *time.Timer
	over     bool // the caller has stopped
}

// stream is one of what a node says.
type stream[R any] interface{ Recv() (R, error) }

// watch follows an object until ctx ends or the caller stops. The error is one that going on at
// other nodes does not cure.
func (w *watching[R]) watch(ctx context.Context, name, what string) error {
	if err := w.c.judge(ctx, w.key, name); err != nil {
		return about(err, what, w.key, "")
	}
	w.patience, w.route = firstStale, toKey(w.key, true).of(what)
	if err := w.follow(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// mailbox has what a stream has brought and the caller has not taken: the latest, however busy
// the caller is.
type mailbox[R told] struct {
	ready chan struct{} // capacity 1: there is something

	mu    sync.Mutex
	state R     // guarded by mu: the latest that is no heartbeat, …
	news  bool  // … guarded by mu: and was not taken
	last  R     // guarded by mu: the latest message
	some  bool  // guarded by mu: there was one, …
	at    int64 // … guarded by mu: at this moment
	err   error // guarded by mu: the end of the stream
}

// put puts a message in, or the end.
func (m *mailbox[R]) put(r R, err error, now int64) {
	m.mu.Lock()
	if m.err = err; err == nil {
		if m.last, m.some, m.at = r, true, now; !r.GetHeartbeat() {
			m.state, m.news = r, true
		}
	}
	m.mu.Unlock()
	select {
	case m.ready <- struct{}{}:
	default:
	}
}

// taken is what was in a mailbox.
type taken[R told] struct {
	state R
	news  bool // there is a state
	last  R
	some  bool  // there was a message
	at    int64 // when the last one came
	err   error
}

// take returns what is there, and takes the state out.
func (m *mailbox[R]) take() taken[R] {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := taken[R]{m.state, m.news, m.last, m.some, m.at, m.err}
	m.news = false
	return t
}

// heard returns when the latest message came; 0 = none has.
func (m *mailbox[R]) heard() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.at
}

// follow watches at one node after the other. The error is one that this does not cure.
func (w *watching[R]) follow(ctx context.Context) error {
	c := w.c
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
func (w *watching[R]) at(ctx context.Context, n *node) (heard bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	m := &mailbox[R]{ready: make(chan struct{}, 1)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.receive(ctx, n, m)
	}()
	defer func() { cancel(); <-done }()
	began := w.c.clock.Now()
	silent := time.NewTimer(leases * w.patience)
	defer silent.Stop()
	for {
		select {
		case <-m.ready:
		case <-w.stale.C:
		case <-silent.C:
			left := max(m.heard(), began) + int64(leases*w.patience) - w.c.clock.Now()
			if left <= 0 {
				return heard, &Error{Code: codes.Unavailable, Message: "the node says nothing any more", broken: true}
			}
			silent.Reset(time.Duration(left))
			continue
		case <-ctx.Done():
			return heard, ctx.Err()
		}
		t := m.take()
		news := t.some && (t.news || t.at != w.heard)
		if news {
			heard = true
			w.takes(&t, n)
		}
		switch {
		case w.over || t.err != nil:
			return heard, t.err
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
func (w *watching[R]) receive(ctx context.Context, n *node, to *mailbox[R]) {
	var r R
	stream, err := w.open(ctx, n, w.after)
	for err == nil {
		if r, err = stream.Recv(); err == nil {
			to.put(r, nil, w.c.clock.Now())
		}
	}
	to.put(r, err, 0)
}

// takes takes in what a node has said: a state, if there is one, and its last message.
func (w *watching[R]) takes(t *taken[R], n *node) {
	if d := time.Duration(t.last.GetStaleAfterNs()); d > 0 {
		w.patience = d
	}
	w.heard = t.at
	w.c.answered(w.c.view.Load(), n, t.last.GetOwner(), t.last.GetEpoch())
	fresh := w.isStale
	w.isStale = false
	if t.news && !w.has(t.state) {
		//guard:client-watch-same
		if !w.known || w.same == nil || !w.same(w.latest, t.state) {
			fresh = true
		}
		w.after, w.latest, w.known = t.state.GetVersion(), t.state, true
	}
	if w.parts && w.last.GetLostEpoch() != 0 && t.last.GetLostEpoch() == 0 {
		fresh = true // it is known to be whole now
	}
	if w.known && fresh {
		w.over = !w.yield(w.latest, t.last, false)
	}
	w.last = t.last
}

// has reports whether a state is no news: an earlier one, or what the caller has.
func (w *watching[R]) has(r R) bool {
	switch {
	case r.GetVersion() < w.after:
		return true
	case w.exists(r):
		return r.GetVersion() == w.after
	}
	return w.known && !w.exists(w.latest) && (w.last.GetLostEpoch() != 0) == (r.GetLostEpoch() != 0)
}

// tires tells that nothing was heard for a lease, if so, and when to look again.
func (w *watching[R]) tires() {
	left := w.heard + int64(w.patience) - w.c.clock.Now()
	if left > 0 {
		w.stale.Reset(time.Duration(left))
		return
	}
	if w.known && !w.isStale {
		w.isStale = true
		w.over = !w.yield(w.latest, w.last, true)
	}
}

// idle waits, and notices meanwhile that the state gets stale. It returns false if ctx ends.
func (w *watching[R]) idle(ctx context.Context, d time.Duration) bool {
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
