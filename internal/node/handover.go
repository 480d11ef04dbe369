package node

import (
	"context"
	"errors"
	"time"

	"github.com/keystead/keystead/ring/epoch"
	"github.com/keystead/keystead/ring/epoch/table"
)

// Handing rows over.
const (
	// flushTime is how long what was let in before a freeze may still get out.
	// Operations take microseconds.
	flushTime = 5 * time.Millisecond
	// proposeTime bounds one try to have a flip committed.
	proposeTime = time.Second
	// proposePause is between tries.
	proposePause = 50 * time.Millisecond
)

// handOver gives away the rows that a transition takes from this node, as long
// as the node runs: it freezes them, lets the last answers out, closes them and
// proposes the flip. State does not move yet: the flip declares it lost.
func (c *cluster) handOver(ctx context.Context) {
	for after := uint64(0); ; {
		t, err := c.group.Await(ctx, after)
		if err != nil {
			return
		}
		after = t.Epoch
		for _, f := range flipsOf(t, c.group.Self()) {
			c.flip(ctx, f)
		}
	}
}

// flipsOf are the flips that a member has to propose, one for each target.
func flipsOf(t *table.Table, self table.Holder) []table.Flip {
	if t.Transition == nil {
		return nil
	}
	var flips []table.Flip
	place := map[table.Holder]int{}
	for _, m := range t.Moves() {
		if m.From != self || m.To.None() {
			continue
		}
		i, ok := place[m.To]
		if !ok {
			i = len(flips)
			place[m.To] = i
			flips = append(flips, table.Flip{Transition: t.Transition.ID, From: self, To: m.To})
		}
		flips[i].Ends = append(flips[i].Ends, m.End)
	}
	return flips
}

// flip hands rows over to one member. Rows stay frozen until a table shows that
// the flip has happened, or cannot any more; so an unknown outcome is harmless,
// and the same flip is proposed again.
func (c *cluster) flip(ctx context.Context, f table.Flip) {
	rule := c.group.Rule()
	if f.Ends = rule.Freeze(f.Transition, f.To, f.Ends); len(f.Ends) == 0 {
		return
	}
	if !pause(ctx, flushTime) {
		return
	}
	rule.Close(f.To)
	command := table.Command{ID: c.newID(), Flip: &f}
	for ctx.Err() == nil {
		try, cancel := context.WithTimeout(ctx, proposeTime)
		_, err := c.group.Propose(try, command)
		cancel()
		switch {
		case err == nil:
			c.log.Info("handed rows over", "to", f.To.Node, "rows", len(f.Ends))
			return
		case errors.As(err, new(*table.Refused)):
			c.log.Info("rows were not handed over", "to", f.To.Node, "rows", len(f.Ends), "why", err)
			return // the next table tells what to do
		case !errors.Is(err, epoch.ErrNotProposed):
			c.log.Debug("it is unknown whether rows were handed over", "error", err)
		}
		if t := c.group.Table(); t.Transition == nil || t.Transition.ID != f.Transition || !t.Holds(f.To) || !t.Holds(f.From) {
			return
		}
		if !pause(ctx, proposePause) {
			return
		}
	}
}

// pause waits, and returns false if the context ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
