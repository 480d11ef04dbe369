package node

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/owner"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

func TestMain(m *testing.M) {
	flag.Parse()
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f.Name == "test.parallel" })
	if !said && runtime.GOMAXPROCS(0) < testsAtOnce {
		_ = flag.Set("test.parallel", strconv.Itoa(testsAtOnce)) // it is a number
	}
	// A probe of memberlist that is under way when it stops ends by itself, a second later.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).probeNode"))
}

// patience is how long a test waits for what has to come.
const patience = 20 * time.Second

func eventually(t *testing.T, what string, cond func() bool) {
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

// start starts a node on free ports and stops it with the test.
func start(t *testing.T, change func(*Config)) *Node {
	t.Helper()
	cfg := Config{ID: "n1", GRPCAddr: "127.0.0.1:0", AdminAddr: "127.0.0.1:0"}
	if change != nil {
		change(&cfg)
	}
	n, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Stop)
	return n
}

func dial(t *testing.T, n *Node) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+n.GRPCAddr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// get fetches a page of the admin server.
func get(t *testing.T, n *Node, path string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(bounded(t), http.MethodGet, "http://"+n.AdminAddr()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestStartAndStop(t *testing.T) {
	var log bytes.Buffer
	n := start(t, func(c *Config) { c.Log, c.Version = slog.New(slog.NewTextHandler(&log, nil)), "v1.2.3" })
	if !strings.Contains(log.String(), "msg=serving id=n1 grpc="+n.GRPCAddr()+" http=\"\" admin="+n.AdminAddr()+" epoch=") {
		t.Errorf("it logs %q", log.String())
	}
	conn := dial(t, n)
	r, err := counterpb.NewCounterServiceClient(conn).Add(bounded(t), &counterpb.AddRequest{Key: "k", Delta: 2})
	if err != nil || r.Value != 2 || r.Epoch != n.Status().Epoch {
		t.Errorf("add: %v, %v", r, err)
	}
	h, err := healthpb.NewHealthClient(conn).Check(bounded(t), &healthpb.HealthCheckRequest{})
	if err != nil || h.Status != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health: %v, %v", h, err)
	}
	for path, want := range map[string]string{"/readyz": "ready\n", "/healthz": "ok\n"} {
		if code, body := get(t, n, path); code != 200 || body != want {
			t.Errorf("%s: %d %q", path, code, body)
		}
	}
	_ = conn.Close()
	grpcAddr, adminAddr := n.GRPCAddr(), n.AdminAddr()
	n.Stop()
	n.Stop() // again: nothing happens
	for _, addr := range []string{grpcAddr, adminAddr} {
		free(t, addr)
	}
	if err := <-n.Failed(); err != nil {
		t.Errorf("a stop counts as a failure: %v", err)
	}
}

// free checks that nobody listens on an address.
func free(t *testing.T, addr string) {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Errorf("%s is still in use: %v", addr, err)
		return
	}
	_ = l.Close()
}

func TestStatus(t *testing.T) {
	n := start(t, func(c *Config) { c.Version = "v1.2.3" })
	ctx := bounded(t)
	conn := dial(t, n)
	if _, err := counterpb.NewCounterServiceClient(conn).Add(ctx, &counterpb.AddRequest{Key: "k", Delta: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := limitpb.NewLimitServiceClient(conn).Check(ctx, &limitpb.CheckRequest{Key: "k", Limit: 1, PeriodNs: 3600e9}); err != nil {
		t.Fatal(err)
	}
	code, body := get(t, n, "/status")
	var got Status
	d := json.NewDecoder(strings.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&got); err != nil || code != 200 {
		t.Fatalf("%d %s: %v", code, body, err)
	}
	if got.ID != "n1" || got.Version != "v1.2.3" || got.GRPCAddr != n.GRPCAddr() || got.AdminAddr != n.AdminAddr() || got.Epoch == 0 {
		t.Errorf("status: %+v", got)
	}
	if got.Objects["counter"] != 1 || got.Objects["limit"] != 1 || got.Objects["lock"] != 0 || got.Bytes <= 0 || got.UptimeSeconds <= 0 {
		t.Errorf("status: %+v", got)
	}
}

func TestMetrics(t *testing.T) {
	n := start(t, nil)
	if _, err := counterpb.NewCounterServiceClient(dial(t, n)).Add(bounded(t), &counterpb.AddRequest{Key: "k", Delta: 1}); err != nil {
		t.Fatal(err)
	}
	code, text := get(t, n, "/metrics")
	if code != 200 {
		t.Fatalf("%d %s", code, text)
	}
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for _, want := range []string{
		"\nkeystead_objects{kind=\"counter\"} 1\n", "\nkeystead_objects{kind=\"lock\"} 0\n", "\nkeystead_lock_waiters 0\n", "\nkeystead_epoch ",
		"\nkeystead_operations_total{op=\"add\",outcome=\"applied\"} 1\n", "\nkeystead_store_bytes ", "\ngo_goroutines ", "\nprocess_open_fds ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not there", want)
		}
	}
}

