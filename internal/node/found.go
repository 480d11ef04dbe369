package node

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/keystead/keystead/ring/epoch"
	"github.com/keystead/keystead/ring/member"
)

// maxFounders bounds the names; more nodes may join at any time.
const maxFounders = 16

// founderWait is for how long all founders are seen without a cluster, without a
// break, before one is made: word of a cluster that one of them belongs to is
// quicker, if there is one.
const founderWait = lookAround

// validateFounders says what is wrong with the names of the founders.
func (c ClusterConfig) validateFounders() error {
	switch n := len(c.Founders); {
	case n == 0:
		return nil
	case c.Bootstrap:
		return errors.New("--bootstrap makes a cluster at once, and --founders when all of them are there: choose one")
	case n == 1:
		return errors.New("one founder: name two or more, best three, or make the cluster with --bootstrap")
	case n > maxFounders:
		return fmt.Errorf("%d founders: name at most %d; more nodes may join at any time", n, maxFounders)
	}
	for i, id := range c.Founders {
		if !idPattern.MatchString(id) {
			return fmt.Errorf("founder %q: use the --id of a node, 1 to 64 letters, digits, '.', '_' and '-'", id)
		}
		if slices.Contains(c.Founders[:i], id) {
			return fmt.Errorf("founder %q is named twice", id)
		}
	}
	return nil
}

// founds says whether this node is the founder that makes the cluster.
func (c *cluster) founds() bool {
	f := c.cfg.Cluster.Founders
	return len(f) > 0 && f[0] == c.cfg.ID
}

// found makes the cluster when all founders are there and none belongs to one. So a
// founder that has lost its disk makes no second one: as long as the others have
// their logs, or cannot be reached, it waits to be taken in. It returns when there
// is a cluster.
func (c *cluster) found() {
	empty, err := c.storage.Empty()
	if err != nil || !empty {
		return // Start has read the log as well, and judged it
	}
	var since time.Time // all are there since; zero = they are not
	said := ""
	for {
		changed := c.pool.Changed()
		if c.group.Table().Cluster != "" {
			return
		}
		why := c.unfounded(c.pool.Facts())
		if why != said && why != "" {
			c.log.Info("this node makes the cluster when all founders are there and none belongs to one", "founders", c.cfg.Cluster.Founders, "waiting", why)
		}
		said = why
		var due <-chan time.Time
		switch {
		case why != "":
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
			due = time.After(founderWait)
		case time.Since(since) < founderWait:
			due = time.After(founderWait - time.Since(since))
		default:
			err := c.group.Found()
			if err == nil {
				c.log.Info("made the cluster: all founders are there, and none belonged to one", "cluster", c.cfg.Cluster.ID, "founders", c.cfg.Cluster.Founders)
				return
			}
			if errors.Is(err, epoch.ErrBelongs) {
				c.log.Warn("there is a cluster already: this node joins it, and does not make one", "error", err)
				return
			}
			c.log.Error("cannot make the cluster; trying on", "error", err)
			since = time.Now()
			due = time.After(founderWait)
		}
		select {
		case <-changed:
		case <-due:
		case <-c.ctx.Done():
			return
		}
	}
}

// unfounded says why the cluster is not to be made by what gossip knows, "" if it
// is.
func (c *cluster) unfounded(facts []member.Fact) string {
	var missing []string
	for _, id := range c.cfg.Cluster.Founders {
		if !slices.ContainsFunc(facts, func(f member.Fact) bool {
			return f.Name == id && f.Ours && f.State == member.Alive && f.Conflict == ""
		}) {
			missing = append(missing, id)
		}
	}
	for _, f := range facts {
		// What this node says of itself it may have drawn before a crash.
		if f.Ours && f.Self.UID != "" && f.Name != c.cfg.ID {
			return f.Name + " belongs to a cluster"
		}
	}
	if len(missing) > 0 {
		return strings.Join(missing, ", ") + " not seen, or not under its name alone"
	}
	return ""
}
