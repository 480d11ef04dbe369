package httpapi

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/peer"
)

// A peer that vanishes without a word is noticed within keepIdle + keepProbes·keepInterval =
// 15 s, as over gRPC.
const (
	keepIdle     = 6 * time.Second
	keepInterval = 3 * time.Second
	keepProbes   = 3
)

// door is a listener that has so many connections open at most. More wait in the listen
// queue. Those that it accepts are of type *conn.
type door struct {
	net.Listener
	room   chan struct{} // holds an element for each open connection
	once   sync.Once
	closed chan struct{}
}

func newDoor(l net.Listener, most int) *door {
	return &door{Listener: l, room: make(chan struct{}, most), closed: make(chan struct{})}
}

// Accept implements net.Listener.
func (d *door) Accept() (net.Conn, error) {
	select {
	case d.room <- struct{}{}:
	case <-d.closed:
		return nil, net.ErrClosed
	}
	c, err := d.Listener.Accept()
	if err != nil {
		<-d.room
		return nil, err
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: keepIdle, Interval: keepInterval, Count: keepProbes})
	}
	return &conn{Conn: c, leave: sync.OnceFunc(func() { <-d.room })}, nil
}

// Close implements net.Listener.
func (d *door) Close() error {
	d.once.Do(func() { close(d.closed) })
	return d.Listener.Close()
}

// conn is the connection of a caller. It notices what net/http does not: that a caller sent
// more while its call was under way. After that nobody would see the connection close.
type conn struct {
	net.Conn
	leave func() // gives its place to another; may be called again
	// last is the last byte of the buffer that net/http reads requests through. Only Read
	// uses it, and nobody reads while another does.
	last *byte

	mu sync.Mutex // guards the following
	// more says that a byte came after the request that is under way.
	more bool
	// cancel ends the call that is under way; nil if it may go on.
	cancel context.CancelCauseFunc
}

// errSentMore is why a call was cancelled whose caller did not wait for the answer.
var errSentMore = errors.New("more was sent on the connection while the call was under way")

// Read implements net.Conn. While a call is under way net/http reads one byte, so as to see
// that the caller has hung up, and when it gets one it reads no more: a caller that then
// hangs up would wait for a lock as long as it said, and be given it. Nothing else reads a
// single byte, but for what fills up a buffer.
//
// Nothing that was read is left out, not even an empty line: net/http may have read some of
// the next request before, and then this byte is from the middle of it.
func (c *conn) Read(p []byte) (int, error) {
	if c.last == nil && len(p) > 0 { // the first read is for all of the buffer
		c.last = &p[len(p)-1]
	}
	behind := len(p) == 1 && cap(p) == 1 && &p[0] != c.last
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.got(behind)
	}
	return n, err
}

// got notes what was read: a byte of the next request, or the rest of it.
func (c *conn) got(more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.more = more
	//guard:http-sent-more
	if more && c.cancel != nil {
		c.cancel(errSentMore)
	}
}

// watch cancels a call as soon as more is sent, until unwatch.
func (c *conn) watch(cancel context.CancelCauseFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cancel = cancel
	if c.more {
		cancel(errSentMore)
	}
}

func (c *conn) unwatch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cancel = nil
}

// Close implements net.Conn.
func (c *conn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

// CloseWrite ends what is sent. net/http does so before it closes a connection on which more
// is coming in: the answer would be lost otherwise.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// connKey is the key of the connection in the context of a request.
type connKey struct{}

// withConn gives calls the address of their caller, as gRPC does, and requests their
// connection.
func withConn(ctx context.Context, c net.Conn) context.Context {
	ctx = context.WithValue(ctx, connKey{}, c)
	return peer.NewContext(ctx, &peer.Peer{Addr: c.RemoteAddr(), LocalAddr: c.LocalAddr()})
}
