package epoch

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/lease"
	"github.com/keystead/keystead/ring/epoch/table"
)

// leaderState is the leader's side of the keeper.
type leaderState struct {
	grants *lease.Grants[table.Holder]
	synced *table.Table // that grants knows the members of

	waiting    []*renewal // for the next proof
	proving    bool
	candidates map[string]candidate    // by node: processes that asked for a lease and are no members
	lags       map[table.Holder]lag    // members that have not applied what concerns them
	others     map[table.Holder]other  // that seemed to have applied more than this leader
	known      map[string]uint64       // by node: the incarnation that was a member last, in this term
	mutes      mutes                   // members that are waited for
	stops      stops                   // members that are about to stop
	joinedAt   int64                   // when the last member was admitted
	changedAt  int64                   // when the table last changed in more than its epoch
	stands     standing                // of the table that was planned for last
	proposing  bool                    // a command of the plan is under way
	compareAt  int64                   // when to look at raft's configuration next
	changing   bool                    // a change of raft's configuration is under way
	silentAt   map[raft.ServerID]int64 // when servers were asked that gossip tells of and that did not answer
	ledAt      int64                   // when the term began
	roll       roll                    // of those that were members before
	walls      lease.Walls[string]     // of members, by node
	slower     map[string]slower       // by node: whose clocks are, as they say
	passOnAt   int64                   // when to pass leadership on next, should the own clock be suspected
	membersAt  uint64                  // epoch of the last change of members, or a later one
	turnedAway map[string]string       // by node: why it cannot be admitted, as was logged
	cold       cold                    // rows that wait for disks
}

// renewal is a request for a lease that waits for its answer.
type renewal struct {
	req      *peerv1.RenewRequest
	received int64
	term     uint64                     // of the leader that has proved that it leads; 0 = not yet
	reply    chan *peerv1.RenewResponse // capacity 1
}

func (r *renewal) holder() table.Holder {
	return table.Holder{Node: r.req.Node, Incarnation: r.req.Incarnation}
}

func (r *renewal) refuse(why peerv1.Refusal) {
	resp := &peerv1.RenewResponse{Refusal: why}
	if r.term != 0 {
		resp.Term, resp.ReceivedNs = r.term, r.received
	}
	r.reply <- resp
}

// candidate is a process that may be admitted.
type candidate struct {
	member table.Member
	at     int64  // of its last renewal
	epoch  uint64 // of the table that it had applied then
	floor  uint64 // least epoch to be admitted in
	resume uint64 // incarnation in whose place it asks to be put, or 0
	disk   *peerv1.DiskReport
}

// maxWaiting bounds the renewals that wait for a proof: a few of each member.
const maxWaiting = 8 * table.MaxMembers

// compareEvery is how often the leader compares raft's configuration with gossip.
const compareEvery = 200 * time.Millisecond

// checkLeadership notices that a term of this node has begun or ended.
func (k *keeper) checkLeadership() {
	term := k.g.leads()
	switch {
	case term == k.grants.Term():
		if term != 0 && k.grants.Tick(k.now) {
			k.cfg.Log.Warn("this leader has slept; it removes nobody for a while", "for", k.cfg.TTL)
		}
	case term == 0:
		k.cfg.Log.Info("no longer the leader")
		k.follow()
	default:
		k.follow()
		k.grants.BeginTerm(term, k.now)
		k.synced, k.joinedAt, k.changedAt, k.ledAt = nil, k.now, k.now, k.now
		k.slower, k.walls = map[string]slower{}, lease.Walls[string]{}
		k.known, k.lags = map[string]uint64{}, map[table.Holder]lag{}
		k.stops, k.mutes = stops{at: k.now}, mutes{}
		k.others = map[table.Holder]other{}
		k.cold = k.cold.anew(k.cfg.ResumeWait, k.cfg.RecoverWait)
		k.cfg.Log.Info("leads the cluster", "term", term)
		k.catchUp(term)
	}
}

// follow ends a term. What waits for the leader is sent away.
func (k *keeper) follow() {
	k.grants.Follow()
	for _, r := range k.waiting {
		r.refuse(peerv1.Refusal_REFUSAL_NOT_LEADER)
	}
	k.waiting = nil
	k.candidates, k.turnedAway = map[string]candidate{}, map[string]string{}
	k.silentAt = map[raft.ServerID]int64{}
	k.g.pilot.setLeader(false)
}

