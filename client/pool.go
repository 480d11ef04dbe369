package client

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/keepalive"

	"github.com/keystead/keystead/client/p2c"
	"github.com/keystead/keystead/internal/vtcodec"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

const (
	// Pings find out within 15 s that a node's machine is gone. A node allows
	// one in 5 s.
	pingEvery   = 10 * time.Second
	pingTimeout = 5 * time.Second

	// maxReceive is the largest answer that is taken: a table of 32,768 rows
	// and batches of maxBatch items are far below it.
	maxReceive = 16 << 20
)

// pool holds the connections to the nodes.
type pool struct {
	c  *Client
	mu sync.Mutex // guards what follows, and the fields of nodes that say so
	// nodes are those that new calls may go to, by address.
	nodes map[string]*node
	// retired are nodes that calls still use, but no new call may.
	retired map[*node]bool
	closed  bool
}

// node is a node and the connections to it.
type node struct {
	addr  string
	conns []*grpc.ClientConn
	turn  atomic.Uint32 // of the connections

	refs int // guarded by pool.mu: calls that use it

	load *p2c.Load // what the calls to it showed

	checks coalescer[*limitpb.CheckRequest, *limitpb.CheckResponse]
	adds   coalescer[*counterpb.AddRequest, *counterpb.AddResponse]
	// Of locks: acquires that do not wait, and releases.
	acquires coalescer[*lockpb.AcquireRequest, *lockpb.AcquireResponse]
	releases coalescer[*lockpb.ReleaseRequest, *lockpb.ReleaseResponse]
}

// acquire returns the node at an address, which stays open until release.
func (p *pool) acquire(addr string) (*node, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errClosed()
	}
	n := p.nodes[addr]
	if n == nil {
		var err error
		if n, err = p.c.newNode(addr); err != nil {
			return nil, err
		}
		p.nodes[addr] = n
	}
	n.refs++
	return n, nil
}

// retain keeps a node that was acquired open for one release more.
func (p *pool) retain(n *node) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n.refs++
}

func (p *pool) release(n *node) {
	p.mu.Lock()
	n.refs--
	over := n.refs == 0 && p.retired[n]
	if over {
		delete(p.retired, n)
	}
	p.mu.Unlock()
	if over {
		n.close()
	}
}

// keep retires all nodes but those at these addresses. Calls under way finish.
func (p *pool) keep(addrs []string) {
	p.mu.Lock()
	var over []*node
	for addr, n := range p.nodes {
		if slices.Contains(addrs, addr) {
			continue
		}
		delete(p.nodes, addr)
		if n.refs == 0 {
			over = append(over, n)
		} else {
			p.retired[n] = true
		}
	}
	p.mu.Unlock()
	for _, n := range over {
		n.close()
	}
}

// live returns how many nodes have a connection that is up.
func (p *pool) live() (up int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range p.nodes {
		if slices.ContainsFunc(n.conns, func(c *grpc.ClientConn) bool { return c.GetState() == connectivity.Ready }) {
			up++
		}
	}
	return up
}

func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	nodes, retired := p.nodes, p.retired
	p.nodes, p.retired = nil, nil
	p.mu.Unlock()
	for _, n := range nodes {
		n.close()
	}
	for n := range retired {
		n.close()
	}
}

func (c *Client) newNode(addr string) (*node, error) {
	n := &node{addr: addr, load: newLoad(c.clock.Now())}
	opts := append([]grpc.DialOption{
		grpc.WithTransportCredentials(c.cfg.Credentials),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(vtcodec.New()), grpc.MaxCallRecvMsgSize(maxReceive)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, Timeout: pingTimeout, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: c.cfg.AttemptTimeout,
		}),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
	}, c.cfg.DialOptions...)
	for range c.cfg.Connections {
		conn, err := grpc.NewClient("passthrough:///"+addr, opts...)
		if err != nil {
			n.close()
			return nil, &Error{Message: err.Error(), cause: err}
		}
		n.conns = append(n.conns, conn)
	}
	n.checks.init(c, n, checkKind)
	n.adds.init(c, n, addKind)
	n.acquires.init(c, n, acquireKind)
	n.releases.init(c, n, releaseKind)
	return n, nil
}

func (n *node) conn() *grpc.ClientConn {
	if len(n.conns) == 1 {
		return n.conns[0]
	}
	return n.conns[n.turn.Add(1)%uint32(len(n.conns))]
}

func (n *node) close() {
	for _, c := range n.conns {
		_ = c.Close()
	}
}
