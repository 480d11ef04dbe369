package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keystead/keystead/internal/drain"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

// start starts a server with one metric and a status.
func start(t *testing.T, status func() any) *Server {
	t.Helper()
	reg := prometheus.NewRegistry()
	calls := prometheus.NewCounter(prometheus.CounterOpts{Name: "test_calls_total", Help: "Calls."})
	reg.MustRegister(calls)
	calls.Add(3)
	s, err := Start(Config{Addr: "127.0.0.1:0", Gatherer: reg, Status: status})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

// do makes a request over a connection of its own.
func do(ctx context.Context, s *Server, method, path string, header http.Header) (int, http.Header, string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+s.Addr()+path, nil)
	if err != nil {
		return 0, nil, "", err
	}
	if header != nil {
		req.Header = header
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return 0, nil, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header, string(b), err
}

func get(t *testing.T, s *Server, path string) (int, http.Header, string) {
	t.Helper()
	code, header, body, err := do(t.Context(), s, http.MethodGet, path, nil)
	if err != nil {
		t.Fatal(err)
	}
	return code, header, body
}

func TestPages(t *testing.T) {
	s := start(t, func() any { return map[string]int{"epoch": 7} })
	for _, tc := range []struct {
		path, contentType, has string
		code                   int
	}{
		{"/", "text/plain", "/metrics /healthz /readyz /status /drain /debug/pprof/", 200},
		{"/healthz", "text/plain", "ok\n", 200},
		{"/readyz", "text/plain", "not ready", 503},
		{"/status", "application/json", `"epoch": 7`, 200},
		{"/metrics", "text/plain; version=0.0.4", "\ntest_calls_total 3\n", 200},
		{"/debug/pprof/", "text/html", "goroutine", 200},
		{"/debug/pprof/cmdline", "text/plain", "not found", 404},
		{"/debug/pprof/profile?seconds=100000", "text/plain", "from 0 to 60", 400},
		{"/debug/pprof/heap?seconds=NaN", "text/plain", "from 0 to 60", 400},
		{"/debug/pprof/goroutine?debug=1", "text/plain", "goroutine profile: total ", 200},
		{"/debug/pprof/symbol", "text/plain", "num_symbols", 200},
		{"/debug/pprof/trace?seconds=0.01", "application/octet-stream", "go 1.", 200},
		{"/debug/pprof/no-such-profile", "text/plain", "Unknown profile", 404},
		{"/no-such-page", "text/plain", "not found", 404},
		{"/healthz/more", "text/plain", "not found", 404},
	} {
		code, header, body := get(t, s, tc.path)
		if code != tc.code || !strings.HasPrefix(header.Get("Content-Type"), tc.contentType) || !strings.Contains(body, tc.has) {
			t.Errorf("%s: %d %s %.200q", tc.path, code, header.Get("Content-Type"), body)
		}
	}
	for _, path := range []string{"/", "/healthz", "/readyz", "/status", "/metrics"} {
		for _, method := range []string{http.MethodPost, http.MethodDelete} {
			if code, _, _, err := do(t.Context(), s, method, path, nil); err != nil || code != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: %d, %v", method, path, code, err)
			}
		}
		if code, _, body, err := do(t.Context(), s, http.MethodHead, path, nil); err != nil || code == http.StatusMethodNotAllowed || body != "" {
			t.Errorf("HEAD %s: %d, %v", path, code, err)
		}
	}
}

