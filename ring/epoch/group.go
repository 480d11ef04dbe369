package epoch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"

	"github.com/keystead/keystead/internal/clock"
	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// Raft's timing. At the library's defaults a new leader takes over two seconds.
// How late followers learn of a commit is apply's business: a short commit
// timeout would have the leader send to each of them two hundred times a second
// for ever.
const (
	heartbeat     = 300 * time.Millisecond
	election      = 300 * time.Millisecond
	leaderLease   = 300 * time.Millisecond // on a machine that is out of CPU, half of that costs a term several times a minute
	commitTimeout = 50 * time.Millisecond

	raftTimeout = time.Second // for one exchange
	maxPool     = 3           // connections kept open for raft to each server
)

// Group is this node's part in the cluster.
type Group struct {
	cfg    Config
	self   raft.ServerID
	rule   *serving.Rule
	wire   *wire
	raft   *raft.Raft
	trans  *raft.NetworkTransport
	fsm    *fsm
	server *grpc.Server
	peers  *peers
	pilot  *pilot
	disk   *disk

	uid     atomic.Pointer[string] // of the cluster, as soon as it is known
	events  chan func(*keeper)     // for the keeper
	learned chan struct{}          // capacity 1: there is a new table
	failed  chan error             // capacity 1
	halt    context.Context        // ends when the group stops
	stop    context.CancelFunc
	running sync.WaitGroup
	once    sync.Once
	futures atomic.Int64 // of raft that somebody waits for

	asking   flights       // commands that this node has proposed to a leader
	leading  flights       // commands of others, and of this node's own rows, that it was asked to have agreed on
	places   chan struct{} // of leading: those that are in raft's hands
	applying atomic.Int64  // commands in raft's hands, the leader's own included

	dead      chan struct{} // closed when raft has stopped
	steady    func() int64  // the reading of the clock that leases are counted by
	silent    atomic.Bool   // Silence was called
	timeless  atomic.Int64  // when leases began to come without a time that is agreed on, by the boot clock; 0 = it is known
	apart     atomic.Bool   // this node's clock is slower than the leader's
	over      atomic.Bool   // it has no lease any more, whatever is granted
	gains     atomic.Int64  // of the leader's clock on this one, for which the lease was dropped
	jumps     atomic.Int64  // of the clock, for which the lease was dropped
	stalled   atomic.Int64  // for how long a write to the log has been under way, if that is too long, or 0
	stalls    atomic.Int64  // how often it was
	risen     atomic.Uint64 // term of this leader in which it may commit what is proposed: see open
	warm      atomic.Bool   // this process has held a lease
	trying    atomic.Bool   // something is being written to the log, to see how long that takes
	withdrawn atomic.Bool   // this node leads and takes no part in raft: see checkDisk
	noRoom    atomic.Int64  // when a copy was refused last for want of room; 0 = never
	asksAt    atomic.Int64  // when a process that was left out asks to be admitted; 0 = it was not
	heard     atomic.Int64  // when the last of the questions that the leader has answered was sent
}

// eventRoom is how many events may wait for the keeper; a sender of more
// waits.
const eventRoom = 256

// NewIncarnation draws the number of a process: by time, so that later ones are
// greater, and by chance.
func NewIncarnation(wall time.Time) uint64 {
	return uint64(wall.UnixMilli())<<20&(1<<63-1) | uint64(rand.Uint32N(1<<20)) | 1
}

// Start joins the node to its cluster, or makes the cluster. It returns before
// the node is a member.
func Start(cfg Config) (*Group, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	id, err := cfg.Storage.Identity(cfg.Cluster, cfg.Node)
	if err != nil {
		return nil, err
	}
	g := &Group{
		cfg: cfg, self: id,
		rule:    cfg.Rule,
		steady:  clock.SteadyOf(cfg.Clock),
		events:  make(chan func(*keeper), eventRoom),
		learned: make(chan struct{}, 1),
		failed:  make(chan error, 1),
		dead:    make(chan struct{}),
		places:  make(chan struct{}, atOnce),
	}
	g.cfg.Storage, g.disk = cfg.Storage.watched(cfg.Clock.Now)
	g.halt, g.stop = context.WithCancel(context.Background())
	if err := g.belong(); err != nil {
		g.stop()
		return nil, err
	}
	g.fsm = newFSM(g.rule, &cleaner{discard: cfg.Discard, cleaned: g.rule.Cleaned})
	g.fsm.before, g.fsm.learned, g.fsm.fail, g.fsm.agreed = cfg.Before, g.onLearned, g.fail, cfg.Policies
	g.wire = newWire(&wire{cluster: cfg.Cluster, uid: func() string { return *g.uid.Load() }, self: id, addr: cfg.RaftAddr, under: cfg.Listener, dial: cfg.Dial, refuse: g.onRefused})
	if err := g.startRaft(); err != nil {
		g.stop()
		g.wire.close()
		return nil, err
	}
	g.peers = newPeers(g.wire)
	g.server = newLeaseServer(g)
	g.pilot = newPilot(g)
	g.running.Go(func() { _ = g.server.Serve(g.wire.kinds[kindLease]) })
	go g.pilot.run()
	g.running.Go(newKeeper(g).run)
	return g, nil
}

func (g *Group) startRaft() error {
	log := newRaftLog(g.cfg.Log.With("part", "raft"))
	conf := raft.DefaultConfig()
	conf.LocalID, conf.Logger = g.self, log
	conf.HeartbeatTimeout, conf.ElectionTimeout, conf.LeaderLeaseTimeout, conf.CommitTimeout = heartbeat, election, leaderLease, commitTimeout
	conf.SnapshotInterval, conf.SnapshotThreshold, conf.TrailingLogs = g.cfg.Snapshots.Every, g.cfg.Snapshots.After, g.cfg.Snapshots.Trailing
	conf.ShutdownOnRemove = false // a server that was taken out for a newer identity must not stop the process
	g.trans = raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: g.wire.kinds[kindRaft], MaxPool: maxPool, Timeout: raftTimeout, Logger: log,
		ServerAddressProvider: g,
		// No pipeline: when a leader that was paused goes on, those of raft v1.8.0 may wait
		// for each other for ever, and so does Shutdown. Commits are few and small.
		MaxRPCsInFlight: 1,
	})
	s := g.cfg.Storage
	exists, err := raft.HasExistingState(s.Logs, s.Stable, s.Snapshots)
	if err == nil && g.cfg.Bootstrap && !exists {
		err = raft.BootstrapCluster(conf, s.Logs, s.Stable, s.Snapshots, g.trans, raft.Configuration{
			Servers: []raft.Server{{Suffrage: raft.Voter, ID: g.self, Address: joinAddr(g.self, g.cfg.RaftAddr)}},
		})
	}
	t := newTransport(g.trans, s.Logs, g)
	if err == nil {
		g.raft, err = raft.NewRaft(conf, g.fsm, s.Logs, s.Stable, s.Snapshots, t)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("starting raft: %w", err), g.trans.Close())
	}
	g.running.Go(func() { t.run(g.raft) })
	return nil
}

// belong reads which cluster the storage belongs to. One that is to be made is
// drawn before anybody can be talked to.
func (g *Group) belong() error {
	uid, err := g.cfg.Storage.UID()
	if err == nil && uid == "" && g.cfg.Bootstrap {
		var empty bool
		if empty, err = g.cfg.Storage.Empty(); err == nil && empty {
			uid = draw()
			err = g.cfg.Storage.setUID(uid)
		}
	}
	g.uid.Store(&uid)
	return err
}

func (g *Group) onLearned(t *table.Table) {
	if uid := t.UID; uid != "" && *g.uid.Load() == "" {
		if err := g.cfg.Storage.setUID(uid); err != nil {
			g.cfg.Log.Warn("the log may be taken for another cluster's after a restart", "error", err)
		}
		g.uid.Store(&uid)
	}
	select {
	case g.learned <- struct{}{}:
	default:
	}
}

func (g *Group) onRefused(from, why string) {
	g.cfg.Log.Debug("refused a connection between nodes", "from", from, "why", why)
}

// fail says that the node cannot go on.
func (g *Group) fail(err error) {
	g.rule.Quiet()
	g.over.Store(true)
	g.rule.Extend(0)
	_ = g.post(g.halt, func(k *keeper) { // and it stays so
		k.retired = true
		k.holding.Drop()
		g.rule.Extend(0)
	})
	select {
	case g.failed <- err:
	default:
	}
}

// Failed yields an error when the node cannot go on.
func (g *Group) Failed() <-chan error { return g.failed }

// Rule returns the serving rule that the group feeds.
func (g *Group) Rule() *serving.Rule { return g.rule }

// RaftID returns the identity of this node's log.
func (g *Group) RaftID() string { return string(g.self) }

// Self is this process.
func (g *Group) Self() table.Holder { return g.rule.Self() }

// Table returns the table as this node knows it.
func (g *Group) Table() *table.Table { return g.fsm.latest.Load().table }

// Await returns the first table that it learns of whose epoch is above after.
func (g *Group) Await(ctx context.Context, after uint64) (*table.Table, error) {
	return g.fsm.await(ctx, after)
}

// LeaseLeft returns how long this node may still act; 0 = it may not.
func (g *Group) LeaseLeft() time.Duration {
	return max(0, time.Duration(g.rule.Until()-g.cfg.Clock.Now()))
}

// StateListener takes in connections of other members that bring what they keep:
// see DialState. It is closed by Stop.
func (g *Group) StateListener() net.Listener { return g.wire.kinds[kindState] }

// DialState connects to the StateListener of a member; that it is of this cluster
// and the one that is meant, the handshake makes sure.
func (g *Group) DialState(ctx context.Context, to table.Holder) (net.Conn, error) {
	m, ok := g.Table().Member(to.Node)
	if !ok || m.Holder() != to {
		return nil, errors.New(to.Node + " is not a member under this incarnation")
	}
	return g.wire.connect(ctx, kindState, string(joinAddr(raft.ServerID(m.RaftID), m.RaftAddr)))
}

// ClockJumps counts how often the lease was dropped because wall time and boot time
// had parted.
func (g *Group) ClockJumps() int64 { return g.jumps.Load() }

// Leader returns the node that leads in raft, or "".
func (g *Group) Leader() string {
	_, id := g.raft.LeaderWithID()
	if id == g.self && g.withdrawn.Load() {
		return ""
	}
	return nodeOf(id)
}

// Servers returns the nodes that vote in raft, and those that only follow.
func (g *Group) Servers() (voters, nonvoters []string) {
	f := g.raft.GetConfiguration()
	if f.Error() != nil {
		return nil, nil
	}
	for _, s := range f.Configuration().Servers {
		if s.Suffrage == raft.Voter {
			voters = append(voters, nodeOf(s.ID))
		} else {
			nonvoters = append(nonvoters, nodeOf(s.ID))
		}
	}
	return voters, nonvoters
}

// Retire stops acting for good and gives the lease up, so that others need not
// wait for its end. It returns when the table does not name this process any
// more, or the context has ended. The node goes on following the log, voting and
// leading.
func (g *Group) Retire(ctx context.Context) {
	done := make(chan struct{})
	if g.post(ctx, func(k *keeper) { k.retire(ctx, done) }) != nil {
		return
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// Stop ends the node's part: it retires, hands leadership over and stops raft.
// What cannot be done within the context's time is left to the cluster.
func (g *Group) Stop(ctx context.Context) {
	g.once.Do(func() { g.shutdown(ctx) })
}

func (g *Group) shutdown(ctx context.Context) {
	if ctx.Err() == nil && !g.silent.Load() {
		g.Retire(ctx)
	}
	if g.raft.State() == raft.Leader && ctx.Err() == nil {
		g.handOver(ctx)
	}
	g.over.Store(true)
	g.rule.Extend(0)
	g.stop()
	g.server.Stop()
	g.drain()
	select { // it may wait for an answer of raft that never comes
	case <-g.pilot.done:
	case <-time.After(drainTime):
	}
	_ = g.raft.Shutdown().Error()
	close(g.dead)
	g.wire.close()
	g.trans.CloseStreams() // the connections that it dialled
	_ = g.trans.Close()
	g.running.Wait()
	g.rule.Extend(0) // a tick may have been under way
	g.peers.close()
	g.fsm.cleaner.done.Wait()
	if err := g.cfg.Storage.close(); err != nil {
		g.cfg.Log.Warn("closing the log", "error", err)
	}
}

// Kill stops at once, as if the process had died: nobody is told.
func (g *Group) Kill() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	g.Stop(ctx)
}

// handOver passes leadership on, if there is anybody to take it. The transfer
// has been seen to hang, so nobody waits for it beyond the context.
func (g *Group) handOver(ctx context.Context) {
	if voters, _ := g.Servers(); len(voters) < 2 {
		return
	}
	done := make(chan error, 1)
	go func() { done <- g.raft.LeadershipTransfer().Error() }()
	select {
	case <-done:
	case <-ctx.Done():
	case <-time.After(handOverTime):
	}
}

const handOverTime = time.Second
