package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-sockaddr"

	"github.com/keystead/keystead/handoff"
	"github.com/keystead/keystead/handoff/disk"
	"github.com/keystead/keystead/handoff/disk/statefile"
	"github.com/keystead/keystead/internal/drain"
	"github.com/keystead/keystead/internal/policy"
	"github.com/keystead/keystead/internal/rpc"
	"github.com/keystead/keystead/owner"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	"github.com/keystead/keystead/ring/epoch"
	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
	"github.com/keystead/keystead/ring/member"
)

// ClusterConfig makes a node part of a cluster.
type ClusterConfig struct {
	// ID names the cluster; all its nodes are given the same. 1 to 64 letters,
	// digits, '.', '_' and '-'. "" = the node runs alone.
	ID string
	// Bootstrap makes the cluster. Exactly one node is told to, once; on a node
	// that has a log it does nothing.
	Bootstrap bool
	// Founders are the IDs of the nodes that make the cluster together, 3 to 16, the
	// same list for all: the first of them makes it when it sees all of them and none
	// belongs to a cluster. On nodes that have a log it does nothing. Not together with
	// Bootstrap. Default: none.
	Founders []string
	// Join are gossip addresses of other nodes, host:port.
	Join []string
	// RaftAddr is where raft and the leases are spoken. Default 127.0.0.1:7401.
	RaftAddr string
	// GossipAddr is where serf gossips, UDP and TCP. Default 127.0.0.1:7402.
	GossipAddr string
	// Advertise is the host at which others reach this node. Default: where it
	// listens, or the machine's private address if it listens on all.
	Advertise string
	// HashKey is what the node's points on the ring are computed from. Default:
	// the advertised host:port of its API.
	HashKey string
	// GossipKey encrypts gossip: 16, 24 or 32 bytes. Default: no encryption.
	GossipKey []byte
	// Profile is the timing of gossip: local, lan or wan. Default lan.
	Profile string
	// LeaseTTL, LeaseMargin and Settle: see epoch.Config.
	LeaseTTL, LeaseMargin, Settle time.Duration
	// ResumeWait is how long nodes are waited for when all were stopped. Default 30 s.
	ResumeWait time.Duration
	// RecoverWait is how long the disk of a node is waited for, where no answer has waited for it. Default
	// 5 min.
	RecoverWait time.Duration
	// HotNode has the node take parts of split objects before nodes without it do.
	HotNode bool
}

// Defaults of ClusterConfig.
const (
	DefaultLeaseTTL           = epoch.DefaultTTL
	DefaultLeaseMargin        = epoch.DefaultMargin
	DefaultSettle             = epoch.DefaultSettle
	DefaultResumeWait         = epoch.DefaultResumeWait
	DefaultRecoverWait        = epoch.DefaultRecoverWait
	DefaultLockTTL            = epoch.DefaultLockTTL // of owner.Config.MaxLockTTL
	DefaultDurabilityInterval = disk.DefaultInterval
	DefaultCopyRate           = handoff.DefaultCopyRate // of Config.CopyRate
)

// cluster is a node's part in its cluster.
type cluster struct {
	cfg             Config
	log             *slog.Logger
	listener        net.Listener   // of raft
	storage         *epoch.Storage // of its log
	serving         *serving.Rule
	store           *owner.Store // set by join
	pool            *member.Pool
	group           *epoch.Group
	self            member.Self
	drains          *drain.Drainer
	state           *state           // what is kept here and elsewhere
	keeps           *keeps           // what is kept for the next process
	saved           *statefile.State // that an earlier process has left; nil = none, or it is acted by
	disk            *clusterDisk     // nil = what is decided is in memory alone
	broken          chan error       // capacity 1: why the node cannot go on
	began           time.Time
	window          int64  // of request ids, as was agreed; 0 = not yet. Of learn
	standaloneEpoch uint64 // epoch up to which the node has served alone; 0 = it has not
	inForce         policy.InForce
	awaited         awaited      // by rows
	lost            atomic.Int64 // rows whose state was lost when they came to this node
	lostInPart      atomic.Int64 // of these, the ones that went on from a disk

	begun    bool        // join, or what comes before it, closes what the node holds if it fails
	complete atomic.Bool // all fields above are set: see answer
	named    atomic.Bool // a table has named this process, and says what was agreed
	raising  atomic.Bool
	ctx      context.Context // ends when the node stops
	cancel   context.CancelFunc
	running  sync.WaitGroup
}

