package epoch

import (
	"github.com/keystead/keystead/ring/epoch/table"
)

// The disks of all nodes may be set back to an earlier state: restored from a backup,
// or cloned. The log knows nothing of what was committed since, so the same epochs, and
// with them the same fencing tokens and ids, would be given a second time. What cannot
// be set back is the clock: it counts epochs faster than a cluster commits. So a leader
// whose process has not held a lease yet, which may just have read a log that went back,
// raises the epoch to the clock's before anything else is committed in its term. One
// that has held a lease got it from a leader that had done so.
//
// What a candidate remembers beside the log (Config.EpochFloor) is a floor too, up to the
// clock's epoch: anybody could use up all epochs otherwise. And a process that has
// applied more than the leader, which has applied all that is committed, follows
// another history: it is granted nothing, and people are told.

// rise raises the epoch to the clock's, if it may have gone back. Nothing else is
// committed in this term before: see apply.
func (g *Group) rise(term uint64) error {
	t := g.Table()
	to := WallEpoch(g.cfg.Wall())
	if g.warm.Load() || t.Cluster == "" || to <= t.Epoch {
		return nil
	}
	c := table.Command{ID: draw(), Raise: &table.Raise{Above: t.Epoch, To: to}}
	if why := t.Knows(c); why != nil {
		g.cfg.Log.Info("the epoch is not raised to the clock's", "why", why)
		return nil
	}
	if to-t.Epoch > table.MaxLeap {
		g.cfg.Log.Error("the clock is years ahead of the epoch of the table, which is not raised to it: set the clock, or wait for no backup to be restored",
			"epoch", t.Epoch, "clock", to)
		return nil
	}
	epoch, err := g.commit(c)
	if err == nil {
		g.cfg.Log.Info("the epoch was raised to the clock's: the log of this new process may have gone back", "epoch", epoch, "term", term)
	}
	return err
}

// aheadTTLs is for how many TTLs a process may have applied what the leader has not. A
// leader that is busy applies what it has committed later than others do.
const aheadTTLs = 2

// other is a process that had applied more than the leader.
type other struct {
	epoch  uint64 // that it had applied
	since  int64  // when that was noticed
	proven bool   // the leader did not get there: it follows another history
}

// ahead reports whether a process follows another history than this leader.
func (k *keeper) ahead(h table.Holder, applied uint64) bool {
	t := k.g.Table()
	o, seen := k.others[h]
	switch {
	case o.proven:
		return true
	case seen && t.Epoch >= o.epoch:
		delete(k.others, h)
	case seen && k.now-o.since >= aheadTTLs*int64(k.cfg.TTL):
		o.proven = true
		k.others[h] = o
		k.cfg.Log.Error("the log went back: a node has applied more than the leader knows; were disks restored from a backup while it ran? It is granted nothing: start it anew",
			"node", h.Node, "applied", o.epoch, "epoch", t.Epoch)
	case !seen && applied > t.Epoch && len(k.others) < 2*table.MaxMembers:
		k.others[h] = other{epoch: applied, since: k.now}
	}
	return o.proven
}

// floored returns the command that raises the epoch above what a candidate remembers
// beside the log.
func (k *keeper) floored(t *table.Table) (table.Command, bool) {
	clock := WallEpoch(k.cfg.Wall())
	for _, n := range k.asking() {
		if floor := k.candidates[n].floor; floor > t.Epoch &&
			floor <= clock && //guard:rise-floor
			floor-t.Epoch <= table.MaxLeap {
			c := table.Command{Raise: &table.Raise{Above: t.Epoch, To: floor}}
			if t.Knows(c) == nil {
				k.cfg.Log.Warn("the epoch is raised to what a node remembers: the log went back, or the node was in another cluster or alone", "node", n, "epoch", t.Epoch, "floor", floor)
				return c, true
			}
		}
	}
	return table.Command{}, false
}

// open reports whether this leader may commit what is proposed: it has applied all
// that was committed before its term, and the epoch has not gone back.
func (g *Group) open() bool {
	term := g.leads()
	return term != 0 &&
		g.risen.Load() == term && //guard:rise-first
		!g.withdrawn.Load()
}
