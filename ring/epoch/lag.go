package epoch

import (
	"maps"
	"time"

	"github.com/keystead/keystead/ring/epoch/table"
)

// A node may renew its lease and not follow the log: its disk is full or hangs, or
// raft cannot bring it the entries. What it owned before, it serves; but rows that
// come to it are served by nobody, and it does not learn that a standby was taken
// out for which its answers wait. So the leader does not extend the lease of a member
// that has not applied for lagTTLs what the table says of its own rows. It is removed
// when the lease is over, and its standbys act.

// lagTTLs is for how many TTLs a member may stay behind what concerns it. A node
// that is slow follows the log within a fraction of one.
const lagTTLs = 2

// lag is what a member was seen to have missed.
type lag struct {
	epoch  uint64 // that it has to apply
	since  int64  // when that was noticed
	warned bool   // people were
}

// stuck reports whether the log of a member that asks for a lease stands still.
func (k *keeper) stuck(h table.Holder, applied uint64) bool {
	l, is := k.lags[h]
	if is && applied >= l.epoch { // it moves; it may have missed something later
		delete(k.lags, h)
		is = false
	}
	t := k.g.Table()
	if !is {
		//guard:lag-own-rows t.Concerns(h) -> t.Epoch
		if needs := t.Concerns(h); applied < needs {
			k.lags[h] = lag{epoch: needs, since: k.now}
		}
		return false
	}
	if k.now-l.since < lagTTLs*int64(k.cfg.TTL) {
		return false
	}
	if !l.warned {
		l.warned = true
		k.lags[h] = l
		k.cfg.Log.Warn("a node does not apply what is agreed about its rows: its lease is not extended; look at its disk",
			"node", h.Node, "applied", applied, "needed", l.epoch, "for", time.Duration(k.now-l.since))
	}
	return true
}

// forgetLags forgets processes that are no members any more.
func (k *keeper) forgetLags(t *table.Table) {
	maps.DeleteFunc(k.lags, func(h table.Holder, _ lag) bool { return !t.Holds(h) })
}