// newCluster prepares the node's part: who it is, its log, and where it listens. The
// node's API is reached at grpcAddr, where it listens already; alone is of servedAlone.
func newCluster(cfg Config, grpcAddr string, alone uint64) (*cluster, error) {
	c := &cluster{cfg: cfg, standaloneEpoch: alone, log: cfg.Log.With("node", cfg.ID), began: time.Now(), broken: make(chan error, 1)}
	var err error
	if c.listener, err = cfg.Wires.Listen(cfg.Cluster.RaftAddr); err != nil {
		return nil, cannotListen("raft", "--raft-addr", err)
	}
	if c.storage, err = c.openStorage(); err != nil {
		return nil, errors.Join(err, c.listener.Close())
	}
	if c.self, err = c.introduce(c.storage, grpcAddr, c.listener.Addr().String()); err == nil {
		err = c.findState()
	}
	if err == nil {
		err = c.openDisk()
	}
	if err == nil {
		err = c.laterOf()
	}
	if err != nil {
		return nil, errors.Join(err, c.abandon())
	}
	if c.saved != nil {
		c.self.Incarnation = c.saved.Header.Next
	} else if c.disk != nil {
		c.self.Incarnation = c.disk.first(c.self.Incarnation)
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.serving = serving.New(table.Holder{Node: c.self.Node, Incarnation: c.self.Incarnation})
	c.serving.Clock(cfg.Clock.Now)
	c.state = newState(c, c.serving)
	return c, nil
}

// abandon closes what a part holds that does not join.
func (c *cluster) abandon() error {
	err := errors.Join(c.listener.Close(), c.storage.Close())
	if c.saved != nil {
		err = errors.Join(err, c.saved.Close())
	}
	if c.disk != nil {
		err = errors.Join(err, c.disk.keeper.Close())
	}
	return err
}

// join joins the cluster. store is what the rows of this node are kept in.
func (c *cluster) join(store *owner.Store) error {
	c.store = store
	if err := c.start(); err != nil {
		c.cancel()
		return errors.Join(err, c.abandon())
	}
	c.state.run(store)
	c.running.Go(c.follow)
	c.running.Go(c.warnOfOthers)
	c.running.Go(c.handleEvents)
	c.running.Go(c.recoverRows)
	c.running.Go(c.sayWaiting)
	if c.founds() {
		c.running.Go(c.found)
	}
	c.complete.Store(true)
	return nil
}

// start starts gossip and raft.
func (c *cluster) start() (err error) {
	cc := c.cfg.Cluster
	resume := uint64(0)
	if c.saved != nil {
		resume = c.saved.Header.Incarnation
	}
	c.pool, err = member.Start(member.Config{
		Self: c.self, Bind: cc.GossipAddr, Advertise: c.gossipAdvertise(), Join: cc.Join, Key: cc.GossipKey,
		Profile: member.Profile(cc.Profile), Transport: c.cfg.Wires.Gossip, Log: c.log.With("part", "gossip"),
		Answer: c.answer,
	})
	if err != nil {
		return err
	}
	bootstrap, err := c.mayBootstrap(c.storage)
	if err == nil {
		conf := epoch.Config{
			Cluster: cc.ID, Node: c.self.Node, Incarnation: c.self.Incarnation, HashKey: c.self.HashKey,
			GRPCAddr: c.self.GRPCAddr, RaftAddr: c.self.RaftAddr, Version: c.cfg.Version,
			Bootstrap: bootstrap, EpochFloor: c.floor(),
			Storage: c.storage, Listener: c.listener, Dial: c.cfg.Wires.Dial, Peers: c.peers, Discard: c.discard, Rule: c.serving, Before: c.learn,
			Policies: func(p *table.Policies) { c.inForce.Put(agreedPolicies(p, c.log)) },
			TTL:      cc.LeaseTTL, Margin: cc.LeaseMargin, Settle: cc.Settle, Resume: resume, ResumeWait: cc.ResumeWait, RecoverWait: cc.RecoverWait, LockTTL: time.Duration(c.cfg.Store.MaxLockTTL), IDWindow: time.Duration(c.cfg.Store.RequestIDs.Window),
			Snapshots: c.cfg.Wires.Snapshots, AdoptAfter: c.cfg.Wires.AdoptAfter, Clock: c.cfg.Clock, Wall: c.cfg.Wires.Wall, Log: c.log,
		}
		if c.disk != nil {
			conf.Disk, conf.Enlist = c.disk.report, c.disk.become
		}
		c.group, err = epoch.Start(conf)
	}
	if err != nil {
		c.pool.Stop()
		return err
	}
	c.drains = c.newDrainer()
	return nil
}

// learn is told of each table before the node acts by it.
func (c *cluster) learn(t *table.Table) {
	c.belongs(t)
	c.checkDisk(t)
	//guard:window-agreed
	if t.IDWindow != 0 && t.IDWindow != c.window {
		c.window = t.IDWindow
		c.store.SetWindow(t.IDWindow)
	}
	if c.saved != nil && t.Holds(c.serving.Self()) {
		c.resumed(t)
	}
	if t.Holds(c.serving.Self()) {
		c.named.Store(true)
	}
	c.state.source.Learn(t)
}

func (c *cluster) openStorage() (*epoch.Storage, error) {
	switch {
	case c.cfg.Wires.Storage != nil:
		return c.cfg.Wires.Storage, nil
	case c.cfg.DataDir == "":
		return epoch.MemoryStorage(), nil
	}
	return epoch.OpenStorage(c.cfg.DataDir)
}

// introduce returns what the node says of itself.
func (c *cluster) introduce(s *epoch.Storage, grpcAddr, raftAddr string) (member.Self, error) {
	id, err := s.Identity(c.cfg.Cluster.ID, c.cfg.ID)
	if err != nil {
		return member.Self{}, err
	}
	self := member.Self{
		Node: c.cfg.ID, Incarnation: epoch.NewIncarnation(c.cfg.Wires.Wall()), Cluster: c.cfg.Cluster.ID,
		RaftID: string(id), Version: c.cfg.Version, Hot: c.cfg.Cluster.HotNode, Level: c.cfg.Wires.Level,
	}
	if self.UID, err = s.UID(); err != nil {
		return self, err
	}
	if self.GRPCAddr, err = advertised(grpcAddr, c.cfg.Cluster.Advertise); err == nil {
		self.RaftAddr, err = advertised(raftAddr, c.cfg.Cluster.Advertise)
	}
	if err == nil {
		self.AppAddr, err = c.cfg.appAddr()
	}
	self.HashKey = c.cfg.Cluster.HashKey
	if self.HashKey == "" {
		self.HashKey = self.GRPCAddr
	}
	return self, err
}

// advertised returns the address at which others reach what listens at addr.
func advertised(addr, host string) (string, error) {
	at, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", err
	}
	if host == "" {
		host = at
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		if host, err = sockaddr.GetPrivateIP(); err != nil || host == "" {
			return "", fmt.Errorf("%s is no address at which others could reach this node, and the machine has no private one: name one with --advertise", addr)
		}
	}
	return net.JoinHostPort(host, port), nil
}

