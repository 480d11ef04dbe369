package epoch

import (
	"slices"
	"time"

	"github.com/keystead/keystead/ring/epoch/table"
)

// roll is a leader's judgement of whether all processes were stopped and come back one
// after the other, with their state. It waits for those that have not come back: longer
// than for a lease, and only as long as none of the processes of before shows that it
// never stopped.
//
// A new leader knows those of before by the table: members that are not marked as
// returned. Those that are have been admitted since the stop, by the leader of that time.
type roll struct {
	since  int64          // when the term began
	wait   time.Duration  // Config.ResumeWait
	before []table.Holder // that may still come back
}

// callRoll begins the judgement of a term.
func callRoll(t *table.Table, since int64, wait time.Duration) roll {
	r := roll{since: since, wait: wait}
	for _, m := range t.Members {
		//guard:returned-is-not-before true
		if !m.Returned {
			r.before = append(r.before, m.Holder())
		}
	}
	return r
}

// heard is told that a process lives, or has stopped only now.
func (r *roll) heard(h table.Holder) {
	if slices.Contains(r.before, h) {
		r.before = nil
	}
}

// learned leaves out processes that are no members any more.
func (r *roll) learned(t *table.Table) {
	r.before = slices.DeleteFunc(r.before, func(h table.Holder) bool { return !t.Holds(h) })
}

// waits reports whether somebody is waited for.
func (r *roll) waits(now int64) bool { return len(r.before) > 0 && now-r.since < int64(r.wait) }

// awaits reports whether this process is.
func (r *roll) awaits(h table.Holder, now int64) bool {
	return r.waits(now) && slices.Contains(r.before, h)
}
