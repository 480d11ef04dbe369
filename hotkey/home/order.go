package home

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/keystead/keystead/hotkey/plan"
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring"
	"github.com/keystead/keystead/ring/epoch/table"
)

// How long orders take, at most.
const (
	// orderPatience is how long an order to split or to merge may take: an election and
	// some seconds.
	orderPatience = 8 * time.Second
	// maxPauses is for how many pauses a split waits at most that came second to another
	// command, before it is proposed again.
	maxPauses = 10
)

// Order names an object that is to be split, or made whole.
type Order struct {
	Kind      owner.Kind
	Key, Name string
	Parts     int    // 0 = one for each node on the ring
	Manual    bool   // a person asked for it
	Reason    string // for people
}

// begin has an object split. It returns when that is agreed on.
func (h *Home) begin(ctx context.Context, o Order) (uint64, error) {
	var failed error // the last try
	for try := 0; ctx.Err() == nil; try++ {
		t := h.cfg.Cluster.Table()
		switch sp, is := t.Split(o.Kind.String(), o.Key, o.Name); {
		case is && sp.Phase == table.Open && o.Manual && !sp.Manual: // from now on it is by hand, and into as many parts
			if err := h.close(ctx, sp.ID, byHand); err != nil {
				h.log.Debug("closing a split", "error", err)
			}
			h.pause(ctx)
			continue
		case is && sp.Phase != table.Closing:
			return sp.ID, nil
		}
		if err := mayBegin(t, o); err != nil {
			return 0, err
		}
		begun, err := divided(t, o, h.nodes(t))
		if err != nil {
			return 0, err
		}
		err = h.propose(ctx, table.Command{BeginSplit: &table.BeginSplit{Split: begun}})
		switch {
		case err == nil:
			return begun.ID, nil
		case !errors.Is(err, table.ErrNotProposed) && !errors.As(err, new(*table.Refused)):
			return 0, errSplitUnknown
		}
		failed = err
		// Another command came first: go by the table that it made.
		wait, cancel := context.WithTimeout(ctx, retryPause*time.Duration(1+rand.IntN(1+min(try, maxPauses))))
		_, _ = h.cfg.Cluster.Await(wait, t.Epoch)
		cancel()
	}
	if failed == nil {
		return 0, ctx.Err()
	}
	return 0, errNotSplit(failed)
}

// mayBegin returns why an object is not to be split by a table; nil if it is.
func mayBegin(t *table.Table, o Order) error {
	//guard:hot-kind-order
	if !o.Kind.Parts() {
		return errKind(o.Kind)
	}
	if i := t.Find(ring.Hash(o.Key)); i >= 0 && t.Rows[i].Grace {
		return errRecovering // its home would not divide it, and it would not be served meanwhile
	}
	if _, is := t.Split(o.Kind.String(), o.Key, o.Name); !is && len(t.Splits) >= table.MaxSplits {
		return errSplitsFull
	}
	if why := t.Knows(table.Command{BeginSplit: &table.BeginSplit{}}); why != nil {
		return errNotSplit(why)
	}
	if len(t.WantedNodes()) < table.MinParts {
		return errOneNode
	}
	return nil
}

// divided returns the split that an order asks for, with parts on some of the nodes.
func divided(t *table.Table, o Order, nodes []plan.Node) (table.Split, error) {
	n := o.Parts
	if n == 0 {
		n = max(table.MinParts, min(len(t.WantedNodes()), table.MaxParts))
	}
	places, err := plan.Spread(o.Key, n, nodes)
	if err != nil {
		return table.Split{}, &failure.Error{Reason: failure.Invalid, Field: "parts", Message: err.Error()}
	}
	sp := table.Split{ID: t.Epoch + 1, Kind: o.Kind.String(), Key: o.Key, Name: o.Name, Manual: o.Manual, Reason: reason(o.Reason), Parts: make([]table.Part, n)}
	salts, ok := t.Place(sp.ID, places)
	if !ok {
		return table.Split{}, errNoPlaces
	}
	for i, w := range plan.Even(n) {
		sp.Parts[i] = table.Part{Salt: salts[i], Weight: w}
	}
	return sp, nil
}

// errNotSplit returns the error of an order that was not agreed on.
func errNotSplit(why error) error {
	return &failure.Error{Reason: failure.Unavailable, RetryAfter: time.Second, Message: fmt.Sprintf("it was not split: %v", why), Hint: "try again"}
}

