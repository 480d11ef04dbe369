package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
)

// Config says what cluster to start.
type Config struct {
	// Binary is the path of keystead.
	Binary string
	// Dir takes the disks and the logs of the nodes. It must be there.
	Dir string
	// Nodes is how many there are at the start, 1 to MaxNodes.
	Nodes int
	// Lease is their --lease-ttl. Default 2 s.
	Lease time.Duration
	// Flags are further flags of all nodes.
	Flags []string
	// Islands gives each node a network namespace of its own.
	Islands bool
	// Proxied leads all that goes to a node over a Proxy. Not with Islands.
	Proxied bool
	// Disks gives each node a disk of its own, which can be filled and made to hang.
	// It needs root.
	Disks bool
	// DataDir says where a node of a name keeps what it has. Default: a directory of its
	// name in Dir. Not with Disks.
	DataDir func(id string) string
}

const (
	// MaxNodes is how many nodes a cluster may start with.
	MaxNodes     = 9
	defaultLease = 2 * time.Second

	// MaxLockTTL is the longest TTL of locks, which is waited for after a loss.
	MaxLockTTL = 2 * time.Second
)

// Cluster is a cluster of processes. Nodes are added and started by one goroutine;
// the rest may be called from any.
type Cluster struct {
	cfg     Config
	ports   Ports
	islands *islands // nil on loopback
	wg      sync.WaitGroup

	mu    sync.Mutex
	nodes []*Node // guarded by mu; only grows
}

// Start starts a cluster. It does not wait until it serves: see Await. Close it.
func Start(cfg Config) (*Cluster, error) {
	if cfg.Lease == 0 {
		cfg.Lease = defaultLease
	}
	switch {
	case cfg.Nodes < 1 || cfg.Nodes > MaxNodes:
		return nil, fmt.Errorf("cluster: %d nodes: choose 1 to %d", cfg.Nodes, MaxNodes)
	case cfg.Islands && cfg.Proxied:
		return nil, errors.New("cluster: links are slowed down on loopback, and cut between islands: choose one")
	}
	if _, err := os.Stat(cfg.Binary); err != nil {
		return nil, err
	}
	c := &Cluster{cfg: cfg}
	if cfg.Islands {
		x, err := newIslands()
		if err != nil {
			return nil, err
		}
		c.islands = x
	}
	for range cfg.Nodes { // all, before any starts: they are told of each other
		if _, err := c.add(); err != nil {
			c.Close()
			return nil, err
		}
	}
	for _, n := range c.nodes {
		if err := n.Start(); err != nil {
			c.Close()
			return nil, err
		}
	}
	return c, nil
}

// add makes a further node, which does not run.
func (c *Cluster) add() (*Node, error) {
	n, err := c.newNode()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes = append(c.nodes, n)
	return n, nil
}

// Join starts a further node.
func (c *Cluster) Join() (*Node, error) {
	n, err := c.add()
	if err != nil {
		return nil, err
	}
	return n, n.Start()
}

// Nodes returns all nodes that there have been, in their order.
func (c *Cluster) Nodes() []*Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[:len(c.nodes):len(c.nodes)]
}

// Running returns those that have a process.
func (c *Cluster) Running() []*Node {
	var running []*Node
	for _, n := range c.Nodes() {
		if n.Runs() {
			running = append(running, n)
		}
	}
	return running
}

// Node returns the one of a name, or nil.
func (c *Cluster) Node(id string) *Node {
	for _, n := range c.Nodes() {
		if n.ID == id {
			return n
		}
	}
	return nil
}

// Lease returns the time of a lease of the nodes.
func (c *Cluster) Lease() time.Duration { return c.cfg.Lease }

// Islands reports whether links between nodes can be cut; Proxied, whether nodes can
// be slowed down.
func (c *Cluster) Islands() bool { return c.cfg.Islands }

// Proxied reports whether nodes can be slowed down.
func (c *Cluster) Proxied() bool { return c.cfg.Proxied }

// Disks reports whether nodes have disks of their own.
func (c *Cluster) Disks() bool { return c.cfg.Disks }

// CutRaft has a node drop what comes from another one's raft port, or to its own, or no
// longer. It needs Islands.
func (c *Cluster) CutRaft(at, from *Node, on bool) error {
	if c.islands == nil {
		return ErrUnsupported
	}
	return c.islands.dropRaft(at.Index, from.Index, on)
}

// Cut has one node hear nothing from another, or again. It needs Islands.
func (c *Cluster) Cut(at, from *Node, on bool) error {
	if c.islands == nil {
		return errors.New("cluster: only links between islands can be cut")
	}
	return c.islands.drop(at.Index, from.Index, on)
}

// gossipAddrs returns those of all nodes but one.
func (c *Cluster) gossipAddrs(but *Node) []string {
	var addrs []string
	for _, n := range c.Nodes() {
		if n != but {
			addrs = append(addrs, n.gossip)
		}
	}
	return addrs
}

// Connect connects to a node's API, over its Proxy if it has one. The connection
// comes back by itself within about 100 ms of the node.
func (c *Cluster) Connect(n *Node) (*grpc.ClientConn, error) {
	dial := (&net.Dialer{}).DialContext
	if c.islands != nil {
		dial = c.islands.dial
	}
	return grpc.NewClient("passthrough:///"+n.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return dial(ctx, "tcp", addr) }),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 100 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}))
}

// Close kills all processes, and waits for their end. Disks and logs stay.
func (c *Cluster) Close() {
	for _, n := range c.Nodes() {
		n.close()
	}
	c.wg.Wait()
	c.ports.Close()
	if c.islands != nil {
		c.islands.close()
	}
}
