package epoch

import (
	"time"

	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/lease"
)

// kept reports whether an answer of the leader shows that its clock has kept pace with this
// node's. If not, there is no lease: the leader may take it for over before this node does.
func (k *keeper) kept(s lease.Stamp, resp *peerv1.RenewResponse) bool {
	if resp.ReceivedNs == 0 {
		return true // of an earlier version
	}
	was := k.pace.Apart(k.now)
	gained := k.pace.Observe(k.cfg.lease(), resp.Term, lease.Exchange{Sent: s.Sent, Answered: k.now, Leader: resp.ReceivedNs})
	is := k.pace.Apart(k.now)
	k.g.apart.Store(is)
	if gained > 0 {
		k.g.gains.Add(1)
		//guard:pace-gained
		k.holding.Drop()
		k.extend()
	}
	switch {
	case is && !was:
		k.cfg.Log.Error("this node's clock is slower than the leader's, by more than leases allow for: it asks for no lease until they run alike")
	case gained > 0 && !was:
		k.cfg.Log.Warn("the leader's clock has gained on this node's: the lease is dropped and asked for again", "by more than the margin", time.Duration(gained))
	case was && !is:
		k.cfg.Log.Info("this node's clock and the leader's run alike, as far as is known")
	}
	//guard:pace-gained true
	return gained == 0 && !is
}

// slower is a node that says that its clock is slower than this leader's.
type slower struct {
	since int64 // when it said first that it counts no grant for it; 0 = it counts them
	at    int64 // when it said last that its clock is slower
}

// differs reports whether a renewal is of a process that counts no grant, because its clock
// and this leader's run at different rates. It is not extended: others take over. If it is
// not one but most, this leader's own clock is suspected: it calls nobody expired, and
// passes leadership on. Not all find it at one time: it removes nobody for a while at first.
func (k *keeper) differs(r *renewal) bool {
	node := r.req.Node
	if !r.req.ClockDiffers && !r.req.ClockGained {
		delete(k.slower, node)
		return false
	}
	s := k.slower[node]
	s.at = k.now
	switch {
	case !r.req.ClockDiffers:
		s.since = 0
	case s.since == 0:
		s.since = k.now
		k.cfg.Log.Warn("a node's clock is slower than this leader's, by more than leases allow for: its lease is not extended", "node", node)
	}
	k.slower[node] = s
	if k.mostAreSlower() {
		k.distrust()
	} else if s.since != 0 && k.now-s.since < 2*int64(k.cfg.TTL) {
		k.grants.Hush(k.now)
	}
	return r.req.ClockDiffers
}

// mostAreSlower reports whether most other members say that, and more than one.
func (k *keeper) mostAreSlower() bool {
	others, slower := 0, 0
	for _, m := range k.g.Table().Members {
		if m.Node == k.cfg.Node {
			continue
		}
		others++
		if s, is := k.slower[m.Node]; is && k.now-s.at <= 2*int64(k.cfg.TTL) {
			slower++
		}
	}
	//guard:pace-leader false
	return slower >= 2 && 2*slower > others
}

// distrust has a leader do what it can without a clock that it can trust.
func (k *keeper) distrust() {
	k.grants.Hush(k.now)
	if k.now < k.passOnAt {
		return
	}
	k.passOnAt = k.now + int64(k.cfg.TTL)
	k.cfg.Log.Error("most nodes find this leader's clock too fast: it removes nobody and passes leadership on")
	k.g.running.Go(func() { k.g.handOver(k.g.halt) })
}

// ClocksDiffer reports whether this node has no lease because its clock is slower than the
// leader's, and how often the leader's was found to have gained.
func (g *Group) ClocksDiffer() (now bool, times int64) { return g.apart.Load(), g.gains.Load() }
