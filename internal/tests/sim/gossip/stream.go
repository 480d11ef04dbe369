package gossip

import (
	"net"
	"syscall"
	"time"
)

const (
	// resend is how often what a cut holds up is tried again.
	resend = 100 * time.Millisecond
	// piece is the most that is under way at once in a stream, in bytes.
	piece = 64 * 1024
)

// connect makes a stream from one transport to another and hands the other its
// end. Two relays carry the bytes, a piece at a time, and end when both ends of
// the stream are closed, or one is and the other learns of it.
func connect(from, to *Transport) (net.Conn, error) {
	near, nearRelay := net.Pipe()
	far, farRelay := net.Pipe()
	a := &conn{Conn: near, owner: from, local: addr(from.Addr()), remote: addr(to.Addr())}
	b := &conn{Conn: far, owner: to, local: addr(to.Addr()), remote: addr(from.Addr())}
	abandon := func(err error) (net.Conn, error) {
		for _, c := range []net.Conn{a, b} {
			_ = c.Close()
		}
		return nil, err
	}
	if err := from.keep(a); err != nil {
		return abandon(err)
	}
	if err := to.keep(b); err != nil {
		return abandon(syscall.ECONNREFUSED)
	}
	select {
	case to.streams <- b:
	default:
		return abandon(errCrowded)
	}
	nearClosed, farClosed := make(chan struct{}), make(chan struct{})
	go from.net.carry(way{from.Addr(), to.Addr()}, nearRelay, farRelay, nearClosed, farClosed)
	go from.net.carry(way{to.Addr(), from.Addr()}, farRelay, nearRelay, farClosed, nearClosed)
	return a, nil
}

// carry brings what is read from src to dst, and the end of it too. It closes
// ended when src is at its end; beyond is closed when the reader at dst is gone,
// and from then on what is read is dropped.
func (n *Network) carry(w way, src, dst net.Conn, ended chan<- struct{}, beyond <-chan struct{}) {
	lost := false
	for buf := make([]byte, piece); ; {
		got, err := src.Read(buf)
		if err != nil {
			close(ended)
		}
		lost = lost || !n.travel(w, beyond)
		switch {
		case err != nil && lost:
			return
		case err != nil:
			_ = dst.Close()
			return
		case !lost:
			_, failed := dst.Write(buf[:got])
			lost = failed != nil
		}
	}
}

// travel waits as long as a piece of a stream is under way. It returns false if
// the receiver went away meanwhile.
func (n *Network) travel(w way, beyond <-chan struct{}) bool {
	for wait := n.delay(w); ; wait = resend {
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-beyond:
			timer.Stop()
			return false
		}
		if !n.isCut(w) {
			return true
		}
	}
}
