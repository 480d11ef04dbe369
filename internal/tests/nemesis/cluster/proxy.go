package cluster

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Proxy passes TCP connections, and packets of UDP, on to an address, each chunk
// later by a delay that can be changed at any time.
type Proxy struct {
	to    string
	delay atomic.Int64 // ns, each way

	tcp net.Listener
	udp net.PacketConn // nil: TCP alone

	ctx  context.Context // ends at Close
	stop context.CancelFunc
	wg   sync.WaitGroup
}

const (
	// maxChunk bytes are read at once, maxChunks of them wait in each direction.
	maxChunk, maxChunks = 32 << 10, 1024
	// maxPacket is as large as a packet of UDP can be.
	maxPacket = 64 << 10
	dialTime  = time.Second
)

// NewProxy listens at an address, for TCP and, if packets is set, for UDP, and
// passes on what comes. Close it.
func NewProxy(at, to string, packets bool) (*Proxy, error) {
	l, err := net.Listen("tcp", at)
	if err != nil {
		return nil, err
	}
	p := &Proxy{to: to, tcp: l}
	p.ctx, p.stop = context.WithCancel(context.Background())
	if packets {
		if p.udp, err = net.ListenPacket("udp", l.Addr().String()); err != nil {
			_ = l.Close()
			return nil, err
		}
		p.wg.Go(p.packets)
	}
	p.wg.Go(p.accept)
	return p, nil
}

// Addr returns where the proxy listens.
func (p *Proxy) Addr() string { return p.tcp.Addr().String() }

// Delay sets by how much each chunk is late, in each direction.
func (p *Proxy) Delay(d time.Duration) { p.delay.Store(int64(d)) }

// Close ends all connections, and waits for the goroutines.
func (p *Proxy) Close() {
	p.stop()
	_ = p.tcp.Close()
	if p.udp != nil {
		_ = p.udp.Close()
	}
	p.wg.Wait()
}

func (p *Proxy) accept() {
	for {
		from, err := p.tcp.Accept()
		switch {
		case p.ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			if err == nil {
				_ = from.Close()
			}
			return
		case err == nil:
			p.wg.Go(func() { p.serve(from) })
		}
	}
}

// serve passes one connection on until either end closes it.
func (p *Proxy) serve(from net.Conn) {
	defer from.Close()
	to, err := (&net.Dialer{Timeout: dialTime}).DialContext(p.ctx, "tcp", p.to)
	if err != nil {
		return
	}
	defer to.Close()
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	context.AfterFunc(ctx, func() { _, _ = from.Close(), to.Close() })
	var wg sync.WaitGroup
	wg.Go(func() { defer cancel(); p.pass(ctx, from, to) })
	wg.Go(func() { defer cancel(); p.pass(ctx, to, from) })
	wg.Wait()
}

type chunk struct {
	at   time.Time // when it is due
	data []byte
}

// pass passes chunks on in one direction, in their order.
func (p *Proxy) pass(ctx context.Context, from io.Reader, to io.Writer) {
	queue := make(chan chunk, maxChunks)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(queue)
	wg.Go(func() {
		for c := range queue {
			if !wait(ctx, time.Until(c.at)) {
				continue
			}
			if _, err := to.Write(c.data); err != nil {
				return
			}
		}
	})
	for {
		buf := make([]byte, maxChunk)
		n, err := from.Read(buf)
		if n > 0 {
			select {
			case queue <- chunk{time.Now().Add(time.Duration(p.delay.Load())), buf[:n]}:
			case <-ctx.Done():
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// packets passes packets on in one direction: an answer goes to the sender's own
// address, not back.
func (p *Proxy) packets() {
	to, err := (&net.Dialer{}).DialContext(p.ctx, "udp", p.to)
	if err != nil {
		return
	}
	defer to.Close()
	buf := make([]byte, maxPacket)
	for {
		n, _, err := p.udp.ReadFrom(buf)
		if err != nil {
			return
		}
		if !wait(p.ctx, time.Duration(p.delay.Load())) {
			return
		}
		_, _ = to.Write(buf[:n]) // nobody listens: it is lost, as packets are
	}
}

// wait waits; false if ctx ends before.
func wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
