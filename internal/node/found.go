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

// Bounds of the names of founders. Two that have both lost their disks see all founders
// there are, with nothing in their logs, while others may hold the cluster: with three it
// takes three disks. More nodes than are named may join at any time.
const (
	minFounders = 3
	maxFounders = 16
)

// validateFounders says what is wrong with the names of the founders.
func (c ClusterConfig) validateFounders() error {
	switch n := len(c.Founders); {
	case n == 0:
		return nil
	case c.Bootstrap:
		return errors.New("--bootstrap makes a cluster at once, and --founders when all of them are there: choose one")
	case n < minFounders:
		return fmt.Errorf("only %d in --founders: name at least %d, because fewer that have lost their disks could make a second cluster; or make the cluster with --bootstrap, on one node, once", n, minFounders)
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

// founds reports whether this node is the founder that makes the cluster.
func (c *cluster) founds() bool {
	f := c.cfg.Cluster.Founders
	return len(f) > 0 &&
		f[0] == c.cfg.ID //guard:founders-one
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
	v := newFounderWatch(member.Profile(c.cfg.Cluster.Profile))
	tick := time.NewTicker(founderPoll)
	defer tick.Stop()
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
		if v.poll(c.cfg.Clock.Now(), why == "") && c.makes(v) {
			return
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-c.ctx.Done():
			return
		}
	}
}

// makes makes the cluster, if the founders say once more that they belong to none. It
// returns whether there is one; if not, the watch begins anew.
func (c *cluster) makes(v *founderWatch) bool {
	err := c.askFounders()
	if err == nil {
		err = c.group.Found(func() error { return v.fresh(c.cfg.Clock.Now()) })
	}
	switch {
	case err == nil:
		c.log.Info("made the cluster: all founders are there, and none belonged to one", "cluster", c.cfg.Cluster.ID, "founders", c.cfg.Cluster.Founders)
		return true
	case errors.Is(err, epoch.ErrBelongs):
		c.log.Warn("there is a cluster already: this node joins it, and does not make one", "error", err)
		return true
	case c.ctx.Err() == nil:
		c.log.Warn("the cluster is not made yet; looking on", "why", err)
	}
	v.restart()
	return false
}

// askFounders asks the founders themselves: what gossip shows of them may be older than
// the cluster that they belong to.
func (c *cluster) askFounders() error {
	var addrs []string
	for _, f := range c.pool.Facts() {
		if f.Name != c.cfg.ID && slices.Contains(c.cfg.Cluster.Founders, f.Name) {
			addrs = append(addrs, f.Addr)
		}
	}
	facts, err := c.pool.Ask(c.ctx, addrs)
	if err != nil {
		return err
	}
	if why := c.unfounded(facts); why != "" {
		return errors.New(why)
	}
	return nil
}

// unfounded says why the cluster is not to be made by what gossip knows, "" if it
// is.
func (c *cluster) unfounded(facts []member.Fact) string {
	var missing []string
	for _, id := range c.cfg.Cluster.Founders {
		if !slices.ContainsFunc(facts, func(f member.Fact) bool {
			return f.Name == id && f.Ours &&
				f.State == member.Alive && //guard:founders-alive
				f.Conflict == ""
		}) {
			missing = append(missing, id)
		}
	}
	for _, f := range facts {
		// What this node says of itself it may have drawn before a crash.
		//guard:founders-belong
		if f.Ours && f.Self.UID != "" && f.Name != c.cfg.ID {
			return f.Name + " belongs to a cluster"
		}
	}
	//guard:founders-all
	if len(missing) > 0 {
		return strings.Join(missing, ", ") + " not seen, or not under its name alone"
	}
	return ""
}
