package httpapi

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Those that announce large bodies, or send none to the end, shut out nobody: what counts is
// what was read.
func TestAnnouncedBodiesTakeNoRoom(t *testing.T) {
	for what, begin := range map[string]string{
		"announced": "Content-Length: 4000000\r\n\r\n{",
		"in chunks": "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
	} {
		t.Run(what, func(t *testing.T) {
			h := newHouse(t)
			for range 65 {
				if _, err := io.WriteString(h.dial(), "POST /v1/counter/batch-add HTTP/1.1\r\nHost: x\r\n"+begin); err != nil {
					t.Fatal(err)
				}
			}
			many := `{"adds":[` + strings.Repeat(`{"key":"k","delta":1},`, 9999) + `{"key":"k","delta":1}]}`
			for range 5 { // the first may be faster than those who hold it up
				if a := h.call("POST", "/v1/counter/batch-add", many); a.status != http.StatusOK {
					t.Fatalf("%s", a)
				}
			}
			// What an answer held is given back after its last byte has been sent.
			eventually(t, "nothing is counted for what was not sent", func() bool { return h.web.bodies.Load() == 0 })
		})
	}
}

// What was read of large bodies counts until it is of no use any more; small ones are
// answered also when there is no room for more.
func TestRoomForBodies(t *testing.T) {
	h := newHouse(t)
	many := `{"checks":[` + strings.Repeat(`{"key":"a","rate":"20/1m"},`, 999) + `{"key":"a","rate":"20/1m"}]}`
	h.web.bodies.Store(maxBodies)
	if a := h.call("POST", "/v1/limit/batch-check", many); a.status != http.StatusServiceUnavailable || !strings.Contains(a.body, "OVERLOADED") {
		t.Errorf("with as many bodies as may be: %s", a)
	}
	if a := h.call("POST", "/v1/limit/check", check); a.status != http.StatusOK {
		t.Errorf("a small body: %s", a)
	}
	h.web.bodies.Store(0)
	c := h.dial()
	if _, err := fmt.Fprintf(c, "POST /v1/limit/batch-check HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(many), many[:20_000]); err != nil {
		t.Fatal(err)
	}
	eventually(t, "what was read is counted", func() bool { return h.web.bodies.Load() >= 20_000 })
	if n := h.web.bodies.Load(); n > 2*pieceSize {
		t.Errorf("%d bytes are counted for 20,000", n)
	}
	if _, err := io.WriteString(c, many[20_000:]); err != nil {
		t.Fatal(err)
	}
	eventually(t, "nothing is counted any more", func() bool { return h.web.bodies.Load() == 0 })
}

// Who sends a large body slowly does not have the time of a whole body for each part of it.
func TestSlowBodies(t *testing.T) {
	h := newHouse(t)
	h.web.bodyTimeout, h.web.pieceTimeout = patience, 50*time.Millisecond
	for what, send := range map[string]string{
		"announced": fmt.Sprintf("Content-Length: 100000\r\n\r\n%s", strings.Repeat(" ", 2*smallBody)),
		"in chunks": fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", 2*smallBody, strings.Repeat(" ", 2*smallBody)),
	} {
		began := time.Now()
		if got := h.raw("POST /v1/limit/check HTTP/1.1\r\nHost: x\r\n" + send); got != "HTTP/1.1 408 Request Timeout" || time.Since(began) > patience/2 {
			t.Errorf("%s: %q after %s", what, got, time.Since(began))
		}
	}
	if n := h.web.bodies.Load(); n != 0 {
		t.Errorf("%d bytes are still counted", n)
	}
}

