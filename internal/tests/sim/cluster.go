package sim

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/keystead/keystead/internal/node"
	"github.com/keystead/keystead/internal/tests/sim/gossip"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch"
	"github.com/keystead/keystead/ring/member"
)

// Ports of every host.
const (
	grpcPort   = "7400"
	raftPort   = "7401"
	gossipPort = "7402"
)

// sinceThen is how far the wall clocks of hosts are ahead of the bubble's, which
// begins in 2000: epochs count from 2024.
const sinceThen = 27 * 365 * 24 * time.Hour

// dialTime is how long a node tries to connect, as it does with sockets.
const dialTime = 5 * time.Second

// maxDrift is how much clocks of hosts run fast or slow at most: together they
// part by less than the default margin, 2.5% of the TTL.
const maxDrift = 0.01

// shortLogs are so short that a node that was away for a moment needs a snapshot.
var shortLogs = epoch.Snapshots{Every: 500 * time.Millisecond, After: 16, Trailing: 4}

// Config says what a Cluster is like.
type Config struct {
	Nodes int    // hosts; 1 to 200
	Seed  uint64 // of faults and delays
	// LeaseTTL, LeaseMargin and Settle are those of node.ClusterConfig.
	LeaseTTL, LeaseMargin, Settle time.Duration
	// Snapshots says when logs are cut short. Default: very often.
	Snapshots epoch.Snapshots
	// Profile of gossip. Default local.
	Profile string
	// Tune changes the configuration of a node before it starts; nil = nothing.
	Tune func(host int, cfg *node.Config)
	// Durability is --durability of nodes that have disks; "" = they have none. Dir is where
	// they find what else is in a data directory.
	Durability string
	Dir        string
	// Old has the cluster be made at the first level, as if one of its nodes were of an old
	// program. The level of the others is adopted when nothing has changed for a while.
	Old bool
	// Log is where nodes say what happens. Default: nowhere.
	Log slog.Handler
}

// Cluster is a number of hosts, on each of which a node may run. Its methods are
// for one goroutine, but for Live, which anybody may call.
type Cluster struct {
	Net    *Net
	Gossip *gossip.Network
	cfg    Config
	rnd    *rand.Rand

	mu    sync.Mutex // guards the node, process and life of hosts
	hosts []*host
}

// host is a machine.
type host struct {
	i       int
	name    string // of the node
	addr    string
	clock   *Clock
	gate    *Gate
	storage *epoch.Storage // the log, which is always on disk
	disk    *Disk
	wall    time.Duration // what its wall clock is wrong by; guarded by mu
	node    *node.Node    // nil = no process runs
	life    int           // number of the process
}

// Process is a node that runs.
type Process struct {
	Host  int
	Life  int // number of the process on its host
	Name  string
	Group *epoch.Group
	Now   int64 // by the host's clock
}

// New returns a cluster of hosts on which nothing runs yet.
func New(cfg Config) *Cluster {
	if cfg.Profile == "" {
		cfg.Profile = string(member.Local)
	}
	if cfg.Log == nil {
		cfg.Log = slog.DiscardHandler
	}
	if cfg.Snapshots == (epoch.Snapshots{}) {
		cfg.Snapshots = shortLogs
	}
	c := &Cluster{Net: NewNet(cfg.Seed), Gossip: gossip.NewNetwork(cfg.Seed), cfg: cfg, rnd: rand.New(rand.NewPCG(cfg.Seed, 0x636c7573))}
	for i := range cfg.Nodes {
		h := &host{i: i, name: fmt.Sprintf("n%d", i+1), addr: fmt.Sprintf("10.0.0.%d", i+1), storage: epoch.MemoryStorage()}
		h.gate = c.Net.Gate(h.addr)
		h.disk = newDisk(cfg.Seed+uint64(i), h.gate, filepath.Join(cfg.Dir, h.name))
		h.clock = &Clock{gate: h.gate, began: time.Now(), drift: maxDrift * (2*c.rnd.Float64() - 1)}
		c.hosts = append(c.hosts, h)
	}
	return c
}

