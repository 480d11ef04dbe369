package rpc

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/forward"
	"github.com/keystead/keystead/owner"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	registerpb "github.com/keystead/keystead/proto/keystead/register/v1"
)

// A watch of a register is a stream of this node. All of its watches of one register share a
// topic, which asks the owner, again and again, for what is news to it: that is a read
// as any other, which waits for the copies and is confirmed, at whichever node owns the key
// by then. The owner answers when the register has changed, or after a beat.
//
//	stream ─┐            one await at a time
//	stream ─┼─▶ topic ──────────────────────▶ owner: AwaitRegister
//	stream ─┘  latest ◀────────────────────── the register, or nothing new
//
// Nothing is queued for a stream: one that is slow is sent the latest when it has taken what
// was before.

const (
	// MaxRegisterWatches is how many watches of registers a node has at most: each is a stream
	// of some 20 KB, and holds up to two values.
	MaxRegisterWatches = 1 << 15
	// watchBeat is how long the owner waits for a change: so often, a watcher hears that its
	// state is the latest.
	watchBeat = time.Second
	// watchStale is when a watcher that hears nothing has to take its state for stale: a lease.
	watchStale = 2 * time.Second
	// watchPatience is how long an await may take beyond its beat.
	watchPatience = time.Second
	// watchPause is the rest after an await that failed.
	watchPause = 50 * time.Millisecond
)

var errRegisterWatches = &failure.Error{Reason: failure.Overloaded, RetryAfter: time.Second,
	Message: "as many watch registers as this node allows",
	Hint:    "watch at another node, or read the register from time to time"}

// awaits returns an operation of nodes that may wait without a place in a queue: asked again,
// it has the same answer.
func awaits[Q, A any, PQ request[Q], PA response[A]](number uint32, name, yes, no string, do func(*Server, frame, *Q, *A) (verdict, error)) *op[Q, A, PQ, PA] {
	o := newOp[Q, A, PQ, PA](number, name, do, &operation{yes: yes, no: no, reads: true, verb: canRead, cost: costsPlace, durable: asTold})
	_, o.wait = any(PQ(new(Q))).(patient)
	o.Undo = func(forward.Message, forward.Message) *forward.Call { return nil }
	o.Waited = func(forward.Message, int64, bool) {}
	return o
}

// seenOf returns what a node has seen.
func seenOf(s *peerv1.SeenRegister) owner.Seen {
	return owner.Seen{Position: s.GetPosition(), Exists: s.GetExists(), Unknown: s.GetUnknown()}
}

// sightOf returns what an answer shows.
func sightOf(a *peerv1.AwaitRegisterResponse) owner.Seen {
	return owner.Seen{Position: a.Position, Exists: a.Exists, Unknown: !a.Exists && a.LostEpoch != 0}
}

// awaitRegister answers when a register is news to a node, or its wait is over.
func (s *Server) awaitRegister(f frame, q *peerv1.AwaitRegisterRequest, r *peerv1.AwaitRegisterResponse) (verdict, error) {
	over := time.NewTimer(time.Duration(f.wait))
	defer over.Stop()
	for last := f.wait <= 0; ; {
		a, changed, err := s.cfg.Store.AwaitRegister(s.cfg.Clock.Now(), f.at, seenOf(q.Seen))
		if err != nil {
			return verdict{}, err
		}
		if changed == nil || last {
			r.Exists, r.Value, r.Position, r.Fence = a.Exists, a.Value, a.Seen.Position, a.Fence
			r.Epoch, r.Owner, r.LostEpoch = a.Permit.Epoch, s.cfg.Node, a.Permit.LostEpoch()
			return verdict{a.Meta, changed == nil}, nil
		}
		select {
		case <-changed:
		case <-over.C:
			last = true
		case <-f.ctx.Done():
			return verdict{}, gaveUp(f.ctx)
		case <-s.stopping:
			return verdict{}, errStopping
		}
	}
}

// watches are those of the registers of a node.
type watches struct {
	s       *Server
	streams atomic.Int64
	running sync.WaitGroup // topics

	mu     sync.Mutex
	topics map[watched]*topic // guarded by mu
}

// watched is a register that is watched.
type watched struct{ key, name string }

// topic is what all watches of one register at this node share.
type topic struct {
	of      watched
	streams int // guarded by watches.mu
	stop    context.CancelFunc
	now     atomic.Pointer[heard]
}

// heard is what a topic has heard last. It does not change.
type heard struct {
	answer *peerv1.AwaitRegisterResponse // nil = nothing yet
	seen   owner.Seen
	err    error         // that ends all watches; nil = go on
	next   chan struct{} // closed when something else was heard
}

