package system

import (
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
)

// forgetful stands before a node, and hangs up on each of the first answers.
type forgetful struct {
	l    net.Listener
	to   string
	left atomic.Int32 // answers that are still to be lost
	wg   sync.WaitGroup
}

func newForgetful(t *testing.T, to string, lost int32) *forgetful {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &forgetful{l: l, to: to}
	p.left.Store(lost)
	p.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.serve(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.wg.Wait()
	})
	return p
}

func (p *forgetful) serve(c net.Conn) {
	defer c.Close()
	node, err := net.Dial("tcp", p.to)
	if err != nil {
		return
	}
	defer node.Close()
	p.wg.Go(func() {
		_, _ = io.Copy(node, c)
		node.Close()
	})
	// What is read of the node goes on to the caller, until an answer begins.
	from := http2.NewFramer(io.Discard, node)
	to := http2.NewFramer(c, nil)
	for {
		f, err := from.ReadFrame()
		if err != nil {
			return
		}
		if _, answer := f.(*http2.HeadersFrame); answer && p.left.Add(-1) >= 0 {
			return
		}
		h := f.Header()
		if err := to.WriteRawFrame(h.Type, h.Flags, h.StreamID, payload(f)); err != nil {
			return
		}
	}
}

// payload is a frame's as it came, without padding, which gRPC does not use.
func payload(f http2.Frame) []byte {
	switch f := f.(type) {
	case *http2.HeadersFrame:
		return f.HeaderBlockFragment()
	case *http2.DataFrame:
		return f.Data()
	case *http2.SettingsFrame:
		var b []byte
		_ = f.ForeachSetting(func(s http2.Setting) error {
			b = append(b, byte(s.ID>>8), byte(s.ID), byte(s.Val>>24), byte(s.Val>>16), byte(s.Val>>8), byte(s.Val))
			return nil
		})
		return b
	case *http2.PingFrame:
		return f.Data[:]
	case *http2.WindowUpdateFrame:
		return []byte{byte(f.Increment >> 24), byte(f.Increment >> 16), byte(f.Increment >> 8), byte(f.Increment)}
	}
	return nil
}

// An answer that is lost is asked for again under the same request id: what a command
// does is done once.
func TestCommandsActOnce(t *testing.T) {
	t.Parallel()
	p := newForgetful(t, shared, 2)
	if got := succeeds(t, "counter", "add", "once", "5", "--addr", p.l.Addr().String()); got != "5\n" || counted(t, "once") != 5 {
		t.Errorf("added %q, and it is %d", got, counted(t, "once"))
	}
	if left := p.left.Load(); left > 0 {
		t.Fatalf("%d answers were not lost", left)
	}
	p.left.Store(2)
	if got := succeeds(t, "limit", "check", "once", "--limit", "9/1h", "--cost", "4", "--addr", p.l.Addr().String()); !strings.HasPrefix(got, "allowed  5 of 9 left") {
		t.Errorf("checked: %q", got)
	}
	first := token(t, "once")
	p.left.Store(2)
	if got := token(t, "once", "--wait", "0", "--addr", p.l.Addr().String()); got <= first {
		t.Errorf("token %d after %d", got, first)
	}
	if v := inspect(t, "once"); v["held"] != false {
		t.Errorf("it was not given back: %v", v)
	}
}

// A command asks the node at --addr, and no other: that others may know the node by an
// address which leads nowhere does not matter.
func TestCommandsAskTheNodeAtAddr(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil, "server", inPool("n1", "c", "--bootstrap", "--advertise", "192.0.2.1")...)
	succeeds(t, "status", "--wait", "20s", "--addr", n.grpc)
	if got := succeeds(t, "counter", "add", "k", "--addr", n.grpc); got != "1\n" {
		t.Errorf("added: %q", got)
	}
	if got := succeeds(t, "limit", "check", "k", "--limit", "9/1h", "--addr", n.grpc); !strings.HasPrefix(got, "allowed  8 of 9 left") {
		t.Errorf("checked: %q", got)
	}
	if got := succeeds(t, "lock", "k", "--addr", n.grpc, "--", "echo", "ran"); got != "ran\n" {
		t.Errorf("locked: %q", got)
	}
	n.stop(t)
}
