package member

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/serf/serf"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// self returns what a node says of itself in these tests.
func self(name string) Self {
	return Self{
		Node: name, Incarnation: 1, Cluster: "test", HashKey: "10.1.0.1:7400",
		GRPCAddr: "10.1.0.1:7400", RaftAddr: "10.1.0.1:7401", RaftID: "raft-" + name, Version: "1.0",
	}
}

// quick makes failure detection of real agents a matter of a second.
func quick(c *serf.Config) {
	m := c.MemberlistConfig
	m.ProbeInterval, m.ProbeTimeout, m.GossipInterval = 100*time.Millisecond, 50*time.Millisecond, 20*time.Millisecond
	m.SuspicionMaxTimeoutMult, m.AwarenessMaxMultiplier = 2, 2
	m.PushPullInterval = time.Second
	c.LeavePropagateDelay, c.ReconnectInterval = 50*time.Millisecond, 200*time.Millisecond
}

// onLoopback returns the configuration of a node with real sockets.
func onLoopback(t *testing.T, name string, join ...string) Config {
	return Config{
		Self: self(name), Bind: "127.0.0.1:0", Join: join, Profile: Local, Settle: 20 * time.Millisecond,
		Log: slog.New(slog.NewTextHandler(testLog{t}, &slog.HandlerOptions{Level: slog.LevelInfo})), tune: quick,
	}
}

// start starts a pool that is stopped with the test.
func start(t *testing.T, cfg Config) *Pool {
	t.Helper()
	p, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	return p
}

type testLog struct{ t *testing.T }

func (l testLog) Write(b []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

// shows prints the facts in one line: "a alive, b failed".
func shows(p *Pool) string {
	var s []string
	for _, f := range p.Facts() {
		s = append(s, f.Name+" "+f.State.String())
	}
	return strings.Join(s, ", ")
}

// fact returns what p says of a member, zero if nothing.
func fact(p *Pool, name string) Fact {
	for _, f := range p.Facts() {
		if f.Name == name {
			return f
		}
	}
	return Fact{}
}

// patience is how long a condition may take to come about, in real or simulated
// time.
const patience = 20 * time.Second

// await waits until ok, which is asked at each change.
func await(t *testing.T, p *Pool, what string, ok func() bool) {
	t.Helper()
	over := time.After(patience)
	for {
		changed := p.Changed()
		if ok() {
			return
		}
		select {
		case <-changed:
		case <-over:
			t.Fatalf("%s: %s still shows %s", what, p.cfg.Self.Node, shows(p))
		}
	}
}

// awaitShows waits until a pool shows this.
func awaitShows(t *testing.T, p *Pool, want string) {
	t.Helper()
	await(t, p, "want "+want, func() bool { return shows(p) == want })
}

// recorded collects log records of Info and above.
type recorded struct {
	mu    sync.Mutex // guards lines
	lines []string
}

func (r *recorded) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, strings.TrimSpace(string(b)))
	return len(b), nil
}

func (r *recorded) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(r, &slog.HandlerOptions{Level: slog.LevelInfo, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

// count returns how many lines hold the text.
func (r *recorded) count(text string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, l := range r.lines {
		if strings.Contains(l, text) {
			n++
		}
	}
	return n
}

func (r *recorded) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return fmt.Sprintf("%d lines:\n%s", len(r.lines), strings.Join(r.lines, "\n"))
}