// catchUp applies all that was committed before the term, by a barrier.
func (k *keeper) catchUp(term uint64) {
	k.g.running.Go(func() {
		for k.g.leads() == term && k.g.halt.Err() == nil {
			//guard:barrier true
			if k.g.await(k.g.raft.Barrier(applyWait)) == nil &&
				k.g.rise(term) == nil { //guard:rise-clock
				k.post(func(k *keeper) { k.caughtUp(term) })
				return
			}
			k.g.rest() // raft refuses at once while leadership is passed on
		}
	})
}

func (k *keeper) caughtUp(term uint64) {
	if k.grants.Term() != term {
		return
	}
	k.g.risen.Store(term)
	k.agree()
	k.grants.Ready(k.cfg.lease())
	k.synced, k.roll = nil, callRoll(k.g.Table(), k.ledAt, k.cfg.ResumeWait)
	k.sync()
	k.g.pilot.setLeader(true)
	k.prove()
	k.plan()
}

// sync tells the grants which processes are in the table now.
func (k *keeper) sync() {
	t := k.g.Table()
	if t == k.synced || k.grants.Term() == 0 {
		return
	}
	if !onlyRaised(k.synced, t) {
		k.changedAt = k.now
	}
	if k.synced == nil || !slices.Equal(k.synced.Members, t.Members) {
		k.membersAt = t.Epoch
	}
	k.synced = t
	holders := make([]table.Holder, len(t.Members))
	for i, m := range t.Members {
		holders[i] = m.Holder()
		if k.candidates[m.Node].member.Incarnation == m.Incarnation {
			delete(k.candidates, m.Node)
		}
		k.known[m.Node] = m.Incarnation
		if m.Since == t.Epoch {
			k.joinedAt = k.now
		}
	}
	k.grants.Members(k.now, holders)
	k.roll.learned(t)
	k.stops.learned(t, k.now)
	k.cold.learned(t, k.now)
	k.forgetLags(t)
}

// onlyRaised reports whether a table differs from one before in its epoch alone.
// Nodes raise it for fencing tokens and ids, as long as these are used: a plan that
// waits until nothing changes would wait for ever.
func onlyRaised(was, is *table.Table) bool {
	return was != nil && was.Transition == is.Transition && was.Level == is.Level && was.WantSince == is.WantSince &&
		slices.Equal(was.Members, is.Members) && slices.Equal(was.Rows, is.Rows)
}

// renewalReceived puts a renewal in line for the next proof.
func (k *keeper) renewalReceived(r *renewal) {
	switch {
	case k.grants.Term() == 0 || k.grants.Term() != k.g.leads() || k.g.withdrawn.Load():
		r.refuse(peerv1.Refusal_REFUSAL_NOT_LEADER)
	case len(k.waiting) >= maxWaiting:
		r.refuse(peerv1.Refusal_REFUSAL_NOT_NOW)
	default:
		k.waiting = append(k.waiting, r)
		k.prove()
	}
}

// prove begins a proof of leadership for renewals that wait, unless one runs. Those
// that come while it runs join the next.
func (k *keeper) prove() {
	if k.proving || len(k.waiting) == 0 || !k.grants.IsReady() {
		return
	}
	k.proving = true
	round, term, patience := k.waiting, k.grants.Term(), k.cfg.TTL/4
	k.waiting = nil
	k.g.running.Go(func() {
		ctx, cancel := context.WithTimeout(k.g.halt, patience)
		defer cancel()
		//guard:proof k.g.proof(ctx, term) -> ctx.Err()
		err := k.g.proof(ctx, term)
		k.post(func(k *keeper) { k.proved(round, term, err) })
	})
}

// proved answers a round of renewals.
func (k *keeper) proved(round []*renewal, term uint64, err error) {
	k.proving = false
	k.sync()
	//guard:proof-after-receipt insert round, k.waiting = append(round, k.waiting...), nil
	for _, r := range round {
		switch {
		case k.grants.Term() != term || k.g.withdrawn.Load():
			r.refuse(peerv1.Refusal_REFUSAL_NOT_LEADER)
		case err != nil:
			k.cfg.Log.Debug("could not prove leadership", "error", err)
			r.refuse(peerv1.Refusal_REFUSAL_NOT_NOW)
		case r.req.Release:
			//guard:released-again -> k.roll.before = nil
			k.roll.heard(r.holder())
			k.grants.Release(r.holder())
			r.refuse(peerv1.Refusal_REFUSAL_NOT_NOW)
		default:
			k.answer(r)
		}
	}
	k.prove()
	k.plan()
}

