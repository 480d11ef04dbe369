package kinds

import (
	"context"
	"time"

	"github.com/keystead/keystead/internal/tests/caller"
)

const (
	// ticketsOf is how many acquires of what has a queue there are, for one with a ticket.
	ticketsOf = 5
	// pollPace is the longest rest between two calls with a ticket. Leases may be shorter: some
	// turns are missed.
	pollPace = 2 * leastTTL
)

// ticket is that of an acquire whose place in the queue stands while its caller is away; nil is none.
type ticket struct {
	wait, keep int64 // ns; of the next attempt
}

// tickets reports whether workers have some: all nodes know them, as they know keys.
func (w *Worker) tickets() bool { return !w.cfg.Keyless }

func (w *Worker) ticket() *ticket {
	if !w.tickets() || w.rng.IntN(ticketsOf) > 0 {
		return nil
	}
	return &ticket{}
}

// next draws the next attempt. The one that leaves the queue has neither a wait nor a ticket.
func (t *ticket) next(w *Worker, leave bool) {
	if *t = (ticket{}); leave {
		return
	}
	t.keep = int64(leastTTL) + w.rng.Int64N(int64(4*pollPace))
	if w.rng.IntN(2) == 0 {
		t.wait = 1 + w.rng.Int64N(int64(mostWait))
	}
}

func (t *ticket) waitOr(wait int64) int64 {
	if t == nil {
		return wait
	}
	return t.wait
}

func (t *ticket) ttl() int64 {
	if t == nil {
		return 0
	}
	return t.keep
}

// waited is what a record has of how long a grant was waited for. The place may have been lost and
// had anew since the first attempt.
func (t *ticket) waited(ns int64) int64 {
	if t == nil {
		return ns
	}
	return 0
}

// lasts is how long a grant lasts from when do says that it was asked for.
func (t *ticket) lasts(waited, ttl, left int64) int64 {
	if t == nil {
		return waited + ttl
	}
	return left
}

// places are answers to calls that may have a ticket.
type places interface{ GetWaiting() bool }

func waits[R response](out R) bool {
	p, is := any(out).(places)
	return is && p.GetWaiting()
}

// poll is do of an acquire with a ticket: its caller comes again now and then, and leaves in the end.
// began is when the attempt was sent that had the answer.
func poll[R response](ctx context.Context, r *request[R]) (out R, began int64, ok bool) {
	w, open := r.w, false
	for leave := false; ctx.Err() == nil && w.now()-r.Began < 2*int64(w.cfg.Insist); leave = w.now()-r.Began >= int64(w.cfg.Insist)/2 {
		r.ticket.next(w, leave)
		began = w.now()
		out, f, ok := r.attempt(ctx, w.cfg.Attempt+time.Duration(r.ticket.wait))
		switch {
		case ok && !waits(out):
			return out, began, true
		case ok:
			open = true
		case f == caller.Over || f == caller.Nothing && !open:
			if open {
				w.cfg.Log.Open()
			}
			return out, began, false
		default:
			open = open || f == caller.Lost
		}
		if w.rng.IntN(2) == 0 || !ok {
			w.moveOn()
		}
		w.Rest(ctx, pollPace)
		w.connect()
	}
	if open {
		w.cfg.Log.Open()
	}
	return out, began, false
}