func errKind(k owner.Kind) error {
	return &failure.Error{Reason: failure.Invalid, Field: "kind", Message: fmt.Sprintf("is %q: no %s is ever split", k, k)}
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

// Split has an object split, and returns when its parts are served: the split, and the
// table that has it. Errors are *failure.Error, or those of the context.
func (h *Home) Split(ctx context.Context, o Order) (*table.Table, *table.Split, error) {
	if h.cfg.Settings.KeepsWhole(o.Kind, o.Name) {
		return nil, nil, &failure.Error{Reason: failure.Invalid, Field: "name",
			Message: fmt.Sprintf("%q is one that this node does not split", o.Name), Hint: "see --hot-whole"}
	}
	ctx, cancel := context.WithTimeout(ctx, orderPatience)
	defer cancel()
	id, err := h.begin(ctx, o)
	if err != nil {
		return nil, nil, h.gaveUp(ctx, err)
	}
	for t := h.cfg.Cluster.Table(); ; {
		sp, ok := t.SplitOf(id)
		switch {
		case ok && sp.Phase == table.Open:
			return t, sp, nil
		case !ok && t.Epoch >= id:
			return nil, nil, &failure.Error{Reason: failure.Invalid, Field: "key",
				Message: fmt.Sprintf("its %s %q cannot be split, or the parts could not be made in time; it is whole", o.Kind, o.Name),
				Hint:    "token buckets, and counters without an idle TTL, are split; the log of the key's owner says why, at --log-level info"}
		}
		if t, err = h.cfg.Cluster.Await(ctx, t.Epoch); err != nil {
			return nil, nil, h.gaveUp(ctx, errSplitUnknown)
		}
	}
}

// Merge has an object made whole, and returns when it is. Errors are as those of Split.
func (h *Home) Merge(ctx context.Context, o Order) error {
	ctx, cancel := context.WithTimeout(ctx, orderPatience)
	defer cancel()
	t := h.cfg.Cluster.Table()
	sp, ok := t.Split(o.Kind.String(), o.Key, o.Name)
	if !ok {
		return &failure.Error{Reason: failure.Invalid, Field: "key", Message: fmt.Sprintf("its %s %q is not split", o.Kind, o.Name), Hint: "see `keystead hot`"}
	}
	for ok {
		why, err := h.closeUntilOver(ctx, &t, sp, o)
		if err != nil {
			return err
		}
		if why == reason(o.Reason) || strings.HasPrefix(why, wholeReason) {
			break
		}
		if sp, ok = h.anew(ctx, &t, o); ctx.Err() != nil {
			return h.gaveUp(ctx, errSplitUnknown)
		}
	}
	return nil
}

// closeUntilOver has one split closed, and returns when it is over: for which reason it
// was closed, as far as that is known. t is the table with the split, and then one
// without it.
func (h *Home) closeUntilOver(ctx context.Context, t **table.Table, sp *table.Split, o Order) (why string, err error) {
	ok := true
	for id := sp.ID; ok; sp, ok = (*t).SplitOf(id) {
		switch sp.Phase {
		case table.Open:
			if err := h.close(ctx, id, o.Reason); err == nil {
				why = reason(o.Reason)
			} else {
				h.log.Debug("closing a split", "error", err)
			}
		case table.Closing:
			why = sp.Reason
		}
		wait, stop := context.WithTimeout(ctx, proposeTime)
		next, err := h.cfg.Cluster.Await(wait, (*t).Epoch)
		stop()
		if err == nil {
			*t = next
		}
		if ctx.Err() != nil {
			return "", h.gaveUp(ctx, errSplitUnknown)
		}
	}
	return why, nil
}

// anewTime is how long an order to merge that came second to the home's own waits whether
// the home has the object split anew: it decides that at the next poll, and the one after
// that has room for its commit.
const anewTime = 2 * pollEvery

// anew finds a split that follows another one of an object, which was not closed for the
// order. t is the table without that, and then that of the new one.
func (h *Home) anew(ctx context.Context, t **table.Table, o Order) (*table.Split, bool) {
	ctx, cancel := context.WithTimeout(ctx, anewTime)
	defer cancel()
	for {
		if sp, ok := (*t).Split(o.Kind.String(), o.Key, o.Name); ok {
			return sp, true
		}
		next, err := h.cfg.Cluster.Await(ctx, (*t).Epoch)
		if err != nil {
			return nil, false
		}
		*t = next
	}
}

// gaveUp returns the error of an order whose time was over.
func (h *Home) gaveUp(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) || err == nil {
		return ctx.Err()
	}
	var e *failure.Error
	if errors.As(err, &e) {
		return e
	}
	return errSplitUnknown
}
