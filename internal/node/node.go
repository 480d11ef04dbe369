package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/keystead/keystead/envoy/rls"
	"github.com/keystead/keystead/envoy/xds"
	"github.com/keystead/keystead/hotkey/home"
	"github.com/keystead/keystead/internal/admin"
	"github.com/keystead/keystead/internal/clock"
	"github.com/keystead/keystead/internal/console"
	"github.com/keystead/keystead/internal/httpapi"
	"github.com/keystead/keystead/internal/rpc"
	"github.com/keystead/keystead/owner"
)

// Config says what a node is and where it listens.
type Config struct {
	// ID names the node: letters, digits, '.', '_' and '-', at most 64.
	ID string
	// DataDir keeps what must survive a restart: the epoch, the log of a cluster,
	// and after an orderly stop the state. "" = nothing does, and the epoch comes
	// from the wall clock.
	DataDir string
	// GRPCAddr is where the API listens, host:port. Default 127.0.0.1:7400.
	GRPCAddr string
	// HTTPAddr is where the API listens for HTTP with JSON, host:port. "" = nowhere.
	HTTPAddr string
	// AdminAddr is where operators come: metrics, health, status, drains, profiles.
	// "" = nowhere.
	AdminAddr string
	// MetricsAddr is where metrics and health are served without the rest, so that
	// others than operators may reach them. "" = at AdminAddr alone.
	MetricsAddr string
	// Fresh says that nobody can have called an earlier process in place of this one, such
	// as that of a test: what it does not remember was never done. Only for a node that
	// runs alone and keeps nothing.
	Fresh bool
	// Durability says what is on disk when an answer leaves: see disk.ParseSettings. In a
	// cluster it counts when all have agreed. Default: interval with a DataDir, none without.
	Durability string
	// DurabilityInterval is that of interval. Default 1 s.
	DurabilityInterval time.Duration
	// EpochFloor is the least epoch to serve under: for a node that was built
	// anew after its data directory was lost and its clock set back. Ahead of the
	// clock it needs a DataDir.
	EpochFloor uint64
	// Cluster makes the node part of a cluster. Without an ID it runs alone.
	Cluster ClusterConfig
	// Wires are how the node reaches others. Default: sockets.
	Wires Wires
	// ProcessMetrics shows what the libraries below count for the whole process
	// (raft, serf). Only one node of a process may ask for it.
	ProcessMetrics bool
	// XDS is what the node tells Envoy and gRPC clients beside the ring.
	XDS xds.Settings
	// AppAddr is the application beside the node, host:port, which it tells them of.
	// The host may be a name, which is looked up once. "" = there is none.
	AppAddr string
	// Store bounds the store; Rule and Sink are set here.
	Store owner.Config
	// MaxConns bounds open connections to the API, those of gRPC and those of HTTP each.
	// Default 10,000.
	MaxConns int
	// AckOwner are kinds of objects, of rpc.Kinds, whose answers do not wait for the
	// standby: an owner that dies takes what it decided last with it. Default: none.
	AckOwner []string
	// CopyRate bounds what copies for other nodes send in all, in bytes a second.
	// 0 = no limit.
	CopyRate int64
	// MaxCalls bounds calls under way. Default 100,000.
	MaxCalls int64
	// Hot says which keys are hot, and what is done about it.
	Hot home.Settings
	// RLS is Envoy's rate limit service on the port of the API. Without a Path there
	// is none; Log and Metrics are set here.
	RLS rls.Config
	// StopGrace is how long Stop lets calls finish. Default 5 s.
	StopGrace time.Duration
	// Version of the program, for people.
	Version string
	// Log is where the node says what happens. Default: nowhere.
	Log *slog.Logger
	// Clock is where time comes from. Default: clock.System.
	Clock clock.Clock
}

const (
	sweepEvery = 50 * time.Millisecond // see owner.Store.Sweep
	maxSleep   = time.Hour             // of the waker, when no lock is waited for
)

var idPattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

