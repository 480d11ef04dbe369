package rpc

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/forward"
	"github.com/keystead/keystead/owner"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
)

// A watch of an object is a stream of this node. All of its watches of one object share a
// topic, which asks the owner, again and again, for what is news to it: that is a read
// as any other, which waits for the copies and is confirmed, at whichever node owns the key
// by then. The owner answers when the object has changed, or after a beat.
//
//	stream ─┐            one await at a time
//	stream ─┼─▶ topic ──────────────────────▶ owner: AwaitRegister, AwaitElection, …
//	stream ─┘  latest ◀────────────────────── the object, or nothing new
//
// Nothing is queued for a stream: one that is slow is sent the latest when it has taken what
// was before.
//
// A kind of object is watched if it can tell a state and where that is among its changes
// (owner.Seen): it has an operation of nodes that awaits, and a stream that follows a topic.

const (
	// MaxObjectWatches is how many watches of objects a node has at most: each is a stream
	// of some 20 KB, and holds up to two states.
	MaxObjectWatches = 1 << 15
	// watchBeat is how long the owner waits for a change: so often, a watcher hears that its
	// state is the latest.
	watchBeat = time.Second
	// beatSpread is by which part of it a beat may be longer, at random: many watches that began
	// at once, such as those of a node that has just come back, do not ask at once for ever.
	beatSpread = 8
	// watchStale is when a watcher that hears nothing has to take its state for stale: a lease.
	watchStale = 2 * time.Second
	// watchPatience is how long an await may take beyond its beat.
	watchPatience = time.Second
	// maxWatchedBytes bounds the states that are watched at a node, all together: the latest of
	// each object. A long one that finds no room has its watches end.
	maxWatchedBytes = 256 << 20
	// awaitsShare is the part of Config.MaxCalls that may await at an owner: who watches keeps
	// nobody else out. To those beyond it the owner says at once whether something is new, and
	// their nodes ask a beat later.
	awaitsShare = 4
	// watchRate is how many bytes of states a second a node asks an owner for at most, for one
	// object: all of a state that is often changed comes each time. A state of up to freeState
	// is no burden.
	watchRate = 16 << 20
	freeState = 64 << 10
	// watchPause is the rest after an await that failed.
	watchPause = 50 * time.Millisecond
)

var errObjectWatches = &failure.Error{Reason: failure.Overloaded, RetryAfter: time.Second,
	Message: "as many watch objects as this node allows",
	Hint:    "watch at another node, or read the object from time to time"}

// errFuture returns the error of a watch after a version that the object has not come to: a
// watcher that has it was told of another object, or of what was lost since. It would be told nothing.
func errFuture(after uint64) error {
	return &failure.Error{Reason: failure.Invalid, Field: "after_version", Message: fmt.Sprintf("is %d, above all versions that the object has had", after),
		Hint: "send the version that an earlier watch of this very object told, or none"}
}

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
func seenOf(s *peerv1.Seen) owner.Seen {
	return owner.Seen{Position: s.GetPosition(), Exists: s.GetExists(), Unknown: s.GetUnknown()}
}

// wireSeen returns what a node says that it has seen; nil for nothing.
func wireSeen(s owner.Seen) *peerv1.Seen {
	if s == (owner.Seen{}) {
		return nil
	}
	return &peerv1.Seen{Position: s.Position, Exists: s.Exists, Unknown: s.Unknown}
}

// awaitNews looks at an object until it is news to a node, or the wait of a request is over.
// look returns what is closed when the object may be news, nil if it is, and in how many ns
// time alone may make it so, 0 if it does not.
func (s *Server) awaitNews(f frame, look func(now int64) (changed <-chan struct{}, due int64, err error)) (news bool, err error) {
	over := time.NewTimer(time.Duration(f.wait))
	defer over.Stop()
	//guard:awaits-share s.awaits.Add(1) -> int64(1)
	many := s.awaits.Add(1) > s.cfg.MaxCalls/awaitsShare
	defer s.awaits.Add(-1)
	for last := f.wait <= 0 || many; ; {
		changed, due, err := look(s.cfg.Clock.Now())
		if err != nil || changed == nil || last {
			return changed == nil, err
		}
		//guard:await-in-time due <= 0 -> true
		if due <= 0 {
			due = f.wait + 1 // not before the wait is over
		}
		spent := time.NewTimer(time.Duration(due))
		select {
		case <-changed:
		case <-spent.C:
		case <-over.C:
			last = true
		case <-f.ctx.Done():
			err = gaveUp(f.ctx)
		case <-s.stopping:
			err = errStopping
		}
		if spent.Stop(); err != nil {
			return false, err
		}
	}
}

