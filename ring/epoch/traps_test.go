package epoch

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keystead/keystead/internal/clock"
	"github.com/keystead/keystead/ring/epoch/table"
)

// TestTrap01ProofAsksTheVoters: that a node thinks that it leads proves nothing,
// nor does what voters said before.
func TestTrap01ProofAsksTheVoters(t *testing.T) {
	t.Parallel()
	lines := newNetwork()
	groups := form(t, newPool(), 3, func(c *Config) {
		if c.Node == "n1" {
			lines.use(c)
		}
	})
	g := groups[0]
	voters(t, 3, groups...)
	lead(t, g, groups...)
	var term uint64
	prove := func(term uint64) error {
		ctx, cancel := context.WithTimeout(t.Context(), leaderLease/2)
		defer cancel()
		return g.proof(ctx, term)
	}
	eventually(t, "a proof", func() bool { term = g.leads(); return term != 0 && prove(term) == nil })
	for _, s := range g.raft.GetConfiguration().Configuration().Servers {
		if s.ID == g.self {
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if !g.askVoter(ctx, s, term) || g.askVoter(ctx, s, term+1) || g.askVoter(ctx, s, term-1) {
			t.Errorf("%s does not tell its term", s.ID)
		}
		cancel()
	}
	if prove(term+1) == nil || prove(term-1) == nil {
		t.Error("proved another term")
	}
	lines.stall(true, true)
	if err := prove(term); err == nil {
		t.Error("proved without the others")
	}
	lines.flow()
}

// TestTrap05LeaderPaused: the leader's own lease runs out like any other, before
// the others take what it had.
func TestTrap05LeaderPaused(t *testing.T) {
	t.Parallel()
	lines := newNetwork()
	groups := form(t, newPool(), 3, func(c *Config) {
		if c.Node == "n1" {
			lines.use(c)
		}
	})
	voters(t, 3, groups...)
	cutOff(t, groups[0], groups[1], lines, true, true)
	for _, g := range groups {
		until(t, g, "all again", stableWith(3))
	}
}

// cutOff stalls a node until another has seen it removed, and lets it come back.
// It checks that the lease was over by then, by one clock for both.
func cutOff(t *testing.T, g, other *Group, lines *network, in, out bool) {
	t.Helper()
	was := g.Self()
	eventually(t, "a lease", func() bool { return g.LeaseLeft() > 0 })
	lines.stall(in, out)
	until(t, other, "removed", without(was))
	if now := other.cfg.Clock.Now(); g.Rule().Until() > now {
		t.Errorf("removed with %s of its lease left", time.Duration(g.Rule().Until()-now))
	}
	if g.LeaseLeft() > 0 {
		t.Errorf("it holds a lease of %s", g.LeaseLeft())
	}
	lines.flow()
	eventually(t, "another incarnation", func() bool { return g.Self() != was })
	if now := g.Self(); now.Node != was.Node || now.Incarnation <= was.Incarnation {
		t.Errorf("%v came back as %v", was, now)
	}
	eventually(t, "a lease again", func() bool { return g.LeaseLeft() > 0 })
}

// TestTrap07OneWayLoss: whichever way is lost, the node is removed once its lease
// is over, and comes back as another incarnation.
func TestTrap07OneWayLoss(t *testing.T) {
	t.Parallel()
	for _, way := range []struct {
		name    string
		in, out bool
	}{{"nothing arrives", true, false}, {"nothing leaves", false, true}} {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			lines := newNetwork()
			groups := form(t, newPool(), 2, func(c *Config) {
				if c.Node == "n2" {
					lines.use(c)
				}
			})
			cutOff(t, groups[1], groups[0], lines, way.in, way.out)
			for _, g := range groups {
				until(t, g, "both again", stableWith(2))
			}
		})
	}
}

// jumping is a clock that can be set on, as a sleep does.
type jumping struct {
	clock.Clock
	by atomic.Int64
}

func (j *jumping) Now() int64      { return j.Clock.Now() + j.by.Load() }
func (j *jumping) Wall() time.Time { return time.Now().Add(time.Duration(j.by.Load())) }

