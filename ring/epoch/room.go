package epoch

import (
	"slices"
	"time"

	"github.com/keystead/keystead/ring/epoch/table"
)

// A process that joins and has no room for the copies that come to it holds up every
// other change: the transition that is to give it rows waits for them without end, and
// no other one begins. So it gives its lease up when it has had no room for long enough.
// The leader removes it, rows that it got already fall to their synced standbys, which
// are mostly those that gave them, and the transition goes on without it. It becomes
// another incarnation, as a process that was removed does, and asks to be admitted after a pause.
//
// A process whose copies merely take long refuses none, and stays. So does one that has
// a single other member beside it: nobody waits for anything but to give it rows, and it
// is the only standby to be had for those that it has room for.
//
// What may happen meanwhile:
//   - The release is lost, or late: it is sent again until the table does not name the
//     process, and as that renews no more, its lease ends anyway. It acts no more from
//     before the first release on, so it does not matter which of them removes it; an
//     answer that grants it a lease after all is ignored.
//   - A flip to it is agreed on before the removal: then the source stands by for the
//     row, in sync, and is its owner again with the removal. After it: the flip names an
//     incarnation that is no member, and is refused.
//   - It becomes active before the removal is agreed on: it is removed all the same, as
//     a process that stops. Every row that it owned had a synced standby.
//   - It, or its standbys, lose a standby between the look at the table and the removal:
//     that is the death of two nodes at once, and declared.
//   - The room comes back: nobody is refused any more, or it stands in more rows, and
//     the time counts anew. After the release it is too late: it comes back as another.

const (
	// roomPatience is for how long copies are refused before a process gives up: tens
	// of tries. It is also for how long none must be refused until it counts anew.
	roomPatience = 30 * time.Second
	// minLeftOut and maxLeftOut are how long it stays away, the first time and at most:
	// others may change the ring meanwhile, and somebody may give it more room.
	minLeftOut = 30 * time.Second
	maxLeftOut = 10 * time.Minute
	// lastAnswers is how long what was let in before a process gives up may still take
	// to reach its standbys.
	lastAnswers = 50 * time.Millisecond
)

// room is what a process goes by that has no room for copies. Times are the keeper's.
type room struct {
	seen        int64         // the last refusal that was looked at
	first, last int64         // refusals, with no success in between; 0 = none
	most        int           // rows that the process has stood in at once
	pause       time.Duration // of the last time that it was left out; 0 = never
	asksAt      int64         // when it asks to be admitted again
}

// refused is told that a copy was refused while the process stood in so many rows, and
// reports whether it has gone on for too long. That a record was taken means nothing: a
// copy begins with what there is room for. A row more is a success, and each counts once.
func (r *room) refused(now int64, rows int) bool {
	if r.first == 0 ||
		rows > r.most || //guard:joiner-row-more
		now-r.last > int64(roomPatience) {
		r.first = now
	}
	r.last, r.most = now, max(r.most, rows)
	return now-r.first >= int64(roomPatience)
}

// next returns how long the process stays away when it is left out.
func (r *room) next() time.Duration {
	return min(max(2*r.pause, minLeftOut), maxLeftOut)
}

// leftOut is told that the process is out.
func (r *room) leftOut(now int64) {
	r.pause = r.next()
	r.asksAt, r.first, r.most = now+int64(r.pause), 0, 0
}

// active is told that the process is a member like the others.
func (r *room) active() { r.pause, r.first, r.most = 0, 0, 0 }

// NoRoom is told that this process refused a copy because it has no room for it.
func (g *Group) NoRoom() { g.noRoom.Store(max(1, g.steady())) }

// LeftOut returns for how long this process, which had no room for copies while it joined,
// does not ask to be admitted yet; 0 = it does, or is a member.
func (g *Group) LeftOut() time.Duration {
	at := g.asksAt.Load()
	if at == 0 {
		return 0
	}
	return max(0, time.Duration(at-g.steady()))
}

// checkRoom gives up when this process joins and has no room for what it is to own.
func (k *keeper) checkRoom() {
	at := k.g.noRoom.Load()
	if at == k.room.seen || k.retired || k.leaving {
		return
	}
	k.room.seen = at
	//guard:joiner-gives-up true
	if !k.room.givesUp(k.g.Table(), k.g.rule.Self(), k.now) {
		return
	}
	k.cfg.Log.Warn("this node has no room for the rows that it is to take over, and holds up all other changes: it gives up joining; give it as much room as the others have (--max-memory, --max-objects)",
		"refused for", time.Duration(k.now-k.room.first), "asks again after", k.room.next())
	k.leaving = true
	k.holding.Drop()
	k.g.rule.Extend(0)
	k.renewAt = k.now + int64(lastAnswers)
}

// givesUp is told that a copy was refused, and reports whether this process, which joins,
// is to give up. It is not as long as it owns a row that nobody else has.
func (r *room) givesUp(t *table.Table, self table.Holder, now int64) bool {
	m, ok := t.Member(self.Node)
	if !ok || m.Holder() != self ||
		m.Phase != table.Joining || //guard:joiner-active
		t.Transition == nil || others(t, self) < 2 {
		return false
	}
	if !slices.ContainsFunc(t.Moves(), func(v table.Move) bool { return v.To == self }) {
		return false // nobody waits for it
	}
	return r.refused(now, rowsOf(t, self)) &&
		!t.Strands(self, []table.Holder{self}) //guard:joiner-strands
}

// rowsOf counts the rows that a process owns, or stands by for in sync.
func rowsOf(t *table.Table, h table.Holder) int {
	n := 0
	for i := range t.Rows {
		if r := &t.Rows[i]; r.Owner == h || r.Standby == h && r.Synced {
			n++
		}
	}
	return n
}

// others counts the members beside this one that have something, or wait to be given it.
func others(t *table.Table, self table.Holder) int {
	n := 0
	for _, m := range t.Members {
		if m.Holder() != self && m.Phase != table.Drained {
			n++
		}
	}
	return n
}
