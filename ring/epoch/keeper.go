package epoch

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/hashicorp/raft"
	"github.com/keystead/keystead/internal/clock"

	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/lease"
	"github.com/keystead/keystead/ring/epoch/table"
)

// keeper owns the state of the protocol. Its methods are called by its one
// goroutine, and none of them waits.
type keeper struct {
	g    *Group
	cfg  Config // of its own: TTL and margin become those that are agreed
	tick *time.Ticker
	now  int64 // of the event that is being handled, by the steady clock
	boot int64 // the same by Config.Clock, which the serving rule goes by; never later

	// This node's lease.
	holding    lease.Holding
	admitted   bool   // the table names this incarnation
	admittedAt uint64 // epoch in which it was admitted
	retired    bool   // it has stopped acting for good
	silent     bool   // and leads nobody: others, or its next process, see to the rest
	leaving    bool   // this incarnation has stopped acting and gives its lease up: see room
	room       room
	renewAt    int64      // when to send the next renewal
	sent       int        // renewals under way
	askedAt    int64      // when the last of them was sent
	skew       int64      // wall time minus boot time
	wall       lease.Wall // the time that is agreed on, by boot
	wallWrong  bool       // this node's wall clock does not show it
	pace       lease.Pace // of its clock and the leader's

	enlisting  bool   // Config.Enlist is under way
	enlistedAs uint64 // the incarnation that the disk knows
	enlistAt   int64  // when to try again
	unlistedAt int64  // when it was logged last that the disk does not take it; 0 = it does

	asksOthers bool  // whether they could elect one of them, while the disk hangs
	asksAt     int64 // when to ask them next
	failedAt   int64 // when it was logged last that the log cannot be written; 0 = it can

	leaderState
}

// Renewals.
const (
	renewalsAtOnce = 4                     // under way; a late answer still counts
	retryPause     = 50 * time.Millisecond // after a refusal
	ticksPerTTL    = 40
	minTick        = 5 * time.Millisecond
)

func newKeeper(g *Group) *keeper {
	k := &keeper{g: g, cfg: g.cfg}
	k.grants = lease.NewGrants[table.Holder](lease.Config{TTL: int64(g.cfg.TTL), Margin: int64(g.cfg.Margin)})
	k.candidates, k.turnedAway = map[string]candidate{}, map[string]string{}
	k.silentAt = map[raft.ServerID]int64{}
	k.read()
	k.skew = g.cfg.Wall().UnixNano() - k.now
	return k
}

// run handles one event after the other until the group stops.
func (k *keeper) run() {
	k.tick = time.NewTicker(max(k.cfg.TTL/ticksPerTTL, minTick))
	defer k.tick.Stop()
	defer k.follow()
	for {
		var event func(*keeper)
		select {
		case <-k.g.halt.Done():
			return
		case event = <-k.g.events:
		case <-k.g.learned:
			event = (*keeper).tableLearned
		case <-k.tick.C:
			event = (*keeper).ticked
		case <-k.g.raft.LeaderCh():
			event = (*keeper).ticked
		}
		k.read()
		k.checkLeadership() // before anything else: a leader that has slept must know
		event(k)
	}
}

// post brings what a goroutine beside the keeper has found back to it.
func (k *keeper) post(event func(*keeper)) { _ = k.g.post(k.g.halt, event) }

// read reads the clocks. Leases are counted by the steady one: the other one may be slewed,
// so that TTLs by it would part by more than the margin.
func (k *keeper) read() { k.boot = k.cfg.Clock.Now(); k.now = k.g.steady() } //guard:lease-steady-clock k.g.steady() -> k.boot

// extend lets the serving rule act until the lease ends. The rule reads the clock that may
// be slewed: it is given less than is left, by as much as that clock may be slow, and the
// rest with the next ticks.
func (k *keeper) extend() {
	left := k.holding.Until() - k.now
	if left <= 0 || k.retired ||
		k.leaving || //guard:joiner-acts-no-more
		k.g.over.Load() { //guard:lease-over
		k.g.rule.Extend(0)
		return
	}
	//guard:lease-slew-reserve clock.MaxSlew -> 0*clock.MaxSlew
	k.g.rule.Extend(k.boot + left - int64(clock.MaxSlew*float64(left)))
}