// TestTrap06LeaderSlept: whatever a leader looks at first when it wakes up, it
// removes nobody for what it slept through.
func TestTrap06LeaderSlept(t *testing.T) {
	t.Parallel()
	leader := &jumping{Clock: clock.System()}
	groups := form(t, newPool(), 2, func(c *Config) {
		if c.Node == "n1" {
			c.Clock, c.Wall = leader, leader.Wall
		}
	})
	for range 10 {
		for _, g := range groups {
			eventually(t, "a lease", func() bool { return g.LeaseLeft() > 0 })
		}
		a, b := groups[0].Self(), groups[1].Self()
		leader.by.Add(int64(5 * groups[0].cfg.TTL))
		looked := make(chan struct{})
		if err := groups[0].post(t.Context(), func(k *keeper) { k.plan(); close(looked) }); err != nil {
			t.Fatal(err)
		}
		<-looked
		eventually(t, "no proposal under way", func() bool { return idle(t, groups[0]) })
		if tab := groups[0].Table(); !tab.Holds(a) || !tab.Holds(b) {
			t.Fatalf("the leader slept, and removed the living: %+v", tab.Members)
		}
	}
}

// idle reports whether the leader has no command under way.
func idle(t *testing.T, g *Group) bool {
	is := make(chan bool, 1)
	if err := g.post(t.Context(), func(k *keeper) { is <- !k.proposing }); err != nil {
		t.Fatal(err)
	}
	return <-is
}

// TestWallJumps: a node whose clocks part gives its lease up, and gets another.
func TestWallJumps(t *testing.T) {
	t.Parallel()
	lines, wall := newNetwork(), &jumping{Clock: clock.System()}
	const ttl = 30 * time.Second
	groups := form(t, newPool(), 2, func(c *Config) {
		c.TTL = ttl
		if c.Node == "n2" {
			lines.use(c)
			c.Wall = wall.Wall
		}
	})
	g := groups[1]
	for _, by := range []time.Duration{ttl, -ttl} {
		eventually(t, "a lease", func() bool { return g.LeaseLeft() > 0 })
		lines.stall(true, true)
		wall.by.Add(int64(by))
		began := time.Now()
		eventually(t, "no lease", func() bool { return g.LeaseLeft() == 0 })
		if took := time.Since(began); took > ttl/3 {
			t.Errorf("it took %s to notice", took)
		}
		lines.flow()
	}
	eventually(t, "a lease again", func() bool { return g.LeaseLeft() > 0 })
}

// TestTrap26WipedDisk: a node that has lost its disk is another server at an old
// address. Nobody takes it for the old one, and it makes no cluster.
func TestTrap26WipedDisk(t *testing.T) {
	t.Parallel()
	p := newPool()
	groups := form(t, p, 3, nil)
	voters(t, 3, groups...)
	old, addr := groups[2].self, groups[2].cfg.RaftAddr
	groups[2].Kill()
	p.dead("n3")
	again := join(t, p, "n3", func(c *Config) {
		_ = c.Listener.Close()
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		c.Listener, c.RaftAddr = l, addr
	})
	flips(t, again)
	if again.self == old {
		t.Fatal("it is the same server")
	}
	for _, kind := range []byte{kindRaft, kindLease} {
		conn, err := groups[0].wire.connect(t.Context(), kind, string(joinAddr(old, addr)))
		if err == nil || !strings.Contains(err.Error(), "this is "+string(again.self)) {
			t.Errorf("it answers for the old one (%c): %v", kind, err)
		}
		if conn != nil {
			_ = conn.Close()
		}
	}
	until(t, again, "all again", stableWith(3))
	eventually(t, "the old server is out, the new one votes", func() bool {
		is := false
		for _, s := range groups[0].raft.GetConfiguration().Configuration().Servers {
			if s.ID == old {
				return false
			}
			is = is || s.ID == again.self
		}
		v, _ := groups[0].Servers()
		return is && len(v) == 3
	})
	if again.Table().UID != groups[0].Table().UID {
		t.Error("it is in another cluster")
	}
}

// TestTrap28EpochFloor: a cluster that is built anew begins above all that the
// old one reached.
func TestTrap28EpochFloor(t *testing.T) {
	t.Parallel()
	built := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	const commits = 120
	if old, anew := WallEpoch(built)+commits, WallEpoch(built.Add(time.Minute)); anew <= old {
		t.Errorf("%d commits reach epoch %d, and a minute later it begins at %d", commits, old, anew)
	}
	if got := WallEpoch(wallBase.Add(time.Second)); got != EpochsPerSecond {
		t.Errorf("a second has %d epochs", got)
	}
	if got := WallEpoch(time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC)); got != 0 {
		t.Errorf("a clock that is not set begins at %d", got)
	}
	if far := WallEpoch(wallBase.AddDate(60, 0, 0)); far >= 1<<39 {
		t.Errorf("in 60 years the epoch, %d, does not fit a token", far)
	}
	const floor = 1 << 38
	g := form(t, newPool(), 1, func(c *Config) { c.EpochFloor = floor })[0]
	if e := g.Table().Epoch; e < floor {
		t.Errorf("it begins at %d, below its floor", e)
	}
}