// watches are those of the objects of one kind at a node. A is what its owner answers an await.
type watches[A any, PA response[A]] struct {
	s     *Server
	await *op[peerv1.AwaitRequest, A, *peerv1.AwaitRequest, PA]
	sight func(a *A) owner.Seen // what an answer shows
	// whole completes an answer that says no more than that nothing is new, by the one
	// before it; nil = all answers are whole.
	whole   func(before, a *A) *A
	running sync.WaitGroup // topics

	mu     sync.Mutex
	topics map[watched]*topic[A] // guarded by mu
}

// watched is an object that is watched.
type watched struct{ key, name string }

// topic is what all watches of one object at this node share.
type topic[A any] struct {
	of      watched
	streams int // guarded by watches.mu
	stop    context.CancelFunc
	now     atomic.Pointer[heard[A]]
}

// heard is what a topic has heard last. It does not change.
type heard[A any] struct {
	answer *A    // nil = nothing yet
	asked  int64 // when the owner was asked for it, by Config.Clock
	seen   owner.Seen
	err    error         // that ends all watches; nil = go on
	next   chan struct{} // closed when something else was heard
}

// join returns the topic of an object, which asks for it as long as somebody watches.
func (w *watches[A, PA]) join(of watched) *topic[A] {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.topics[of]
	if t == nil {
		ctx, cancel := context.WithCancel(context.Background())
		t = &topic[A]{of: of, stop: cancel}
		t.now.Store(&heard[A]{next: make(chan struct{})})
		if w.topics == nil {
			w.topics = map[watched]*topic[A]{}
		}
		w.topics[of] = t
		w.running.Go(func() { w.run(ctx, t) })
	}
	t.streams++
	return t
}

func (w *watches[A, PA]) leave(t *topic[A]) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t.streams--; t.streams == 0 {
		w.removeLocked(t)
		t.stop()
	}
}

// removeLocked has those that come from now on begin anew.
func (w *watches[A, PA]) removeLocked(t *topic[A]) {
	if w.topics[t.of] == t {
		delete(w.topics, t.of)
	}
}

// stopped waits for the end of all topics, whose server stops.
func (w *watches[A, PA]) stopped() { w.running.Wait() }

// run asks the owner until nobody watches.
func (w *watches[A, PA]) run(ctx context.Context, t *topic[A]) {
	kept := 0 // bytes of the latest answer
	defer func() { w.s.watched.Add(int64(-kept)) }()
	for ctx.Err() == nil {
		was, began := t.now.Load(), time.Now()
		//guard:watch-spread rand.N(watchBeat/beatSpread) -> 0*rand.N(watchBeat/beatSpread)
		wait := watchBeat + rand.N(watchBeat/beatSpread)
		now := w.hear(ctx, t.of, was, wait)
		if now == nil { // no beat: the watchers' state gets stale
			if !rest(ctx, w.s, watchPause) {
				return
			}
			continue
		}
		size := PA(now.answer).SizeVT()
		w.s.watched.Add(int64(size - kept))
		//guard:watch-bytes
		if kept = size; kept >= longValue && now.err == nil && w.s.watched.Load() > maxWatchedBytes {
			now.err = w.s.refuse(errObjectWatches)
		}
		if now.err != nil {
			w.mu.Lock()
			w.removeLocked(t) //guard:watch-topic-over
			w.mu.Unlock()
		}
		t.now.Store(now)
		close(was.next)
		if now.err != nil {
			return
		}
		//guard:watch-rate size > freeState -> false
		if now.seen != was.seen && size > freeState && !rest(ctx, w.s, time.Duration(size)*time.Second/watchRate) {
			return
		}
		// An owner for which many wait answers at once that there is nothing new.
		if left := wait - time.Since(began); now.seen == was.seen && left > 0 && !rest(ctx, w.s, left) {
			return
		}
	}
}