// Browsers get the page at the admin address; curl gets the list, and the metrics address
// has no page at all.
func TestPageForBrowsers(t *testing.T) {
	page := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "<html>"+r.FormValue("key")) })
	s, err := Start(Config{Addr: "127.0.0.1:0", MetricsAddr: "127.0.0.1:0", Gatherer: prometheus.NewRegistry(), Page: page})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	for accept, want := range map[string]string{"text/html,application/xhtml+xml,*/*;q=0.8": "<html>k", "*/*": "keystead: /metrics", "": "keystead: /metrics"} {
		_, header, body, err := do(t.Context(), s, http.MethodGet, "/?key=k", http.Header{"Accept": {accept}})
		if err != nil || !strings.HasPrefix(body, want) || header.Get("Vary") != "Accept" {
			t.Errorf("%q: %q, %v", accept, body, err)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.MetricsAddr()+"/?key=k", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "text/html")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	defer http.DefaultClient.CloseIdleConnections()
	if body, err := io.ReadAll(resp.Body); err != nil || !strings.HasPrefix(string(body), "keystead: /metrics") {
		t.Errorf("at the metrics address: %q, %v", body, err)
	}
	if code, _, _, err := do(t.Context(), s, http.MethodPost, "/", http.Header{"Accept": {"text/html"}}); err != nil || code != http.StatusMethodNotAllowed {
		t.Error(code, err)
	}
}

