package node

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/keystead/keystead/ring/member"
)

const (
	// waitingSaid is how long a node waits for its cluster before its log warns of it:
	// more than a start takes.
	waitingSaid = 5 * time.Second
	// waitingPoll is how often it looks whether the reason is another one, and
	// waitingLines how many reasons it logs at most.
	waitingPoll  = time.Second
	waitingLines = 32
)

// waiting is why this node has not heard of its cluster yet; "" = it has.
func (c *cluster) waiting() string {
	if c.group.Table().Cluster != "" {
		return ""
	}
	voters, _ := c.group.Servers()
	return c.cfg.Cluster.waitsFor(c.cfg.ID, voters, c.pool.Facts())
}

// waitsFor is why a node of these settings is in no cluster, by what gossip says. voters are
// those that its log names; none = it has no log.
func (cc ClusterConfig) waitsFor(self string, voters []string, facts []member.Fact) string {
	var members, seen []string         // of this cluster's name: of those in it, and of all
	strangers := map[string][]string{} // nodes, by the names of their clusters
	for _, f := range facts {
		switch {
		case f.Name == self && f.Conflict != "":
			return fmt.Sprintf("another node, at %s, has the --id %q, too", f.Conflict, self)
		case f.Name == self || f.State != member.Alive:
		case f.Ours && f.Self.UID != "":
			members = append(members, f.Name)
		case f.Ours:
			seen = append(seen, f.Name)
		case f.Cluster != "" && f.Cluster != cc.ID:
			strangers[f.Cluster] = append(strangers[f.Cluster], f.Name)
		}
	}
	silent := slices.DeleteFunc(slices.Clone(voters), func(id string) bool {
		return id == self || slices.Contains(members, id) || slices.Contains(seen, id)
	})
	missing := slices.DeleteFunc(slices.Clone(cc.Founders), func(id string) bool { return id == self || slices.Contains(seen, id) })
	switch {
	case len(strangers) == 0 && 2*len(silent) >= len(voters) && len(silent) > 0:
		return fmt.Sprintf("a majority of the voters that its log names, %s, has to run: of %s nothing is heard", list(voters), list(silent))
	case len(members) > 0:
		return fmt.Sprintf("it has asked %s, which %s in it, and is not admitted yet", list(members), isAre(members))
	case len(strangers) > 0:
		var all []string
		for cluster, nodes := range strangers {
			all = append(all, fmt.Sprintf("%s %s of cluster %q", list(nodes), isAre(nodes), cluster))
		}
		slices.Sort(all)
		return strings.Join(all, ", ") + fmt.Sprintf(", this node is of %q", cc.ID)
	case len(cc.Founders) > 0 && len(missing) > 0:
		return "waiting for founders " + strings.Join(missing, ", ")
	case len(cc.Founders) > 0:
		return fmt.Sprintf("all founders are there; %s makes the cluster when they have been for a while", cc.Founders[0])
	case len(seen) > 0:
		return fmt.Sprintf("it has found %s, which %s in no cluster either: start one node with --bootstrap", list(seen), isAre(seen))
	case len(cc.Join) > 0:
		return "nobody at --join " + strings.Join(cc.Join, ",") + " answers"
	}
	return "it was told neither to make one (--bootstrap, --founders) nor whom to --join"
}

// list names nodes, at most maxListed of them.
func list(nodes []string) string {
	const maxListed = 8
	nodes = slices.Sorted(slices.Values(nodes))
	if more := len(nodes) - maxListed; more > 0 {
		return strings.Join(nodes[:maxListed], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(nodes, ", ")
}

func isAre(nodes []string) string {
	if len(nodes) == 1 {
		return "is"
	}
	return "are"
}

// sayWaiting warns that this node waits for its cluster, and why, until it has heard of
// it.
func (c *cluster) sayWaiting() {
	said, lines := "", 0
	for wait := waitingSaid; pause(c.ctx, wait) && lines < waitingLines; wait = waitingPoll {
		why := c.waiting()
		if why == "" {
			return
		}
		if why != said {
			c.log.Warn("this node waits for its cluster", "cluster", c.cfg.Cluster.ID, "why", why)
			said, lines = why, lines+1
		}
	}
}

// notHeard is why a node is not ready that has not heard of its cluster.
func (c *cluster) notHeard() error {
	return errors.New("not ready: the node has not heard from its cluster yet: " + c.waiting())
}
