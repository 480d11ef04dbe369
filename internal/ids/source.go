package ids

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/keystead/keystead/internal/failure"
)

// claimTime bounds the wait for a block: longer than an election, so that a change of
// the leader is not seen by callers.
const claimTime = 2 * time.Second

// Config is what a Source needs.
type Config struct {
	// Claim returns an epoch that no process was given before or will be, greater
	// than all that were taken before it was called. It is called by one goroutine
	// at a time.
	Claim func(ctx context.Context) (epoch uint64, err error)
	// Now is the time in nanoseconds; only differences matter.
	Now func() int64
	// Log is where failures are said. Default: nowhere.
	Log *slog.Logger
}

// Source hands out ids. Its methods may be called from any goroutine.
type Source struct {
	cfg     Config
	ctx     context.Context // ends at Close
	stop    context.CancelFunc
	running sync.WaitGroup

	mu       sync.Mutex
	blocks   blocks    // guarded by mu
	claiming *claiming // guarded by mu: the one under way; nil = none
	closed   bool      // guarded by mu
}

// claiming is a call of Claim under way.
type claiming struct {
	done chan struct{} // closed when err is set
	err  error
}

// New returns a Source that has no block yet: the first call takes one.
func New(cfg Config) *Source {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Source{cfg: cfg}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// Close ends what is under way. Calls fail from then on.
func (s *Source) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	s.running.Wait()
}

// Next returns the first of n ids that follow each other; n is 1 to MaxCount. It
// waits only if there is no block at all. Errors: an *failure.Error, Unavailable if no
// block can be had, Invalid for n out of range; or the context's.
func (s *Source) Next(ctx context.Context, n int) (first uint64, err error) {
	if n < 1 || n > MaxCount {
		return 0, &failure.Error{Reason: failure.Invalid, Field: "count", Message: fmt.Sprintf("is %d; 1 to %d are allowed", n, MaxCount)}
	}
	var waited *claiming
	for {
		first, t, err := s.next(uint64(n), waited)
		if t == nil {
			return first, err
		}
		select {
		case <-t.done:
			waited = t
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// next takes ids, or returns what to wait for. waited is what the caller has waited
// for already.
func (s *Source) next(n uint64, waited *claiming) (first uint64, wait *claiming, err error) {
	now := s.cfg.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	first, ok := s.blocks.next(now, n)
	switch {
	case s.closed:
		return 0, nil, errClosed
	case !ok && waited != nil && waited.err != nil:
		return 0, nil, waited.err
	case s.claiming == nil && s.blocks.wanting(now):
		s.claim(now)
	}
	switch {
	case ok:
		return first, nil, nil
	case s.claiming != nil:
		return 0, s.claiming, nil
	}
	return 0, nil, errTooFast(s.blocks.pause(now))
}

// claim asks for a block, beside the callers. The caller holds mu.
func (s *Source) claim(now int64) {
	t := &claiming{done: make(chan struct{})}
	s.claiming = t
	s.running.Go(func() {
		ctx, cancel := context.WithTimeout(s.ctx, claimTime)
		defer cancel()
		epoch, err := s.cfg.Claim(ctx)
		if err != nil {
			s.cfg.Log.Info("no block of ids", "error", err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.claiming = nil
		if err == nil {
			s.blocks.came(epoch, now)
		}
		t.err = err
		close(t.done)
	})
}

var errClosed = &failure.Error{Reason: failure.Unavailable, RetryAfter: 500 * time.Millisecond,
	Message: "the node is stopping; no id was given", Hint: "ask another node"}

func errTooFast(retry time.Duration) error {
	return &failure.Error{Reason: failure.Unavailable, RetryAfter: max(retry, time.Millisecond),
		Message: fmt.Sprintf("this node gives at most %d ids a second; no id was given", int64(blockIDs/Interval.Seconds())),
		Hint:    "ask another node as well"}
}
