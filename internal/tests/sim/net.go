package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// Delays of a new Net. There is always some, so that things do not happen at one
// moment in a bubble.
const (
	defaultMinDelay = 100 * time.Microsecond
	defaultMaxDelay = 500 * time.Microsecond
)

// Bounds.
const (
	maxBuffered = 256 << 10              // bytes on their way in one direction of a connection; more wait at the writer
	maxBacklog  = 128                    // connections that wait to be accepted
	maxResend   = 200 * time.Millisecond // after a cut is healed, until what it held back arrives
)

// Faults are what befalls what goes from one host to another. The zero Faults
// are the delays of a new Net.
type Faults struct {
	// Min and Max delay of a write. Writes of a connection do not overtake each
	// other. Both 0 = 0.1 to 0.5 ms.
	Min, Max time.Duration
	// Loss is the part of the writes, 0 to 1, that have to be sent again: they,
	// and what comes after them, are late by 200 ms to 1 s.
	Loss float64
	// Reset is the part of the writes, 0 to 1, that break their connection.
	Reset float64
	// Stuck is the part of the writes, 0 to 1, that are late by 1 to 10 s, and all that
	// their connection sends after them, this way; other connections are not. What was
	// written arrives, also when its end was closed meanwhile.
	Stuck float64
}

// minStuck and maxStuck bound how long a connection is stuck: longer than the deadlines
// of those that write, and as long as TCP tries.
const (
	minStuck = time.Second
	maxStuck = 10 * time.Second
)

// Net is a network of named hosts in memory. Streams between them can be cut,
// delayed and broken, one way at a time, while they are open.
type Net struct {
	mu        sync.Mutex // guards all that follows, and what connections hold
	rnd       *rand.Rand
	listeners map[string]*listener // by host:port
	conns     map[*conn]bool
	cut       map[way]bool
	off       map[string]bool // hosts without power: nothing goes in or out
	usual     Faults
	faults    map[way]Faults
	gates     map[string]*Gate // by host
	ports     map[string]int   // by host: last port given away
	stats     Stats
	delay     func(from, to string, data []byte) time.Duration // see Delay
}

// way is a direction between two hosts.
type way struct{ from, to string }

// Stats count what became of connections.
type Stats struct{ Dialled, Opened, Reset int }

// NewNet returns a network without faults.
func NewNet(seed uint64) *Net {
	return &Net{
		rnd:       rand.New(rand.NewPCG(seed, 0x6e6574)),
		listeners: map[string]*listener{}, conns: map[*conn]bool{}, cut: map[way]bool{}, off: map[string]bool{},
		faults: map[way]Faults{}, gates: map[string]*Gate{}, ports: map[string]int{},
	}
}

// Gate returns where a host touches the world: closed while it is paused.
func (n *Net) Gate(host string) *Gate {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.gateLocked(host)
}

func (n *Net) gateLocked(host string) *Gate {
	if n.gates[host] == nil {
		n.gates[host] = newGate(n.rnd.Uint64())
	}
	return n.gates[host]
}

// Cut holds back, or lets pass again, what goes from one host to another. The
// other direction is not touched.
func (n *Net) Cut(from, to string, cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changeLocked(func() { setIn(n.cut, way{from, to}, cut) })
}

// Power takes a host off the network, or brings it back: nobody learns that its
// connections have ended as long as it is off.
func (n *Net) Power(host string, on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changeLocked(func() { setIn(n.off, host, !on) })
}

// Heal undoes all that Cut and SetFaults did.
func (n *Net) Heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changeLocked(func() {
		clear(n.cut)
		clear(n.faults)
		n.usual = Faults{}
	})
}

// SetFaults sets the faults of one direction between two hosts; with both names
// empty, those of all directions that have none of their own.
func (n *Net) SetFaults(from, to string, f Faults) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if from == "" && to == "" {
		n.usual = f
		return
	}
	n.faults[way{from, to}] = f
}

// Delay has f asked for each write how late it is, beside all other faults; and what the
// connection sends after it, this way. nil = no more.
func (n *Net) Delay(f func(from, to string, data []byte) time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.delay = f
}

// Reset breaks all connections between two hosts. Both ends learn of it at once.
func (n *Net) Reset(a, b string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		if c.host == a && c.peer.host == b || c.host == b && c.peer.host == a {
			c.resetLocked()
		}
	}
}

// Die ends all connections and listeners of a host, as the kernel does when a
// process dies: what was written before still arrives, then the end.
func (n *Net) Die(host string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		if c.host == host {
			c.closeLocked()
		}
	}
	for _, l := range n.listeners {
		if l.host == host {
			l.closeLocked()
		}
	}
}

// Open returns how many ends of connections are open.
func (n *Net) Open() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.conns)
}

// Stats returns what became of connections so far.
func (n *Net) Stats() Stats {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.stats
}

func setIn[K comparable](m map[K]bool, k K, is bool) {
	if is {
		m[k] = true
	} else {
		delete(m, k)
	}
}