func (c Config) withDefaults() Config {
	if c.GRPCAddr == "" {
		c.GRPCAddr = "127.0.0.1:7400"
	}
	if c.StopGrace == 0 {
		c.StopGrace = 5 * time.Second
	}
	if c.Cluster.RaftAddr == "" {
		c.Cluster.RaftAddr = "127.0.0.1:7401"
	}
	if c.Cluster.GossipAddr == "" {
		c.Cluster.GossipAddr = "127.0.0.1:7402"
	}
	c.Hot = c.Hot.WithDefaults()
	c.Wires = c.Wires.withDefaults()
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Clock == nil {
		c.Clock = clock.System()
	}
	return c
}

// Validate says what in c makes no sense, whatever the machine is like. Start
// asks it, too; what Store holds is judged there.
func (c Config) Validate() error {
	if !idPattern.MatchString(c.ID) {
		return fmt.Errorf("node id %q: use 1 to 64 letters, digits, '.', '_' and '-'", c.ID)
	}
	if c.Cluster.ID != "" && !idPattern.MatchString(c.Cluster.ID) {
		return fmt.Errorf("cluster id %q: use 1 to 64 letters, digits, '.', '_' and '-'", c.Cluster.ID)
	}
	if c.Cluster.ID == "" && (c.Cluster.Bootstrap || len(c.Cluster.Join) > 0 || len(c.Cluster.Founders) > 0) {
		return errors.New("a node that makes or joins a cluster needs its name: set --cluster-id")
	}
	if c.Fresh && (c.DataDir != "" || c.Cluster.ID != "") {
		return errors.New("a node that nothing went before keeps nothing, and is in no cluster")
	}
	if err := c.Cluster.validateFounders(); err != nil {
		return err
	}
	if err := c.XDS.Validate(); err != nil {
		return err
	}
	if err := CheckAppAddr(c.AppAddr); err != nil {
		return err
	}
	if c.StopGrace < 0 {
		return fmt.Errorf("a stop grace period of %s: choose 0 or more", c.StopGrace)
	}
	if err := c.validateDurability(); err != nil {
		return err
	}
	for _, k := range c.AckOwner {
		if !slices.Contains(rpc.Kinds, k) {
			return fmt.Errorf("--ack-owner %q: choose among %s", k, strings.Join(rpc.Kinds, ", "))
		}
	}
	if err := c.RLS.Validate(); err != nil {
		return err
	}
	if err := c.Hot.WithDefaults().Validate(); err != nil {
		return fmt.Errorf("hot keys: %w", err)
	}
	if c.CopyRate < 0 {
		return fmt.Errorf("copies of %d bytes a second: choose 1 or more, or 0 for no limit", c.CopyRate)
	}
	if c.MaxCalls < 0 {
		return fmt.Errorf("at most %d calls: choose 1 or more", c.MaxCalls)
	}
	if c.MaxConns < 0 {
		return fmt.Errorf("at most %d connections: choose 1 or more", c.MaxConns)
	}
	if c.EpochFloor > owner.MaxEpoch {
		return fmt.Errorf("an epoch floor of %d: the greatest possible epoch is %d", c.EpochFloor, uint64(owner.MaxEpoch))
	}
	return nil
}

// Node is a running node.
type Node struct {
	cfg      Config
	rule     *standalone // of a node that runs alone, or nil
	cluster  *cluster    // of one that does not, or nil
	store    *owner.Store
	rpc      *rpc.Server
	observer *home.Observer
	xds      *ringAnnouncer
	grpc     net.Listener
	httpPort net.Listener                 // nil = none
	http     *httpapi.Server              // nil = none
	rls      *rls.Service                 // nil = none
	admin    atomic.Pointer[admin.Server] // its /status may ask for it while it starts
	console  *console.Console             // nil = nobody comes to see it
	began    time.Time
	complete atomic.Bool // see ready

	backingUp   atomic.Bool
	stall       time.Duration // of a backup, in tests; 0 = backupStall
	keeps       *keeps
	restored    int64 // the time of the backup since which something was lost, in ns since 1970; 0 = it was not
	lossPartial bool  // what was lost is what the last process answered in its last moments
	lostRows    int64 // of a lone node: all, if the state of the last process was lost

	follows chan struct{}   // closed when the cluster's failure does not matter any more
	killed  atomic.Bool     // Stop is to be like the death of the process
	halt    context.Context // ends when the node begins to stop
	halting context.CancelFunc
	stop    sync.Once
	stops   []func() // what Stop does, last first
	failed  chan error
}

