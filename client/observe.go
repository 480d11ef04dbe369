package client

import (
	"context"
	"sync/atomic"
	"time"
)

// Observer is told of every call of a client: to count it, to time it, to trace it. Packages
// keysteadprom and keysteadotel have observers for Prometheus and OpenTelemetry. Its methods
// may be called from any goroutine, and calls wait for them.
//
// A call is what the program asked for, with all its attempts. Renewals of locks, which go on
// by themselves, are none.
type Observer interface {
	// Begin is called when a call begins. The call goes on with the context that it
	// returns. Calls that are gathered into one message are sent without the context of
	// any of them.
	Begin(ctx context.Context, call Call) context.Context
	// End is called when the call is over, with the context that Begin returned.
	End(ctx context.Context, call Call, o Outcome)
}

// Call is what was asked for.
type Call struct {
	// Op is the operation, one of a few words, as in Error.Op: "check", "add", "lock" …
	Op string
	// Key is what it is about; "" for batches, and for what has no key. There may be as
	// many as a program has users: nothing to label a metric with.
	Key string
	// Items is how many there are in a batch; 0 = it is none.
	Items int
}

// Outcome is how a call ended.
type Outcome struct {
	// Err is why there is no answer; nil = there is one. Use errors.As for an *Error.
	Err error
	// Refused is how many answers say no: a check that is denied, an add that was not
	// applied. At most 1, but for a batch. A Peek is never refused.
	Refused int
	// Failed is how many items of a batch have an error of their own.
	Failed int
	// Attempts is how often it was tried, at one node after the other; 0 = it did not
	// come so far. Not counted for batches.
	Attempts int
	// Took is how long it took, attempts and pauses together.
	Took time.Duration
}

// observe has a call observed. f reports the outcome but for Took.
func (c *Client) observe(ctx context.Context, call Call, f func(ctx context.Context) Outcome) error {
	if len(c.cfg.Observers) == 0 {
		return f(ctx).Err
	}
	in := make([]context.Context, len(c.cfg.Observers))
	for i, o := range c.cfg.Observers {
		ctx = o.Begin(ctx, call)
		in[i] = ctx
	}
	begin := c.clock.Now()
	out := f(ctx)
	out.Took = time.Duration(c.clock.Now() - begin)
	for i := len(in) - 1; i >= 0; i-- {
		c.cfg.Observers[i].End(in[i], call, out)
	}
	return out.Err
}

// observed reports whether there is anybody to tell of calls.
func (c *Client) observed() bool { return len(c.cfg.Observers) > 0 }

// doObserved is do with an Observer.
func (c *Client) doObserved(ctx context.Context, r route, try attempt) error {
	return c.observe(ctx, Call{Op: r.what, Key: r.key}, func(ctx context.Context) (out Outcome) {
		out.Err = c.perform(ctx, r, func(ctx context.Context, n *node, v *view) (bool, error) {
			out.Attempts++
			return try(ctx, n, v)
		})
		if out.Err == nil && r.op != nil && r.op.refused {
			out.Refused = 1
		}
		return out
	})
}

// runObserved is run with an Observer.
func (b *batch[Q, R]) runObserved(ctx context.Context, n int, item func(i int) (of object, req Q, changes bool)) error {
	return b.c.observe(ctx, Call{Op: b.what, Items: n}, func(ctx context.Context) (out Outcome) {
		var refused, failed atomic.Int64 // answers come from several nodes at once
		changing := make([]bool, n)
		accept, fail := b.accept, b.fail
		b.accept = func(i int, r R) {
			if changing[i] && refuses(r) {
				refused.Add(1)
			}
			accept(i, r)
		}
		b.fail = func(i int, err error) {
			failed.Add(1)
			fail(i, err)
		}
		out.Err = b.perform(ctx, n, func(i int) (of object, req Q, changes bool) {
			of, req, changes = item(i)
			changing[i] = changes
			return of, req, changes
		})
		out.Refused, out.Failed = int(refused.Load()), int(failed.Load())
		return out
	})
}

// refuses reports whether an answer says no.
func refuses(answer any) bool {
	switch r := answer.(type) {
	case interface{ GetAllowed() bool }:
		return !r.GetAllowed()
	case interface{ GetApplied() bool }:
		return !r.GetApplied()
	}
	return false
}
