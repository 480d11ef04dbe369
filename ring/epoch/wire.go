package epoch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// A connection between nodes begins with a handshake: the one that dials names
// what it wants to speak, the cluster, the server that it means and itself; the
// other one answers whether it is that.
//
//	→ "keystead 1" kind | len cluster#uid | len target | len source
//	← 0                        or  1 | len reason
const greeting = "keystead 1"

// Kinds of connections.
const (
	kindRaft  byte = 'r'
	kindLease byte = 'l'
	kindState byte = 's'
)

// Bounds of the handshake.
const (
	maxName       = 64              // bytes of a cluster's or node's name
	maxField      = 255             // bytes of a field of the handshake
	greetTime     = 2 * time.Second // for all of it
	maxHandshakes = 128             // at once; more wait in the listen queue
)

// wire is the listener of a node, split by kind, and its way to others.
type wire struct {
	cluster string
	uid     func() string // of the cluster that this node knows, "" = none yet; nil = the same
	self    raft.ServerID
	addr    string // where others reach it
	under   net.Listener
	dial    func(ctx context.Context, addr string) (net.Conn, error)
	refuse  func(from, why string)
	kinds   map[byte]*branch
	closed  chan struct{}
	once    sync.Once
	running sync.WaitGroup

	mu   sync.Mutex
	open map[*tracked]byte // guarded by mu: connections, with their kinds, 0 = not known yet; nil = closed
	held map[byte]bool     // guarded by mu: kinds of which there are to be none: see shut
}

// tracked is a connection that was taken in, or dialled for raft. It ends with the wire,
// whatever has it then: raft's transport does not end its own.
type tracked struct {
	net.Conn
	w *wire
}

// Close implements net.Conn.
func (c *tracked) Close() error {
	c.w.mu.Lock()
	delete(c.w.open, c)
	c.w.mu.Unlock()
	return c.Conn.Close()
}

// track remembers a connection; ok is false if it is too late.
func (w *wire) track(conn net.Conn) (c *tracked, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open == nil {
		return nil, false
	}
	c = &tracked{conn, w}
	w.open[c] = 0
	return c, true
}

// serves notes of which kind a connection is, and reports whether it may be.
func (w *wire) serves(c *tracked, kind byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, is := w.open[c]; !is || w.held[kind] {
		return false
	}
	w.open[c] = kind
	return true
}

func (w *wire) isHeld(kind byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.held[kind]
}

// shut closes all connections of a kind, in both directions, and has none made; or
// allows them again.
func (w *wire) shut(kind byte, closed bool) {
	w.mu.Lock()
	w.held[kind] = closed
	var over []*tracked
	for c, k := range w.open {
		if closed && k == kind {
			over = append(over, c)
		}
	}
	w.mu.Unlock()
	for _, c := range over {
		_ = c.Close()
	}
}

// branch takes in the connections of one kind. It is a net.Listener, and for
// raft a StreamLayer.
type branch struct {
	w     *wire
	kind  byte
	conns chan net.Conn
	done  chan struct{} // closed by Close
	once  sync.Once
}

func newWire(w *wire) *wire {
	w.closed = make(chan struct{})
	w.open, w.held = map[*tracked]byte{}, map[byte]bool{}
	w.kinds = map[byte]*branch{}
	for _, k := range []byte{kindRaft, kindLease, kindState} {
		w.kinds[k] = &branch{w: w, kind: k, conns: make(chan net.Conn), done: make(chan struct{})}
	}
	w.running.Go(w.serve)
	return w
}

// serve takes connections in until the wire is closed.
func (w *wire) serve() {
	slots := make(chan struct{}, maxHandshakes)
	for pause := time.Duration(0); ; {
		conn, err := w.under.Accept()
		if err != nil {
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			select {
			case <-w.closed:
				return
			case <-time.After(pause): // out of file descriptors, say
				continue
			}
		}
		pause = 0
		select {
		case slots <- struct{}{}:
		case <-w.closed:
			_ = conn.Close()
			return
		}
		c, ok := w.track(conn)
		if !ok {
			_ = conn.Close()
			return
		}
		w.running.Go(func() {
			defer func() { <-slots }()
			w.admit(c)
		})
	}
}

// admit does the listener's part of the handshake and hands the connection on.
func (w *wire) admit(conn *tracked) {
	_ = conn.SetDeadline(time.Now().Add(greetTime))
	kind, source, why, err := w.greeted(conn)
	if err != nil {
		_ = conn.Close()
		return
	}
	if why == "" && !w.serves(conn, kind) {
		why = errHeld.Error()
	}
	if why != "" {
		w.refuse(source, why)
		_, _ = conn.Write(append([]byte{1, byte(len(why))}, why...))
		_ = conn.Close()
		return
	}
	if _, err := conn.Write([]byte{0}); err != nil {
		_ = conn.Close()
		return
	}
	_ = conn.SetDeadline(time.Time{})
	select {
	case w.kinds[kind].conns <- conn:
	case <-w.kinds[kind].done:
		_ = conn.Close()
	case <-w.closed:
		_ = conn.Close()
	}
}

