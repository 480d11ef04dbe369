package node

import (
	"errors"
	"fmt"
	"time"
)

// ready says why the node is not ready, nil if it is.
func (c *cluster) ready() error {
	switch t := c.group.Table(); {
	case t.Cluster == "":
		return c.notHeard()
	case c.group.LeftOut() > 0:
		return errors.New("not ready: " + leftOutWhy)
	case !t.Holds(c.group.Self()):
		return errors.New("not ready: the node has not been admitted to its cluster yet")
	case c.group.LeaseLeft() == 0 && c.group.Stalled() > 0:
		return fmt.Errorf("not ready: the node has no lease; %w", c.degraded())
	case c.group.LeaseLeft() == 0:
		return errors.New("not ready: the node has no lease; the cluster has no leader, or the node is cut off")
	case len(t.Rows) == 0:
		return errors.New("not ready: the ring has not been made yet")
	}
	return c.drains.Gone()
}

// degraded says what keeps the node from doing its part although it may serve; nil =
// nothing.
func (c *cluster) degraded() error {
	if took := c.group.Stalled(); took > 0 {
		return fmt.Errorf("a write to its log has hung for %s: look at the disk of --data-dir", took.Round(time.Millisecond))
	}
	return nil
}