// The node's timers forget what is over and grant locks without being asked.
func TestTimers(t *testing.T) {
	n := start(t, nil)
	ctx, conn := bounded(t), dial(t, n)
	if _, err := counterpb.NewCounterServiceClient(conn).Add(ctx, &counterpb.AddRequest{Key: "idle", Delta: 1, IdleTtlNs: 1e6}); err != nil {
		t.Fatal(err)
	}
	locks := lockpb.NewLockServiceClient(conn)
	first, err := locks.Acquire(ctx, &lockpb.AcquireRequest{Key: "k", Holder: "first", TtlNs: 50e6})
	if err != nil || !first.Acquired {
		t.Fatalf("%v, %v", first, err)
	}
	second, err := locks.Acquire(ctx, &lockpb.AcquireRequest{Key: "k", Holder: "second", TtlNs: 60e9, WaitNs: 60e9})
	if err != nil || !second.Acquired || second.Token <= first.Token || n.Status().LapsedLocks != 1 {
		t.Errorf("%v, %v, %+v", second, err, n.Status())
	}
	third, err := locks.Acquire(ctx, &lockpb.AcquireRequest{Key: "k", Holder: "third", TtlNs: 60e9, WaitNs: 20e6})
	if err != nil || third.Acquired || third.Holder.Id != "second" {
		t.Errorf("a wait that ends: %v, %v", third, err)
	}
	eventually(t, "the idle counter is forgotten", func() bool {
		st := n.Status()
		return st.Objects["counter"] == 0 && st.Expired["counter"] == 1
	})
}

// A stop sends away those that wait, long before the grace period ends.
func TestStopSendsWaitersAway(t *testing.T) {
	n := start(t, func(c *Config) { c.StopGrace = time.Hour })
	ctx := bounded(t)
	locks := lockpb.NewLockServiceClient(dial(t, n))
	if _, err := locks.Acquire(ctx, &lockpb.AcquireRequest{Key: "k", Holder: "first", TtlNs: 3600e9}); err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() {
		_, err := locks.Acquire(ctx, &lockpb.AcquireRequest{Key: "k", Holder: "second", TtlNs: 3600e9, WaitNs: 3600e9})
		waited <- err
	}()
	eventually(t, "one waits", func() bool { return n.Status().Waiting == 1 })
	stopped := make(chan struct{})
	go func() { n.Stop(); close(stopped) }()
	if err := <-waited; status.Code(err) != codes.Unavailable {
		t.Errorf("the waiter got %v", err)
	}
	select {
	case <-stopped:
	case <-time.After(patience):
		t.Error("it does not stop")
	}
}

// A call that does not end holds a stop up for the grace period, and no longer.
func TestStopCutsOff(t *testing.T) {
	n := start(t, func(c *Config) { c.StopGrace = 100 * time.Millisecond })
	s, err := limitpb.NewLimitServiceClient(dial(t, n)).StreamCheck(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	check := &limitpb.StreamCheckRequest{Tag: 7, Checks: []*limitpb.CheckRequest{{Key: "k", Limit: 1, PeriodNs: 1e9}}}
	if err := s.Send(check); err != nil {
		t.Fatal(err)
	}
	if r, err := s.Recv(); err != nil || r.Tag != 7 {
		t.Fatalf("%v, %v", r, err)
	}
	began := time.Now()
	n.Stop()
	if took := time.Since(began); took > patience {
		t.Errorf("it took %s", took)
	}
	if _, err := s.Recv(); err == nil {
		t.Error("the stream goes on")
	}
}

// While a stop waits for a call, the node says that it takes no more.
func TestNotReadyWhileStopping(t *testing.T) {
	n := start(t, func(c *Config) { c.StopGrace = time.Hour })
	s, err := limitpb.NewLimitServiceClient(dial(t, n)).StreamCheck(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	// Two answers that nobody reads are more than may be under way: the node is
	// busy with the second one until somebody does.
	req := &limitpb.StreamCheckRequest{Checks: make([]*limitpb.CheckRequest, 10_000)}
	for i := range req.Checks {
		req.Checks[i] = &limitpb.CheckRequest{Key: "k", Limit: 1, PeriodNs: int64(time.Hour)}
	}
	for range 2 {
		if err := s.Send(req); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "both messages are decided", func() bool {
		_, text := get(t, n, "/metrics")
		return strings.Contains(text, `keystead_operations_total{op="check",outcome="denied"} 19999`)
	})
	stopped := make(chan struct{})
	go func() { n.Stop(); close(stopped) }()
	eventually(t, "it is not ready", func() bool {
		code, _ := get(t, n, "/readyz")
		return code == http.StatusServiceUnavailable
	})
	if code, _ := get(t, n, "/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: %d", code)
	}
	for range 2 {
		if r, err := s.Recv(); err != nil || len(r.Results) != 10_000 {
			t.Errorf("an answer of before the stop: %d results, %v", len(r.GetResults()), err)
		}
	}
	select {
	case <-stopped:
	case <-time.After(patience):
		t.Error("it does not stop when the answers are read")
	}
}

func TestFailed(t *testing.T) {
	n := start(t, nil)
	_ = n.grpc.Close() // as if the system took the socket away
	select {
	case err := <-n.Failed():
		if err == nil {
			t.Error("it stopped serving without an error")
		}
	case <-time.After(patience):
		t.Error("nobody is told")
	}
}

func TestRestarts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "for", "it")
	last, lastToken := uint64(0), uint64(0)
	for i := range 3 {
		n := start(t, func(c *Config) { c.DataDir, c.AdminAddr = dir, "" })
		r, err := lockpb.NewLockServiceClient(dial(t, n)).Acquire(bounded(t), &lockpb.AcquireRequest{Key: "k" + strconv.Itoa(i), Holder: "h", TtlNs: 1e9})
		if err != nil {
			t.Fatal(err)
		}
		epoch := n.Status().Epoch
		if epoch <= last || r.Token <= lastToken || r.Token>>owner.SeqBits != epoch || kept(t, dir) != epoch {
			t.Errorf("epoch %d after %d, token %d after %d, kept %d", epoch, last, r.Token, lastToken, kept(t, dir))
		}
		last, lastToken = epoch, r.Token
		if n.AdminAddr() != "" {
			t.Errorf("an admin server on %s", n.AdminAddr())
		}
		n.Stop()
	}
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the data directory: %v, %v", info.Mode(), err)
	}
	n := start(t, func(c *Config) { c.DataDir, c.EpochFloor = dir, last+1_000_000 })
	if got := n.Status().Epoch; got != last+1_000_000 {
		t.Errorf("epoch %d with a floor of %d", got, last+1_000_000)
	}
}