// changeLocked changes which directions are cut. What was held back and is not
// any more arrives a while later, as when TCP sends it again.
func (n *Net) changeLocked(change func()) {
	was := make(map[*conn]bool, len(n.conns))
	for c := range n.conns {
		was[c] = n.isCutLocked(c.peer.host, c.host)
	}
	change()
	again := map[way]time.Duration{}
	for c, cut := range was {
		if !cut || n.isCutLocked(c.peer.host, c.host) {
			continue
		}
		w := way{c.peer.host, c.host}
		if again[w] == 0 {
			again[w] = time.Millisecond + time.Duration(n.rnd.Int64N(int64(maxResend)))
		}
		time.AfterFunc(again[w], c.arrive)
	}
}

func (n *Net) isCutLocked(from, to string) bool {
	return n.cut[way{from, to}] || n.off[from] || n.off[to]
}

func (n *Net) faultsLocked(from, to string) Faults {
	f, ok := n.faults[way{from, to}]
	if !ok {
		f = n.usual
	}
	if f.Min == 0 && f.Max == 0 {
		f.Min, f.Max = defaultMinDelay, defaultMaxDelay
	}
	return f
}

func (n *Net) delayLocked(from, to string) time.Duration {
	f := n.faultsLocked(from, to)
	d := f.Min + time.Duration(n.rnd.Int64N(int64(max(f.Max-f.Min, 1))))
	if f.Loss > 0 && n.rnd.Float64() < f.Loss {
		d += 200*time.Millisecond + time.Duration(n.rnd.Int64N(int64(800*time.Millisecond)))
	}
	return d
}

// extraLocked returns how much later than others a write of a connection arrives.
func (n *Net) extraLocked(from, to string, data []byte) (d time.Duration) {
	if f := n.faultsLocked(from, to); f.Stuck > 0 && n.rnd.Float64() < f.Stuck {
		d = minStuck + time.Duration(n.rnd.Int64N(int64(maxStuck-minStuck)))
	}
	if n.delay != nil && len(data) > 0 {
		d += n.delay(from, to, data)
	}
	return d
}

// Listen takes a port of a host; port 0 picks a free one. Listening again is
// possible when the listener is closed.
func (n *Net) Listen(addr string) (net.Listener, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if port == "0" {
		n.ports[host]++
		addr = fmt.Sprintf("%s:%d", host, 40_000+n.ports[host])
	}
	if n.listeners[addr] != nil {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Addr: address(addr), Err: syscall.EADDRINUSE}
	}
	l := &listener{n: n, addr: addr, host: host, gate: n.gateLocked(host), queue: make(chan *conn, maxBacklog), closed: make(chan struct{})}
	n.listeners[addr] = l
	return l, nil
}

// Dial opens a connection from a host to an address. Through a cut in either
// direction, and to a host that is off, it hangs until the context ends; where
// nobody listens it is refused.
func (n *Net) Dial(ctx context.Context, from, addr string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	failed := func(err error) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: address(addr), Err: err}
	}
	n.mu.Lock()
	n.stats.Dialled++
	gate := n.gateLocked(from)
	n.mu.Unlock()
	for wait := time.Second; ; wait *= 2 { // TCP sends its SYN again after 1 s, 2 s, 4 s
		gate.Pass()
		n.mu.Lock()
		cut := n.isCutLocked(from, host) || n.isCutLocked(host, from)
		trip := n.delayLocked(from, host) + n.delayLocked(host, from)
		n.mu.Unlock()
		if !cut {
			wait = trip
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return failed(os.ErrDeadlineExceeded)
		}
		gate.Pass()
		if cut {
			continue
		}
		c, err := n.open(from, host, addr)
		if err != nil {
			return failed(err)
		}
		if c != nil {
			return c, nil
		}
	}
}

// open makes a connection and puts its other end into the listener's queue. It
// returns nil if the way was cut meanwhile, or the queue is full.
func (n *Net) open(from, host, addr string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.isCutLocked(from, host) || n.isCutLocked(host, from) {
		return nil, nil
	}
	l := n.listeners[addr]
	if l == nil {
		return nil, syscall.ECONNREFUSED
	}
	n.ports[from]++
	near := newConn(n, from, fmt.Sprintf("%s:%d", from, 40_000+n.ports[from]))
	far := newConn(n, host, addr)
	near.peer, far.peer = far, near
	select {
	case l.queue <- far:
	default:
		return nil, nil
	}
	n.conns[near], n.conns[far] = true, true
	n.stats.Opened++
	return near, nil
}

// listener is a port that is listened at.
type listener struct {
	n      *Net
	addr   string
	host   string
	gate   *Gate
	queue  chan *conn
	closed chan struct{}
	over   bool // guarded by n.mu
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.queue:
		l.gate.Pass()
		return c, nil
	case <-l.closed:
		return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.Addr(), Err: net.ErrClosed}
	}
}

// Close implements net.Listener. Connections that nobody has accepted are broken.
func (l *listener) Close() error {
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	l.closeLocked()
	return nil
}

func (l *listener) closeLocked() {
	if l.over {
		return
	}
	l.over = true
	close(l.closed)
	delete(l.n.listeners, l.addr)
	for {
		select {
		case c := <-l.queue:
			c.resetLocked()
		default:
			return
		}
	}
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return address(l.addr) }

// address is a host:port of a Net.
type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }
