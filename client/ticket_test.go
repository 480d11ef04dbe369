package client

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
)

// knowing is a cluster of one node at its level, which knows all keys of the window.
func knowing(t *testing.T) *town {
	w := build(t, []string{"n1"}, nil)
	w.agree()
	time.Sleep(10 * time.Minute)
	synctest.Wait()
	return w
}

// TestTicket: a place stands for another process under the same key, in the order in which they came,
// until it is fetched or left.
func TestTicket(t *testing.T) {
	bubble(t, func(t *testing.T) {
		net := knowing(t)
		first := must(net.client(Config{}, "n1").Lock("").Acquire(soon(t), "k"))(t)
		ask := func(key string, opts ...LockOption) (*HeldLock, *Error) {
			t.Helper()
			c := net.client(Config{}, "n1") // another process
			defer c.Close()
			held, err := c.Lock("").Acquire(soon(t), "k", append([]LockOption{IdempotencyKey(key), TTL(time.Minute), Wait(0)}, opts...)...)
			var e *Error
			if err != nil && !errors.As(err, &e) {
				t.Fatal(err)
			}
			return held, e
		}
		for range 2 {
			for i, key := range []string{"b", "c"} {
				if _, e := ask(key, Ticket(time.Hour)); !errors.Is(e, ErrLockHeld) || !e.Waiting || e.Place != i+1 {
					t.Fatalf("%s: %+v", key, e)
				}
			}
		}
		if _, e := ask("b", Ticket(time.Hour), Wait(2*time.Second)); e == nil || !e.Waiting || e.Place != 1 {
			t.Errorf("one that waits: %+v", e)
		}
		if err := first.Release(soon(t)); err != nil {
			t.Fatal(err)
		}
		if _, e := ask("c", Ticket(time.Hour)); e == nil || !e.Waiting || e.Place != 2 {
			t.Errorf("one that would pass: %+v", e)
		}
		if held, e := ask("c"); held != nil || !errors.Is(e, ErrLockHeld) || e.Waiting {
			t.Errorf("one that leaves: %+v", e)
		}
		if held, e := ask("b", Ticket(time.Hour)); e != nil || held.Token() <= first.Token() {
			t.Errorf("the first one: %+v", e)
		}
	})
}

// TestTicketOfPermits: as of locks.
func TestTicketOfPermits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := knowing(t).client(Config{}, "n1")
		s := c.Semaphore("", 2)
		first := must(s.Acquire(soon(t), "k", 2))(t)
		opts := []LockOption{IdempotencyKey("b"), TTL(time.Minute), Ticket(time.Hour), Wait(0)}
		var e *Error
		if _, err := s.Acquire(soon(t), "k", 1, opts...); !errors.As(err, &e) || !errors.Is(err, ErrNoPermits) || !e.Waiting || e.Place != 1 {
			t.Errorf("%v", err)
		}
		if err := first.Release(soon(t)); err != nil {
			t.Fatal(err)
		}
		if p, err := s.Acquire(soon(t), "k", 1, opts...); err != nil || p.Token() <= first.Token() {
			t.Errorf("%v", err)
		}
	})
}

// TestTicketsAreJudged: one that nobody could find again, or that stands for too long, is not sent.
func TestTicketsAreJudged(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := knowing(t).client(Config{}, "n1")
		for what, opts := range map[string][]LockOption{
			"no key":    {Ticket(time.Hour)},
			"too short": {IdempotencyKey("b"), Ticket(time.Millisecond)},
			"too long":  {IdempotencyKey("b"), Wait(time.Hour), Ticket(24 * time.Hour)},
		} {
			if _, err := c.Lock("").Acquire(soon(t), "k", opts...); !errors.Is(err, ErrInvalid) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if held, err := c.Lock("").Acquire(soon(t), "k", IdempotencyKey("b"), Ticket(24*time.Hour)); err != nil {
			t.Error(err)
		} else if err := held.Release(context.WithoutCancel(soon(t))); err != nil {
			t.Error(err)
		}
	})
}

// TestTicketOfBefore: a node of before level 7 leaves the ticket out. Its refusal is not that of a
// place that stands, nor one that says that another has the lock, and no more.
func TestTicketOfBefore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := knowing(t)
		must(w.client(Config{}, "n1").Lock("").Acquire(soon(t), "k"))(t)
		must(w.client(Config{}, "n1").Semaphore("", 1).Acquire(soon(t), "k", 1))(t)
		c := w.client(Config{DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(ofBefore)}}, "n1")
		for i, wait := range []time.Duration{0, time.Second} {
			opts := []LockOption{IdempotencyKey(string(rune('b' + i))), Ticket(time.Hour), Wait(wait)}
			if _, err := c.Lock("").Acquire(soon(t), "k", opts...); !errors.Is(err, ErrUnavailable) {
				t.Errorf("a lock, after %s: %v", wait, err)
			}
			if _, err := c.Semaphore("", 1).Acquire(soon(t), "k", 1, opts...); !errors.Is(err, ErrUnavailable) {
				t.Errorf("a semaphore, after %s: %v", wait, err)
			}
		}
		if _, err := c.Lock("").Acquire(soon(t), "other", IdempotencyKey("b"), Ticket(time.Hour)); err != nil {
			t.Errorf("one that is free: %v", err)
		}
	})
}

// TestTicketWaitsForLong: an Acquire without a Wait outlasts what a queue has waits for, with a ticket
// as without a key, however long that is.
func TestTicketWaitsForLong(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := knowing(t)
		first := must(w.client(Config{}, "n1").Lock("").Acquire(soon(t), "k"))(t)
		c := w.client(Config{}, "n1")
		var acquired [2]time.Duration
		var all sync.WaitGroup
		began := time.Now()
		for i, ticket := range []time.Duration{24*time.Hour - 2*time.Minute, 24 * time.Hour} {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
				defer cancel()
				held, err := c.Lock("").Acquire(ctx, "k", IdempotencyKey(string(rune('b'+i))), Ticket(ticket))
				if acquired[i] = time.Since(began); err != nil || held.Release(ctx) != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(5 * time.Minute)
		if err := first.Release(soon(t)); err != nil {
			t.Error(err)
		}
		all.Wait()
		for i, after := range acquired {
			if after < 5*time.Minute {
				t.Errorf("%d: after %s", i, after)
			}
		}
	})
}
