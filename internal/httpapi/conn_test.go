package httpapi

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/keystead/keystead/internal/rpc"
)

// dial opens a connection of its own.
func (h *house) dial() net.Conn {
	h.t.Helper()
	c, err := net.Dial("tcp", h.web.Addr())
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return c
}

func request(path, body string, headers ...string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n%s", path, strings.Join(append(headers, ""), "\r\n"), len(body), body)
}

const waits = `{"key":"k","holder":"you","ttl":"1h","wait":"1h"}`

// send writes, and waits until somebody waits for the lock.
func (h *house) wait(c net.Conn, text string) {
	h.t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		h.t.Fatal(err)
	}
	eventually(h.t, "the caller waits", func() bool { return h.waiting("k") == 1 })
}

// A caller that waits, sends more and hangs up leaves the queue, whenever it sends it: with
// its request, or later, a byte or a request.
func TestSentMoreThenGone(t *testing.T) {
	acquire, next := request("/v1/lock/acquire", waits), request("/v1/limit/check", check)
	for what, parts := range map[string][]string{
		"a byte later":                      {acquire, "P"},
		"a request later":                   {acquire, next},
		"a request at once":                 {acquire + next},
		"a request at once, and a byte":     {acquire + next, "P"},
		"a request later, of a second call": {next + acquire, next},
	} {
		t.Run(what, func(t *testing.T) {
			h := newHouse(t)
			h.hold("k")
			c := h.dial()
			h.wait(c, parts[0])
			for _, more := range parts[1:] {
				if _, err := io.WriteString(c, more); err != nil {
					t.Fatal(err)
				}
			}
			_ = c.Close()
			eventually(t, "nobody waits", func() bool { return h.waiting("k") == 0 })
		})
	}
}

// answers reads so many answers of a connection.
func answers(t *testing.T, in *bufio.Reader, n int) (all []string) {
	t.Helper()
	for range n {
		r, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r.Body)
		_ = r.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, fmt.Sprint(r.StatusCode, " ", string(b)))
	}
	return all
}

// A caller that sends more and stays is told why it waits no more, and its next request is
// answered.
func TestSentMoreAndStays(t *testing.T) {
	h := newHouse(t)
	h.hold("k")
	c := h.dial()
	h.wait(c, request("/v1/lock/acquire", waits))
	if _, err := io.WriteString(c, request("/v1/limit/check", check)); err != nil {
		t.Fatal(err)
	}
	got := answers(t, bufio.NewReader(c), 2)
	if !strings.Contains(got[0], "400 ") || !strings.Contains(got[0], errSentMore.Error()) || !strings.Contains(got[1], `"allowed":true`) {
		t.Errorf("%q", got)
	}
	h.wait(c, request("/v1/lock/acquire", waits)) // what was sent before is forgotten
	if got := h.waiting("k"); got != 1 {
		t.Errorf("%d wait", got)
	}
}

// An empty line behind a body is more, as anything else is: the call that waits ends, and
// nobody waits when the connection has closed.
func TestEmptyLineBehindABody(t *testing.T) {
	h := newHouse(t)
	h.hold("k")
	c := h.dial()
	h.wait(c, request("/v1/lock/acquire", waits))
	if _, err := io.WriteString(c, "\r\n"); err != nil {
		t.Fatal(err)
	}
	if got := answers(t, bufio.NewReader(c), 1); !strings.Contains(got[0], "400 ") {
		t.Errorf("%q", got)
	}
	eventually(t, "nobody waits", func() bool { return h.waiting("k") == 0 })
	c = h.dial()
	h.wait(c, request("/v1/lock/acquire", strings.Replace(waits, "you", "they", 1))+"\r\n")
	_ = c.Close()
	eventually(t, "nobody waits any more", func() bool { return h.waiting("k") == 0 })
}

// The first byte that comes while a call is under way may be from the middle of the next
// request, of which the rest was read before. Wherever that is, it arrives whole.
func TestNextRequestInPieces(t *testing.T) {
	first, next := request("/v1/limit/check", check), request("/v1/limit/check", check, "X-Some: header")
	for at := range len(next) {
		h := newHouse(t, func(_ *rpc.Config, c *Config) { c.Listener = cuts{c.Listener, len(first) + at} })
		c := h.dial()
		if _, err := io.WriteString(c, first+next); err != nil {
			t.Fatal(err)
		}
		for i, got := range answers(t, bufio.NewReader(c), 2) {
			if !strings.Contains(got, `"allowed":true`) {
				t.Fatalf("cut at %d, answer %d: %s", at, i, got)
			}
		}
	}
}

