package sim

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/keystead/keystead/ring/epoch"
)

// Gate stops the goroutines of a host that come to it while it is closed.
type Gate struct {
	mu     sync.Mutex
	rnd    *rand.Rand
	closed chan struct{} // closed when the gate opens; nil = it is open
}

func newGate(seed uint64) *Gate { return &Gate{rnd: rand.New(rand.NewPCG(seed, 0x67617465))} }

// Close pauses the host.
func (g *Gate) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed == nil {
		g.closed = make(chan struct{})
	}
}

// Open resumes it.
func (g *Gate) Open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed != nil {
		close(g.closed)
		g.closed = nil
	}
}

// Paused reports whether the gate is closed.
func (g *Gate) Paused() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed != nil
}

// Pass waits while the gate is closed, and reports whether it had to.
func (g *Gate) Pass() (waited bool) {
	for {
		g.mu.Lock()
		closed := g.closed
		g.mu.Unlock()
		if closed == nil {
			return waited
		}
		<-closed
		waited = true
	}
}

// coin is true half of the time.
func (g *Gate) coin() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.rnd.Uint64()&1 == 0
}

// Clock is the boot clock of a host. It runs a little fast or slow, and may be slewed.
type Clock struct {
	gate  *Gate
	began time.Time
	drift float64 // seconds gained in a second

	mu   sync.Mutex
	hard adjustment // guarded by mu: of the hardware, which nobody knows of
	slew adjustment // guarded by mu: by NTP
}

// adjustment is what a clock gains beside its drift.
type adjustment struct {
	rate   float64 // seconds in a second
	since  time.Time
	gained time.Duration // before
}

func (a *adjustment) by(now time.Time) time.Duration {
	if a.rate == 0 {
		return a.gained
	}
	return a.gained + time.Duration(a.rate*float64(now.Sub(a.since)))
}

func (a *adjustment) set(rate float64) {
	now := time.Now()
	a.gained, a.since, a.rate = a.by(now), now, rate
}

// Now implements clock.Clock. A reading during a pause was made before it or
// after it: who can tell.
func (c *Clock) Now() int64 {
	before := c.Shows()
	if c.gate.Pass() && c.gate.coin() {
		return before
	}
	return c.Shows()
}

// Shows returns the time by the clock, also while its host is paused.
func (c *Clock) Shows() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.steadyLocked() + int64(c.slew.by(time.Now()))
}

// Steady implements clock.Steady: what the hardware counts, which nobody slews.
func (c *Clock) Steady() int64 {
	before := c.steady()
	if c.gate.Pass() && c.gate.coin() {
		return before
	}
	return c.steady()
}

func (c *Clock) steady() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.steadyLocked()
}

func (c *Clock) steadyLocked() int64 {
	now := time.Now()
	d := now.Sub(c.began)
	return int64(time.Hour) + int64(d) + int64(float64(d)*c.drift) + int64(c.hard.by(now))
}

// Slew has the clock gain so many seconds in a second from now on, or lose them. What it
// shows is not changed. The steady reading does not follow.
func (c *Clock) Slew(rate float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.slew.set(rate)
}

// Run does the same to the hardware: all readings follow. At -1 they stand still.
func (c *Clock) Run(rate float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hard.set(rate)
}

// gatedLog stops what says something during a pause: raft does so before it
// changes its mind. Gossip is let pass: its loggers hold a mutex meanwhile, and a
// bubble's time stands still as long as somebody waits for one.
type gatedLog struct {
	slog.Handler
	gate *Gate
}

// Enabled implements slog.Handler.
func (h gatedLog) Enabled(ctx context.Context, l slog.Level) bool {
	h.gate.Pass()
	return h.Handler.Enabled(ctx, l)
}

// WithAttrs implements slog.Handler.
func (h gatedLog) WithAttrs(a []slog.Attr) slog.Handler {
	if slices.ContainsFunc(a, func(a slog.Attr) bool { return a.Key == "part" && a.Value.String() == "gossip" }) {
		return h.Handler.WithAttrs(a)
	}
	return gatedLog{h.Handler.WithAttrs(a), h.gate}
}

// WithGroup implements slog.Handler.
func (h gatedLog) WithGroup(name string) slog.Handler {
	return gatedLog{h.Handler.WithGroup(name), h.gate}
}

// gatedStorage is a disk that does nothing during a pause.
func gatedStorage(s *epoch.Storage, g *Gate) *epoch.Storage {
	c := *s
	c.Logs, c.Stable = gatedLogs{s.Logs, g}, gatedStable{s.Stable, g}
	return &c
}

type gatedLogs struct {
	raft.LogStore
	gate *Gate
}

func (l gatedLogs) StoreLog(e *raft.Log) error {
	l.gate.Pass()
	return l.LogStore.StoreLog(e)
}

func (l gatedLogs) StoreLogs(e []*raft.Log) error {
	l.gate.Pass()
	return l.LogStore.StoreLogs(e)
}

func (l gatedLogs) GetLog(i uint64, e *raft.Log) error {
	l.gate.Pass()
	return l.LogStore.GetLog(i, e)
}

type gatedStable struct {
	raft.StableStore
	gate *Gate
}

func (s gatedStable) Set(k, v []byte) error {
	s.gate.Pass()
	return s.StableStore.Set(k, v)
}

func (s gatedStable) SetUint64(k []byte, v uint64) error {
	s.gate.Pass()
	return s.StableStore.SetUint64(k, v)
}
