package drain

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/keystead/keystead/ring/epoch/table"
)

// council is a Group whose commands take effect at once: a table without raft.
type council struct {
	t       *testing.T
	mu      sync.Mutex
	table   *table.Table
	changed chan struct{}
	leader  string
	self    table.Holder
	propose func(c table.Command) (uint64, error) // nil = apply
	asked   []table.Command
}

func (g *council) Self() table.Holder { return g.self }

func (g *council) Leader() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.leader
}

func (g *council) Table() *table.Table {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.table
}

func (g *council) Servers() (voters, nonvoters []string) {
	for _, m := range g.Table().Members {
		voters = append(voters, m.Node)
	}
	return voters, nil
}

func (g *council) Await(ctx context.Context, after uint64) (*table.Table, error) {
	for {
		g.mu.Lock()
		t, changed := g.table, g.changed
		g.mu.Unlock()
		if t.Epoch > after {
			return t, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (g *council) Propose(_ context.Context, c table.Command) (uint64, error) {
	g.mu.Lock()
	g.asked = append(g.asked, c)
	propose := g.propose
	g.mu.Unlock()
	if propose != nil {
		return propose(c)
	}
	return g.apply(c)
}

func (g *council) apply(c table.Command) (uint64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	next, err := g.table.Apply(c)
	if err != nil {
		return 0, err
	}
	g.table = next
	close(g.changed)
	g.changed = make(chan struct{})
	return next.Epoch, nil
}

// must applies commands that have to take effect.
func (g *council) must(commands ...table.Command) {
	g.t.Helper()
	for _, c := range commands {
		if _, err := g.apply(c); err != nil {
			g.t.Fatal(c.Kind(), err)
		}
	}
}

// leave returns the command that drains a node.
func leave(i int) table.Command {
	return table.Command{Drain: &table.Drain{Member: nth(i)}}
}

func nth(i int) table.Holder { return table.Holder{Node: fmt.Sprint("n", i), Incarnation: 1} }

// drains is the Drainer of n1, with its cluster and its log.
type drains struct {
	*Drainer
	g     *council
	log   *bytes.Buffer
	ready error
	sent  atomic.Int64
}

// newDrains makes the cluster of n1 to nk, of a level that all know and, if it is
// above 1, have committed.
func newDrains(t *testing.T, k int, level, committed uint32) *drains {
	t.Helper()
	d := &drains{log: &bytes.Buffer{}}
	d.g = &council{t: t, table: &table.Table{}, changed: make(chan struct{}), leader: "n1", self: nth(1)}
	d.g.must(table.Command{Init: &table.Init{Cluster: "c", Epoch: 1}})
	var all []table.Holder
	for i := 1; i <= k; i++ {
		d.g.must(table.Command{Admit: &table.Admit{Member: table.Member{Node: nth(i).Node, Incarnation: 1, HashKey: fmt.Sprint("k", i), Level: level}}})
		all = append(all, nth(i))
	}
	d.g.must(table.Command{Begin: &table.Begin{Want: all}})
	d.g.must(table.Command{End: &table.End{Transition: d.g.table.Epoch}})
	if committed > 1 {
		d.g.must(table.Command{Adopt: &table.Adopt{Level: committed}})
	}
	n := 0
	d.Drainer = New(Config{
		Node: "n1", Group: d.g, NewID: func() string { n++; return fmt.Sprint("id", n) }, Ready: func() error { return d.ready },
		Sent: func() int64 { return d.sent.Load() }, Keeps: true, Log: slog.New(slog.NewTextHandler(d.log, nil)),
	})
	return d
}

// says checks that the log has a line.
func (d *drains) says(want string) {
	d.g.t.Helper()
	if !strings.Contains(d.log.String(), want) {
		d.g.t.Errorf("the log does not say %q:\n%s", want, d.log)
	}
}
