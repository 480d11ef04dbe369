package epoch

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/keystead/keystead/internal/clock"
	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// patience bounds waits that end long before when all is well.
const patience = time.Minute

func TestMain(m *testing.M) {
	flag.Parse()
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f.Name == "test.parallel" })
	if !said {
		_ = flag.Set("test.parallel", strconv.Itoa(testsAtOnce)) // it is a number
	}
	goleak.VerifyTestMain(m)
}

// pool stands for gossip: a list of who is there.
type pool struct {
	mu    sync.Mutex
	peers map[string]Peer // guarded by mu; by node
}

func (p *pool) set(peer Peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.peers[peer.Node] = peer
}

// dead says that gossip has seen a node die.
func (p *pool) dead(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.peers[node]
	q.Alive = false
	p.peers[node] = q
}

func newPool() *pool { return &pool{peers: map[string]Peer{}} }

func (p *pool) list() []Peer {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []Peer
	for _, n := range []string{"n1", "n2", "n3", "n4", "n5", "n6"} {
		if q, ok := p.peers[n]; ok {
			out = append(out, q)
		}
	}
	return out
}

func testLog(t *testing.T) *slog.Logger {
	if os.Getenv("KEYSTEAD_TEST_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// join starts a group on loopback.
func join(t *testing.T, p *pool, node string, change func(*Config)) *Group {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		Cluster: "test", Node: node, Incarnation: NewIncarnation(time.Now()), HashKey: node, GRPCAddr: "127.0.0.1:1", RaftAddr: l.Addr().String(),
		Storage: MemoryStorage(), Listener: l, Peers: p.list, Bootstrap: node == "n1",
		Dial: func(ctx context.Context, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		},
		Discard: func([]serving.Range) {}, TTL: time.Second, Settle: 50 * time.Millisecond, Patience: time.Millisecond, Clock: clock.System(), Log: testLog(t).With("node", node),
	}
	if change != nil {
		change(&cfg)
	}
	g, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.set(Peer{Node: node, RaftID: g.RaftID(), RaftAddr: cfg.RaftAddr, Level: 1, Alive: true})
	t.Cleanup(g.Kill)
	return g
}

// until waits for a table that satisfies.
func until(t *testing.T, g *Group, what string, ok func(*table.Table) bool) *table.Table {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for after := uint64(0); ; {
		tab, err := g.Await(ctx, after)
		if err != nil {
			t.Fatalf("%s: %v; the table of epoch %d has members %+v, transition %+v, %d rows to move", what, err, g.Table().Epoch, g.Table().Members, g.Table().Transition, len(g.Table().Moves()))
		}
		if ok(tab) {
			return tab
		}
		after = tab.Epoch
	}
}

// flips does what a source has to do, as long as the test runs.
func flips(t *testing.T, g *Group) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for after := uint64(0); ctx.Err() == nil; {
			try, stop := context.WithTimeout(ctx, 200*time.Millisecond) // what was not proposed is proposed again
			if tab, err := g.Await(try, after); err == nil {
				after = tab.Epoch
			}
			stop()
			flipAll(ctx, g)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
}

func flipAll(ctx context.Context, g *Group) {
	tab, self := g.Table(), g.Self()
	if tab.Transition == nil {
		return
	}
	byTarget := map[table.Holder][]uint64{}
	for _, m := range tab.Moves() {
		if m.From == self {
			byTarget[m.To] = append(byTarget[m.To], m.End)
		}
	}
	for to, ends := range byTarget {
		if ends = g.Rule().Freeze(tab.Transition.ID, to, ends); len(ends) > 0 {
			g.Rule().Close(to)
			_, _ = g.Propose(ctx, table.Command{Flip: &table.Flip{Transition: tab.Transition.ID, WantSince: tab.WantSince, From: self, To: to, Ends: ends, Kept: tab.Durable != table.Undurable}})
		}
	}
}

// form starts nodes n1 to n<n> and waits until they share the ring.
func form(t *testing.T, p *pool, n int, change func(*Config)) []*Group {
	t.Helper()
	var groups []*Group
	for i := range n {
		g := join(t, p, fmt.Sprintf("n%d", i+1), change)
		flips(t, g)
		groups = append(groups, g)
	}
	for _, g := range groups {
		until(t, g, "all are members", stableWith(n))
	}
	return groups
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for over := time.After(patience); !ok(); {
		select {
		case <-tick.C:
		case <-over:
			t.Fatalf("%s: not after %s", what, patience)
		}
	}
}

// voters waits until so many vote, in the eyes of each of the nodes. While the
// leader alone knows of a voter, its death leaves the others without a majority.
func voters(t *testing.T, n int, groups ...*Group) {
	t.Helper()
	for _, g := range groups {
		eventually(t, fmt.Sprintf("%d voters", n), func() bool {
			v, _ := g.Servers()
			return len(v) == n
		})
	}
}

// acts reports whether a node may act for a position, as far as it knows.
func acts(g *Group, h uint64) bool {
	_, _, v := g.Rule().May(h, g.cfg.Clock.Now())
	return v == serving.Yes
}

// without is a table in which an incarnation is not named.
func without(h table.Holder) func(*table.Table) bool {
	return func(t *table.Table) bool { return !t.Holds(h) }
}

func stableWith(n int) func(*table.Table) bool {
	return func(t *table.Table) bool {
		active := 0
		for _, m := range t.Members {
			if m.Phase == table.Active {
				active++
			}
		}
		return t.Transition == nil && active == n && len(t.Members) == n && len(t.Moves()) == 0
	}
}
