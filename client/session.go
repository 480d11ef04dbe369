package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	sessionpb "github.com/keystead/keystead/proto/keystead/session/v1"
)

// DefaultSessionTTL is how long what a session holds outlives a process that died.
const DefaultSessionTTL = 15 * time.Second

// Session keeps all that is acquired under it alive together: one message to each node that
// owns some of it, at a third of the TTL, however much that is. When any of it is lost, all of
// it is given back, and the session is over: see Done.
//
// Each grant has its own lease at its own owner, and is over there at its own moment. No two of
// them end as one: what has to, belongs under one key. What has to live on without the rest is
// kept in another session.
type Session struct {
	c           *Client
	wire        *commonpb.Session
	ttl, margin time.Duration
	holder      string

	ctx   context.Context // ends with the session, with the cause why
	stop  context.CancelCauseFunc
	nudge chan struct{} // capacity 1: there may be something to renew
	ran   chan struct{} // closed when nothing is renewed any more

	mu      sync.Mutex         // guards what follows
	held    map[*lease]uint64  // what it holds, with the hash that names it
	leaving map[uint64]int     // what is being released, by hash: how many calls are under way
	calls   map[object]int     // Acquires that are under way
	quiet   chan struct{}      // closed when there are none, if the session is over
	rest    []*lease           // what it held when it was over, until Close has given it back
	keepers map[string]*keeper // by address of a node; "" = that is not known
}

// Session begins a session. It outlives ctx, and inherits its values but not its end. TTL, 10 s
// to 24 h, and Margin are those of all that is acquired under it, by default DefaultSessionTTL
// and a tenth of the TTL; HeldBy is how it is shown to others. Nodes refuse a TTL in which no
// owner is replaced when something is acquired. Close the session when it is no longer needed. It
// needs a cluster of level 7: until all nodes are upgraded, acquiring under it is ErrUnavailable.
func (c *Client) Session(ctx context.Context, opts ...LockOption) (*Session, error) {
	const what = "session"
	if err := c.callable(ctx); err != nil {
		return nil, about(err, what, "", "")
	}
	o := Lock{c: c}.options(append([]LockOption{TTL(DefaultSessionTTL)}, opts...))
	err := o.validate()
	switch {
	case err != nil:
	case o.wait != forever || o.metadata != nil || o.idem.given || o.shared || o.delay != 0:
		err = invalid("Session", "takes TTL, Margin and HeldBy; the rest goes to Acquire")
	}
	if err != nil {
		return nil, about(err, what, "", "")
	}
	s := &Session{c: c, ttl: o.ttl, margin: o.margin, holder: o.holder,
		wire:  &commonpb.Session{Client: c.waits.client[:], Generation: c.generation.Add(1)},
		nudge: make(chan struct{}, 1), ran: make(chan struct{}),
		held: map[*lease]uint64{}, leaving: map[uint64]int{}, calls: map[object]int{}, keepers: map[string]*keeper{}}
	s.ctx, s.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	if !c.start(s.run) {
		return nil, about(errClosed(), what, "", "")
	}
	return s, nil
}

// named returns the session as requests name it, nil if there is none.
func (s *Session) named() *commonpb.Session {
	if s == nil {
		return nil
	}
	return s.wire
}

// Done is closed when the session is over: something that it held was lost, or it was closed.
// It closes before the lease of anything that it holds runs out at its owner, unless this
// process stands still; a program that must not write late gives its token to what it writes.
func (s *Session) Done() <-chan struct{} { return s.ctx.Done() }

// Err returns why the session is over: ErrLockLost, ErrReleased after Close, ErrClosed after
// Client.Close; nil while it lives. It looks at the clock: a process that was stopped and goes
// on sees here that its time is over.
func (s *Session) Err() error {
	for _, l := range s.leases() {
		l.held()
	}
	if s.ctx.Err() == nil {
		return nil
	}
	return context.Cause(s.ctx)
}

// Lock is Client.Lock for what this session keeps alive: see Semaphore.
func (s *Session) Lock(name string) Lock { return Lock{c: s.c, name: name, session: s} }

// Semaphore is Client.Semaphore for what this session keeps alive: Acquire takes no TTL and no
// Margin, which are the session's, and no IdempotencyKey.
func (s *Session) Semaphore(name string, capacity int) Semaphore {
	return Semaphore{c: s.c, name: name, capacity: capacity, session: s}
}

// Election is Client.Election for terms that this session keeps alive: see Semaphore.
func (s *Session) Election(name string) Election { return Election{c: s.c, name: name, session: s} }

// Held returns how much the session holds.
func (s *Session) Held() int { return len(s.leases()) }

// Close ends the session: it lets its own Acquires give up and waits for them, and then releases
// all that it holds. After an error some of it may be held until its TTL is over; Close may be
// called again.
func (s *Session) Close(ctx context.Context) error {
	const what = "end session"
	if err := s.c.callable(ctx); err != nil {
		return about(err, what, "", "")
	}
	s.over(&Error{Op: "session", Code: codes.Canceled, Reason: ErrReleased, Message: "the session was closed"})
	select {
	case <-s.ran:
	case <-ctx.Done():
	}
	select {
	case <-s.settled():
	case <-ctx.Done(): // what they are granted yet ends with its TTL
	}
	s.mu.Lock()
	rest := s.rest
	s.mu.Unlock()
	released, err := s.end(ctx)
	//guard:client-session-close-by-key
	if released < len(rest) {
		err = cmp.Or(s.releaseAll(ctx, rest), err)
	}
	if err == nil {
		s.mu.Lock()
		s.rest = nil
		s.mu.Unlock()
	}
	return err
}

