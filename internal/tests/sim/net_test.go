package sim

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// pair is a connection from host a to host b.
func pair(t *testing.T, n *Net) (a, b net.Conn) {
	t.Helper()
	l, err := n.Listen("b:1")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = n.Dial(t.Context(), "a", "b:1"); err != nil {
		t.Fatal(err)
	}
	if b, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return a, b
}

// inBubble runs a test of connections.
func inBubble(t *testing.T, f func(t *testing.T, n *Net, a, b net.Conn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := NewNet(1)
		a, b := pair(t, n)
		f(t, n, a, b)
		_ = a.Close()
		_ = b.Close()
		if n.Open() != 0 {
			t.Errorf("%d ends are open", n.Open())
		}
	})
}

// read reads what is there, and says how long it took.
func read(t *testing.T, c net.Conn, want string) time.Duration {
	t.Helper()
	began, b := time.Now(), make([]byte, len(want))
	if _, err := io.ReadFull(c, b); err != nil || string(b) != want {
		t.Fatalf("read %q, %v; want %q", b, err, want)
	}
	return time.Since(began)
}

func send(t *testing.T, c net.Conn, s string) {
	t.Helper()
	if _, err := c.Write([]byte(s)); err != nil {
		t.Fatal(err)
	}
}

func TestStream(t *testing.T) {
	inBubble(t, func(t *testing.T, n *Net, a, b net.Conn) {
		send(t, a, "one ")
		send(t, a, "two")
		if d := read(t, b, "one two"); d < defaultMinDelay || d > 2*defaultMaxDelay {
			t.Errorf("took %v", d)
		}
		send(t, a, "last")
		_ = a.Close()
		read(t, b, "last")
		if _, err := b.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("at the end: %v", err)
		}
		if _, err := a.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		send(t, b, "to nobody")
		time.Sleep(time.Second)
		if _, err := b.Write([]byte("x")); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("to one that is gone: %v", err)
		}
	})
}

func TestCutHoldsBack(t *testing.T) {
	inBubble(t, func(t *testing.T, n *Net, a, b net.Conn) {
		n.Cut("a", "b", true)
		send(t, a, "held")
		send(t, b, "passes")
		read(t, a, "passes")
		_ = b.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := b.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("through the cut: %v", err)
		}
		_ = b.SetReadDeadline(time.Time{})
		n.Cut("a", "b", false)
		if d := read(t, b, "held"); d > maxResend+time.Millisecond {
			t.Errorf("came %v after the cut was healed", d)
		}
	})
}

func TestBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, n *Net, a, b net.Conn) {
		_ = a.SetWriteDeadline(time.Now().Add(time.Second))
		sent, err := a.Write(make([]byte, 2*maxBuffered))
		if sent != maxBuffered || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("sent %d, %v", sent, err)
		}
		n.Reset("b", "a")
		if _, err := b.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("after the reset: %v", err)
		}
	})
}

// A paused host takes nothing in, and finds it all in its sockets afterwards.
func TestPausedHost(t *testing.T) {
	inBubble(t, func(t *testing.T, n *Net, a, b net.Conn) {
		n.Gate("b").Close()
		send(t, a, "while it slept")
		began := time.Now()
		time.AfterFunc(time.Minute, n.Gate("b").Open)
		read(t, b, "while it slept")
		if d := time.Since(began); d != time.Minute {
			t.Errorf("read after %v", d)
		}
	})
}

func TestDial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNet(1)
		if _, err := n.Dial(t.Context(), "a", "b:1"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("where nobody listens: %v", err)
		}
		l, err := n.Listen("b:1")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := n.Listen("b:1"); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("a port that is taken: %v", err)
		}
		n.Cut("b", "a", true) // the answer does not come
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if _, err := n.Dial(ctx, "a", "b:1"); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("through a cut: %v after %v", err, time.Since(began))
		}
		n.Heal()
		c, err := n.Dial(t.Context(), "a", "b:1")
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a connection that nobody took: %v", err)
		}
		_ = c.Close()
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("a closed listener: %v", err)
		}
	})
}
