package epoch

import (
	"slices"

	"github.com/keystead/keystead/ring/epoch/table"
)

// asking returns the nodes that asked to be admitted a moment ago, in order.
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

// maxBehind is how many epochs a candidate may be behind: with round trips of 50 ms, more
// than nodes raise meanwhile, and applied in a moment.
const maxBehind = 256

// follows reports whether a candidate follows the log. One that does not would be admitted
// and not know it, and be removed for want of a lease. And it must know of its own removal,
// if there was one, or it would be admitted as what it was: no change of members is
// unknown to it. Other changes come all the time.
func (k *keeper) follows(c candidate, t *table.Table) bool {
	return c.epoch >= k.membersAt && //guard:candidate-epoch
		c.epoch+maxBehind >= t.Epoch //guard:candidate-behind
}

// tries reports whether a command for a candidate would be accepted. Why not is logged once
// for each reason: it asks several times a second.
func (k *keeper) tries(t *table.Table, node string, c table.Command) bool {
	_, err := t.Apply(c)
	if err == nil {
		delete(k.turnedAway, node)
		return true
	}
	k.turnAway(node, err.Error())
	return false
}

// turnAway forgets a candidate that cannot be admitted.
func (k *keeper) turnAway(node, why string) {
	//guard:turned-away-once true
	if k.turnedAway[node] != why {
		if len(k.turnedAway) >= maxWaiting {
			clear(k.turnedAway)
		}
		k.turnedAway[node] = why
		k.cfg.Log.Warn("a node cannot be admitted", "node", node, "why", why)
	}
	delete(k.candidates, node)
}

// resumable returns the command that puts a process in the place of an earlier one of
// its node. That it asks shows that the earlier one acts no more: it wrote down what
// it held after its last answer. Like any other, it must follow the log.
func (k *keeper) resumable(t *table.Table) (table.Command, bool) {
	if t.Durable != table.Undurable { // what a process has is on its disk
		return table.Command{}, false
	}
	for _, n := range k.asking() {
		c := k.candidates[n]
		if m, is := t.Member(n); is && c.resume == m.Incarnation && k.follows(c, t) {
			r := table.Command{Resume: &table.Resume{Member: c.member, Old: c.resume, Cold: k.coldStart(t)}}
			//guard:resume-tried true
			if k.tries(t, n, r) {
				return r, true
			}
		}
	}
	return table.Command{}, false
}

// admissible returns the command that admits a candidate: one that asked a moment ago, and
// whose node is no member under another incarnation.
func (k *keeper) admissible(t *table.Table) (table.Command, bool) {
	for _, n := range k.asking() {
		c := k.candidates[n]
		if _, is := t.Member(n); !is && k.follows(c, t) {
			if why := turnsAway(t, c.disk); why != "" {
				k.turnAway(n, why)
				continue
			}
			a := table.Command{Admit: &table.Admit{Member: c.member, Cold: k.coldStart(t)}}
			if !k.tries(t, n, a) {
				continue
			}
			//guard:admit-entire false
			if lessens(t, c.disk) {
				k.cfg.Log.Warn("a node is admitted of which not all answers wait for disks: the cluster does not promise that any more", "node", n)
				return table.Command{Adopt: &table.Adopt{Level: t.Level, Durable: table.Always}}, true
			}
			return a, true
		}
	}
	return table.Command{}, false
}

// expired returns the members to be removed. One that is about to come back with all that
// it held is not. And if nobody of the table is there, all have been stopped: for
// those that have not shown up yet, with their state or without, the leader waits
// longer than for a lease. For those that are mute: see mutes.
func (k *keeper) expired() []table.Holder {
	if k.synced.Durable != table.Undurable {
		return k.overTogether()
	}
	asking, over := k.asking(), k.grants.Expired(k.now)
	k.mutes.forget(over)
	all := slices.Clone(over)
	return slices.DeleteFunc(over, func(h table.Holder) bool {
		if slices.Contains(asking, h.Node) {
			return k.candidates[h.Node].resume == h.Incarnation
		}
		//guard:resume-wait false
		return k.roll.awaits(h, k.now) ||
			k.synced.Stopped(h) && k.stops.all(k.synced, k.now, k.cfg.ResumeWait) || //guard:stop-waited-for
			k.waitsFor(h, all) //guard:mute-waited-for
	})
}

// coldStart reports whether a process that comes now is to be marked as returned: others are
// waited for, and all nodes can read the mark.
func (k *keeper) coldStart(t *table.Table) bool {
	return t.Uses(3) && t.Durable == table.Undurable && k.roll.waits(k.now)
}

// termOf returns the term that a removal names, where all nodes can read it.
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
	if g.post(g.halt, func(k *keeper) { k.silence(); close(done) }) == nil {
		select {
		case <-done:
		case <-g.halt.Done():
		}
	}
	g.silent.Store(true)
}
