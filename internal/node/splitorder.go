package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/keystead/keystead/hotkey/plan"
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/rpc"
	"github.com/keystead/keystead/ring"
	"github.com/keystead/keystead/ring/epoch"
	"github.com/keystead/keystead/ring/epoch/table"
)

// How long orders take, at most.
const (
	// splitPatience is how long an order to split or to merge may take: an election and
	// some seconds.
	splitPatience = 8 * time.Second
	// splitWaits is for how many pauses a split waits at most that came second to another
	// command, before it is proposed again.
	splitWaits = 10
)

// begin has an object split into so many parts. It returns when that is agreed on.
func (s *splits) begin(ctx context.Context, o rpc.SplitOrder) (uint64, error) {
	var failed error // the last try
	for try := 0; ctx.Err() == nil; try++ {
		t := s.c.group.Table()
		sp, ok := t.Split(o.Kind, o.Key, o.Name)
		switch {
		case ok && sp.Phase == table.Open && o.Manual && !sp.Manual: // from now on it is by hand, and into as many parts
			if err := s.close(ctx, sp.ID, byHand); err != nil {
				s.log.Debug("closing a split", "error", err)
			}
			s.pause(ctx)
			continue
		case ok && sp.Phase != table.Closing:
			return sp.ID, nil
		}
		if i := t.Find(ring.Hash(o.Key)); i >= 0 && t.Rows[i].Grace {
			return 0, errRecovering // its home would not divide it, and it would not be served meanwhile
		}
		if !ok && len(t.Splits) >= table.MaxSplits {
			return 0, errSplitsFull
		}
		if why := t.Knows(table.Command{BeginSplit: &table.BeginSplit{}}); why != nil {
			return 0, errNotSplit(why)
		}
		n := o.Parts
		if n == 0 {
			n = max(table.MinParts, min(len(t.WantedNodes()), table.MaxParts))
		}
		if len(t.WantedNodes()) < table.MinParts {
			return 0, errOneNode
		}
		nodes, err := plan.Spread(o.Key, n, s.nodes(t))
		if err != nil {
			return 0, &failure.Error{Reason: failure.Invalid, Field: "parts", Message: err.Error()}
		}
		id := t.Epoch + 1
		salts, ok := t.Place(id, nodes)
		if !ok {
			return 0, errNoPlaces
		}
		begun := table.Split{ID: id, Kind: o.Kind, Key: o.Key, Name: o.Name, Manual: o.Manual, Reason: reason(o.Reason), Parts: make([]table.Part, n)}
		for i, w := range plan.Even(n) {
			begun.Parts[i] = table.Part{Salt: salts[i], Weight: w}
		}
		_, err = s.propose(ctx, table.Command{BeginSplit: &table.BeginSplit{Split: begun}})
		switch {
		case err == nil:
			return id, nil
		case !errors.Is(err, epoch.ErrNotProposed) && !errors.As(err, new(*table.Refused)):
			return 0, errSplitUnknown
		}
		failed = err
		// Another command came first: go by the table that it made.
		wait, cancel := context.WithTimeout(ctx, splitPause*time.Duration(1+rand.IntN(1+min(try, splitWaits))))
		_, _ = s.c.group.Await(wait, t.Epoch)
		cancel()
	}
	if failed == nil {
		return 0, ctx.Err()
	}
	return 0, errNotSplit(failed)
}

// errNotSplit is the error of an order that was not agreed on.
func errNotSplit(why error) error {
	return &failure.Error{Reason: failure.Unavailable, RetryAfter: time.Second, Message: fmt.Sprintf("it was not split: %v", why), Hint: "try again"}
}

var (
	errNoPlaces = &failure.Error{Reason: failure.Unavailable, RetryAfter: time.Second,
		Message: "there is no ring that could take the parts; nothing happened", Hint: "try again"}
	errSplitUnknown = &failure.Error{Reason: failure.OutcomeUnknown, RetryAfter: time.Second,
		Message: "it is not known whether the leader has agreed", Hint: "see `keystead hot`, or say it again: that does no harm"}
	errRecovering = &failure.Error{Reason: failure.Unavailable, RetryAfter: time.Second,
		Message: "what was kept of the key was lost, and the grace of that runs; nothing happened", Hint: "try again when it is over"}
	errSplitsFull = &failure.Error{Reason: failure.Unavailable, RetryAfter: time.Second,
		Message: fmt.Sprintf("%d objects are split, and no more may be", table.MaxSplits),
		Hint:    "make one whole with `keystead hot merge`: `keystead hot` shows them"}
	errOneNode = &failure.Error{Reason: failure.Invalid, Field: "parts",
		Message: "there is one node on the ring, and parts are for others to serve", Hint: "add a node"}
)

