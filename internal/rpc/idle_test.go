package rpc

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
)

// plugged is a connection to an end that, from some time on, does not read any more: its
// kernel's buffers are full.
type plugged struct {
	net.Conn
	full   chan struct{} // closed from then on
	blocks func()        // called by who writes then
	ended  chan struct{}
	end    func()
}

func (c *plugged) Write(b []byte) (int, error) {
	select {
	case <-c.full:
		c.blocks()
		<-c.ended
		return 0, net.ErrClosed
	default:
		return c.Conn.Write(b)
	}
}

func (c *plugged) Close() error {
	c.end()
	return c.Conn.Close()
}

// TestIdleIsClosedBeside: to close a connection takes long when the other end does not
// read. Calls to other nodes do not wait for that.
func TestIdleIsClosedBeside(t *testing.T) {
	full, blocked, dialled := make(chan struct{}), make(chan struct{}), make(chan *plugged, 1)
	blocks := sync.OnceFunc(func() { close(blocked) })
	g := grouped(t, 3, true, func(c *Config) {
		dial := c.Dial
		c.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			conn, err := dial(ctx, addr)
			if err != nil || addr != "n2:7400" {
				return conn, err
			}
			ended := make(chan struct{})
			p := &plugged{conn, full, blocks, ended, sync.OnceFunc(func() { close(ended) })}
			dialled <- p
			return p, nil
		}
	})
	n1 := g.nodes["n1"]
	add := func(owner string) {
		t.Helper()
		if _, err := n1.counters.Add(t.Context(), &counterpb.AddRequest{Key: g.key(owner), Delta: 1}); err != nil {
			t.Fatalf("to %s: %v", owner, err)
		}
	}
	add("n2")
	before := time.Now()
	add("n3")
	links, idle := n1.server.router, peerOf(t, n1.server, "n2")
	close(full)
	over := make(chan struct{})
	go func() {
		defer close(over)
		links.CloseIdle(time.Since(before))
	}()
	<-blocked
	add("n3")
	select {
	case <-over:
		t.Error("a call to n3 waited until the connection to n2 was closed")
	default:
	}
	_ = (<-dialled).Close()
	<-over
	if idle.Conn.GetState().String() != "SHUTDOWN" {
		t.Errorf("the idle connection is %s", idle.Conn.GetState())
	}
}