// Start brings a node up. When it returns, the node serves; when it fails,
// nothing of it is left running.
func Start(cfg Config) (*Node, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, began: time.Now(), failed: make(chan error, 3)}
	n.keeps = newKeeps(&n.cfg)
	n.halt, n.halting = context.WithCancel(context.Background())
	if err := n.start(); err != nil {
		n.Stop()
		return nil, err
	}
	cfg.Log.Info("serving", "id", cfg.ID, "grpc", n.GRPCAddr(), "http", n.HTTPAddr(), "admin", n.AdminAddr(), "epoch", n.epoch())
	return n, nil
}

// start brings the parts up. What it started before it failed is in n.stops.
func (n *Node) start() (err error) {
	if dir := n.cfg.DataDir; dir != "" {
		if err := n.makeDir(dir); err != nil {
			return err
		}
		release, err := lockDir(dir)
		if err != nil {
			return err
		}
		n.stops = append(n.stops, func() { n.keeps.leave(); _ = release() })
		if err := neverHalfRestored(dir); err != nil {
			return err
		}
		if n.cfg.Cluster.ID != "" {
			if err := neverRestoredInCluster(dir); err != nil {
				return err
			}
		}
	}
	if err := n.listen(); err != nil {
		return err
	}
	if err := n.chooseRule(); err != nil {
		return err
	}
	if n.observer, err = home.NewObserver(n.cfg.Hot.Policy, n.cfg.Clock.Now(), n.cfg.Log); err != nil {
		return err
	}
	n.cfg.Store.Heat = n.observer.Sketch
	n.cfg.Store.MaxVersion = func() uint64 { return owner.MaxVersionAt(n.cfg.Wires.Wall().UnixNano()) }
	if err := n.openDisk(); err != nil {
		return err
	}
	if n.store, err = owner.New(n.cfg.Store, n.cfg.Clock.Now()); err != nil {
		return err
	}
	if err := n.begin(); err != nil {
		return err
	}
	n.runStore()
	return n.serve()
}

// listen takes the ports of the API: others must know that of gRPC before they are
// asked to call.
func (n *Node) listen() error {
	l, err := n.cfg.Wires.Listen(n.cfg.GRPCAddr)
	if err != nil {
		return cannotListen("gRPC", "--grpc-addr", err)
	}
	n.grpc = l
	n.stops = append(n.stops, func() { _ = l.Close() }) // Serve closes it as well, if it comes to that
	return n.listenHTTP()
}

// chooseRule decides by what right the node will act: alone, or as a member of
// its cluster.
func (n *Node) chooseRule() (err error) {
	if n.cfg.Cluster.ID == "" {
		return n.chooseStandalone()
	}
	alone, err := servedAlone(n.cfg)
	if err != nil {
		return err
	}
	if n.cluster, err = newCluster(n.cfg, n.GRPCAddr(), alone); err != nil {
		return err
	}
	n.stops = append(n.stops, n.cluster.unbegun)
	n.cluster.keeps = n.keeps
	rule := n.cluster.rule()
	n.cfg.Store.Rule, n.cfg.Store.Stale, n.cfg.Store.Sink = rule, rule.stalePart, n.cluster.state.source
	n.cfg.Store.Policies = &n.cluster.inForce
	if d := n.cluster.disk; d != nil {
		n.cfg.Store.Journal = d.keeper
	}
	return nil
}

// begin goes on from what the process before has left, and joins the cluster.
func (n *Node) begin() error {
	if n.cluster == nil {
		if err := n.beginStandalone(); err != nil {
			return err
		}
		n.stops = append(n.stops, n.keepStandalone)
		return nil
	}
	n.cluster.begun = true
	err := n.cluster.restore(n.store)
	if err != nil {
		err = errors.Join(err, n.cluster.abandon())
	} else {
		err = n.cluster.join(n.store)
	}
	if err != nil {
		return err
	}
	n.stops = append(n.stops, func() {
		if n.killed.Load() {
			n.cluster.kill()
		} else {
			n.cluster.stop()
		}
	})
	n.follows = make(chan struct{})
	go func() {
		select {
		case err := <-n.cluster.group.Failed():
			n.failed <- err
		case err := <-n.cluster.broken:
			n.failed <- err
		case <-n.follows:
		}
	}()
	n.stops = append(n.stops, func() { close(n.follows) })
	return nil
}

