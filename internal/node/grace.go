package node

import (
	"context"
	"errors"
	"time"

	"github.com/keystead/keystead/ring/epoch/table"
)

const (
	// graceRows bounds the rows of one Settle: about 1 MB of the log.
	graceRows = 16_384
	// gracePause is between two tries to have the end of a grace agreed on.
	gracePause = 500 * time.Millisecond
)

// recoverRows ends the grace of this node's rows: when the longest lease of what was
// lost with them is over, by the clock of this node, since they came to it. It
// looks again at each table, for the table says which rows these are.
func (c *cluster) recoverRows() {
	rule := c.group.Rule()
	for {
		recoveries, self, t := rule.Recoveries()
		now := c.cfg.Clock.Now()
		due := table.EndGrace{Owner: self}
		sleep := maxSleep
		for _, r := range recoveries {
			if left := r.At + t.GraceTime() - now; left > 0 {
				sleep = min(sleep, time.Duration(left))
			} else if len(due.Rows) < graceRows {
				due.Rows = append(due.Rows, r.Loss)
			}
		}
		ids, next := c.doubted(now)
		sleep = min(sleep, next)
		for _, over := range []*table.EndGrace{&due, ids} {
			if len(over.Rows) > 0 {
				c.endGrace(over)
				sleep = gracePause
			}
		}
		ctx, cancel := context.WithTimeout(c.ctx, sleep)
		_, _ = c.group.Await(ctx, t.Epoch)
		cancel()
		if c.ctx.Err() != nil {
			return
		}
	}
}

// doubted returns what ends that ids of this node's rows are unsure, where those of what was
// lost are too old, and when to look again.
func (c *cluster) doubted(now int64) (due *table.EndGrace, sleep time.Duration) {
	doubts, self, t := c.group.Rule().Doubts()
	due, sleep = &table.EndGrace{Owner: self, IDs: true}, maxSleep
	for _, r := range doubts {
		if left := r.At + t.IDWindow - now; left >= 0 {
			sleep = min(sleep, time.Duration(left)+1)
		} else if len(due.Rows) < graceRows {
			due.Rows = append(due.Rows, r.Loss)
		}
	}
	return due, sleep
}

// endGrace has the end of a grace agreed on, or not: then the table has changed, or it
// is tried again.
func (c *cluster) endGrace(due *table.EndGrace) {
	ctx, cancel := context.WithTimeout(c.ctx, proposeTime)
	defer cancel()
	epoch, err := c.group.Propose(ctx, table.Command{ID: c.newID(), EndGrace: due})
	switch {
	case err == nil && due.IDs:
		c.log.Info("what was lost is older than request ids are kept: unknown ones are new again", "rows", len(due.Rows), "epoch", epoch)
	case err == nil:
		c.log.Info("the grace period of lost rows is over: their locks are granted again", "rows", len(due.Rows), "epoch", epoch)
	case c.ctx.Err() != nil:
	case errors.As(err, new(*table.Refused)):
		c.log.Info("the grace period of lost rows was not ended: they have changed", "rows", len(due.Rows), "why", err)
	default:
		c.log.Debug("the grace period of lost rows is over, which could not be agreed on yet", "rows", len(due.Rows), "error", err)
	}
}