// The metrics address changes nothing and shows no profile.
func TestMetricsApart(t *testing.T) {
	s, err := Start(Config{Addr: "127.0.0.1:0", MetricsAddr: "127.0.0.1:0", Gatherer: prometheus.NewRegistry(), Drain: neverDrained{t}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	s.SetReady(true)
	for path, want := range map[string]int{"/metrics": 200, "/healthz": 200, "/readyz": 200, "/": 200, "/status": 404, "/drain": 404, "/debug/pprof/": 404, "/debug/pprof/heap": 404} {
		resp, err := http.Get("http://" + s.MetricsAddr() + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s at the metrics address: %d, want %d", path, resp.StatusCode, want)
		}
	}
	resp, err := http.Post("http://"+s.MetricsAddr()+"/drain", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusNotFound {
		t.Errorf("POST /drain at the metrics address: %d", resp.StatusCode)
	}
	if code, _, _ := get(t, s, "/metrics"); code != 200 {
		t.Errorf("/metrics at the admin address: %d", code)
	}
}

// neverDrained fails the test when it is asked to drain.
type neverDrained struct{ t *testing.T }

func (d neverDrained) DrainState() drain.State { return drain.State{} }

func (d neverDrained) Drain(context.Context) (drain.State, error) {
	d.t.Error("the node is drained")
	return drain.State{}, nil
}

// A page that an operator opens in a browser cannot have the node drained.
func TestNoBrowsers(t *testing.T) {
	s, err := Start(Config{Addr: "127.0.0.1:0", Gatherer: prometheus.NewRegistry(), Drain: neverDrained{t}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	for _, header := range []http.Header{
		{"Origin": {"https://example.com"}, "Content-Type": {"text/plain"}},
		{"Origin": {"null"}},
		{"Origin": {"http://" + s.Addr()}}, // a name that was made to lead here
		{"Sec-Fetch-Site": {"cross-site"}},
	} {
		if code, _, body, err := do(t.Context(), s, http.MethodPost, "/drain", header); err != nil || code != http.StatusForbidden {
			t.Errorf("%v: %d %s %v", header, code, body, err)
		}
	}
}

// One profile at a time: each costs callers what it takes.
func TestOneProfile(t *testing.T) {
	s := start(t, nil)
	s.profile.Lock()
	code, _, body := get(t, s, "/debug/pprof/heap")
	s.profile.Unlock()
	if code != http.StatusTooManyRequests {
		t.Errorf("while another one is taken: %d %s", code, body)
	}
	if code, _, _ = get(t, s, "/debug/pprof/heap"); code != 200 {
		t.Errorf("after it: %d", code)
	}
}

func TestProfile(t *testing.T) {
	s := start(t, nil)
	code, header, body := get(t, s, "/debug/pprof/profile?seconds=1")
	if code != 200 || header.Get("Content-Type") != "application/octet-stream" || !strings.HasPrefix(body, "\x1f\x8b") {
		t.Errorf("%d %v, %d bytes", code, header, len(body))
	}
}

func TestReadiness(t *testing.T) {
	s := start(t, nil)
	ready := func(want int, says string) {
		t.Helper()
		if code, _, body := get(t, s, "/readyz"); code != want || body != says {
			t.Errorf("/readyz: %d %q, want %d", code, body, want)
		}
		if code, _, _ := get(t, s, "/healthz"); code != 200 {
			t.Errorf("/healthz: %d", code)
		}
	}
	const not = "not ready: the node starts or stops\n"
	ready(503, not)
	s.SetReady(true)
	ready(200, "ready\n")
	s.SetReady(false)
	ready(503, not)
}

func TestMetricsAreClean(t *testing.T) {
	s := start(t, nil)
	_, _, text := get(t, s, "/metrics")
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

func TestMetricsThatFail(t *testing.T) {
	reg := prometheus.NewRegistry()
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "same", Help: "Twice the same."}, func() float64 { return 1 }))
	both := prometheus.Gatherers{reg, reg}
	s, err := Start(Config{Addr: "127.0.0.1:0", Gatherer: both})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	if code, _, body := get(t, s, "/metrics"); code != 500 || !strings.Contains(body, "same") {
		t.Errorf("%d %s", code, body)
	}
}

func TestStatusIsJSON(t *testing.T) {
	s := start(t, func() any { return struct{ Epoch uint64 }{1 << 38} })
	_, _, body := get(t, s, "/status")
	var got struct{ Epoch uint64 }
	if err := json.Unmarshal([]byte(body), &got); err != nil || got.Epoch != 1<<38 || !strings.HasSuffix(body, "\n") {
		t.Errorf("%q: %v", body, err)
	}
}

func TestHeadersAreBounded(t *testing.T) {
	s := start(t, nil)
	code, _, _, err := do(t.Context(), s, http.MethodGet, "/healthz", http.Header{"X-Long": {strings.Repeat("x", 64<<10)}})
	if err == nil && code != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("64 KiB of headers: %d", code)
	}
}

func TestPortInUse(t *testing.T) {
	s := start(t, nil)
	for _, cfg := range []Config{{Addr: s.Addr()}, {Addr: "127.0.0.1:0", MetricsAddr: s.Addr()}} {
		cfg.Gatherer = prometheus.NewRegistry()
		other, err := Start(cfg)
		at := (*ListenError)(nil)
		if !errors.Is(err, syscall.EADDRINUSE) || !errors.As(err, &at) || at.Metrics != (cfg.MetricsAddr != "") {
			t.Errorf("got %v, %v", other, err)
		}
	}
}

func TestStop(t *testing.T) {
	s := start(t, nil)
	addr := s.Addr()
	s.Stop()
	s.Stop() // again: nothing happens
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
}

// A request that does not end holds a stop up for a second, and no longer.
func TestStopCutsOff(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan struct{})
	s := start(t, func() any {
		close(asked)
		<-answer
		return nil
	})
	failed := make(chan error, 1)
	go func() {
		_, _, _, err := do(context.Background(), s, http.MethodGet, "/status", nil)
		failed <- err
	}()
	<-asked
	stopped := make(chan struct{})
	go func() { s.Stop(); close(stopped) }()
	select {
	case <-stopped:
	case <-time.After(patience):
		t.Error("it does not stop")
	}
	if err := <-failed; err == nil {
		t.Error("the request was answered")
	}
	close(answer)
}

// pipes is a listener whose connections are made in memory.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error   { close(p); return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// A body that is announced and does not come holds a connection for a time.
func TestBodiesThatDoNotCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := newHTTP(http.NotFoundHandler()), make(pipes)
		go func() { _ = s.Serve(l) }()
		in, out := net.Pipe()
		l <- in
		began := time.Now()
		if _, err := io.WriteString(out, "POST /drain HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		_, _ = io.ReadAll(out)
		if took := time.Since(began); took > writeTimeout {
			t.Errorf("it is held for %s", took)
		}
		_ = s.Close()
	})
}