func TestDataDirHasOneUser(t *testing.T) {
	dir := t.TempDir()
	change := func(c *Config) { c.DataDir = dir }
	first := start(t, change)
	_, err := Start(Config{ID: "n2", GRPCAddr: "127.0.0.1:0", DataDir: dir})
	if err == nil || !strings.Contains(err.Error(), "data directory "+dir+" is in use by another keystead process") || !strings.Contains(err.Error(), "--data-dir") {
		t.Errorf("got %v", err)
	}
	if got := kept(t, dir); got != first.Status().Epoch {
		t.Errorf("the second start changed the epoch to %d", got)
	}
	first.Stop()
	start(t, change)
}

// A start that fails says why, and leaves nothing behind: no goroutine, which
// TestMain looks for, no port, and no lock on the data directory.
func TestStartFails(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	reserve, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	open := reserve.Addr().String()
	_ = reserve.Close()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name   string
		change func(*Config)
		says   []string
	}{
		{"no id", func(c *Config) { c.ID = "" }, []string{`node id ""`, "1 to 64 letters"}},
		{"a bad id", func(c *Config) { c.ID = "a/b" }, []string{`node id "a/b"`}},
		{"a long id", func(c *Config) { c.ID = strings.Repeat("x", 65) }, []string{"1 to 64 letters"}},
		{"a negative grace period", func(c *Config) { c.StopGrace = -1 }, []string{"stop grace", "0 or more"}},
		{"negative connections", func(c *Config) { c.MaxConns = -1 }, []string{"-1 connections"}},
		{"a floor too high", func(c *Config) { c.EpochFloor = owner.MaxEpoch + 1 }, []string{"epoch floor", "549755813887"}},
		{"a bad store", func(c *Config) { c.Store.MaxBytes = 5 }, []string{"MaxBytes", "at least 1 MiB"}},
		{"no directory", func(c *Config) { c.DataDir = filepath.Join(file, "below") }, []string{"making the data directory", file}},
		{"a port in use", func(c *Config) { c.GRPCAddr = taken.Addr().String() },
			[]string{"listening for gRPC", taken.Addr().String(), syscall.EADDRINUSE.Error(), "--grpc-addr"}},
		{"the admin port in use", func(c *Config) { c.GRPCAddr, c.AdminAddr = open, taken.Addr().String() },
			[]string{"listening for operators", taken.Addr().String(), syscall.EADDRINUSE.Error(), "--admin-addr"}},
		{"no port", func(c *Config) { c.GRPCAddr = "127.0.0.1" }, []string{"listening for gRPC", "missing port", "--grpc-addr"}},
		{"a torn epoch", func(c *Config) {
			c.DataDir = t.TempDir()
			keep(t, c.DataDir, "{")
		}, []string{"epoch.json does not hold an epoch"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := Config{ID: "n1", GRPCAddr: "127.0.0.1:0", AdminAddr: "127.0.0.1:0", DataDir: t.TempDir()}
			tc.change(&cfg)
			n, err := Start(cfg)
			if err == nil {
				n.Stop()
				t.Fatal("it started")
			}
			for _, want := range tc.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in %q", want, err)
				}
			}
			free(t, open)
			if release, err := lockDir(cfg.DataDir); err == nil {
				_ = release()
			} else if tc.name != "no directory" {
				t.Errorf("the data directory is still locked: %v", err)
			}
		})
	}
}
