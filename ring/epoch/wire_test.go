package epoch

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// listening is a wire on loopback that accepts nothing but handshakes.
func listening(t *testing.T, cluster, id string) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := newWire(&wire{cluster: cluster, self: raft.ServerID(id), addr: l.Addr().String(), under: l, refuse: func(string, string) {},
		dial: func(ctx context.Context, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		}})
	t.Cleanup(w.close)
	return w
}

// TestHandshake tells who is let in, and what the others are told.
func TestHandshake(t *testing.T) {
	t.Parallel()
	w, other := listening(t, "test", "n/1"), listening(t, "other", "n/1")
	at := func(id string) string { return id + "@" + w.addr }
	for _, c := range []struct {
		name string
		from *wire
		kind byte
		to   string
		want string // in the error; "" = let in
	}{
		{name: "as it should be", from: w, kind: kindLease, to: at("n/1")},
		{name: "another server", from: w, kind: kindRaft, to: at("n/2"), want: "this is n/1, not n/2"},
		{name: "another cluster", from: other, kind: kindRaft, to: at("n/1"), want: `of the cluster "test", not "other"`},
		{name: "another kind", from: w, kind: 'x', to: at("n/1"), want: "unknown kind"},
		{name: "no server named", from: w, kind: kindRaft, to: w.addr, want: "names no server"},
	} {
		conn, err := c.from.connect(t.Context(), c.kind, c.to)
		if conn != nil {
			_ = conn.Close()
		}
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestWireCloses: neither a stranger who says nothing nor a connection that
// nobody takes holds it up.
func TestWireCloses(t *testing.T) {
	t.Parallel()
	w := listening(t, "test", "n/1")
	silent, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	waiting, err := w.connect(t.Context(), kindRaft, "n/1@"+w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer waiting.Close()
	began := time.Now()
	w.close()
	if took := time.Since(began); took > greetTime/2 {
		t.Errorf("it took %s", took)
	}
	for _, c := range []net.Conn{silent, waiting} {
		_ = c.SetReadDeadline(time.Now().Add(patience))
		var timeout net.Error
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.As(err, &timeout) && timeout.Timeout() {
			t.Errorf("the connection is open: %v", err)
		}
	}
}

// heard is a connection on which somebody has said something.
type heard struct {
	net.Conn
	*bytes.Reader
}

func (h heard) Read(b []byte) (int, error) { return h.Reader.Read(b) }

// FuzzGreeted feeds bytes to the handshake: it takes those that name this server
// and no others.
func FuzzGreeted(f *testing.F) {
	hello := func(kind byte, fields ...string) []byte {
		b := append([]byte(greeting), kind)
		for _, s := range fields {
			b = append(append(b, byte(len(s))), s...)
		}
		return b
	}
	f.Add(hello('r', "test", "n/1", "n/2"))
	f.Add(hello('l', "other", "n/1", ""))
	f.Add(hello('x', "test", "n/1", strings.Repeat("s", 255)))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	w := &wire{cluster: "test", self: "n/1", kinds: map[byte]*branch{kindRaft: {}, kindLease: {}}}
	f.Fuzz(func(t *testing.T, b []byte) {
		kind, source, why, err := w.greeted(heard{Reader: bytes.NewReader(b)})
		if len(why) > maxField {
			t.Errorf("the reason has %d bytes", len(why))
		}
		meant := (kind == kindRaft || kind == kindLease) && bytes.HasPrefix(b, hello(kind, "test", "n/1", source))
		if ok := err == nil && why == ""; ok != (meant && err == nil) {
			t.Errorf("%q is let in: %v (%s, %v)", b, ok, why, err)
		}
	})
}