// end tells all nodes that the session is over, and returns how much was released by that. It may
// be less than it held: an End finds nothing where a node may not act, or a key is moving.
func (s *Session) end(ctx context.Context) (released int, err error) {
	r, err := ask(ctx, s.c, route{reads: true, what: "end session"}, nil, func(ctx context.Context, conn *grpc.ClientConn, _ *commonpb.RequestId, opts ...grpc.CallOption) (ended, error) {
		r, err := sessionpb.NewSessionServiceClient(conn).End(ctx, &sessionpb.EndRequest{Session: s.wire, Everywhere: true}, opts...)
		return ended{r}, err
	})
	if err != nil {
		return 0, err
	}
	if nodes := r.GetUnanswered(); len(nodes) > 0 {
		err = &Error{Op: "end session", Node: r.GetNode(), Code: codes.Unavailable, Reason: ErrUnavailable,
			Message: fmt.Sprintf("%s could not be told; what the session holds there is over when its TTL is", strings.Join(nodes, ", "))}
	}
	return int(r.GetReleased()), err
}

// releaseAll releases grants by their keys, and returns the first error. One that is over by now is
// none.
func (s *Session) releaseAll(ctx context.Context, all []*lease) error {
	var calls sync.WaitGroup
	var mu sync.Mutex // guards first
	var first error
	slots := make(chan struct{}, maxByKey)
	for _, l := range all {
		slots <- struct{}{}
		calls.Go(func() {
			defer func() { <-slots }()
			if _, err := l.release(ctx, releasing{left: l.rest, quiet: true}); err != nil {
				mu.Lock()
				first = cmp.Or(first, err)
				mu.Unlock()
			}
		})
	}
	calls.Wait()
	return first
}

// ended is the answer to an End. It is of no owner.
type ended struct{ *sessionpb.EndResponse }

func (ended) GetOwner() string { return "" }
func (ended) GetEpoch() uint64 { return 0 }

// over ends the session with a cause; only the first counts. It reports whether it was that.
func (s *Session) over(cause error) bool {
	s.mu.Lock()
	first := s.ctx.Err() == nil
	if first {
		s.stop(cause)
		s.rest = slices.Collect(maps.Keys(s.held))
	}
	s.mu.Unlock()
	if first {
		for _, l := range s.leases() {
			l.finish(cause)
		}
	}
	return first
}

// lost ends the session because something that it held was lost, and releases the rest.
func (s *Session) lost(cause error) {
	if !s.over(cause) {
		return
	}
	s.mu.Lock()
	s.rest = nil // what is lost is nobody's to release
	s.mu.Unlock()
	s.c.start(func() {
		<-s.settled()
		ctx, cancel := s.c.bounded(s.c.ctx, s.c.cfg.Timeout)
		defer cancel()
		if _, err := s.end(ctx); err != nil {
			s.c.cfg.Log.Warn("what a session held could not be released everywhere; it is over when its TTL is", "err", err)
		}
	})
}

// leases returns what the session holds.
func (s *Session) leases() []*lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*lease, 0, len(s.held))
	for l := range s.held {
		all = append(all, l)
	}
	return all
}

// settled is closed when no Acquire of the session is under way. It is over.
func (s *Session) settled() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.quiet == nil {
		s.quiet = make(chan struct{})
		if len(s.calls) == 0 {
			close(s.quiet)
		}
	}
	return s.quiet
}

// enter counts an Acquire in. Its context ends with the session. leave is to be called when no
// answer to it can come any more.
func (s *Session) enter(ctx context.Context, o object) (_ context.Context, leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return ctx, nil, s.gone()
	}
	s.calls[o]++
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	return ctx, sync.OnceFunc(func() {
		stop()
		cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.calls[o]--; s.calls[o] == 0 {
			delete(s.calls, o)
		}
		if len(s.calls) == 0 && s.quiet != nil {
			close(s.quiet)
		}
	}), nil
}

// gone is the error of an Acquire under a session that is over.
func (s *Session) gone() *Error {
	e := &Error{Code: codes.Aborted, Reason: ErrLockLost, Message: "the session is over", cause: context.Cause(s.ctx)}
	if why := (*Error)(nil); errors.As(e.cause, &why) {
		e.Code, e.Reason = why.Code, why.Reason
	}
	return e
}

// keeps makes the session keep a lease alive; false if it is over.
func (s *Session) keeps(l *lease, hash uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return false
	}
	l.session, l.hash = s, hash
	close(l.kept)
	s.held[l] = hash
	s.wake()
	return true
}

// finished is called when a lease of the session has ended.
func (s *Session) finished(l *lease) {
	s.mu.Lock()
	delete(s.held, l)
	s.mu.Unlock()
	if cause := context.Cause(l.inner); errors.Is(cause, ErrLockLost) {
		s.lost(cause)
	}
}

// releases counts the release of a lease in; done is to be called when it has ended.
func (s *Session) releases(l *lease) (done func()) {
	if s == nil {
		return func() {}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaving[l.hash]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.leaving[l.hash]--; s.leaving[l.hash] == 0 {
			delete(s.leaving, l.hash)
		}
	}
}

// wake has run look again.
func (s *Session) wake() {
	select {
	case s.nudge <- struct{}{}:
	default:
	}
}

// take completes the options of an Acquire under the session.
func (s *Session) take(o *lockOptions) error {
	switch {
	case o.ttl != 0 || o.margin != -1:
		return invalid("TTL", "and Margin are the session's")
	case o.idem.given:
		return invalid("IdempotencyKey", "goes with no session: it is for another process to go on with the grant")
	}
	o.ttl, o.margin, o.holder = s.ttl, s.margin, cmp.Or(o.holder, s.holder)
	return nil
}