func (k *keeper) ticked() {
	k.extend()
	k.cold.passed(k.now)
	k.checkWall()
	k.checkDisk()
	k.checkRoom()
	//guard:joiner-stays-away k.room.asksAt -> k.renewAt
	if !k.retired && k.now >= max(k.renewAt, k.room.asksAt) && k.sent < renewalsAtOnce {
		k.renew()
	}
	k.plan()
}

// checkWall drops the lease when wall time and boot time part: one of them has
// not counted what has passed, and it may be the one that the lease goes by.
func (k *keeper) checkWall() {
	skew := k.cfg.Wall().UnixNano() - k.now
	jump := skew - k.skew
	k.skew = skew
	if max(jump, -jump) <= int64(k.cfg.TTL)/4 {
		return
	}
	k.g.jumps.Add(1)
	k.cfg.Log.Warn("the wall clock jumped: the lease is dropped and asked for again", "by", time.Duration(jump))
	//guard:wall-jump
	k.holding.Drop()
	//guard:wall-jump
	k.g.rule.Extend(0)
	k.renewAt = k.now
}

// renew sends a renewal and plans the next one, should it stay unanswered.
func (k *keeper) renew() {
	//guard:enlist-first
	if !k.enlisted() {
		return
	}
	self := k.g.rule.Self()
	stamp := k.holding.Send(k.now)
	k.askedAt = k.boot
	req := k.request(self, stamp)
	req.Release = k.leaving
	k.sent++
	asked := k.boot
	ttl := k.cfg.TTL
	k.renewAt = k.now + int64(ttl)/6
	k.g.running.Go(func() {
		ctx, cancel := context.WithTimeout(k.g.halt, ttl)
		defer cancel()
		// gofail: var epochRenewSend struct{}

		resp, err := k.g.askLeader(ctx, req)
		k.post(func(k *keeper) { k.renewed(self, stamp, asked, resp, err) })
	})
}

func (k *keeper) request(self table.Holder, s lease.Stamp) *peerv1.RenewRequest {
	var resume uint64
	if !k.admitted && self.Incarnation == k.cfg.Incarnation {
		resume = k.cfg.Resume
	}
	return &peerv1.RenewRequest{
		Resume: resume,
		Node:   self.Node, Incarnation: self.Incarnation, HashKey: k.cfg.HashKey,
		GrpcAddr: k.cfg.GRPCAddr, RaftAddr: k.cfg.RaftAddr, RaftId: string(k.g.self), Version: k.cfg.Version, Level: table.Level,
		LastTerm: s.Term, LastGrant: s.Grant, Epoch: k.g.Table().Epoch, Floor: k.cfg.EpochFloor,
		Disk:   k.diskReport(self),
		WallNs: k.cfg.Wall().UnixNano(), ClockDiffers: k.pace.Apart(k.now), ClockGained: k.pace.Found(k.cfg.lease(), k.now),
	}
}

// renewed takes the answer to a renewal in.
func (k *keeper) renewed(as table.Holder, s lease.Stamp, asked int64, resp *peerv1.RenewResponse, err error) {
	k.sent--
	if k.retired || as != k.g.rule.Self() {
		return
	}
	if err == nil && !k.kept(s, resp) && resp.Refusal != peerv1.Refusal_REFUSAL_REMOVED {
		k.renewAt = min(k.renewAt, k.now+int64(retryPause))
		return
	}
	if err != nil || resp.Refusal != peerv1.Refusal_REFUSAL_UNSPECIFIED {
		pause := retryPause + rand.N(retryPause/2)
		k.renewAt = min(k.renewAt, k.now+int64(pause))
		if err == nil && resp.Refusal == peerv1.Refusal_REFUSAL_REMOVED {
			k.removed(k.g.Table()) // which may not show it yet, or never has
		}
		return
	}
	if k.leaving {
		return // a renewal of before
	}
	k.g.warm.Store(true)
	k.g.heard.Store(max(k.g.heard.Load(), asked))
	k.learnWall(asked, resp.WallNs)
	//guard:count-from-send insert s.Sent = k.now
	k.holding.Received(s, min(resp.TtlNs, int64(maxTTL)), resp.Term, resp.Grant)
	k.extend()
	k.renewAt = max(k.now, s.Sent+int64(k.cfg.TTL)/3)
}

