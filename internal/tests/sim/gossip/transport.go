package gossip

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/memberlist"
)

// Transport is one address of a Network, for memberlist.Config.Transport.
type Transport struct {
	net     *Network
	addr    netip.AddrPort
	packets chan *memberlist.Packet
	streams chan net.Conn
	down    chan struct{} // closed by Shutdown

	mu   sync.Mutex         // guards open
	open map[*conn]struct{} // nil after Shutdown
}

var _ memberlist.NodeAwareTransport = (*Transport)(nil)

// Addr returns the address, host:port.
func (t *Transport) Addr() string { return t.addr.String() }

// FinalAdvertiseAddr returns the address of the transport unless another is wished.
func (t *Transport) FinalAdvertiseAddr(ip string, port int) (net.IP, int, error) {
	if ip == "" {
		return t.addr.Addr().AsSlice(), int(t.addr.Port()), nil
	}
	wished, err := netip.ParseAddr(ip)
	if err != nil {
		return nil, 0, err
	}
	return wished.Unmap().AsSlice(), port, nil
}

// WriteTo sends a packet. It does not report whether it arrives.
func (t *Transport) WriteTo(b []byte, addr string) (time.Time, error) {
	return t.WriteToAddress(b, memberlist.Address{Addr: addr})
}

// WriteToAddress sends a packet. It does not report whether it arrives.
func (t *Transport) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	select {
	case <-t.down:
		return time.Time{}, &net.OpError{Op: "write", Net: "udp", Err: net.ErrClosed}
	default:
	}
	t.net.send(way{t.Addr(), a.Addr}, net.UDPAddrFromAddrPort(t.addr), b)
	return time.Now(), nil
}

// PacketCh returns where packets arrive.
func (t *Transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh returns where the streams arrive that others open.
func (t *Transport) StreamCh() <-chan net.Conn { return t.streams }

// DialTimeout opens a stream.
func (t *Transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return t.DialAddressTimeout(memberlist.Address{Addr: addr}, timeout)
}

// DialAddressTimeout opens a stream. Through a cut, in either direction, it fails
// after the timeout; where nobody is, or too many wait, it is refused. A timeout
// of 0 is none.
func (t *Transport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	there, back := way{t.Addr(), a.Addr}, way{a.Addr, t.Addr()}
	failed := func(err error) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: addr(a.Addr), Err: err}
	}
	var over <-chan time.Time
	if timeout > 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		over = timer.C
	}
	for {
		trip := time.NewTimer(t.net.delay(there) + t.net.delay(back))
		select {
		case <-trip.C:
		case <-over:
			trip.Stop()
			return failed(os.ErrDeadlineExceeded)
		case <-t.down:
			trip.Stop()
			return failed(net.ErrClosed)
		}
		if !t.net.isCut(there) && !t.net.isCut(back) {
			break
		}
		again := time.NewTimer(resend)
		select {
		case <-again.C:
		case <-over:
			again.Stop()
			return failed(os.ErrDeadlineExceeded)
		case <-t.down:
			again.Stop()
			return failed(net.ErrClosed)
		}
	}
	peer := t.net.reach(a.Addr)
	if peer == nil {
		return failed(syscall.ECONNREFUSED)
	}
	c, err := connect(t, peer)
	if err != nil {
		return failed(err)
	}
	return c, nil
}

// Shutdown ends the streams and frees the address. It may be called again.
func (t *Transport) Shutdown() error {
	t.net.mu.Lock()
	if t.net.at[t.Addr()] == t {
		delete(t.net.at, t.Addr())
		close(t.down)
	}
	t.net.mu.Unlock()
	t.mu.Lock()
	open := t.open
	t.open = nil
	t.mu.Unlock()
	for c := range open {
		_ = c.Conn.Close()
	}
	return nil
}

// keep remembers an end of a stream, so that Shutdown ends it.
func (t *Transport) keep(c *conn) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open == nil {
		return net.ErrClosed
	}
	t.open[c] = struct{}{}
	return nil
}

// addr is an address that is only there to be printed.
type addr string

func (addr) Network() string  { return "tcp" }
func (a addr) String() string { return string(a) }

// conn is an end of a stream.
type conn struct {
	net.Conn      // one end of a pipe; a relay has the other
	owner         *Transport
	local, remote addr
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

// Close ends the stream. What was written before still arrives.
func (c *conn) Close() error {
	c.owner.mu.Lock()
	delete(c.owner.open, c)
	c.owner.mu.Unlock()
	return c.Conn.Close()
}

// String prints both ends for people.
func (c *conn) String() string { return fmt.Sprintf("%s → %s", c.local, c.remote) }

// errCrowded says that nobody takes the streams.
var errCrowded = errors.New("too many streams wait to be taken")