// epoch returns the one that the node goes by.
func (n *Node) epoch() uint64 {
	if n.cluster != nil {
		return n.cluster.Table().Epoch
	}
	return n.rule.epoch.Load()
}

// runStore starts the timers of the store.
func (n *Node) runStore() {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { n.sweep(ctx) })
	wg.Go(func() { n.wake(ctx) })
	wg.Go(func() { n.observer.Run(ctx, n.store, n.ownedObjects, n.cfg.Clock.Now) })
	if n.cfg.DataDir != "" && (n.keeper() == nil || n.cluster != nil) {
		wg.Go(func() { n.keeps.holdRoom(ctx, n.store, n.writesState) })
	}
	n.stops = append(n.stops, func() { cancel(); wg.Wait() })
}

// sweep lets the store forget what is over.
func (n *Node) sweep(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			//guard:swept-when-named true
			if n.cluster == nil || n.cluster.named.Load() { // else it is not known how long ids are kept
				n.store.Sweep(n.cfg.Clock.Now())
			}
		}
	}
}

// wake calls the store when a lock's holder or waiter runs out of time.
func (n *Node) wake(ctx context.Context) {
	timer := time.NewTimer(maxSleep)
	defer timer.Stop()
	for {
		sleep := maxSleep
		if at, ok := n.store.NextWake(); ok {
			sleep = min(sleep, max(time.Duration(at-n.cfg.Clock.Now()), 0))
		}
		timer.Reset(sleep)
		select {
		case <-ctx.Done():
			return
		case <-n.store.WakeChanged():
		case <-timer.C:
			n.store.Wake(n.cfg.Clock.Now())
		}
	}
}

// serve starts the gRPC and the admin server.
func (n *Node) serve() error {
	reg, err := n.newRegistry()
	if err != nil {
		return err
	}
	if err := n.startRLS(reg); err != nil {
		return err
	}
	conf := n.apiConfig(reg)
	if err := n.openAdmin(reg, conf.Metrics); err != nil {
		return err
	}
	if n.xds, err = n.announceRing(reg); err != nil {
		return err
	}
	source := n.newIDs()
	conf.IDs, n.stops = source, append(n.stops, source.Close)
	if err := n.serveAPI(conf, reg); err != nil {
		return err
	}
	n.stops = append(n.stops, n.stopServing)
	if err := n.openHTTP(reg); err != nil {
		return err
	}
	go func() { n.failed <- n.rpc.Serve(n.grpc) }()
	if n.console != nil {
		n.console.Open(n.rpc)
	}
	if a := n.admin.Load(); a != nil {
		a.SetReady(true)
	}
	return nil
}

// stopServing ends the calls: first others take the node's keys over, then calls
// that still run may finish.
func (n *Node) stopServing() {
	if n.killed.Load() {
		n.xds.stop()
		n.stopAPI(0)
		return
	}
	if n.cluster != nil {
		n.cluster.retire()
	}
	n.xds.stop()
	n.stopAPI(n.cfg.StopGrace)
}

// Kill takes the node down as if its process had died: nobody is told.
func (n *Node) Kill() {
	n.killed.Store(true)
	n.Stop()
}

func cannotListen(what, setting string, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("listening for %s: %w: another process has the port; choose another with %s, or port 0 for a free one", what, err, setting)
	}
	return fmt.Errorf("listening for %s: %w: check %s", what, err, setting)
}

// Stop takes the node down: it is no longer ready, refuses new calls, sends
// waiting ones away, lets running ones finish within the grace period, and
// stops. It may be called more than once.
func (n *Node) Stop() {
	n.stop.Do(func() {
		n.halting()
		if a := n.admin.Load(); a != nil {
			a.SetReady(false)
		}
		for i := len(n.stops) - 1; i >= 0; i-- {
			n.stops[i]()
		}
	})
}

// Failed delivers an error if the node can no longer serve.
func (n *Node) Failed() <-chan error { return n.failed }

// GRPCAddr returns where the API listens.
func (n *Node) GRPCAddr() string { return n.grpc.Addr().String() }
