package sim

import (
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// conn is one end of a connection.
type conn struct {
	n     *Net
	host  string
	local address
	peer  *conn
	gate  *Gate

	// Guarded by n.mu.
	coming        []segment // sent by the peer, and not here yet, in order
	here          []byte    // in the socket
	buffered      int       // bytes in both
	ended         bool      // the peer's end has arrived
	last          time.Time // when the last segment arrives that this end sent
	closed        bool      // by this end
	reset         bool
	read, write   time.Time     // deadlines
	changed       chan struct{} // closed at each change, and then replaced
	readT, writeT *time.Timer   // of the deadlines
}

// segment is a write on its way; with no bytes, the end.
type segment struct {
	at   time.Time
	data []byte
}

func newConn(n *Net, host, local string) *conn {
	return &conn{n: n, host: host, local: address(local), gate: n.gateLocked(host), changed: make(chan struct{})}
}

func (c *conn) notifyLocked() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// wait waits for a change. It is called with the lock, and returns with it.
func (c *conn) waitLocked() {
	changed := c.changed
	c.n.mu.Unlock()
	<-changed
	c.n.mu.Lock()
}

func over(deadline time.Time) bool {
	return !deadline.IsZero() && !time.Now().Before(deadline)
}

func (c *conn) failed(op string, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Source: c.local, Addr: c.peer.local, Err: err}
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	c.gate.Pass()
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	for {
		switch {
		case c.closed:
			return 0, c.failed("read", net.ErrClosed)
		case over(c.read):
			return 0, c.failed("read", os.ErrDeadlineExceeded)
		case c.reset:
			return 0, c.failed("read", syscall.ECONNRESET)
		case len(b) == 0:
			return 0, nil
		case c.gate.Paused():
			// Bytes come into the socket, and nobody takes them out.
			c.n.mu.Unlock()
			c.gate.Pass()
			c.n.mu.Lock()
			continue
		case len(c.here) > 0:
			k := copy(b, c.here)
			c.here = c.here[k:]
			c.buffered -= k
			c.peer.notifyLocked() // there is room
			return k, nil
		case c.ended:
			return 0, io.EOF
		}
		c.waitLocked()
	}
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) {
	c.gate.Pass()
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	sent := 0
	for {
		switch {
		case c.closed:
			return sent, c.failed("write", net.ErrClosed)
		case over(c.write):
			return sent, c.failed("write", os.ErrDeadlineExceeded)
		case c.reset:
			return sent, c.failed("write", syscall.ECONNRESET)
		case sent == len(b):
			return sent, nil
		case c.gate.Paused():
			c.n.mu.Unlock()
			c.gate.Pass()
			c.n.mu.Lock()
			continue
		}
		if room := maxBuffered - c.peer.buffered; room > 0 {
			k := min(room, len(b)-sent)
			c.sendLocked(append([]byte(nil), b[sent:sent+k]...))
			sent += k
			continue
		}
		c.waitLocked()
	}
}

// sendLocked sets bytes, or the end, on their way.
func (c *conn) sendLocked(data []byte) {
	if c.peer.closed {
		if len(data) > 0 { // the other kernel answers that nobody is there any more
			time.AfterFunc(c.n.delayLocked(c.host, c.peer.host), c.refused)
		}
		return
	}
	if f := c.n.faultsLocked(c.host, c.peer.host); f.Reset > 0 && c.n.rnd.Float64() < f.Reset {
		c.resetLocked()
		return
	}
	at := time.Now().Add(c.n.delayLocked(c.host, c.peer.host) + c.n.extraLocked(c.host, c.peer.host, data))
	if at.Before(c.last) {
		at = c.last
	}
	c.last = at
	c.peer.coming = append(c.peer.coming, segment{at, data})
	c.peer.buffered += len(data)
	time.AfterFunc(time.Until(at), c.peer.arrive)
}

// arrive takes in what has come by now, unless the way is cut.
func (c *conn) arrive() {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	if c.n.isCutLocked(c.peer.host, c.host) {
		return // healing the cut calls it again
	}
	some := false
	for len(c.coming) > 0 && !c.coming[0].at.After(time.Now()) {
		if s := c.coming[0]; len(s.data) == 0 {
			c.ended = true
		} else {
			c.here = append(c.here, s.data...)
		}
		c.coming = c.coming[1:]
		some = true
	}
	if some {
		c.notifyLocked()
	}
}

// refused is the answer to bytes for an end that is closed.
func (c *conn) refused() {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	if !c.n.isCutLocked(c.peer.host, c.host) && !c.n.isCutLocked(c.host, c.peer.host) {
		c.resetLocked()
	}
}

// resetLocked breaks the connection for both ends.
func (c *conn) resetLocked() {
	if !c.reset && !c.closed {
		c.n.stats.Reset++
	}
	for _, e := range []*conn{c, c.peer} {
		if !e.closed && !e.reset {
			e.reset = true
			e.notifyLocked()
		}
	}
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	c.closeLocked()
	return nil
}

func (c *conn) closeLocked() {
	if c.closed {
		return
	}
	if !c.reset {
		c.sendLocked(nil)
	}
	c.closed = true
	c.coming, c.here, c.buffered = nil, nil, 0 // a peer that writes more is told that nobody is there
	delete(c.n.conns, c)
	for _, t := range []*time.Timer{c.readT, c.writeT} {
		if t != nil {
			t.Stop()
		}
	}
	c.notifyLocked()
	c.peer.notifyLocked()
}

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements net.Conn.
func (c *conn) RemoteAddr() net.Addr { return c.peer.local }

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error {
	_ = c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	c.read = t
	c.readT = c.alarmLocked(c.readT, t)
	return nil
}

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	c.write = t
	c.writeT = c.alarmLocked(c.writeT, t)
	return nil
}

// alarmLocked wakes what waits when a deadline is over.
func (c *conn) alarmLocked(old *time.Timer, t time.Time) *time.Timer {
	if old != nil {
		old.Stop()
	}
	c.notifyLocked()
	if t.IsZero() || c.closed {
		return nil
	}
	return time.AfterFunc(time.Until(t), func() {
		c.n.mu.Lock()
		defer c.n.mu.Unlock()
		c.notifyLocked()
	})
}