// Requests that are sent one behind the other are answered one after the other.
func TestPipelining(t *testing.T) {
	h := newHouse(t)
	c := h.dial()
	const n = 200
	go func() {
		for i := range n {
			_, _ = io.WriteString(c, request("/v1/counter/add", fmt.Sprintf(`{"key":"k","delta":%d}`, i)))
		}
	}()
	sum := 0
	for i, got := range answers(t, bufio.NewReader(c), n) {
		if sum += i; !strings.Contains(got, fmt.Sprintf(`"value":"%d"`, sum)) {
			t.Fatalf("%d: %s", i, got)
		}
	}
}

// An answer to a request of which more is coming in arrives whole.
func TestAnswersBeforeTheEndArrive(t *testing.T) {
	h := newHouse(t)
	c := h.dial()
	if _, err := io.WriteString(c, "POST /v1/limit/check HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	go func() {
		piece := fmt.Sprintf("8000\r\n%s\r\n", strings.Repeat(" ", 0x8000))
		for range 64 { // 2 MiB, of which a quarter is read
			if _, err := io.WriteString(c, piece); err != nil {
				return
			}
		}
	}()
	if got := answers(t, bufio.NewReader(c), 1); !strings.Contains(got[0], "TOO_LARGE") {
		t.Errorf("%q", got)
	}
}

// Two timeouts are none, and neither is an empty one.
func TestOneTimeout(t *testing.T) {
	h := newHouse(t)
	for _, headers := range [][]string{{"Keystead-Timeout: 1s", "Keystead-Timeout: 2h"}, {"Keystead-Timeout:"}} {
		c := h.dial()
		if _, err := io.WriteString(c, request("/v1/limit/check", check, headers...)); err != nil {
			t.Fatal(err)
		}
		if got := answers(t, bufio.NewReader(c), 1); !strings.Contains(got[0], "400 ") || !strings.Contains(got[0], timeoutHeader) {
			t.Errorf("%q: %q", headers, got)
		}
	}
}

// A door that is closed lets no call in, not even one that waits for a place.
func TestDoor(t *testing.T) {
	h := newHouse(t, func(_ *rpc.Config, c *Config) { c.MaxConns = 1 })
	_ = h.dial()
	second := h.dial()
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.web.Stop(func() { h.api.Stop(0) })
	}()
	<-done
	if _, err := io.WriteString(second, request("/v1/limit/check", check)); err == nil {
		if n, err := second.Read(make([]byte, 1)); n > 0 || err == nil {
			t.Error("a connection is served after the stop")
		}
	}
	if _, err := h.try(context.Background(), "POST", "/v1/limit/check", check); err == nil {
		t.Error("a request is answered after the stop")
	}
}

// cuts is a listener whose connections have a boundary at a byte: what is read ends there
// once, as where a segment ends.
type cuts struct {
	net.Listener
	at int
}

func (l cuts) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return &cut{c, l.at}, err
}

type cut struct {
	net.Conn
	left int // bytes before the boundary
}

func (c *cut) Read(p []byte) (int, error) {
	if c.left > 0 {
		p = p[:min(len(p), c.left)]
	}
	n, err := c.Conn.Read(p)
	c.left -= n
	return n, err
}

// A line of a head ends where its end is, also if that comes alone: the header behind a long
// one is not a part of it, and a body is no request.
func TestLongLinesInPieces(t *testing.T) {
	const buffer = 4096 // of net/http: the last byte of a line that fills it is read alone
	head := "POST /v1/limit/check HTTP/1.1\r\nHost: x\r\n"
	for _, long := range []int{buffer - 3, buffer - 2, buffer - 1, buffer} {
		h := newHouse(t, func(_ *rpc.Config, c *Config) { c.Listener = cuts{c.Listener, len(head) + buffer - 1} })
		c := h.dial()
		line := "X-Long: " + strings.Repeat("a", long-len("X-Long: "))
		if _, err := fmt.Fprintf(c, "%s%s\r\nContent-Length: %d\r\n\r\n%s", head, line, len(check), check); err != nil {
			t.Fatal(err)
		}
		if got := answers(t, bufio.NewReader(c), 1); !strings.Contains(got[0], `"allowed":true`) {
			t.Errorf("a line of %d bytes: %q", long, got)
		}
	}
}