// Start starts a node on a host. The first host is the one that is told to make
// the cluster, always; if others run, it is told to join them, too.
func (c *Cluster) Start(i int) error {
	h := c.hosts[i]
	if h.node != nil {
		return fmt.Errorf("%s runs already", h.name)
	}
	h.gate.Open()
	c.off(h, false)
	cfg := node.Config{
		ID: h.name, GRPCAddr: net.JoinHostPort(h.addr, grpcPort), StopGrace: time.Second, Version: "sim",
		Store: owner.Config{MaxLockTTL: int64(lockTime)},
		Clock: h.clock, Log: slog.New(gatedLog{c.cfg.Log, h.gate}),
		Cluster: node.ClusterConfig{
			ID: "sim", Bootstrap: i == 0, RaftAddr: net.JoinHostPort(h.addr, raftPort), GossipAddr: net.JoinHostPort(h.addr, gossipPort),
			Profile: c.cfg.Profile, LeaseTTL: c.cfg.LeaseTTL, LeaseMargin: c.cfg.LeaseMargin, Settle: c.cfg.Settle,
		},
		Wires: node.Wires{
			Listen: c.Net.Listen, Gossip: c.Gossip.Transport(net.JoinHostPort(h.addr, gossipPort)), Storage: gatedStorage(h.storage, h.gate),
			Dial: func(ctx context.Context, addr string) (net.Conn, error) {
				ctx, cancel := context.WithTimeout(ctx, dialTime)
				defer cancel()
				return c.Net.Dial(ctx, h.addr, addr)
			},
			Wall: func() time.Time { return c.wallOf(h) }, Snapshots: c.cfg.Snapshots,
		},
	}
	for _, o := range c.hosts {
		if o != h && (i != 0 || o.life > 0) {
			cfg.Cluster.Join = append(cfg.Cluster.Join, net.JoinHostPort(o.addr, gossipPort))
		}
	}
	if c.cfg.Durability != "" {
		cfg.DataDir, cfg.Wires.Disk, cfg.Durability = filepath.Join(c.cfg.Dir, h.name), h.disk.files(), c.cfg.Durability
	}
	if c.cfg.Old {
		cfg.Wires.Level = 1
	}
	if c.cfg.Tune != nil {
		c.cfg.Tune(i, &cfg)
	}
	n, err := node.Start(cfg)
	if err != nil {
		return fmt.Errorf("starting %s: %w", h.name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	h.node, h.life = n, h.life+1
	return nil
}

func (c *Cluster) wallOf(h *host) time.Time {
	h.gate.Pass()
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(sinceThen + h.wall)
}

// StartAll starts nodes on all hosts where none runs.
func (c *Cluster) StartAll() error {
	for i, h := range c.hosts {
		if h.node == nil {
			if err := c.Start(i); err != nil {
				return err
			}
		}
	}
	return nil
}

// detach says that the process of a host is no more.
func (c *Cluster) detach(h *host) *node.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := h.node
	h.node = nil
	return n
}

// Stop stops a node in order.
func (c *Cluster) Stop(i int) {
	h := c.hosts[i]
	h.gate.Open()
	h.disk.ends()
	n := h.node // it counts until it has stopped
	if n == nil {
		return
	}
	n.Stop()
	c.detach(h)
	c.Net.Die(h.addr)
}

// Kill ends a process at once. The kernel tells those it was connected with.
func (c *Cluster) Kill(i int) {
	c.end(i, false)
	c.off(c.hosts[i], false)
}

// Crash takes a machine's power away. Nobody is told. Start brings it back.
func (c *Cluster) Crash(i int) { c.end(i, true) }

// end ends a process, if one runs, and cuts its machine off.
func (c *Cluster) end(i int, power bool) {
	h := c.hosts[i]
	n := c.detach(h)
	c.off(h, true)
	h.disk.end(power) // what it writes from now on is lost, and nobody hears of it
	h.gate.Open()
	if n != nil {
		n.Kill()
	}
	c.Net.Die(h.addr)
}

func (c *Cluster) off(h *host, off bool) {
	c.Net.Power(h.addr, !off)
	c.isolate(h, off)
}

func (c *Cluster) isolate(h *host, cut bool) {
	c.Gossip.Isolate(net.JoinHostPort(h.addr, gossipPort), cut)
}

// Wipe empties the disk of a host on which nothing runs.
func (c *Cluster) Wipe(i int) {
	c.hosts[i].storage = epoch.MemoryStorage()
	c.hosts[i].disk.wipe()
}

// Pause stops a process, if one runs, as SIGSTOP does: see the package comment.
func (c *Cluster) Pause(i int) {
	if !c.Running(i) {
		return
	}
	c.hosts[i].gate.Close()
	c.isolate(c.hosts[i], true)
}

// Resume lets it go on.
func (c *Cluster) Resume(i int) {
	if !c.Running(i) {
		return
	}
	c.isolate(c.hosts[i], false)
	c.hosts[i].gate.Open()
}

// JumpWall sets the wall clock of a host forward, or back.
func (c *Cluster) JumpWall(i int, by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hosts[i].wall += by
}

// SlewClock has the boot clock of a host gain so many seconds in a second, or lose them,
// as NTP does to a clock that is wrong. The hardware's does not notice.
func (c *Cluster) SlewClock(i int, rate float64) { c.hosts[i].clock.Slew(rate) }

// RunClock has the hardware's clock of a host gain so many seconds in a second, or lose
// them: at -1 all clocks of the guest stand still.
func (c *Cluster) RunClock(i int, rate float64) { c.hosts[i].clock.Run(rate) }

// Cut holds back what goes from one host to another, streams and gossip, or lets
// it pass again.
func (c *Cluster) Cut(from, to int, cut bool) {
	a, b := c.hosts[from].addr, c.hosts[to].addr
	c.Net.Cut(a, b, cut)
	c.Gossip.Cut(net.JoinHostPort(a, gossipPort), net.JoinHostPort(b, gossipPort), cut)
}

// Partition cuts the hosts into parts that do not hear from each other. Those
// that are not named are one part more.
func (c *Cluster) Partition(parts ...[]int) {
	part := map[int]int{}
	for k, p := range parts {
		for _, i := range p {
			part[i] = k + 1
		}
	}
	for i := range c.hosts {
		for j := range c.hosts {
			if i != j {
				c.Cut(i, j, part[i] != part[j])
			}
		}
	}
}

// Deafen cuts all that goes to a host; Mute all that comes from it.
func (c *Cluster) Deafen(i int, cut bool) {
	for j := range c.hosts {
		if j != i {
			c.Cut(j, i, cut)
		}
	}
}

// Mute cuts all that comes from a host.
func (c *Cluster) Mute(i int, cut bool) {
	for j := range c.hosts {
		if j != i {
			c.Cut(i, j, cut)
		}
	}
}

// Heal undoes all cuts, losses and delays. Paused nodes stay paused.
func (c *Cluster) Heal() {
	c.Net.Heal()
	for i := range c.hosts {
		for j := range c.hosts {
			c.Cut(i, j, false)
		}
	}
	c.Gossip.SetLoss(0)
	c.Gossip.SetDuplicates(0)
}

// Running reports whether a process runs on a host, paused or not.
func (c *Cluster) Running(i int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hosts[i].node != nil
}

// Live returns the processes that run, paused ones too: what they know, they still
// know when they resume.
func (c *Cluster) Live() []Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []Process
	for _, h := range c.hosts {
		if h.node != nil {
			out = append(out, Process{Host: h.i, Life: h.life, Name: h.name, Group: h.node.Group(), Now: h.clock.Shows()})
		}
	}
	return out
}

// Process returns the process of a host.
func (c *Cluster) Process(i int) (Process, bool) {
	for _, p := range c.Live() {
		if p.Host == i {
			return p, true
		}
	}
	return Process{}, false
}

// Leader returns the host that leads in the eyes of most, -1 if there is none.
func (c *Cluster) Leader() int {
	votes := map[string]int{}
	live := c.Live()
	for _, p := range live {
		votes[p.Group.Leader()]++
	}
	for _, h := range c.hosts {
		if votes[h.name] > len(live)/2 {
			return h.i
		}
	}
	return -1
}

// Close kills what runs, and waits until gossip has ended in the bubble.
func (c *Cluster) Close() {
	for i, h := range c.hosts {
		c.Kill(i)
		h.gate.Open()
	}
	time.Sleep(time.Minute)
}

// Dial returns a connection to the API of a node, from a machine that is none of
// the hosts.
func (c *Cluster) Dial(from string, i int) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+net.JoinHostPort(c.hosts[i].addr, grpcPort),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return c.Net.Dial(ctx, from, addr) }))
}
