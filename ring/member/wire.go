package member

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// Opening sockets.
const (
	bindTries   = 10              // with port 0, when UDP cannot have TCP's port
	resolveTime = 5 * time.Second // for a name in Bind or Advertise
)

// wire is the transport under memberlist. It remembers the streams that are open
// and ends them, and the dials under way, when the pool stops; memberlist alone
// would leave them until their deadline of many seconds.
type wire struct {
	memberlist.NodeAwareTransport
	sockets *memberlist.NetTransport // nil with a transport of another kind
	streams chan net.Conn
	ctx     context.Context // of dials; ends with the wire
	cancel  context.CancelFunc
	relay   sync.WaitGroup

	mu   sync.Mutex           // guards open
	open map[*stream]struct{} // nil when the wire is shut down
}

// stream is a connection that the wire knows.
type stream struct {
	net.Conn
	wire *wire
}

// Close ends the connection.
func (s *stream) Close() error {
	s.wire.mu.Lock()
	delete(s.wire.open, s)
	s.wire.mu.Unlock()
	return s.Conn.Close()
}

// plain lets a simple transport pass for one that knows names.
type plain struct{ memberlist.Transport }

func (p plain) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	return p.WriteTo(b, a.Addr)
}

func (p plain) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	return p.DialTimeout(a.Addr, timeout)
}

// newWire opens sockets at bind, or takes the transport if there is one.
func newWire(t memberlist.Transport, bind string, logger *log.Logger) (*wire, error) {
	w := &wire{streams: make(chan net.Conn), open: map[*stream]struct{}{}}
	switch t := t.(type) {
	case nil:
		sockets, err := listen(bind, logger)
		if err != nil {
			return nil, err
		}
		w.sockets, w.NodeAwareTransport = sockets, sockets
	case memberlist.NodeAwareTransport:
		w.NodeAwareTransport = t
	default:
		w.NodeAwareTransport = plain{t}
	}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.relay.Go(w.accept)
	return w, nil
}

func listen(bind string, logger *log.Logger) (*memberlist.NetTransport, error) {
	host, port, err := splitAddr(bind)
	if err != nil {
		return nil, fmt.Errorf("gossip address: %w", err)
	}
	ip, err := lookUp(host)
	if err != nil {
		return nil, fmt.Errorf("gossip address %s: %w", bind, err)
	}
	for try := 1; ; try++ {
		t, err := memberlist.NewNetTransport(&memberlist.NetTransportConfig{BindAddrs: []string{ip.String()}, BindPort: port, Logger: logger})
		switch {
		case err == nil:
			return t, nil
		case port != 0 || try == bindTries || !strings.Contains(err.Error(), "address already in use"):
			return nil, fmt.Errorf("cannot gossip at %s: %w", bind, err)
		}
	}
}

// lookUp returns an address of the host, IPv4 if it has one; "" is all of IPv4.
func lookUp(host string) (net.IP, error) {
	if host == "" {
		return net.IPv4zero, nil
	}
	if ip := net.ParseIP(host); ip != nil {
		return ip, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), resolveTime)
	defer cancel()
	ips, err := net.DefaultResolver.LookupIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	for _, ip := range ips {
		if ip.To4() != nil {
			return ip, nil
		}
	}
	return ips[0], nil
}

// advertise sets the address that others are told.
func (w *wire) advertise(conf *memberlist.Config, addr, bind string) error {
	if w.sockets != nil {
		conf.BindPort = w.sockets.GetAutoBindPort()
	}
	if addr == "" {
		host, _, _ := splitAddr(bind)
		if ip := net.ParseIP(host); w.sockets != nil && ip != nil && ip.IsUnspecified() && ip.To4() == nil {
			return errors.New("bound to all addresses of IPv6: name the one to advertise")
		}
		return nil
	}
	host, port, err := splitAddr(addr)
	if err != nil {
		return fmt.Errorf("advertised gossip address: %w", err)
	}
	ip, err := lookUp(host)
	if err != nil {
		return fmt.Errorf("advertised gossip address %s: %w", addr, err)
	}
	if ip.IsUnspecified() {
		return fmt.Errorf("advertised gossip address %s: nobody can reach that", addr)
	}
	if port == 0 {
		port = conf.BindPort
	}
	conf.AdvertiseAddr, conf.AdvertisePort = ip.String(), port
	return nil
}

// accept passes on the streams that others open, until the wire is shut down.
func (w *wire) accept() {
	for {
		select {
		case c := <-w.NodeAwareTransport.StreamCh():
			s, err := w.track(c)
			if err != nil {
				continue
			}
			select {
			case w.streams <- s:
			case <-w.ctx.Done():
				_ = s.Close()
			}
		case <-w.ctx.Done():
			return
		}
	}
}

// track remembers the connection. It closes it if the wire is shut down.
func (w *wire) track(c net.Conn) (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open == nil {
		_ = c.Close()
		return nil, net.ErrClosed
	}
	s := &stream{Conn: c, wire: w}
	w.open[s] = struct{}{}
	return s, nil
}

// StreamCh returns where memberlist finds the streams that others open.
func (w *wire) StreamCh() <-chan net.Conn { return w.streams }

// DialTimeout opens a stream.
func (w *wire) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return w.DialAddressTimeout(memberlist.Address{Addr: addr}, timeout)
}

// DialAddressTimeout opens a stream.
func (w *wire) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	var c net.Conn
	var err error
	if w.sockets != nil {
		d := net.Dialer{Timeout: timeout}
		c, err = d.DialContext(w.ctx, "tcp", a.Addr)
	} else {
		c, err = w.NodeAwareTransport.DialAddressTimeout(a, timeout)
	}
	if err != nil {
		return nil, err
	}
	return w.track(c)
}

// Shutdown closes the sockets and ends the streams. The streams are passed on
// until the sockets are closed: their listeners wait for somebody to take one.
func (w *wire) Shutdown() error {
	err := w.NodeAwareTransport.Shutdown()
	w.cancel()
	w.relay.Wait()
	w.mu.Lock()
	open := w.open
	w.open = nil
	w.mu.Unlock()
	for s := range open {
		_ = s.Conn.Close()
	}
	return err
}
