package node

import (
	"context"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keystead/keystead/internal/clock"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// TestMovesAfterALoss: a row whose state was lost moves on. Whoever gets it goes by when it
// learned of the loss, not by when the row came; and where the owner has said that all of
// before is too old, there is nothing in doubt, also for one that has just joined.
func TestMovesAfterALoss(t *testing.T) {
	const window = 300
	holder := func(node string) table.Holder { return table.Holder{Node: node, Incarnation: 1} }
	tab := &table.Table{}
	apply := func(c table.Command) {
		t.Helper()
		next, err := tab.Apply(c)
		if err != nil {
			t.Fatal(c.Kind(), err)
		}
		tab = next
	}
	apply(table.Command{Init: &table.Init{Cluster: "test", Epoch: 100, LockTTL: 1, Level: table.Level, IDWindow: window}})
	for _, n := range []string{"n1", "n2", "n3", "n4"} {
		apply(table.Command{Admit: &table.Admit{Member: table.Member{Node: n, Incarnation: 1, HashKey: n, Level: table.Level}}})
	}
	apply(table.Command{Begin: &table.Begin{Want: []table.Holder{holder("n1"), holder("n2")}}})

	now := int64(1_000)
	nodes := map[string]*inCluster{}
	learn := func(node string, t *table.Table) {
		m := nodes[node]
		if m == nil {
			r := serving.New(holder(node))
			r.Clock(func() int64 { return now })
			m = &inCluster{rule: r, window: window, start: now}
			m.refusals(node)
			nodes[node] = m
		}
		m.rule.Learn(t)
		m.rule.Cleaned(t.Epoch)
		m.rule.Extend(math.MaxInt64)
	}
	learn("n3", tab)
	lostAt := now
	apply(table.Command{Remove: &table.Remove{Members: []table.Holder{holder("n2")}}})
	learn("n3", tab)
	i := slices.IndexFunc(tab.Rows, func(r table.Row) bool { return r.Lost != 0 })
	row := tab.Rows[i]
	if row.Owner != holder("n1") || !row.Unsure {
		t.Fatalf("%+v", row)
	}
	moved := func(to string) *table.Table { // as a Flip has it
		after := *tab
		after.Epoch, after.Rows = tab.Epoch+1, slices.Clone(tab.Rows)
		r := &after.Rows[i]
		r.Owner, r.Since, r.Held, r.Grace = holder(to), after.Epoch, after.Epoch, false
		return &after
	}
	since := func(what, node string, want int64) {
		t.Helper()
		learn(node, moved(node))
		p, err := nodes[node].Admit(row.End, now)
		if err != nil || p.Since != want {
			t.Errorf("%s: what was done before %d is unknown, want %d: %v", what, p.Since, want, err)
		}
	}
	now += window / 2
	learn("n4", tab)
	now += window / 4
	since("a node that was there", "n3", lostAt)
	since("one that has joined since", "n4", lostAt+window/2)
	d, self, _ := nodes["n3"].rule.Doubts()
	if len(d) != 1 || d[0].At != lostAt || d[0].Lost != row.Lost || self != holder("n3") {
		t.Errorf("%+v", d)
	}
	now += window
	apply(table.Command{EndGrace: &table.EndGrace{Owner: holder("n1"), Rows: []table.Loss{{End: row.End, Lost: row.Lost}}, IDs: true}})
	since("a node that was there, when all is too old", "n3", math.MinInt64)
	delete(nodes, "n4")
	since("one that has just joined", "n4", math.MinInt64)
	if d, _, _ := nodes["n4"].rule.Doubts(); len(d) != 0 {
		t.Errorf("%+v", d)
	}
}

// forward is a clock that a test sets forward.
type forward struct {
	clock.Clock
	by atomic.Int64
}

func (c *forward) Now() int64 { return c.Clock.Now() + c.by.Load() }

// TestWindowOverAStop: a node that goes on from the state of the process before keeps the keys in it
// for as long as its cluster has agreed, whatever it is told itself, also before it has heard of that.
func TestWindowOverAStop(t *testing.T) {
	t.Parallel()
	dir, c := t.TempDir(), &forward{Clock: clock.System()}
	begin := func(window time.Duration) *Node {
		return start(t, oneOf("n1", dir, func(cfg *Config) {
			cfg.Cluster.Bootstrap, cfg.Clock = true, c
			cfg.Store.Shards, cfg.Store.RequestIDs.Window = 1, int64(window)
		}))
	}
	buy := func(n *Node) (r *counterpb.AddResponse) {
		t.Helper()
		counters := counterpb.NewCounterServiceClient(dial(t, n))
		eventually(t, "the node knows whether the key was used", func() (answers bool) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			var err error
			r, err = counters.Add(ctx, &counterpb.AddRequest{Key: "stock", Delta: 1, IdempotencyKey: "order"})
			return err == nil
		})
		return r
	}
	n := begin(time.Minute) // it makes the cluster
	buy(n)
	c.by.Add(int64(2 * time.Second))
	n.Stop()
	if !isThere(stateFile(dir)) {
		t.Fatal("nothing was kept")
	}
	if r := buy(begin(time.Second)); r.Replay == nil || r.Value != 1 {
		t.Errorf("%+v", r)
	}
}
