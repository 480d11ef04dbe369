package epoch

import (
	"slices"

	"github.com/keystead/keystead/ring/epoch/table"
)

// asking are the nodes that asked to be admitted a moment ago, in order.
func (k *keeper) asking() []string {
	var nodes []string
	for n, c := range k.candidates {
		if k.now-c.at > int64(k.cfg.TTL) {
			delete(k.candidates, n)
			continue
		}
		nodes = append(nodes, n)
	}
	slices.Sort(nodes)
	return nodes
}

// resumable is the command that puts a process in the place of an earlier one of
// its node. That it asks shows that the earlier one acts no more: it wrote down what
// it held after its last answer. Like any other, it must follow the log.
func (k *keeper) resumable(t *table.Table) (table.Command, bool) {
	for _, n := range k.asking() {
		c := k.candidates[n]
		if m, is := t.Member(n); is && c.resume == m.Incarnation && c.epoch >= t.Epoch {
			return table.Command{Resume: &table.Resume{Member: c.member, Old: c.resume, Cold: k.cold(t)}}, true
		}
	}
	return table.Command{}, false
}

// expired are the members to be removed. Who is about to come back with all that
// it held is not. And if nobody of the table is there, all have been stopped: for
// those who have not shown up yet, with their state or without, the leader waits
// longer than for a lease.
func (k *keeper) expired() []table.Holder {
	asking := k.asking()
	return slices.DeleteFunc(k.grants.Expired(k.now), func(h table.Holder) bool {
		if slices.Contains(asking, h.Node) {
			return k.candidates[h.Node].resume == h.Incarnation
		}
		return k.roll.awaits(h, k.now) || k.synced.Stopped(h) && k.stops.all(k.synced, k.now, k.cfg.ResumeWait)
	})
}

// cold reports whether a process that comes now is to be marked as returned: others are
// waited for, and all nodes can read the mark.
func (k *keeper) cold(t *table.Table) bool { return t.Uses(3) && k.roll.waits(k.now) }

// termOf is the term that a removal names, where all nodes can read it.
func (k *keeper) termOf(t *table.Table) uint64 {
	if t.Uses(3) {
		return k.grants.Term()
	}
	return 0
}

// Silence stops acting for good, and keeps the rows: the lease is not given up,
// and this node removes nobody any more. What the process held is for the one that
// comes after it (Config.Resume).
func (g *Group) Silence() {
	done := make(chan struct{})
	if g.tell(g.halt, func(k *keeper) { k.silence(); close(done) }) == nil {
		select {
		case <-done:
		case <-g.halt.Done():
		}
	}
	g.silent.Store(true)
}