// behind reports whether a renewal comes from a process that has not applied its own
// admission yet. It may be one that was removed and does not know it: a new leader
// does not know it either, and has it admitted again under the same incarnation
// when a renewal of long ago arrives. In its table it still owns what others have
// by now, so it must not get a lease.
func (k *keeper) behind(r *renewal) bool {
	m, is := k.g.Table().Member(r.req.Node)
	//guard:renewal-epoch false
	return is && m.Incarnation == r.req.Incarnation && r.req.Epoch < m.Since
}

// answer grants a lease, or remembers a process that asks to be admitted.
func (k *keeper) answer(r *renewal) {
	r.term = k.grants.Term()
	if k.differs(r) || k.behind(r) ||
		k.stuck(r.holder(), r.req.Epoch) || //guard:lag-stuck
		k.ahead(r.holder(), r.req.Epoch) { //guard:ahead
		r.refuse(peerv1.Refusal_REFUSAL_NOT_NOW)
		return
	}
	grant, v := k.grants.Grant(r.holder(), r.received, r.req.LastTerm, r.req.LastGrant)
	switch v {
	case lease.Granted:
		k.roll.heard(r.holder())
		k.cold.hear(r.holder(), r.req.Disk)
		r.reply <- &peerv1.RenewResponse{Term: r.term, Grant: grant, TtlNs: int64(k.cfg.TTL), ReceivedNs: r.received, WallNs: k.wallAt(r)}
	case lease.NotMember:
		q := r.req
		//guard:removed-comes-back
		if k.known[q.Node] == q.Incarnation {
			r.refuse(peerv1.Refusal_REFUSAL_REMOVED)
			return
		}
		k.candidates[q.Node] = candidate{at: k.now, epoch: q.Epoch, floor: q.Floor, resume: q.Resume, disk: q.Disk, member: table.Member{
			Node: q.Node, Incarnation: q.Incarnation, HashKey: q.HashKey,
			GRPCAddr: q.GrpcAddr, RaftAddr: q.RaftAddr, RaftID: q.RaftId, Version: q.Version, Level: q.Level,
		}}
		k.stoppedInOrder(q)
		r.refuse(peerv1.Refusal_REFUSAL_NOT_MEMBER)
	default:
		r.refuse(peerv1.Refusal_REFUSAL_NOT_NOW)
	}
}

// plan proposes the next step towards the table that is wanted, one at a time.
func (k *keeper) plan() {
	if !k.grants.IsReady() || k.g.leads() != k.grants.Term() || k.silent || k.g.withdrawn.Load() {
		return
	}
	if k.now >= k.compareAt {
		k.compareAt = k.now + int64(compareEvery)
		k.tendServers()
	}
	if k.proposing {
		return
	}
	k.sync()
	k.tellCold()
	c, ok := k.next(k.g.Table())
	if !ok || k.g.Table().Knows(c) != nil {
		return
	}
	if c.Remove != nil {
		//guard:removal-proposed
		k.grants.Removing(c.Remove.Members)
	}
	k.proposing = true
	c.ID = draw()
	k.g.running.Go(func() {
		epoch, err := k.g.apply(c)
		k.post(func(k *keeper) { k.proposed(c, epoch, err) })
	})
}

func (k *keeper) proposed(c table.Command, epoch uint64, err error) {
	k.proposing = false
	log := k.cfg.Log.With("command", c.Kind(), "id", c.ID)
	switch {
	case err == nil && c.Remove != nil:
		for _, h := range c.Remove.Members {
			log.Warn("a node was removed", "node", h.Node, "incarnation", h.Incarnation, "why", c.Remove.Reason, "epoch", epoch)
		}
	case err == nil:
		k.tellRecovered(log, c)
		log.Info("the table was changed", "epoch", epoch)
	case errors.As(err, new(*table.Refused)):
		log.Info("the table was not changed", "why", err)
		return // a new table, or the next tick, has it planned anew
	default:
		log.Info("it is unknown whether the table was changed", "error", err)
		return // raft says so at once while leadership is passed on
	}
	k.tableLearned()
}

