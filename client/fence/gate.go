package fence

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

const (
	// DefaultScopes is how many scopes a Gate remembers: with names of 16 bytes, about 10 MB.
	DefaultScopes = 65_536
	// DefaultWait is how long a request waits for those under smaller tokens.
	DefaultWait = 5 * time.Second
)

// Keeper keeps the greatest token of each scope where it outlives a process. Package keeper
// has one that keeps them in a register of Keystead.
type Keeper interface {
	// Raise remembers a token of a scope. The error is ErrStale if a greater one has been
	// raised; then nothing changes. All of it is one step.
	Raise(ctx context.Context, scope string, token uint64) error
}

// Config is how a Gate works. The zero Config is a good one.
type Config struct {
	// Scopes is how many scopes are remembered. None is ever forgotten, for a late holder may
	// come at any time; a request in one more is ErrFull. 0 = DefaultScopes.
	Scopes int
	// Wait is how long a request waits for those under smaller tokens to leave; then it is
	// ErrBusy. 0 = DefaultWait.
	Wait time.Duration
	// Keeper is asked about each request that the process would let in. nil = nobody: when
	// the process is started anew, a late holder may pass until the next one has come again.
	Keeper Keeper
}

// Gate lets requests in by their fencing tokens, in each scope by itself. What a request does
// must be over when it leaves.
//
// Comparing alone would not do: a request could pass, be held up, and write when one under
// a greater token has written. So at any time all requests of a scope that are in have one
// token. When a greater one comes, smaller ones are refused from then on, the contexts of
// those that are in end, and it waits until they have left.
type Gate struct {
	cfg Config

	mu     sync.Mutex // guards what follows
	scopes map[string]*scope
}

// scope is what one lock protects.
type scope struct {
	greatest uint64 // Invariant: never falls
	in       *era   // nil = nobody is in. Invariant: in.token <= greatest
	changed  chan struct{}
}

// era is the requests of a scope that are in: all under one token.
type era struct {
	token    uint64
	requests int // Invariant: > 0
	ctx      context.Context
	end      context.CancelCauseFunc
}

// NewGate returns a gate that no request has come to.
func NewGate(cfg Config) *Gate {
	if cfg.Scopes <= 0 {
		cfg.Scopes = DefaultScopes
	}
	if cfg.Wait <= 0 {
		cfg.Wait = DefaultWait
	}
	return &Gate{cfg: cfg, scopes: map[string]*scope{}}
}

// Enter lets a request in, and may wait for that. It returns the context that the request has
// to go by, which ends with the cause ErrStale when a greater token comes, and what is to be
// called when it is over. Errors are ErrStale, ErrBusy, ErrFull, ErrInvalid, and those of
// the Keeper.
func (g *Gate) Enter(ctx context.Context, name string, token uint64) (in context.Context, leave func(), err error) {
	if err := errors.Join(judge(token), judgeScope(name)); err != nil {
		return nil, nil, err
	}
	waiting, cancel := context.WithTimeout(ctx, g.cfg.Wait)
	defer cancel()
	if err := g.remember(name, token); err != nil {
		return nil, nil, err
	}
	if g.cfg.Keeper != nil {
		//guard:fence-asks-the-keeper
		if err := g.cfg.Keeper.Raise(waiting, name, token); err != nil {
			return nil, nil, err
		}
	}
	e, err := g.await(waiting, name, token)
	if err != nil {
		return nil, nil, err
	}
	in, end := context.WithCancelCause(ctx)
	stop := context.AfterFunc(e.ctx, func() { end(context.Cause(e.ctx)) })
	return in, sync.OnceFunc(func() {
		stop()
		end(context.Canceled)
		g.leave(name, e)
	}), nil
}

// remember raises the greatest token of a scope.
func (g *Gate) remember(name string, token uint64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.scopes[name]
	if s == nil {
		if len(g.scopes) >= g.cfg.Scopes {
			return fmt.Errorf("%w: %d are remembered, and %q is another one", ErrFull, len(g.scopes), name)
		}
		s = &scope{}
		//guard:fence-keeps-scopes-alone strings.Clone(name) -> strings.TrimSpace(name)
		g.scopes[strings.Clone(name)] = s // it may be a part of a request that is much longer
	}
	//guard:fence-refuses-older
	if token < s.greatest {
		return &StaleError{name, token, s.greatest}
	}
	if token > s.greatest {
		s.greatest = token
		if s.in != nil {
			//guard:fence-ends-older
			s.in.end(&StaleError{name, s.in.token, token})
		}
		s.wakeLocked()
	}
	return nil
}

// await waits until no request under a smaller token is in, and joins those that are in.
func (g *Gate) await(ctx context.Context, name string, token uint64) (*era, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for s := g.scopes[name]; ; {
		//guard:fence-refuses-older
		if token < s.greatest {
			return nil, &StaleError{name, token, s.greatest}
		}
		if s.in == nil {
			s.in = &era{token: token}
			s.in.ctx, s.in.end = context.WithCancelCause(context.Background())
		}
		//guard:fence-waits-for-older true
		if s.in.token == token {
			s.in.requests++
			return s.in, nil
		}
		if s.changed == nil {
			s.changed = make(chan struct{})
		}
		changed := s.changed
		g.mu.Unlock()
		select {
		case <-changed:
			g.mu.Lock()
		case <-ctx.Done():
			g.mu.Lock()
			return nil, fmt.Errorf("%w: %q, token %d: %w", ErrBusy, name, token, ctx.Err())
		}
	}
}

// leave takes a request out of its era.
func (g *Gate) leave(name string, e *era) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if e.requests--; e.requests > 0 {
		return
	}
	e.end(context.Canceled)
	s := g.scopes[name]
	s.in = nil
	s.wakeLocked()
}

// wakeLocked has those that wait look again.
func (s *scope) wakeLocked() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}
