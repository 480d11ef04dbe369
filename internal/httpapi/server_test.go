package httpapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/keystead/keystead/internal/forward"
	"github.com/keystead/keystead/internal/rpc"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

const check = `{"key":"alice","rate":"20/1m"}`

// patience is how long a test waits for what has to come.
const patience = 20 * time.Second

func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("in %s, not: %s", patience, what)
		}
	}
}

// A call goes through the chain of gRPC: it is counted there, and bounded there.
func TestThroughTheChain(t *testing.T) {
	h := newHouse(t, func(c *rpc.Config, _ *Config) { c.MaxCalls = 1 })
	if a := h.call("POST", "/v1/limit/check", check); a.status != http.StatusOK {
		t.Fatal(a)
	}
	if n := h.count("keystead_rpc_calls_total", "method=Check", "code=OK"); n != 1 {
		t.Errorf("%v calls are counted", n)
	}
	if n := h.count("keystead_operations_total", "op=check", "outcome=allowed"); n != 1 {
		t.Errorf("%v operations are counted", n)
	}
	if n := h.count("keystead_http_requests_total", "status=200"); n != 1 {
		t.Errorf("%v requests are counted", n)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := h.waiter(ctx, "held")
	a := h.call("POST", "/v1/limit/check", check)
	if a.status != http.StatusServiceUnavailable || !strings.Contains(a.body, `"reason":"OVERLOADED"`) || a.header.Get("Retry-After") != "1" {
		t.Errorf("a call more than --max-calls: %s", a)
	}
	cancel()
	<-done
	if n := h.count("keystead_http_requests_total", "status=503"); n != 1 {
		t.Errorf("%v requests are counted as refused", n)
	}
}

// hold has a lock held.
func (h *house) hold(key string) {
	h.t.Helper()
	a := h.call("POST", "/v1/lock/acquire", `{"key":"`+key+`","holder":"me","ttl":"1h"}`)
	if !strings.Contains(a.body, `"acquired":true`) {
		h.t.Fatal(a)
	}
}

// waiting returns how many callers stand in the queue of a lock.
func (h *house) waiting(key string) int {
	h.t.Helper()
	r, err := h.api.Call(context.Background(), lockpb.LockService_Inspect_FullMethodName, &lockpb.InspectRequest{Key: key})
	if err != nil {
		h.t.Fatal(err)
	}
	return int(r.(*lockpb.InspectResponse).Waiting)
}

// acquire asks for a lock, and waits for it as long as the call may take.
func (h *house) acquire(ctx context.Context, key string, headers ...string) (answer, error) {
	return h.try(ctx, "POST", "/v1/lock/acquire", `{"key":"`+key+`","holder":"you","ttl":"1h","wait":"1h"}`, headers...)
}

// waiter holds a lock and starts a call that waits for it, until ctx ends. What is returned
// delivers the end of it.
func (h *house) waiter(ctx context.Context, key string, headers ...string) <-chan answer {
	h.t.Helper()
	h.hold(key)
	done := make(chan answer, 1)
	go func() {
		a, err := h.acquire(ctx, key, headers...)
		if err != nil {
			a.body = err.Error()
		}
		done <- a
	}()
	// Not asked by a call: that would have the caller turned away where one may be under way.
	eventually(h.t, "the caller waits", func() bool { return h.store.Stats().Waiting > 0 })
	return done
}

// A caller that hangs up leaves the queue.
func TestClosedConnectionCancels(t *testing.T) {
	h := newHouse(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := h.waiter(ctx, "x")
	cancel()
	<-done
	eventually(t, "nobody waits", func() bool { return h.waiting("x") == 0 })
	eventually(t, "the call is counted as cancelled", func() bool {
		return h.count("keystead_rpc_calls_total", "method=Acquire", "code=Canceled") == 1
	})
}

func TestTimeoutByHeader(t *testing.T) {
	h := newHouse(t)
	h.hold("x")
	a, err := h.acquire(context.Background(), "x", "Keystead-Timeout: 50ms")
	if err != nil {
		t.Fatal(err)
	}
	if a.status != http.StatusGatewayTimeout || !strings.Contains(a.body, `"reason":"GAVE_UP"`) {
		t.Errorf("%s", a)
	}
}

// Without a header a call has 5 s, and the time that it may wait.
func TestTimeouts(t *testing.T) {
	for _, row := range []struct {
		request proto.Message
		header  string
		want    time.Duration
	}{
		{&lockpb.InspectRequest{}, "", DefaultTimeout},
		{&lockpb.AcquireRequest{}, "", DefaultTimeout},
		{&lockpb.AcquireRequest{WaitNs: int64(time.Hour)}, "", time.Hour + DefaultTimeout},
		{&lockpb.AcquireRequest{WaitNs: int64(time.Hour)}, "2s", 2 * time.Second},
		{&lockpb.AcquireRequest{WaitNs: -int64(time.Hour)}, "", DefaultTimeout},
		{&lockpb.AcquireRequest{WaitNs: 1<<63 - 1}, "", MaxTimeout},
		{&lockpb.InspectRequest{}, "25h", MaxTimeout},
		{&lockpb.InspectRequest{}, "25h1s", 0},
		{&lockpb.InspectRequest{}, "-1s", 0},
	} {
		r, _ := http.NewRequestWithContext(t.Context(), "POST", "/", nil)
		if row.header != "" {
			r.Header.Set(timeoutHeader, row.header)
		}
		began := time.Now()
		ctx, cancel, err := callContext(r, row.request)
		if err != nil {
			if row.want != 0 {
				t.Errorf("%v %s: %v", row.request, row.header, err)
			}
			continue
		}
		over, _ := ctx.Deadline()
		if got := over.Sub(began); got < row.want || got > row.want+time.Minute {
			t.Errorf("%v %q: %s, want %s", row.request, row.header, got, row.want)
		}
		cancel()
	}
}

// The deadline of a body ends with the body: it does not end a call that waits.
func TestWaitsLongerThanBodies(t *testing.T) {
	h := newHouse(t)
	h.web.bodyTimeout = 50 * time.Millisecond
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	h.hold("x")
	if a, err := h.acquire(ctx, "x", "Keystead-Timeout: 500ms"); err != nil || a.status != http.StatusGatewayTimeout {
		t.Errorf("%s, %v", a, err)
	}
}

// raw sends bytes over a connection of its own and returns the status line that comes back.
func (h *house) raw(text string) string {
	h.t.Helper()
	c, err := net.Dial("tcp", h.web.Addr())
	if err != nil {
		h.t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, text); err != nil {
		h.t.Fatal(err)
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(line)
}

func TestBounds(t *testing.T) {
	const short = 50 * time.Millisecond
	h := newHouse(t)
	post := "POST /v1/limit/check HTTP/1.1\r\nHost: x\r\n"
	for what, row := range map[string]struct {
		send, want string
		timeout    time.Duration // of the body
	}{
		"a body that does not come":         {post + "Content-Length: 9\r\n\r\n{", "HTTP/1.1 408 Request Timeout", short},
		"a body that is announced as large": {post + "Content-Length: 300000\r\n\r\n{", "HTTP/1.1 413 Request Entity Too Large", short},
		"a body in chunks that is large": {post + "Transfer-Encoding: chunked\r\n\r\n" + strings.Repeat(fmt.Sprintf("8000\r\n%s\r\n", strings.Repeat(" ", 0x8000)), 9),
			"HTTP/1.1 413 Request Entity Too Large", patience},
		"headers that are large":                          {post + "X: " + strings.Repeat("x", 32<<10) + "\r\n\r\n", "HTTP/1.1 431 Request Header Fields Too Large", patience},
		"a body that nobody wants and that does not come": {"POST /v1/limit HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{", "HTTP/1.1 404 Not Found", short},
	} {
		h.web.bodyTimeout = row.timeout
		if got := h.raw(row.send); got != row.want {
			t.Errorf("%s: %q, want %q", what, got, row.want)
		}
	}
	h.web.bodyTimeout = patience
	if a := h.call("POST", "/v1/limit/check", check); a.status != http.StatusOK || h.web.bodies.Load() != 0 {
		t.Errorf("%s, and %d bytes are still counted", a, h.web.bodies.Load())
	}
	// What JSON lets through is bounded as a message: 64 KiB.
	long := `{"key":"` + strings.Repeat("k", rpc.MaxRequest) + `","rate":"20/1m"}`
	if a := h.call("POST", "/v1/limit/check", long); a.status != http.StatusRequestEntityTooLarge {
		t.Errorf("a large message: %s", a)
	}
	many := `{"keys":[""` + strings.Repeat(`,""`, maxElements) + `]}`
	if a := h.call("POST", "/v1/cluster/get-owners", many); a.status != http.StatusRequestEntityTooLarge {
		t.Errorf("a long list: %s", a)
	}
}

// More connections than may be wait until one is closed.
func TestConnectionsAreBounded(t *testing.T) {
	h := newHouse(t, func(_ *rpc.Config, c *Config) { c.MaxConns = 1 })
	first, err := net.Dial("tcp", h.web.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if _, err := io.WriteString(first, "GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(first).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if _, err := h.try(ctx, "POST", "/v1/limit/check", check); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second connection: %v", err)
	}
	_ = first.Close()
	if a := h.call("POST", "/v1/limit/check", check); a.status != http.StatusOK {
		t.Error(a)
	}
}

// A stop sends those away that wait, with an answer.
func TestStop(t *testing.T) {
	h := newHouse(t)
	done := h.waiter(context.Background(), "x")
	go h.web.Stop(func() { h.api.Stop(patience) })
	a := <-done
	if a.status != http.StatusServiceUnavailable || !strings.Contains(a.body, `"reason":"UNAVAILABLE"`) || a.header.Get("Retry-After") == "" {
		t.Errorf("%s", a)
	}
	<-h.web.stopped
	if _, err := h.try(context.Background(), "POST", "/v1/limit/check", check); err == nil {
		t.Error("a request is answered after the stop")
	}
}

// What breaks an invariant ends the process, as over gRPC.
func TestPanicsEndTheProcess(t *testing.T) {
	if os.Getenv("KEYSTEAD_TEST_CRASH") != "" {
		h := newHouse(t)
		h.web.routes["/v1/limit/check"].answered = nil
		h.call("POST", "/v1/limit/check", check)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestPanicsEndTheProcess$")
	cmd.Env = append(os.Environ(), "KEYSTEAD_TEST_CRASH=1")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "panic: ") || !strings.Contains(string(out), "httpapi.crash") {
		t.Errorf("%v\n%s", err, out)
	}
}

// A call gets the headers that are for it as metadata, and no others.
func TestHeadersOfCalls(t *testing.T) {
	r, _ := http.NewRequestWithContext(t.Context(), "POST", "/", nil)
	r.Header.Set("X-Keystead-No-Forward", "1")
	r.Header.Set("Cookie", "secret")
	ctx, cancel, err := callContext(r, &lockpb.InspectRequest{})
	if err != nil {
		t.Fatal(err)
	}
	defer cancel()
	md, _ := metadata.FromIncomingContext(ctx)
	if len(md) != 1 || !slices.Equal(md.Get(forward.NoForward), []string{"1"}) {
		t.Errorf("%v", md)
	}
}
