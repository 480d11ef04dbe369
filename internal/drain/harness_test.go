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

	"github.com/keystead/keystead/internal/tests/agreed"
	"github.com/keystead/keystead/ring/epoch/table"
)

// council is a Group whose commands take effect at once.
type council struct {
	*agreed.Cluster
	t    *testing.T
	self table.Holder

	mu      sync.Mutex // guards what follows
	leader  string
	propose func(c table.Command) (uint64, error) // nil = Apply
	asked   []table.Command
}

func (g *council) Self() table.Holder { return g.self }

func (g *council) Leader() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.leader
}

func (g *council) Servers() (voters, nonvoters []string) {
	for _, m := range g.Table().Members {
		voters = append(voters, m.Node)
	}
	return voters, nil
}

func (g *council) Propose(_ context.Context, c table.Command) (uint64, error) {
	g.mu.Lock()
	g.asked = append(g.asked, c)
	propose := g.propose
	g.mu.Unlock()
	if propose != nil {
		return propose(c)
	}
	return g.Apply(c)
}

// leave returns the command that drains a node.
func leave(i int) table.Command {
	return table.Command{Drain: &table.Drain{Member: agreed.Nth(i)}}
}

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
	d.g = &council{Cluster: agreed.New(t, 1, agreed.Numbered(k, level)...), t: t, leader: "n1", self: agreed.Nth(1)}
	if committed > 1 {
		d.g.Must(table.Command{Adopt: &table.Adopt{Level: committed}})
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
