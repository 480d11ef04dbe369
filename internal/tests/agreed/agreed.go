package agreed

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/keystead/keystead/ring"
	"github.com/keystead/keystead/ring/epoch/table"
)

// View is a table that changes, and that can be waited for. The zero View is empty.
type View struct {
	mu      sync.Mutex
	table   *table.Table  // guarded by mu; nil = the empty one
	changed chan struct{} // guarded by mu: closed by the next Announce; nil = nobody waits
}

// Table returns the table as it is known now.
func (v *View) Table() *table.Table {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.table == nil {
		return &table.Table{}
	}
	return v.table
}

// Await returns the first table that is announced whose epoch is above after.
func (v *View) Await(ctx context.Context, after uint64) (*table.Table, error) {
	for {
		v.mu.Lock()
		t := v.table
		if v.changed == nil {
			v.changed = make(chan struct{})
		}
		changed := v.changed
		v.mu.Unlock()
		if t != nil && t.Epoch > after {
			return t, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Set makes a table the present one, and wakes nobody.
func (v *View) Set(t *table.Table) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.table = t
}

// Announce wakes those that wait for a table.
func (v *View) Announce() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.changed != nil {
		close(v.changed)
		v.changed = nil
	}
}

// Cluster is a table that is agreed on.
type Cluster struct {
	View
	t     testing.TB
	apply sync.Mutex // held while a command is applied
}

// New makes a cluster in an epoch, whose first ring is of these members.
func New(t testing.TB, epoch uint64, members ...table.Member) *Cluster {
	t.Helper()
	c := &Cluster{t: t}
	c.Must(table.Command{Init: &table.Init{Cluster: "test", Epoch: epoch}})
	var want []table.Holder
	for _, m := range members {
		c.Must(table.Command{Admit: &table.Admit{Member: m}})
		want = append(want, m.Holder())
	}
	c.Must(table.Command{Begin: &table.Begin{Want: want}})
	c.End()
	return c
}

// Ring returns the table of a ring of n1 to n<n>, of which some are drained.
func Ring(t testing.TB, n int, drained ...int) *table.Table {
	t.Helper()
	c := New(t, 1, Numbered(n, 0)...)
	for _, i := range drained {
		c.Must(table.Command{Drain: &table.Drain{Member: Nth(i)}})
	}
	return c.Table()
}

// Numbered returns members n1 to n<n> of a level.
func Numbered(n int, level uint32) []table.Member {
	all := make([]table.Member, n)
	for i := range all {
		all[i] = table.Member{Node: Nth(i + 1).Node, Incarnation: 1, HashKey: fmt.Sprint("k", i+1), Level: level}
	}
	return all
}

// Nodes returns members that are reached by their names.
func Nodes(names ...string) []table.Member {
	all := make([]table.Member, len(names))
	for i, n := range names {
		all[i] = table.Member{Node: n, Incarnation: 1, HashKey: n + ":7400", GRPCAddr: n + ":7400", Level: table.Level}
	}
	return all
}

// Nth returns the process of n<i>.
func Nth(i int) table.Holder { return Holder(fmt.Sprint("n", i)) }

// Holder returns the process of a node: its first incarnation.
func Holder(node string) table.Holder { return table.Holder{Node: node, Incarnation: 1} }

// Apply applies a command, and returns the epoch and nil, or why it is refused.
func (c *Cluster) Apply(command table.Command) (uint64, error) {
	c.apply.Lock()
	defer c.apply.Unlock()
	next, err := c.Table().Apply(command)
	if err != nil {
		return 0, err
	}
	c.Set(next)
	c.Announce()
	return next.Epoch, nil
}

// Must applies commands, none of which may be refused.
func (c *Cluster) Must(commands ...table.Command) {
	c.t.Helper()
	for _, command := range commands {
		if _, err := c.Apply(command); err != nil {
			c.t.Fatal(command.Kind(), err)
		}
	}
}

// Begin begins a transition to the ring of these nodes. Members that are left out are
// drained, and those that were are taken back.
func (c *Cluster) Begin(nodes ...string) {
	c.t.Helper()
	for _, m := range c.Table().Members {
		switch in := slices.Contains(nodes, m.Node); {
		case in && m.Phase >= table.Leaving:
			c.Must(table.Command{Drain: &table.Drain{Member: m.Holder(), Undo: true}})
		case !in && m.Phase == table.Active:
			c.Must(table.Command{Drain: &table.Drain{Member: m.Holder()}})
		}
	}
	want := make([]table.Holder, len(nodes))
	for i, n := range nodes {
		want[i] = Holder(n)
	}
	c.Must(table.Command{Begin: &table.Begin{Want: want}})
}

// Flip hands a row over as the transition wants.
func (c *Cluster) Flip(m table.Move) {
	c.t.Helper()
	t := c.Table()
	c.Must(table.Command{Flip: &table.Flip{Transition: t.Transition.ID, WantSince: t.WantSince, From: m.From, To: m.To, Ends: []uint64{m.End}}})
}

// FlipAll hands over all rows that have still to move.
func (c *Cluster) FlipAll() {
	c.t.Helper()
	ends := map[[2]table.Holder][]uint64{}
	for _, m := range c.Table().Moves() {
		way := [2]table.Holder{m.From, m.To}
		ends[way] = append(ends[way], m.End)
	}
	for way, rows := range ends {
		t := c.Table()
		c.Must(table.Command{Flip: &table.Flip{Transition: t.Transition.ID, WantSince: t.WantSince, From: way[0], To: way[1], Ends: rows}})
	}
}

// End ends the transition.
func (c *Cluster) End() {
	c.t.Helper()
	c.Must(table.Command{End: &table.End{Transition: c.Table().Transition.ID}})
}

// Owner returns the process that owns a key.
func (c *Cluster) Owner(key string) table.Holder {
	m, _, _ := c.Table().Owner(ring.Hash(key))
	return m.Holder()
}

// Key returns a key that a node owns.
func (c *Cluster) Key(node string) string {
	for i := 0; ; i++ {
		if key := fmt.Sprint("key-", i); c.Owner(key).Node == node {
			return key
		}
	}
}

// Divide begins a split of an object, whose name is that of its kind and whose parts are on
// these nodes, and returns its id.
func (c *Cluster) Divide(kind, key string, nodes ...string) uint64 {
	c.t.Helper()
	t := c.Table()
	salts, ok := t.Place(t.Epoch+1, nodes)
	if !ok {
		c.t.Fatalf("there is no place on %v", nodes)
	}
	sp := table.Split{ID: t.Epoch + 1, Kind: kind, Key: key, Name: kind}
	for _, salt := range salts {
		sp.Parts = append(sp.Parts, table.Part{Salt: salt, Weight: uint32(table.FullWeight / len(nodes))})
	}
	c.Must(table.Command{BeginSplit: &table.BeginSplit{Split: sp}})
	return sp.ID
}

// Reach brings a split as far as a phase, and returns it as the table has it.
func (c *Cluster) Reach(id uint64, phase table.SplitPhase) *table.Split {
	c.t.Helper()
	sp, ok := c.Table().SplitOf(id)
	if !ok {
		c.t.Fatalf("there is no split %d", id)
	}
	if phase >= table.Open && sp.Phase < table.Open {
		c.Must(table.Command{OpenSplit: &table.OpenSplit{ID: id, Home: c.Owner(sp.Key), Base: 5}})
	}
	if phase >= table.Closing && sp.Phase < table.Closing {
		c.Must(table.Command{CloseSplit: &table.CloseSplit{ID: id}})
	}
	sp, _ = c.Table().SplitOf(id)
	return sp
}
