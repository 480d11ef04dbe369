package node

import (
	"fmt"
	"time"

	"github.com/keystead/keystead/internal/rpc"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch"
	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// warnings returns what is wrong with this node that the table does not tell, the gravest
// first.
func (n *Node) warnings() (all []rpc.Warning) {
	add := func(problem, hint string) {
		if problem != "" {
			all = append(all, rpc.Warning{Problem: problem, Hint: hint})
		}
	}
	add(n.lossWarning())
	add(n.graceWarning())
	add(n.levelWarning())
	add(n.logWarning())
	add(n.leftOutWarning())
	add(n.keeps.roomWarning())
	add(n.diskWarning())
	add(n.copyWarning())
	add(n.timeWarning())
	return all
}

// graceWarning returns for how long no locks of lost rows are granted.
func (n *Node) graceWarning() (problem, hint string) {
	if n.cluster == nil {
		return "", ""
	}
	own, _, t := n.cluster.group.Rule().Recoveries()
	return graceText(n.cfg.ID, own, t, n.cfg.Clock.Now())
}

// graceText is what a node says of rows in grace: of its own, when the last grace is over;
// of those of others, which count from when they got them, how long one lasts.
func graceText(id string, own []serving.Recovery, t *table.Table, now int64) (problem, hint string) {
	const what = "this is --max-lock-ttl of the cluster and what clocks may drift; `keystead lock` says how long it still is for a key"
	if t.InGrace() == 0 {
		return "", ""
	}
	if len(own) == 0 {
		return fmt.Sprintf("the owners of lost rows grant no locks of them for up to %s", wholeSeconds(t.GraceTime())), what
	}
	return fmt.Sprintf("%s grants no locks of %d lost rows for another %s", id, len(own), wholeSeconds(int64(graceLeft(own, t, now)))), what
}

// graceLeft returns when the last grace of some rows is over.
func graceLeft(own []serving.Recovery, t *table.Table, now int64) (left time.Duration) {
	for _, r := range own {
		left = max(left, time.Duration(r.At+t.GraceTime()-now))
	}
	return left
}

// wholeSeconds writes a time in nanoseconds, rounded up to a second.
func wholeSeconds(ns int64) string {
	return (time.Duration(ns) + time.Second - 1).Truncate(time.Second).String()
}

// levelWarning returns that this program is too old for its cluster.
func (n *Node) levelWarning() (problem, hint string) {
	if n.cluster == nil {
		return "", ""
	}
	return levelText(n.cluster.group.Table())
}

func levelText(t *table.Table) (problem, hint string) {
	if t.Level <= table.Level {
		return "", ""
	}
	return fmt.Sprintf("this program is too old for the cluster and is not admitted: it knows level %d, and the cluster uses level %d", table.Level, t.Level),
		"start the node with the version that the others have: `keystead members` shows it"
}

// copyWarning says whose store is too full for copies of this node's objects.
func (n *Node) copyWarning() (problem, hint string) {
	if n.cluster == nil {
		return "", ""
	}
	full := n.cluster.state.source.Full()
	if full == "" {
		return "", ""
	}
	return fmt.Sprintf("%s has no room for copies of what %s owns (NOT_TAKEN): the death of %s would lose it", full, n.cfg.ID, n.cfg.ID),
		"raise --max-memory and --max-objects on " + full + ", or add nodes; let counters end by themselves with idle TTLs"
}

// timeWarning returns what is wrong with the time that limits by the calendar go by.
func (n *Node) timeWarning() (problem, hint string) {
	if n.cluster == nil {
		return "", ""
	}
	ahead, known := n.cluster.group.WallAhead()
	return timeText(n.cfg.ID, ahead, known, n.timeless())
}

// timeless reports whether the node refuses limits by the calendar for want of a time.
func (n *Node) timeless() bool {
	g := n.cluster.group
	return g.Timeless() && g.Table().Uses(owner.CalendarLevel)
}

func timeText(id string, ahead time.Duration, known, timeless bool) (problem, hint string) {
	const mend = "set it right (NTP); limits by the calendar go by the time of the others meanwhile"
	switch {
	case timeless:
		return id + " does not know what time it is, and refuses limits by the calendar: no majority of the nodes has clocks within a minute of each other",
			"set the clocks of the nodes right (NTP)"
	case !known || !epoch.WallWrong(ahead):
		return "", ""
	case ahead > 0:
		return fmt.Sprintf("the clock of %s is %s ahead of the time that the cluster has agreed on", id, ahead.Round(time.Second)), mend
	}
	return fmt.Sprintf("the clock of %s is %s behind the time that the cluster has agreed on", id, (-ahead).Round(time.Second)), mend
}

// leftOutWhy is what is wrong with a node that had no room for what it was to take over.
const leftOutWhy = "the node gave up joining: it has no room for the rows that it was to take over"

// leftOutWarning returns that the node could not join for want of room.
func (n *Node) leftOutWarning() (problem, hint string) {
	if n.cluster == nil || n.cluster.group.LeftOut() == 0 {
		return "", ""
	}
	return leftOutWhy, "give it as much room as the others have (--max-memory, --max-objects); it asks again after a pause of up to 10 minutes"
}
