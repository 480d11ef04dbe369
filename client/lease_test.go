package client

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// permit is a grant of no kind that the program has.
type permit struct {
	began  time.Time
	answer func(ctx context.Context, attempt int) (renewed, error)
	had    bool // what the owner says of a release

	mu       sync.Mutex      // guards what follows
	renewals []time.Duration // when each attempt was made
	left     []time.Duration // what each was told of the lease
	released int
}

// seen returns when attempts were made, and what was left of the lease then.
func (p *permit) seen() (at, left []time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.renewals), slices.Clone(p.left)
}

// leased keeps a permit as client.Lock keeps a lock.
func (p *permit) leased(t *testing.T, c *Client, ttl time.Duration) *lease {
	t.Helper()
	p.began = time.Now()
	l := c.newLease(context.Background(), grant{
		what: "permit", undo: "return", key: "k", token: 7, ttl: ttl, margin: ttl / marginPart,
		renew: func(ctx context.Context, _ *grpc.ClientConn, left time.Duration, _ ...grpc.CallOption) (renewed, error) {
			p.mu.Lock()
			p.renewals, p.left = append(p.renewals, time.Since(p.began)), append(p.left, left)
			attempt := len(p.renewals)
			p.mu.Unlock()
			return p.answer(ctx, attempt)
		},
		release: func(context.Context, releasing) (bool, error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.released++
			return p.had, nil
		},
	}, c.clock.Now()+int64(ttl))
	if !c.start(l.keep) {
		t.Fatal("the client is closed")
	}
	return l
}

func answers(a renewed) func(context.Context, int) (renewed, error) {
	return func(context.Context, int) (renewed, error) { return a, nil }
}

// TestLeaseIsRenewed: whatever was granted is renewed a third of its TTL after the send
// that counts, and given back once.
func TestLeaseIsRenewed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const ttl = 9 * time.Second
		p := &permit{answer: answers(renewed{held: true}), had: true}
		l := p.leased(t, build(t, []string{"n1"}, nil).client(Config{}, "n1"), ttl)
		time.Sleep(10 * time.Second)
		at, left := p.seen()
		if want := []time.Duration{3 * time.Second, 6 * time.Second, 9 * time.Second}; !slices.Equal(at, want) || !l.held() {
			t.Errorf("renewed after %v, held %v", at, l.held())
		}
		if want := []time.Duration{6 * time.Second, 6 * time.Second, 6 * time.Second}; !slices.Equal(left, want) {
			t.Errorf("it was told of %v", left)
		}
		over := errors.New("over")
		for range 2 {
			if err := l.giveBack(soon(t), "", over); err != nil {
				t.Error(err)
			}
		}
		if p.released != 1 || l.held() || context.Cause(l.context()) != over {
			t.Errorf("released %d times; %v", p.released, context.Cause(l.context()))
		}
	})
}

// TestLeaseIsReclaimed: what an owner took back lasts no longer than before, and is
// renewed at once.
func TestLeaseIsReclaimed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := &permit{answer: func(_ context.Context, attempt int) (renewed, error) {
			return renewed{held: true, reclaimed: attempt == 1}, nil
		}}
		l := p.leased(t, build(t, []string{"n1"}, nil).client(Config{}, "n1"), 9*time.Second)
		time.Sleep(4 * time.Second)
		at, _ := p.seen()
		if want := []time.Duration{3 * time.Second, 3 * time.Second}; !slices.Equal(at, want) || l.rest() != 8*time.Second {
			t.Errorf("renewed after %v, %v left", at, l.rest())
		}
	})
}

// TestLeaseIsLost: the owner says so, or does not answer until the margin begins. Then the
// cause names the last error.
func TestLeaseIsLost(t *testing.T) {
	const ttl = 10 * time.Second
	for name, tt := range map[string]struct {
		answer func(context.Context, int) (renewed, error)
		after  time.Duration
		says   string
	}{
		"another has it": {answers(renewed{holder: &Holder{ID: "other"}}), ttl / renewPart, "or another holder has it"},
		"no answer": {func(ctx context.Context, _ int) (renewed, error) {
			<-ctx.Done()
			return renewed{}, ctx.Err()
		}, ttl - ttl/marginPart, "could not be renewed in time: no answer in time"},
		"refused": {func(context.Context, int) (renewed, error) {
			return renewed{}, status.Error(codes.Unavailable, "no lease")
		}, ttl - ttl/marginPart, "could not be renewed in time: no lease"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p := &permit{answer: tt.answer}
				l := p.leased(t, build(t, []string{"n1"}, nil).client(Config{}, "n1"), ttl)
				<-l.context().Done()
				var e *Error
				if cause := context.Cause(l.context()); !errors.Is(cause, ErrLockLost) || !errors.As(cause, &e) || !strings.Contains(cause.Error(), tt.says) || e.Op != "permit" {
					t.Errorf("the cause is %v", cause)
				}
				if took := time.Since(p.began); took != tt.after {
					t.Errorf("after %v, want %v", took, tt.after)
				}
				if at, _ := p.seen(); len(at) < 3 && tt.after > ttl/2 {
					t.Errorf("it was tried at %v only", at)
				}
				if err := l.giveBack(soon(t), "", ErrReleased); !errors.Is(err, ErrLockLost) {
					t.Errorf("given back: %v", err)
				}
			})
		})
	}
}

// TestSuspendedMachine: timers stand still while the machine is suspended. The end of a
// lease is noticed soon after it goes on, though nobody asks.
func TestSuspendedMachine(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		jump := &jumping{base: w.clock}
		c := w.client(Config{}, "n1")
		c.clock = jump
		const ttl = 10 * time.Second
		l := (&permit{answer: answers(renewed{held: true})}).leased(t, c, ttl)
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		jump.by.Store(int64(time.Hour))
		began := time.Now()
		<-l.inner.Done()
		if took := time.Since(began); took > ttl/watchPart {
			t.Errorf("noticed after %v", took)
		}
		if cause := context.Cause(l.inner); !errors.Is(cause, ErrLockLost) || !strings.Contains(cause.Error(), "stood still") {
			t.Errorf("the cause is %v", cause)
		}
	})
}