// hear returns what is known of an object after the owner has answered once more, within a wait if
// nothing is new; nil if it has not.
func (w *watches[A, PA]) hear(ctx context.Context, of watched, was *heard[A], wait time.Duration) *heard[A] {
	now := &heard[A]{answer: was.answer, asked: w.s.cfg.Clock.Now(), seen: was.seen, next: make(chan struct{})}
	a, err := w.ask(ctx, of, was.seen, wait)
	//guard:await-whole err == nil && w.whole != nil && was.answer != nil -> false
	if err == nil && w.whole != nil && was.answer != nil {
		a = w.whole(was.answer, a)
	}
	switch {
	case err == nil:
		// Also if that is an earlier state, from an owner that has lost the latest one: a
		// watcher that has that is told nothing then, and not that it is the latest.
		//guard:watch-topic-order
		now.answer, now.seen = a, w.sight(a)
	case reasonIn(err) == reasonName(commonpb.Reason_REASON_KIND_MISMATCH):
		now.err = err // somebody has made another object under the name
	default:
		return nil
	}
	return now
}

// fresh reports whether what was asked for at a moment is late enough to be told as the latest:
// this node may have been paused since.
func (w *watches[A, PA]) fresh(asked int64) bool {
	//guard:watch-fresh true
	return w.s.cfg.Clock.Now()-asked <= int64(watchBeat+watchPatience)
}

// ask has the owner answer once, after a wait if nothing is new.
func (w *watches[A, PA]) ask(ctx context.Context, of watched, seen owner.Seen, wait time.Duration) (*A, error) {
	ctx, cancel := context.WithTimeout(ctx, watchBeat+watchPatience)
	defer cancel()
	return w.await.atOwner(ctx, w.s, &peerv1.AwaitRequest{Key: of.key, Name: of.name, Seen: wireSeen(seen), WaitNs: int64(wait)})
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

// follow serves a stream: send is given what is news to a watcher, after the version of what it
// has from before (0 = nothing), and of what it has already, that nothing has changed.
func (w *watches[A, PA]) follow(ctx context.Context, key, name string, after uint64, send func(a *A, news bool) error) error {
	s := w.s
	defer s.watching.Add(-1)
	//guard:watch-bound
	if s.watching.Add(1) > MaxObjectWatches {
		return s.refuse(errObjectWatches)
	}
	if err := s.levelOf(w.await.operation); err != nil {
		return s.refuse(err)
	}
	// What the stream begins with is a read of its own: the topic may have heard from the
	// owner before this watch began.
	asked := s.cfg.Clock.Now()
	first, err := w.await.atOwner(ctx, s, &peerv1.AwaitRequest{Key: key, Name: name})
	if err != nil {
		return err
	}
	//guard:watch-of-the-future
	if sees := w.sight(first); after > sees.Position {
		return s.refuse(errFuture(after))
	}
	t := w.join(watched{key, w.await.of.named(name)})
	defer w.leave(t)
	to := watcher[A]{sight: w.sight, send: send}
	if after != 0 {
		to.seen = owner.Seen{Position: after, Exists: true}
	}
	if w.fresh(asked) {
		err = to.tell(first, true)
	}
	for at, beat := t.now.Load(), false; err == nil; at, beat = t.now.Load(), true {
		if at.err != nil {
			return at.err
		}
		if at.answer != nil && w.fresh(at.asked) {
			if err = to.tell(at.answer, beat); err != nil {
				return err
			}
		}
		select {
		case <-at.next:
		case <-s.stopping:
			return s.refuse(errStopping)
		case <-ctx.Done():
			return Status(gaveUp(ctx))
		}
	}
	return err
}

// watcher is a stream of a watch.
type watcher[A any] struct {
	sight func(*A) owner.Seen
	send  func(a *A, news bool) error
	seen  owner.Seen
}

// tell sends a state that is news to the watcher; of what it has already, that nothing has
// changed, if it is a beat. An earlier state says nothing of what it has.
func (w *watcher[A]) tell(a *A, beat bool) error {
	news := false
	//guard:watch-news
	if w.seen, news = w.seen.Then(w.sight(a)); !news && (!beat || w.seen != w.sight(a)) {
		return nil
	}
	return w.send(a, news)
}