// TestIncarnations: later processes have greater ones.
func TestIncarnations(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	a, b := NewIncarnation(now), NewIncarnation(now.Add(time.Millisecond))
	if a == 0 || a >= b || b >= 1<<63 {
		t.Errorf("%d, then %d", a, b)
	}
}

// TestTrap27RestartWithItsLog: the same server, another process, which owns
// nothing until it is admitted.
func TestTrap27RestartWithItsLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	start := func(p *pool) *Group {
		return join(t, p, "n1", func(c *Config) {
			s, err := OpenStorage(dir)
			if err != nil {
				t.Fatal(err)
			}
			c.Storage = s
		})
	}
	first := start(newPool())
	was := until(t, first, "made", stableWith(1))
	eventually(t, "it acts", func() bool { return acts(first, 1) })
	first.Kill()
	for i := range 2 {
		g := start(newPool()) // told to make the cluster, again
		if g.self != first.self || g.Self() == first.Self() {
			t.Errorf("server %s is %s, process %v is %v", first.self, g.self, first.Self(), g.Self())
		}
		// The old process's rows are in the log that it reads.
		is := until(t, g, "admitted", func(t *table.Table) bool { return t.Holds(g.Self()) && stableWith(1)(t) })
		if is.UID != was.UID || is.Epoch <= was.Epoch {
			t.Errorf("cluster %s at epoch %d was %s at %d", is.UID, is.Epoch, was.UID, was.Epoch)
		}
		for _, r := range is.Rows {
			if r.Owner != g.Self() || i == 0 && r.Lost == 0 {
				t.Fatalf("after a restart: %+v", r)
			}
		}
		eventually(t, "it acts", func() bool { return acts(g, 1) })
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		g.Stop(ctx)
		cancel()
		was = is
	}
	refusesToStart(t, dir)
}

// refusesToStart gives a data directory to others.
func refusesToStart(t *testing.T, dir string) {
	t.Helper()
	for _, c := range []struct{ cluster, node, want string }{
		{"test", "n2", `belongs to the node "n1"`},
		{"other", "n1", `belongs to the cluster "test"`},
	} {
		s, err := OpenStorage(dir)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Identity(c.cluster, c.node); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s of %s: %v", c.node, c.cluster, err)
		}
		if empty, err := s.Empty(); empty || err != nil {
			t.Errorf("empty: %v, %v", empty, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestIdentity: it is drawn once, and says whose it is.
func TestIdentity(t *testing.T) {
	t.Parallel()
	for _, node := range []string{"n1", "rack/7", "a@b"} {
		s := MemoryStorage()
		id, err := s.Identity("c", node)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := s.Identity("c", node); again != id || err != nil {
			t.Errorf("%s was %s and is %s, %v", node, id, again, err)
		}
		if nodeOf(id) != node {
			t.Errorf("%s is of the node %q, not %q", id, nodeOf(id), node)
		}
		if got, addr, ok := splitAddr(string(joinAddr(id, "[::1]:7410"))); got != string(id) || addr != "[::1]:7410" || !ok {
			t.Errorf("%s is split as %q, %q", id, got, addr)
		}
		if other, _ := MemoryStorage().Identity("c", node); other == id {
			t.Error("two servers have one identity")
		}
	}
}

// TestConfigRefuses tells what a group does not start with.
func TestConfigRefuses(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Config){
		"no cluster":     func(c *Config) { c.Cluster = "" },
		"no node":        func(c *Config) { c.Node = strings.Repeat("n", maxName+1) },
		"no incarnation": func(c *Config) { c.Incarnation = 0 },
		"a short lease":  func(c *Config) { c.TTL = minTTL - 1 },
		"a long lease":   func(c *Config) { c.TTL = maxTTL + 1 },
		"a wide margin":  func(c *Config) { c.Margin = c.TTL },
		"no storage":     func(c *Config) { c.Storage = nil },
	} {
		var cfg Config
		base := join(t, newPool(), "n1", func(c *Config) { cfg = *c })
		base.Kill()
		change(&cfg)
		if g, err := Start(cfg); err == nil {
			g.Kill()
			t.Errorf("%s: it starts", name)
		} else if fmt.Sprint(err) == "" {
			t.Errorf("%s: it does not say why", name)
		}
	}
}