// next returns the next command towards what is wanted.
func (k *keeper) next(t *table.Table) (table.Command, bool) {
	if t.Cluster == "" {
		//guard:epoch-floor k.cfg.EpochFloor -> 1
		//guard:epoch-of-the-wall WallEpoch(k.cfg.Wall()) -> 1
		init := &table.Init{Cluster: k.cfg.Cluster, UID: k.g.ownUID(), Epoch: max(WallEpoch(k.cfg.Wall()), k.cfg.EpochFloor, 1),
			LeaseTTL: int64(k.cfg.TTL), LeaseMargin: int64(k.cfg.Margin), LockTTL: int64(k.cfg.LockTTL)}
		if level := k.common(); level >= table.WindowLevel {
			init.Level, init.IDWindow = level, int64(k.cfg.IDWindow)
		}
		return table.Command{Init: init}, true
	}
	if c, ok := k.floored(t); ok {
		return c, true
	}
	if c, ok := k.resumable(t); ok {
		return c, true
	}
	if over := k.expired(); len(over) > 0 {
		slices.SortFunc(over, func(a, b table.Holder) int { return compare(a.Node, b.Node) })
		//guard:removal-names-term k.termOf(t) -> 0
		return table.Command{Remove: &table.Remove{Members: over, Reason: "its lease is over, or given up", Term: k.termOf(t)}}, true
	}
	if c, ok := k.cold.next(k.now, k.alive); ok {
		return c, true
	}
	if c, ok := k.admissible(t); ok {
		return c, true
	}
	//guard:wait-ended
	if t.Returning() && !k.roll.waits(k.now) {
		return table.Command{EndWait: &table.EndWait{}}, true
	}
	if t.Transition != nil {
		return k.finished(t)
	}
	//guard:stop-collected k.stops.at -> k.joinedAt
	if want := k.want(t); len(want) > 0 && !k.cold.settles(k.now) && k.now-max(k.joinedAt, k.stops.at) >= int64(k.cfg.Settle) && !k.stops.all(t, k.now, k.cfg.ResumeWait) {
		return table.Command{Begin: &table.Begin{Want: want}}, true
	}
	if k.now-k.changedAt >= int64(CompactAfter) && t.Compactable() {
		return table.Command{Compact: &table.Compact{}}, true
	}
	return k.adoptable(t)
}

// common returns the level that all nodes know of which gossip tells, before there is a
// cluster. What they say is a hint: should one that knows less come all the same, it is not
// admitted, and its operator is told why.
func (k *keeper) common() uint32 {
	level := uint32(table.Level)
	for _, p := range k.cfg.Peers() {
		//guard:init-level
		if p.Alive {
			level = min(level, p.Level)
		}
	}
	return level
}

// finished ends the transition when all rows and their standbys stand where it
// wants them. For a standby that never catches up it waits only so long:
// others want to join or leave.
func (k *keeper) finished(t *table.Table) (table.Command, bool) {
	stands := k.stand(t)
	if stands.moves > 0 || stands.unprotected > 0 && k.now-k.changedAt < int64(k.cfg.Patience) {
		return table.Command{}, false
	}
	end := table.Command{End: &table.End{Transition: t.Transition.ID}}
	if _, err := t.Apply(end); err != nil { // a member that is to leave still stands by
		return table.Command{}, false
	}
	return end, true
}

// ownUID returns that of a cluster that this node makes.
func (g *Group) ownUID() string {
	if uid := *g.uid.Load(); uid != "" {
		return uid
	}
	return draw()
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// want returns the members of the ring to move to; none if all stands well. One that has joined
// takes part once it holds a lease.
func (k *keeper) want(t *table.Table) []table.Holder {
	return t.Plan(k.stand(t).moves, func(m table.Member) bool { return k.alive(m.Holder()) && k.mayStand(t, m.Holder()) })
}

// standing is how the rows of a table stand. To count them takes milliseconds in a large
// cluster, and the leader plans at every event.
type standing struct {
	of                 *table.Table
	moves, unprotected int
}

// stand counts once for each table.
func (k *keeper) stand(t *table.Table) standing {
	if k.stands.of != t {
		k.stands = standing{t, len(t.Moves()), t.Unprotected()}
	}
	return k.stands
}
