package cluster

import (
	"bytes"
	"crypto/rand"
	"io"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo answers with what it is sent, over TCP and UDP.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}
	}()
	return l.Addr().String()
}

// What goes through a proxy comes out whole and in order, at once or late.
func TestProxy(t *testing.T) {
	p, err := NewProxy("127.0.0.1:0", echo(t), false)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const late = 60 * time.Millisecond
	for _, delay := range []time.Duration{0, late, 0} {
		p.Delay(delay)
		sent, got := make([]byte, 300<<10), make([]byte, 300<<10)
		_, _ = rand.Read(sent)
		began := time.Now()
		go func() { _, _ = conn.Write(sent) }()
		if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(sent, got) {
			t.Fatalf("%v, the same: %t", err, bytes.Equal(sent, got))
		}
		if took := time.Since(began); took < 2*delay {
			t.Errorf("there and back in %s, with %s each way", took, delay)
		}
	}
}

func TestProxyOfPackets(t *testing.T) {
	to, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	p, err := NewProxy("127.0.0.1:0", to.LocalAddr().String(), true)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	conn, err := net.Dial("udp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 64)
	_ = to.SetReadDeadline(time.Now().Add(10 * time.Second))
	if n, _, err := to.ReadFrom(buf); err != nil || string(buf[:n]) != "hello" {
		t.Errorf("%q, %v", buf[:n], err)
	}
}

// A proxy whose target is gone closes, and can be closed with connections open.
func TestProxyOfNobody(t *testing.T) {
	p, err := NewProxy("127.0.0.1:0", "127.0.0.1:1", false)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("somebody answers")
	}
}

func TestConfig(t *testing.T) {
	for what, cfg := range map[string]Config{
		"no nodes":       {Binary: "/dev/null"},
		"too many":       {Binary: "/dev/null", Nodes: MaxNodes + 1},
		"no binary":      {Binary: "/nowhere/keystead", Nodes: 1},
		"both at a time": {Binary: "/dev/null", Nodes: 1, Islands: true, Proxied: true},
	} {
		if c, err := Start(cfg); err == nil {
			c.Close()
			t.Errorf("%s: taken", what)
		}
	}
}
