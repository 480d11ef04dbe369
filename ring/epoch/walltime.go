package epoch

import (
	"time"

	"github.com/keystead/keystead/ring/epoch/lease"
	"github.com/keystead/keystead/ring/epoch/table"
)

// wallAt returns the time that is agreed on when a renewal was received, and takes in what its
// sender's clock showed. If clocks do not agree now, it is what this node has counted on since
// they did; 0 = they never have.
func (k *keeper) wallAt(r *renewal) int64 {
	if r.req.WallNs > 0 {
		k.walls.Heard(r.req.Node, r.req.WallNs, r.received, k.now)
	}
	if ahead, ok := k.walls.Agreed(names(k.g.Table()), k.now-2*int64(k.cfg.TTL)); ok {
		return r.received + ahead
	}
	if ahead, known := k.wall.Ahead(); known {
		return k.boot - (k.now - r.received) + ahead
	}
	return 0
}

// names returns the nodes of a table.
func names(t *table.Table) []string {
	all := make([]string, len(t.Members))
	for i := range t.Members {
		all[i] = t.Members[i].Node
	}
	return all
}

// learnWall takes in the time that the answer to a renewal tells, which was sent at that moment of
// the boot clock; 0 = it tells none.
func (k *keeper) learnWall(sent, wall int64) {
	if wall <= 0 {
		if _, known := k.wall.Ahead(); !known {
			k.g.timeless.CompareAndSwap(0, max(k.boot, 1))
		}
		return
	}
	k.wall.Learn(wall, sent, k.boot)
	ahead, _ := k.wall.Ahead()
	k.g.rule.SetWall(ahead)
	k.g.timeless.Store(0)
	k.judgeWall()
}

// judgeWall tells people when this node's wall clock is not the time that is agreed on.
func (k *keeper) judgeWall() {
	ahead, known := k.g.WallAhead()
	was := k.wallWrong
	switch k.wallWrong = known && WallWrong(ahead); {
	case k.wallWrong && !was:
		k.cfg.Log.Warn("this node's wall clock does not show the time that most nodes agree on, which limits by the calendar go by", "ahead", ahead)
	case was && !k.wallWrong:
		k.cfg.Log.Info("this node's wall clock shows the time that most nodes agree on again", "ahead", ahead)
	}
}

// WallAhead returns by how much this node's wall clock is ahead of the time that is agreed on, if that
// is known.
func (g *Group) WallAhead() (ahead time.Duration, known bool) {
	wall, known := g.rule.Wall(g.cfg.Clock.Now())
	if !known {
		return 0, false
	}
	return g.cfg.Wall().Round(0).Sub(time.Unix(0, wall)), true // as far as it can be said
}

// WallWrong reports whether a clock that is so far ahead of the time that is agreed on is none of those
// that agree.
func WallWrong(ahead time.Duration) bool {
	//guard:wall-wrong false
	return ahead > lease.WallsWithin || ahead < -lease.WallsWithin
}

// timelessFor is for how long leases may come without a time before it is a fault: when a cluster
// starts, its leader has to hear of a majority first.
const timelessFor = 10 * time.Second

// Timeless reports whether this node has a lease, and no time that calendars go by, for longer than the
// start of a cluster takes.
func (g *Group) Timeless() bool {
	since := g.timeless.Load()
	//guard:wall-unknown false
	return since != 0 && g.cfg.Clock.Now()-since >= int64(timelessFor)
}
