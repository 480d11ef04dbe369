package epoch

import (
	"log/slog"
	"math"
	"slices"
	"time"

	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// enlisted reports whether the disk knows that this incarnation has it, and has it know that. It
// must, before the process asks to be admitted: as a member it may be named by rows, and then its
// disk counts for what the process is named for.
func (k *keeper) enlisted() bool {
	self := k.g.rule.Self().Incarnation
	if k.cfg.Enlist == nil || k.enlistedAs == self {
		return true
	}
	if k.enlisting || k.now < k.enlistAt {
		return false
	}
	k.enlisting = true
	k.g.running.Go(func() {
		err := k.cfg.Enlist(self)
		k.post(func(k *keeper) { k.enlistDone(self, err) })
	})
	return false
}

func (k *keeper) enlistDone(self uint64, err error) {
	k.enlisting = false
	if err == nil {
		k.enlistedAs, k.unlistedAt = self, 0
		k.renewAt = min(k.renewAt, k.now)
		k.ticked()
		return
	}
	k.enlistAt = k.now + int64(k.cfg.TTL)/4
	if k.unlistedAt == 0 || k.now-k.unlistedAt >= int64(tellEvery) {
		k.unlistedAt = k.now
		k.cfg.Log.Error("the disk cannot be written: this node does not ask to be admitted to the cluster before it can", "error", err)
	}
}

// diskReport returns what the disk says of itself: all of it, as long as this process is no
// member, or a row waits for a disk of this node. While rows wait for others, it says as well what
// it has heard of those.
func (k *keeper) diskReport(self table.Holder) *peerv1.DiskReport {
	if k.cfg.Disk == nil {
		return nil
	}
	t := k.g.Table()
	if !k.admitted || len(t.Awaited(self.Node)) > 0 {
		return k.cfg.Disk(true)
	}
	r := k.cfg.Disk(false)
	if t.Cold() > 0 && r != nil {
		r.Streams = ofAwaited(t, k.cfg.Disk(true).GetStreams())
	}
	return r
}

// ofAwaited returns the streams to processes of which the disks are waited for.
func ofAwaited(t *table.Table, streams []*peerv1.DiskStream) (of []*peerv1.DiskStream) {
	awaited := t.ColdRows()
	for _, s := range streams {
		h := table.Holder{Node: s.Node, Incarnation: s.Incarnation}
		//guard:heard-of-others g.Names(h) -> g.Names(h) && false
		if slices.ContainsFunc(awaited, func(g table.ColdRows) bool { return g.Names(h) }) {
			of = append(of, s)
		}
	}
	return of
}

// alive reports whether a member holds a lease, as far as this leader knows.
func (k *keeper) alive(h table.Holder) bool { return k.grants.Alive(h, k.now) }

// mayStand reports whether a member may be given rows: where disks count, one of which the disk
// is not whole must not.
func (k *keeper) mayStand(t *table.Table, h table.Holder) bool {
	//guard:join-whole true
	return t.Durable == table.Undurable || k.cold.heard[h].GetWhole()
}

// stoppedInOrder hears of a process which asks on a disk with which the member of its node has
// stopped in order: that is as good as a lease that was given up.
func (k *keeper) stoppedInOrder(q *peerv1.RenewRequest) {
	t := k.g.Table()
	m, is := t.Member(q.Node)
	if is && t.Durable != table.Undurable &&
		slices.Contains(q.Disk.GetStopped(), m.Incarnation) { //guard:released-by-disk -> len(q.Disk.GetStopped()) > 0
		k.grants.Release(m.Holder())
	}
}

// overTogether returns the members to be removed where disks count. All that are dead are removed
// at once, when of every member it is known whether it lives: rows are to name all that had them. A lease
// that is not over says that of a member only if it was granted after those died.
// Those that have stopped together are waited for by a leader that is one of them, and those that
// are mute as ever.
func (k *keeper) overTogether() []table.Holder {
	asking, over := k.asking(), k.grants.Expired(k.now)
	k.mutes.forget(over)
	if len(over) == 0 {
		return nil
	}
	self := k.g.rule.Self()
	for _, m := range k.synced.Members {
		h := m.Holder()
		switch {
		case !slices.Contains(over, h):
			//guard:removal-together
			if !k.alive(h) ||
				k.diedWith(h, over) { //guard:removal-of-one-moment
				return nil
			}
		case slices.Contains(asking, h.Node):
		case k.synced.Stopped(self) && k.synced.Stopped(h) && k.stops.all(k.synced, k.now, k.cfg.ResumeWait):
			return nil
		case k.waitsFor(h, over):
			return nil
		}
	}
	return over
}

// diedWith reports whether a member that holds a lease may have died at the moment at which one of these did, whose lease is
// over, and who has rows together with it.
func (k *keeper) diedWith(h table.Holder, over []table.Holder) bool {
	for _, dead := range over {
		if !k.grants.Outlives(h, dead) && slices.ContainsFunc(k.synced.Rows, func(r table.Row) bool {
			return r.Owner == h && r.Standby == dead || r.Owner == dead && r.Standby == h
		}) {
			return true
		}
	}
	return false
}

// adoptable returns the command that commits the level that all members know, and what their
// disks promise, when nothing has changed for a while.
func (k *keeper) adoptable(t *table.Table) (table.Command, bool) {
	if k.now-k.changedAt < int64(k.cfg.AdoptAfter) || len(t.Members) == 0 {
		return table.Command{}, false
	}
	common := t.Common()
	adopt := &table.Adopt{Level: common}
	if common >= table.DiskLevel {
		adopt.Durable = k.cold.agreeable(t, k.alive)
	}
	if common < table.FirstAdopted || t.Uses(common) && adopt.Durable == table.Undurable {
		return table.Command{}, false
	}
	if common >= table.WindowLevel {
		adopt.IDWindow = int64(k.cfg.IDWindow)
	}
	return table.Command{Adopt: adopt}, true
}

// tellCold tells people which disks rows wait for.
func (k *keeper) tellCold() {
	if len(k.cold.groups) == 0 || k.now < k.cold.tellAt {
		return
	}
	k.cold.tellAt = k.now + int64(judgeEvery)
	for _, w := range k.cold.tell(k.now, k.alive) {
		log := k.cfg.Log.With("node", w.of.Node, "incarnation", w.of.Incarnation, "rows", w.rows)
		if w.until != math.MaxInt64 {
			log = log.With("for", time.Duration(w.until-k.now).Round(time.Second))
		}
		switch {
		case w.setBack:
			log.Warn("the disk of a node was set back: it has less than it had told others. Rows wait for the disks of others that have them; to go on from this one, give those up with `keystead recover --without`")
		case w.emptied:
			log.Warn("rows wait for the disk of a node that runs on another one, or on one that was emptied: give it the disk that it had, or give the rows up with `keystead recover --without " + w.of.Node + "`")
		case w.until == math.MaxInt64:
			log.Warn("rows wait for the disk of a node: start it, or give up what it has with `keystead recover --without " + w.of.Node + "`")
		default:
			log.Info("rows wait for the disk of a node")
		}
	}
}

// tellRecovered tells people what became of rows that waited.
func (k *keeper) tellRecovered(log *slog.Logger, c table.Command) {
	switch {
	case c.Recover != nil:
		log.Info("rows go on from a disk", "node", c.Recover.To.Node, "rows", len(c.Recover.Rows), "stopped in order", c.Recover.Whole)
	case c.Forgo != nil:
		for _, h := range c.Forgo.Holders {
			log.Warn("the disk of a node is not waited for any more: rows that have no other one are lost", "node", h.Node, "incarnation", h.Incarnation, "why", c.Forgo.Reason)
		}
	}
}