// greeted reads who is there and what it wants. why says what is wrong with it.
func (w *wire) greeted(conn net.Conn) (kind byte, source, why string, err error) {
	head := make([]byte, len(greeting)+1)
	if _, err := io.ReadFull(conn, head); err != nil {
		return 0, "", "", err
	}
	if string(head[:len(greeting)]) != greeting {
		return 0, "", "", errors.New("a stranger")
	}
	var fields [3]string
	for i := range fields {
		if fields[i], err = readField(conn); err != nil {
			return 0, "", "", err
		}
	}
	cluster, uid, _ := strings.Cut(fields[0], "#")
	target, source := fields[1], fields[2]
	kind = head[len(greeting)]
	switch {
	case cluster != w.cluster:
		why = fmt.Sprintf("this node is of the cluster %q, not %q", w.cluster, cluster)
	case uid != "" && w.known() != "" && uid != w.known():
		// Two were made under one name. Raft would let the log of one of them
		// overwrite the other's.
		why = fmt.Sprintf("this node is of another cluster of the name %q: %s, not %s", w.cluster, w.known(), uid)
	case target != string(w.self):
		why = fmt.Sprintf("this is %s, not %s", w.self, target)
	case w.kinds[kind] == nil:
		why = "unknown kind of connection; upgrade this node"
	}
	return kind, source, why[:min(len(why), maxField)], nil
}

// known returns the cluster that this node knows.
func (w *wire) known() string {
	if w.uid == nil {
		return ""
	}
	return w.uid()
}

func readField(r io.Reader) (string, error) {
	var n [1]byte
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return "", err
	}
	b := make([]byte, n[0])
	_, err := io.ReadFull(r, b)
	return string(b), err
}

// connect dials a server, by its address with its identity in it, and does the
// dialler's part of the handshake.
func (w *wire) connect(ctx context.Context, kind byte, to string) (net.Conn, error) {
	target, addr, ok := splitAddr(to)
	if !ok {
		return nil, fmt.Errorf("the address %q names no server", to)
	}
	if w.isHeld(kind) {
		return nil, errHeld
	}
	conn, err := w.dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	deadline := time.Now().Add(greetTime)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	_ = conn.SetDeadline(deadline)
	hello := append([]byte(greeting), kind)
	cluster := w.cluster
	if uid := w.known(); uid != "" {
		cluster += "#" + uid
	}
	for _, f := range []string{cluster, target, string(w.self)} {
		hello = append(append(hello, byte(len(f))), f...)
	}
	if err := hail(conn, hello); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("%s at %s: %w", target, addr, err)
	}
	_ = conn.SetDeadline(time.Time{})
	if kind != kindRaft { // gRPC sets options of the connection itself
		return conn, nil
	}
	c, ok := w.track(conn)
	if !ok {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	if !w.serves(c, kind) {
		_ = c.Close()
		return nil, errHeld
	}
	return c, nil
}

// errHeld is why a connection of raft is not made.
var errHeld = errors.New("the node takes no part in raft: its disk hangs")

func hail(conn net.Conn, hello []byte) error {
	if _, err := conn.Write(hello); err != nil {
		return err
	}
	var verdict [1]byte
	if _, err := io.ReadFull(conn, verdict[:]); err != nil {
		return err
	}
	if verdict[0] == 0 {
		return nil
	}
	why, err := readField(conn)
	return errors.Join(fmt.Errorf("refused: %s", why), err)
}

// Addresses of servers, in raft's configuration too, are "identity@host:port".
func joinAddr(id raft.ServerID, addr string) raft.ServerAddress {
	return raft.ServerAddress(string(id) + "@" + addr)
}

func splitAddr(a string) (id, addr string, ok bool) {
	i := strings.LastIndexByte(a, '@')
	if i <= 0 {
		return "", "", false
	}
	return a[:i], a[i+1:], true
}

func (w *wire) close() {
	w.once.Do(func() {
		close(w.closed)
		_ = w.under.Close()
		w.mu.Lock()
		open := w.open
		w.open = nil
		w.mu.Unlock()
		for c := range open {
			_ = c.Conn.Close()
		}
	})
	w.running.Wait()
}

// Accept implements net.Listener.
func (b *branch) Accept() (net.Conn, error) {
	select {
	case c := <-b.conns:
		return c, nil
	case <-b.done:
	case <-b.w.closed:
	}
	return nil, net.ErrClosed
}

// Close implements net.Listener. Connections of this kind are refused from now on.
func (b *branch) Close() error {
	b.once.Do(func() { close(b.done) })
	return nil
}

// Addr implements net.Listener.
func (b *branch) Addr() net.Addr { return wireAddr(joinAddr(b.w.self, b.w.addr)) }

// Dial implements raft.StreamLayer.
func (b *branch) Dial(to raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return b.w.connect(ctx, b.kind, string(to))
}

type wireAddr string

func (wireAddr) Network() string  { return "keystead" }
func (a wireAddr) String() string { return string(a) }