// gossipAdvertise returns the advertised gossip address, "" if it is the one that
// serf chooses itself.
func (c *cluster) gossipAdvertise() string {
	host := c.cfg.Cluster.Advertise
	_, port, err := net.SplitHostPort(c.cfg.Cluster.GossipAddr)
	if n, _ := strconv.Atoi(port); host == "" || err != nil || n == 0 {
		return ""
	}
	return net.JoinHostPort(host, port)
}

// discard forgets what the node holds of rows that it has lost.
func (c *cluster) discard(lost []serving.Range) {
	spans := make([]owner.Span, len(lost))
	for i, r := range lost {
		spans[i] = owner.Span(r)
	}
	c.store.DiscardSpans(spans, func(uint64) bool { return true })
}

// rule returns the serving rule for the store.
func (c *cluster) rule() *inCluster {
	m := &inCluster{rule: c.serving, start: c.cfg.Clock.Now(), window: cmp.Or(c.cfg.Store.RequestIDs.Window, owner.DefaultIDWindow), raise: c.raise}
	m.refusals(c.cfg.ID)
	if c.disk != nil {
		m.admit = c.disk.admit
	}
	return m
}

// raise has the epoch raised above one whose tokens are used up.
func (c *cluster) raise(above uint64) {
	if c.raising.Swap(true) {
		return
	}
	c.running.Go(func() {
		defer c.raising.Store(false)
		ctx, cancel := context.WithTimeout(c.ctx, proposeTime)
		defer cancel()
		if _, err := c.group.Propose(ctx, table.Command{ID: c.newID(), Raise: &table.Raise{Above: above}}); err != nil {
			c.log.Info("raising the epoch", "error", err)
		}
	})
}

