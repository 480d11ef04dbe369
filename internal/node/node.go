package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"regexp"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/keystead/keystead/internal/admin"
	"github.com/keystead/keystead/internal/clock"
	"github.com/keystead/keystead/internal/rpc"
	"github.com/keystead/keystead/owner"
)

// Config says what a node is and where it listens.
type Config struct {
	// ID names the node: letters, digits, '.', '_' and '-', at most 64.
	ID string
	// DataDir keeps what must survive a restart: today the epoch. "" = nothing
	// does, and the epoch comes from the wall clock.
	DataDir string
	// GRPCAddr is where the API listens, host:port. Default 127.0.0.1:7400.
	GRPCAddr string
	// AdminAddr is where metrics, health and profiles listen. "" = nowhere.
	AdminAddr string
	// EpochFloor is the least epoch to serve under: for a node that was built
	// anew after its data directory was lost and its clock set back.
	EpochFloor uint64
	// Store bounds the store; Rule and Sink are set here.
	Store owner.Config
	// MaxConns bounds open gRPC connections. Default 10,000.
	MaxConns int
	// MaxCalls bounds calls under way. Default 100,000.
	MaxCalls int64
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
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Clock == nil {
		c.Clock = clock.System()
	}
	return c
}

func (c Config) validate() error {
	if !idPattern.MatchString(c.ID) {
		return fmt.Errorf("node id %q: use 1 to 64 letters, digits, '.', '_' and '-'", c.ID)
	}
	if c.StopGrace < 0 {
		return errors.New("the stop grace period is negative")
	}
	return nil
}

// Node is a running node.
type Node struct {
	cfg   Config
	rule  *sole
	store *owner.Store
	rpc   *rpc.Server
	grpc  net.Listener
	admin *admin.Server
	began time.Time

	stop   sync.Once
	stops  []func() // what Stop does, last first
	failed chan error
}

// Start brings a node up. When it returns, the node serves.
func Start(cfg Config) (n *Node, err error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	n = &Node{cfg: cfg, began: time.Now(), failed: make(chan error, 2)}
	defer func() {
		if err != nil {
			n.Stop()
		}
	}()
	if cfg.DataDir != "" {
		if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
			return nil, err
		}
		release, err := lockDir(cfg.DataDir)
		if err != nil {
			return nil, err
		}
		n.stops = append(n.stops, func() { _ = release() })
	}
	if n.rule, err = newSole(cfg.DataDir, cfg.EpochFloor, time.Now()); err != nil {
		return nil, err
	}
	cfg.Store.Rule = n.rule
	if n.store, err = owner.New(cfg.Store, cfg.Clock.Now()); err != nil {
		return nil, err
	}
	n.runStore()
	if err := n.serve(); err != nil {
		return nil, err
	}
	cfg.Log.Info("serving", "id", cfg.ID, "grpc", n.GRPCAddr(), "admin", n.AdminAddr(), "epoch", n.rule.epoch.Load())
	return n, nil
}

// runStore starts the two timers of the store.
func (n *Node) runStore() {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { n.sweep(ctx) })
	wg.Go(func() { n.wake(ctx) })
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
			n.store.Sweep(n.cfg.Clock.Now())
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
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		newStoreCollector(n.store, n.rule))
	n.rpc = rpc.NewServer(rpc.Config{Store: n.store, Clock: n.cfg.Clock, Metrics: rpc.NewMetrics(reg), MaxConns: n.cfg.MaxConns, MaxCalls: n.cfg.MaxCalls})
	l, err := net.Listen("tcp", n.cfg.GRPCAddr)
	if err != nil {
		return fmt.Errorf("listening for gRPC: %w", err)
	}
	n.grpc = l
	n.stops = append(n.stops, func() { n.rpc.Stop(n.cfg.StopGrace); _ = l.Close() })
	go func() { n.failed <- n.rpc.Serve(l) }()
	if n.cfg.AdminAddr == "" {
		return nil
	}
	n.admin, err = admin.Start(admin.Config{
		Addr: n.cfg.AdminAddr, Gatherer: reg, Status: func() any { return n.Status() },
	})
	if err != nil {
		return fmt.Errorf("listening for admin: %w", err)
	}
	n.stops = append(n.stops, n.admin.Stop)
	n.admin.SetReady(true)
	return nil
}

// Stop takes the node down: it is no longer ready, refuses new calls, sends
// waiting ones away, lets running ones finish within the grace period, and
// stops. It may be called more than once.
func (n *Node) Stop() {
	n.stop.Do(func() {
		if n.admin != nil {
			n.admin.SetReady(false)
		}
		for i := len(n.stops) - 1; i >= 0; i-- {
			n.stops[i]()
		}
	})
}

// Failed delivers an error if the node can no longer serve.
func (n *Node) Failed() <-chan error { return n.failed }

// GRPCAddr is where the API listens.
func (n *Node) GRPCAddr() string { return n.grpc.Addr().String() }

// AdminAddr is where the admin server listens, "" if it does not.
func (n *Node) AdminAddr() string {
	if n.admin == nil {
		return ""
	}
	return n.admin.Addr()
}