// agree takes over what the cluster was made with, whatever this node was told.
func (k *keeper) agree() {
	t := k.g.Table()
	if lock := time.Duration(t.LockTTL); lock != 0 && lock != k.cfg.LockTTL {
		k.cfg.Log.Warn("the cluster was made with another longest TTL of locks, which all of its nodes keep; this node's setting does not matter",
			"ttl", lock, "own ttl", k.cfg.LockTTL)
		k.cfg.LockTTL = lock
	}
	if window := time.Duration(t.IDWindow); window != 0 && window != k.cfg.IDWindow {
		k.cfg.Log.Warn("the cluster has agreed on another time for which request ids are kept, which all of its nodes keep; this node's setting does not matter",
			"window", window, "own window", k.cfg.IDWindow)
		k.cfg.IDWindow = window
	}
	ttl, margin := time.Duration(t.LeaseTTL), time.Duration(t.LeaseMargin)
	if ttl == 0 || ttl == k.cfg.TTL && margin == k.cfg.Margin {
		return
	}
	k.cfg.Log.Warn("the cluster was made with another lease, which all of its nodes keep; this node's settings do not matter",
		"ttl", ttl, "margin", margin, "own ttl", k.cfg.TTL, "own margin", k.cfg.Margin)
	k.cfg.TTL, k.cfg.Margin = ttl, margin
	k.tick.Reset(max(ttl/ticksPerTTL, minTick))
}

// tableLearned looks what the new table means for this process. One that was
// removed asks to be admitted again, as another incarnation.
func (k *keeper) tableLearned() {
	k.agree()
	t, self := k.g.Table(), k.g.rule.Self()
	k.cold.know(t, k.now)
	m, _ := t.Member(self.Node)
	switch is := t.Holds(self); {
	case is && !k.admitted:
		k.admitted, k.admittedAt = true, m.Since
		k.g.asksAt.Store(0)
		k.cfg.Log.Info("admitted to the cluster", "epoch", t.Epoch, "incarnation", self.Incarnation)
		k.renewAt = k.now
	case k.admitted && (!is || m.Since != k.admittedAt): // or it was, between two looks, and is back
		k.removed(t)
	}
	if m.Phase == table.Active {
		k.room.active()
	}
	k.sync()
	k.plan()
}

// removed makes this process another incarnation, which asks to be admitted: the
// one that it was is a member no more and never will be.
func (k *keeper) removed(t *table.Table) {
	k.admitted = false
	k.holding.Forget()
	if k.retired {
		return
	}
	self := k.g.rule.Self()
	next := table.Holder{Node: self.Node, Incarnation: max(NewIncarnation(k.cfg.Wall()), self.Incarnation+2)}
	k.g.fsm.cleaner.add(k.g.rule.Become(next), t.Epoch)
	k.renewAt = k.now
	if k.leaving {
		k.leaving = false
		k.room.leftOut(k.now)
		k.g.asksAt.Store(k.room.asksAt)
		k.cfg.Log.Info("left out of the cluster; asking to be admitted again later", "after", k.room.pause, "epoch", t.Epoch, "incarnation", next.Incarnation)
		return
	}
	k.cfg.Log.Warn("removed from the cluster: its lease had run out; asking to be admitted again", "epoch", t.Epoch, "incarnation", next.Incarnation)
}

// retire stops acting for good and gives the lease up. done is closed when the
// table does not name the process any more; or never, if it cannot be reached.
func (k *keeper) retire(ctx context.Context, done chan<- struct{}) {
	k.retired = true
	k.holding.Drop()
	k.g.rule.Extend(0)
	self, released := k.g.rule.Self(), k.request(k.g.rule.Self(), lease.Stamp{})
	released.Release = true
	k.g.running.Go(func() {
		defer close(done)
		for t := k.g.Table(); t.Holds(self); {
			try, cancel := context.WithTimeout(ctx, 4*retryPause)
			_, _ = k.g.askLeader(try, released)
			next, err := k.g.Await(try, t.Epoch)
			cancel()
			if err == nil {
				t = next
			} else if ctx.Err() != nil || k.g.halt.Err() != nil {
				return
			}
		}
	})
}

// silence stops acting for good, and says nothing: the process keeps its rows for
// the one that comes after it.
func (k *keeper) silence() {
	k.retired, k.silent = true, true
	k.holding.Drop()
	k.g.rule.Extend(0)
}