// Split implements rpc.Splits.
func (s *splits) Split(ctx context.Context, o rpc.SplitOrder) (*table.Table, *table.Split, error) {
	if s.plan.cfg.KeepsWhole(o.Kind, o.Name) {
		return nil, nil, &failure.Error{Reason: failure.Invalid, Field: "name",
			Message: fmt.Sprintf("%q is one that this node does not split", o.Name), Hint: "see --hot-whole"}
	}
	ctx, cancel := context.WithTimeout(ctx, splitPatience)
	defer cancel()
	id, err := s.begin(ctx, o)
	if err != nil {
		return nil, nil, s.patience(ctx, err)
	}
	for t := s.c.group.Table(); ; {
		sp, ok := t.SplitOf(id)
		switch {
		case ok && sp.Phase == table.Open:
			return t, sp, nil
		case !ok && t.Epoch >= id:
			return nil, nil, &failure.Error{Reason: failure.Invalid, Field: "key",
				Message: fmt.Sprintf("its %s %q cannot be split, or the parts could not be made in time; it is whole", o.Kind, o.Name),
				Hint:    "token buckets, and counters without an idle TTL, are split; the log of the key's owner says why, at --log-level info"}
		}
		if t, err = s.c.group.Await(ctx, t.Epoch); err != nil {
			return nil, nil, s.patience(ctx, errSplitUnknown)
		}
	}
}

// Merge implements rpc.Splits.
func (s *splits) Merge(ctx context.Context, o rpc.SplitOrder) error {
	ctx, cancel := context.WithTimeout(ctx, splitPatience)
	defer cancel()
	t := s.c.group.Table()
	sp, ok := t.Split(o.Kind, o.Key, o.Name)
	if !ok {
		return &failure.Error{Reason: failure.Invalid, Field: "key", Message: fmt.Sprintf("its %s %q is not split", o.Kind, o.Name), Hint: "see `keystead hot`"}
	}
	for ok {
		why := "" // it was closed, as far as that is known
		for id := sp.ID; ok; sp, ok = t.SplitOf(id) {
			switch sp.Phase {
			case table.Open:
				if err := s.close(ctx, id, o.Reason); err == nil {
					why = reason(o.Reason)
				} else {
					s.log.Debug("closing a split", "error", err)
				}
			case table.Closing:
				why = sp.Reason
			}
			wait, stop := context.WithTimeout(ctx, drainTry)
			next, err := s.c.group.Await(wait, t.Epoch)
			stop()
			if err == nil {
				t = next
			}
			if ctx.Err() != nil {
				return s.patience(ctx, errSplitUnknown)
			}
		}
		if why == reason(o.Reason) || strings.HasPrefix(why, wholeReason) {
			break
		}
		if sp, ok = s.anew(ctx, &t, o); ctx.Err() != nil {
			return s.patience(ctx, errSplitUnknown)
		}
	}
	return nil
}

// anewTime is how long an order to merge that came second to the home's own waits whether
// the home has the object split anew: it decides that at the next look, and the one after
// that has room for its commit.
const anewTime = 2 * lookEvery

// anew finds a split that follows another one of an object, which was not closed for the
// order. t is the table without that, and then that of the new one.
func (s *splits) anew(ctx context.Context, t **table.Table, o rpc.SplitOrder) (*table.Split, bool) {
	ctx, cancel := context.WithTimeout(ctx, anewTime)
	defer cancel()
	for {
		if sp, ok := (*t).Split(o.Kind, o.Key, o.Name); ok {
			return sp, true
		}
		next, err := s.c.group.Await(ctx, (*t).Epoch)
		if err != nil {
			return nil, false
		}
		*t = next
	}
}

// patience is the error of an order whose time was over.
func (s *splits) patience(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) || err == nil {
		return ctx.Err()
	}
	var e *failure.Error
	if errors.As(err, &e) {
		return e
	}
	return errSplitUnknown
}