// Answers that nobody reads count with bodies, and not for long: batches of others are not
// taken meanwhile, and single calls are.
func TestSlowReaders(t *testing.T) {
	h := newHouse(t)
	h.web.readTimeout = time.Second
	c := h.dial()
	_ = c.(*net.TCPConn).SetReadBuffer(4 << 10)
	many := `{"checks":[` + strings.Repeat(`{},`, 9999) + `{}]}`
	go func() { // several, for the kernel has room as well
		for range 8 {
			_, _ = io.WriteString(c, request("/v1/limit/batch-check", many))
		}
	}()
	eventually(t, "an answer is held up", func() bool { return h.web.bodies.Load() > 1<<20 })
	h.web.bodies.Add(maxBodies)
	if a := h.call("POST", "/v1/limit/batch-check", `{"checks":[`+strings.Repeat(`{},`, smallBatch)+`{}]}`); a.status != http.StatusServiceUnavailable {
		t.Errorf("a batch: %s", a)
	}
	if a := h.call("POST", "/v1/limit/check", check); a.status != http.StatusOK {
		t.Errorf("a single call: %s", a)
	}
	h.web.bodies.Add(-maxBodies)
	eventually(t, "it is given up", func() bool { return h.web.bodies.Load() == 0 })
}

// Items of batches count while they are done, by what they take of memory: a small body can
// have many.
func TestRoomForItems(t *testing.T) {
	h := newHouse(t)
	for n, want := range map[int]int{smallBatch: http.StatusOK, smallBatch + 1: http.StatusServiceUnavailable, 1000: http.StatusServiceUnavailable} {
		h.web.bodies.Store(maxBodies - smallBatch*itemRoom)
		if a := h.call("POST", "/v1/limit/batch-check", `{"checks":[`+strings.Repeat(`{},`, n-1)+`{}]}`); a.status != want {
			t.Errorf("%d items: %s", n, a)
		}
		if a := h.call("GET", "/v1/cluster/get-owners?"+strings.Repeat("keys=a&", n), ""); a.status != want {
			t.Errorf("%d parameters: %s", n, a)
		}
	}
	if n := h.web.bodies.Load(); n != maxBodies-smallBatch*itemRoom {
		t.Errorf("%d bytes are still counted", n-maxBodies+smallBatch*itemRoom)
	}
}

// Bodies of all lengths around the bounds of memory arrive as they are, whole or in chunks.
func TestLengthsOfBodies(t *testing.T) {
	h := newHouse(t)
	most := int(h.web.routes["/v1/limit/check"].most)
	for _, n := range []int{len(check), smallBody - 1, smallBody, smallBody + 1, pieceSize - 1, pieceSize, pieceSize + 1, 2 * pieceSize, 2*pieceSize + 1, most - 1, most, most + 1} {
		body := check + strings.Repeat(" ", n-len(check))
		want := http.StatusOK
		if n > most {
			want = http.StatusRequestEntityTooLarge
		}
		if a := h.call("POST", "/v1/limit/check", body); a.status != want {
			t.Errorf("%d bytes: %s", n, a)
		}
		r, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+h.web.Addr()+"/v1/limit/check", io.MultiReader(strings.NewReader(body)))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := h.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%d bytes in chunks: %d", n, resp.StatusCode)
		}
	}
	if n := h.web.bodies.Load(); n != 0 {
		t.Errorf("%d bytes are still counted", n)
	}
}

// A large answer of a call that only reads needs room as well: many that nobody reads would
// have no bound.
func TestRoomForAnswers(t *testing.T) {
	h := newHouse(t)
	for i := range 200 {
		h.call("POST", "/v1/counter/add", fmt.Sprintf(`{"key":"k","name":"counter-%d","delta":1}`, i))
	}
	for _, read := range []struct{ method, path, body string }{{"GET", "/v1/admin/list-objects", ""}, {"POST", "/v1/admin/list-objects", "{}"}} {
		h.web.bodies.Store(maxBodies - smallBody)
		if a := h.call(read.method, read.path, read.body); a.status != http.StatusServiceUnavailable || !strings.Contains(a.body, "OVERLOADED") {
			t.Errorf("%s: %.200s", read.method, a)
		}
		h.web.bodies.Store(0)
		if a := h.call(read.method, read.path, read.body); a.status != http.StatusOK || len(a.body) <= smallBody {
			t.Errorf("%s: %.200s", read.method, a)
		}
		// What an answer held is given back after its last byte has been sent.
		eventually(t, "nothing is counted any more", func() bool { return h.web.bodies.Load() == 0 })
	}
}