// join returns the topic of a register, which asks for it as long as somebody watches.
func (w *watches) join(of watched) *topic {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.topics[of]
	if t == nil {
		ctx, cancel := context.WithCancel(context.Background())
		t = &topic{of: of, stop: cancel}
		t.now.Store(&heard{next: make(chan struct{})})
		if w.topics == nil {
			w.topics = map[watched]*topic{}
		}
		w.topics[of] = t
		w.running.Go(func() { t.run(ctx, w.s) })
	}
	t.streams++
	return t
}

func (w *watches) leave(t *topic) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t.streams--; t.streams == 0 {
		delete(w.topics, t.of)
		t.stop()
	}
}

// run asks the owner until nobody watches.
func (t *topic) run(ctx context.Context, s *Server) {
	for ctx.Err() == nil {
		was := t.now.Load()
		now := &heard{answer: was.answer, seen: was.seen, next: make(chan struct{})}
		a, err := t.ask(ctx, s, was.seen)
		switch {
		case err == nil:
			//guard:watch-topic-order
			if now.seen, _ = was.seen.Then(sightOf(a)); now.seen == sightOf(a) {
				now.answer = a
			}
		case reasonIn(err) == reasonName(commonpb.Reason_REASON_KIND_MISMATCH):
			now.err = err // somebody has made another object under the name
		default: // no beat: the watchers' state gets stale
			if !rest(ctx, s, watchPause) {
				return
			}
			continue
		}
		t.now.Store(now)
		close(was.next)
		if now.err != nil {
			return
		}
	}
}

// ask has the owner answer once.
func (t *topic) ask(ctx context.Context, s *Server, seen owner.Seen) (*peerv1.AwaitRegisterResponse, error) {
	q := &peerv1.AwaitRegisterRequest{Key: t.of.key, Name: t.of.name, WaitNs: int64(watchBeat)}
	if seen != (owner.Seen{}) {
		q.Seen = &peerv1.SeenRegister{Position: seen.Position, Exists: seen.Exists, Unknown: seen.Unknown}
	}
	ctx, cancel := context.WithTimeout(ctx, watchBeat+watchPatience)
	defer cancel()
	return registerAwait.atOwner(ctx, s, q)
}

// rest waits, and returns false if the context ends, or the node stops.
func rest(ctx context.Context, s *Server, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.stopping:
	case <-ctx.Done():
	}
	return false
}

// registers is what the RegisterService has beside the table of operations: watches.
type registers struct {
	registerpb.UnimplementedRegisterServiceServer
	watches
}

// Watch implements the service.
func (r *registers) Watch(q *registerpb.WatchRequest, stream grpc.ServerStreamingServer[registerpb.WatchResponse]) error {
	s := r.s
	defer r.streams.Add(-1)
	//guard:watch-bound
	if r.streams.Add(1) > MaxRegisterWatches {
		return s.refuse(errRegisterWatches)
	}
	if err := s.levelOf(registerAwait.operation); err != nil {
		return s.refuse(err)
	}
	// What the stream begins with is a read of its own: the topic may have heard from the
	// owner before this watch began.
	first, err := registerAwait.atOwner(stream.Context(), s, &peerv1.AwaitRegisterRequest{Key: q.Key, Name: q.Name})
	if err != nil {
		return err
	}
	t := r.join(watched{q.Key, registerAwait.of.named(q.Name)})
	defer r.leave(t)
	w := watcher{stream: stream}
	if q.AfterVersion != 0 {
		w.seen = owner.Seen{Position: q.AfterVersion, Exists: true}
	}
	err = w.tell(first, true)
	for at, beat := t.now.Load(), false; err == nil; at, beat = t.now.Load(), true {
		if at.err != nil {
			return at.err
		}
		if at.answer != nil {
			if err = w.tell(at.answer, beat); err != nil {
				return err
			}
		}
		select {
		case <-at.next:
		case <-s.stopping:
			return s.refuse(errStopping)
		case <-stream.Context().Done():
			return Status(gaveUp(stream.Context()))
		}
	}
	return err
}

// watcher is a stream of a watch.
type watcher struct {
	stream grpc.ServerStreamingServer[registerpb.WatchResponse]
	seen   owner.Seen
}

// tell sends a state that is news to the watcher; of what it has already, that nothing has
// changed, if it is a beat. An earlier state says nothing of what it has.
func (w *watcher) tell(a *peerv1.AwaitRegisterResponse, beat bool) (err error) {
	m := &registerpb.WatchResponse{Epoch: a.Epoch, Owner: a.Owner, LostEpoch: a.LostEpoch, StaleAfterNs: int64(watchStale)}
	news := false
	//guard:watch-news
	if w.seen, news = w.seen.Then(sightOf(a)); news {
		m.Exists, m.Value, m.Version, m.Fence = a.Exists, a.Value, a.Position, a.Fence
	} else if m.Heartbeat = true; !beat || w.seen != sightOf(a) {
		return nil
	}
	return w.stream.Send(m)
}