func (c *cluster) newID() string { return c.cfg.ID + "-" + strconv.FormatUint(rand.Uint64(), 16) }

// retireTime bounds the time that a node which stops spends on being replaced.
const retireTime = time.Second

// retire stops acting: nothing more is let in, the last answers get out, and the
// others take over. Where nobody is left to do that, the process keeps its rows for
// the one that comes after it.
func (c *cluster) retire() {
	ctx, cancel := context.WithTimeout(context.Background(), retireTime)
	defer cancel()
	c.serving.Quiet()
	pause(ctx, flushTime)
	// gofail: var nodeRetire struct{}

	if t := c.group.Table(); c.cfg.DataDir != "" && (t.Stopped(c.Self()) || !t.HasTakers(c.cfg.ID) || c.group.Leader() == "") {
		c.group.Silence()
		return
	}
	c.group.Retire(ctx)
}

// stop leaves the cluster.
func (c *cluster) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*retireTime)
	defer cancel()
	c.cancel()
	c.running.Wait()
	c.state.stop()
	c.keep()
	// gofail: var nodeStop struct{}

	c.group.Stop(ctx)
	c.forgo()
	_ = c.pool.Leave(ctx)
	c.pool.Stop()
	c.closeDisk()
}

// kill leaves without a word, as a process that dies.
func (c *cluster) kill() {
	c.cancel()
	c.running.Wait()
	c.state.stop()
	c.group.Kill()
	c.forgo()
	c.pool.Stop()
	c.closeDisk()
}

// Self implements rpc.Cluster.
func (c *cluster) Self() table.Holder { return c.group.Self() }

// Table implements rpc.Cluster.
func (c *cluster) Table() *table.Table { return c.group.Table() }

// Await implements rpc.Cluster.
func (c *cluster) Await(ctx context.Context, after uint64) (*table.Table, error) {
	return c.group.Await(ctx, after)
}

// State implements rpc.Cluster.
func (c *cluster) State() rpc.ClusterState {
	s := rpc.ClusterState{
		LeaseLeft: c.group.LeaseLeft(), Leader: c.group.Leader(), RaftAddr: c.self.RaftAddr, Gossips: c.pool.Addr(),
		Started: c.began, Version: c.cfg.Version, GRPCAddr: c.self.GRPCAddr, ClusterID: c.cfg.Cluster.ID, Waiting: c.waiting(),
	}
	own, _, t := c.group.Rule().Recoveries()
	s.Recovery = graceLeft(own, t, c.cfg.Clock.Now())
	s.Voters, s.Nonvoters = c.group.Servers()
	s.Gossip = c.gossipers()
	s.Awaited = c.awaited.list(time.Now())
	for _, y := range c.state.source.Progress().Copies {
		s.Copies = append(s.Copies, &clusterpb.Copy{
			To: y.To, Rows: uint32(y.Rows), Objects: uint64(y.Objects), ObjectsExpected: uint64(y.Expected), Bytes: uint64(y.Bytes),
			AgeNs: int64(y.Age), CaughtUp: y.Caught,
		})
	}
	return s
}
