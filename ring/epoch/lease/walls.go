package lease

import (
	"cmp"
	"slices"
)

// WallsWithin is how far apart the wall clocks of a majority may be that agree on the time, ns.
const WallsWithin = 60_000_000_000

// Walls is what a leader knows of the wall clocks of the members, beside its own clock: by
// these they agree on the time that calendars go by. The zero Walls knows nothing.
//
// The time is agreed if more than half of all members have clocks that are at most WallsWithin
// apart. Of such a group, the narrowest, it is the time of the clock that is last: by then all
// of a majority have come to it. A clock that is wrong has no say as long as fewer than half
// are, however wrong it is.
type Walls[K comparable] struct {
	told map[K]wall
}

// wall is what a member told.
type wall struct {
	ahead int64 // of the leader's clock, at least: messages take time
	at    int64
}

// Heard learns what a member's wall clock showed when it sent what was received now, both in
// ns.
func (w *Walls[K]) Heard(k K, wallClock, received, now int64) {
	if w.told == nil {
		w.told = map[K]wall{}
	}
	w.told[k] = wall{wallClock - received, now}
}

// Agreed returns by how much the time that is agreed on is ahead of the leader's clock, ns, by
// what the members have told since a moment. It forgets those that are none.
func (w *Walls[K]) Agreed(members []K, since int64) (ahead int64, ok bool) {
	var all []wall
	told := make(map[K]wall, len(members))
	for _, k := range members {
		if is, has := w.told[k]; has {
			told[k] = is
			if is.at >= since {
				all = append(all, is)
			}
		}
	}
	w.told = told
	//guard:walls-majority len(members)/2+1 -> 1
	most := len(members)/2 + 1
	slices.SortFunc(all, func(a, b wall) int { return cmp.Compare(a.ahead, b.ahead) })
	narrowest := int64(WallsWithin)
	for i := 0; i+most <= len(all); i++ {
		if width := all[i+most-1].ahead - all[i].ahead; width >= 0 && (width < narrowest || !ok && width == narrowest) {
			narrowest, ahead, ok = width, all[i].ahead, true
		}
	}
	return ahead, ok
}

// Wall is what a node knows of the time that is agreed on. The zero Wall knows nothing.
type Wall struct {
	ahead int64 // of the node's clock
	known bool
}

// Learn takes in the time at which the leader received something that was sent and answered at
// these moments of the node's clock, ns. It was received in between: what the node has counted
// on from before stays, if that may be so.
func (w *Wall) Learn(wallClock, sent, answered int64) {
	least, most := wallClock-answered, wallClock-sent
	if !w.known {
		w.ahead, w.known = least, true
		return
	}
	w.ahead = min(max(w.ahead, least), most)
}

// Ahead returns by how much the time is ahead of the node's clock, ns, if it is known.
func (w *Wall) Ahead() (ahead int64, known bool) { return w.ahead, w.known }
