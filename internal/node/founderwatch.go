package node

import (
	"errors"
	"time"

	"github.com/keystead/keystead/ring/member"
)

const (
	// founderRounds is how many rounds of serf's reconnects a founder waits out. In
	// each, nodes that hold a cluster try to reach each member that has failed once, on
	// average: so a founder that has lost its disk, as have all others, hears of the
	// cluster of those that have not.
	founderRounds = 2
	// founderSpare is for what is heard in the last round to be shown.
	founderSpare = time.Second
	// founderPoll is how often a founder looks at least.
	founderPoll = 500 * time.Millisecond
	// founderGap is how old a look may be. A founder that did not look for so long was
	// stopped: what it has seen before is as old as that.
	founderGap = 3 * time.Second
)

// errSlept says that a look is too old to make a cluster by.
var errSlept = errors.New("this process was stopped, or held up, since it has seen the founders")

// founderWatch counts for how long all founders have been seen without a cluster. It is a plain
// state machine; time is an argument, in nanoseconds, suspended time included.
type founderWatch struct {
	wait  int64 // for how long they are to be seen, without a break
	seen  bool  // they were, at the last look
	since int64 // … and have been since
	last  int64 // when the last look was
}

func newFounderWatch(p member.Profile) *founderWatch {
	//guard:founders-wait founderRounds -> 0
	return &founderWatch{wait: int64(founderRounds*p.Reconnect() + founderSpare)}
}

// poll takes in whether they are seen now, and returns whether they have been for long
// enough.
func (w *founderWatch) poll(now int64, seen bool) bool {
	if !w.seen || w.fresh(now) != nil {
		w.since = now
	}
	w.seen, w.last = seen, now
	return seen && now-w.since >= w.wait
}

// fresh reports whether the last look still counts.
func (w *founderWatch) fresh(now int64) error {
	//guard:founders-slept
	if now-w.last > int64(founderGap) {
		return errSlept
	}
	return nil
}

// restart begins anew.
func (w *founderWatch) restart() { w.seen = false }
