package epoch

import (
	"context"
	"net"
	"os"
	"sync"
	"time"
)

// network is what a node's connections go through. It can be stalled, each way:
// nothing is lost, and nothing arrives until it flows again.
type network struct {
	mu      sync.Mutex
	in, out chan struct{} // guarded by mu; closed = it flows
}

func newNetwork() *network {
	n := &network{in: make(chan struct{}), out: make(chan struct{})}
	close(n.in)
	close(n.out)
	return n
}

// stall holds what comes in, what goes out, or both.
func (n *network) stall(in, out bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if in {
		n.in = make(chan struct{})
	}
	if out {
		n.out = make(chan struct{})
	}
}

// flow lets everything through again.
func (n *network) flow() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, way := range []chan struct{}{n.in, n.out} {
		select {
		case <-way:
		default:
			close(way)
		}
	}
}

func (n *network) ways() (in, out <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.in, n.out
}

// use makes a node's connections go through the network.
func (n *network) use(c *Config) {
	c.Listener = &stalling{c.Listener, n}
	dial := c.Dial
	c.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
		conn, err := dial(ctx, addr)
		if err != nil {
			return nil, err
		}
		return n.wrap(conn), nil
	}
}

func (n *network) wrap(c net.Conn) net.Conn {
	return &stalled{Conn: c, n: n, closed: make(chan struct{})}
}

type stalling struct {
	net.Listener
	n *network
}

func (l *stalling) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.n.wrap(c), nil
}

type stalled struct {
	net.Conn
	n      *network
	once   sync.Once
	closed chan struct{}

	mu          sync.Mutex
	read, write time.Time // guarded by mu: deadlines
}

// wait waits until a way flows.
func (c *stalled) wait(way <-chan struct{}, deadline time.Time) error {
	select {
	case <-way:
		return nil
	default:
	}
	var over <-chan time.Time
	if !deadline.IsZero() {
		over = time.After(time.Until(deadline))
	}
	select {
	case <-way:
		return nil
	case <-c.closed:
		return net.ErrClosed
	case <-over:
		return os.ErrDeadlineExceeded
	}
}

func (c *stalled) deadlines() (read, write time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.read, c.write
}

func (c *stalled) Read(b []byte) (int, error) {
	k, err := c.Conn.Read(b)
	in, _ := c.n.ways()
	deadline, _ := c.deadlines()
	if e := c.wait(in, deadline); e != nil {
		return 0, e
	}
	return k, err
}

func (c *stalled) Write(b []byte) (int, error) {
	_, out := c.n.ways()
	_, deadline := c.deadlines()
	if err := c.wait(out, deadline); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

func (c *stalled) SetDeadline(t time.Time) error {
	c.mu.Lock()
	c.read, c.write = t, t
	c.mu.Unlock()
	return c.Conn.SetDeadline(t)
}

func (c *stalled) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	c.read = t
	c.mu.Unlock()
	return c.Conn.SetReadDeadline(t)
}

func (c *stalled) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	c.write = t
	c.mu.Unlock()
	return c.Conn.SetWriteDeadline(t)
}

func (c *stalled) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
