package home

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keystead/keystead/hotkey/divide"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/ring"
	"github.com/keystead/keystead/ring/epoch/table"
)

// estate is a cluster in which one store owns everything, by a real table that each
// command is applied to at once. It is the rule of the store, and for a home the cluster and
// the parts.
type estate struct {
	t     testing.TB
	store *owner.Store
	began time.Time
	home  *Home
	hot   atomic.Pointer[HotKeys]

	lost      uint64                                 // of the permits
	copying   time.Duration                          // until copies have what they are to have
	leaseless bool                                   // Await of copies gives up
	refuse    error                                  // of all proposals
	report    func(sp *table.Split, part int) Report // what parts answer; nil = what the store has

	mu       sync.Mutex
	tab      *table.Table  // guarded by mu
	changed  chan struct{} // guarded by mu: closed by the next table
	proposed int           // guarded by mu
}

func newEstate(t testing.TB, change func(*Config), nodes ...string) *estate {
	t.Helper()
	e := &estate{t: t, began: time.Now(), tab: &table.Table{}, changed: make(chan struct{})}
	e.hot.Store(&HotKeys{})
	e.apply(table.Command{Init: &table.Init{Cluster: "test", Epoch: 100}})
	want := make([]table.Holder, len(nodes))
	for i, n := range nodes {
		want[i] = table.Holder{Node: n, Incarnation: 1}
		e.apply(table.Command{Admit: &table.Admit{Member: table.Member{Node: n, Incarnation: 1, HashKey: n, Level: table.Level}}})
	}
	e.apply(table.Command{Begin: &table.Begin{Want: want}})
	e.apply(table.Command{End: &table.End{Transition: e.Table().Epoch}})
	var err error
	if e.store, err = owner.New(owner.Config{Rule: e, Shards: 4}, e.now()); err != nil {
		t.Fatal(err)
	}
	cfg := Config{Settings: Settings{Split: true}.WithDefaults(), Cluster: e, Store: e.store, Copies: copies{e}, Now: e.now,
		Hot: e.hot.Load, Log: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&cfg)
	}
	if e.home, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	return e
}

// run has the home do its work until the test ends.
func (e *estate) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); e.home.Run(ctx, e) }()
	e.t.Cleanup(func() { cancel(); <-done })
}

func (e *estate) now() int64 { return int64(time.Hour) + int64(time.Since(e.began)) }

// try applies a command to the table.
func (e *estate) try(c table.Command) (uint64, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	next, err := e.tab.Apply(c)
	if err != nil {
		return 0, err
	}
	e.tab = next
	close(e.changed)
	e.changed = make(chan struct{})
	return next.Epoch, nil
}

func (e *estate) apply(c table.Command) {
	e.t.Helper()
	if _, err := e.try(c); err != nil {
		e.t.Fatalf("%s: %v", c.Kind(), err)
	}
}

// Self implements Cluster.
func (e *estate) Self() table.Holder { return table.Holder{Node: "n1", Incarnation: 1} }

// Table implements Cluster.
func (e *estate) Table() *table.Table {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.tab
}

// Await implements Cluster.
func (e *estate) Await(ctx context.Context, after uint64) (*table.Table, error) {
	for {
		e.mu.Lock()
		t, changed := e.tab, e.changed
		e.mu.Unlock()
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

// Propose implements Cluster.
func (e *estate) Propose(_ context.Context, c table.Command) (uint64, error) {
	e.mu.Lock()
	e.proposed++
	e.mu.Unlock()
	if e.refuse != nil {
		return 0, e.refuse
	}
	return e.try(c)
}

// Admit implements owner.Rule.
func (e *estate) Admit(hash uint64, _ int64) (owner.Permit, error) {
	epoch := e.Table().Epoch
	return owner.Permit{Epoch: epoch, Seen: epoch, Hash: hash, Since: math.MinInt64, Lost: e.lost}, nil
}

func (e *estate) Confirm(owner.Permit, int64) error      { return nil }
func (e *estate) Terms() owner.Terms                     { return owner.Terms{} }
func (e *estate) Exhausted(epoch uint64) (uint64, error) { return epoch + 1, nil }

// Split implements owner.Splits.
func (e *estate) Split(hash uint64) bool { return e.Table().MaySplit(hash) }

// May implements owner.Splits.
func (e *estate) May(r owner.Ref, k owner.Kind) (uint32, error) { return divide.May(e.Table(), r, k) }

// copies are the standby of an estate.
type copies struct{ e *estate }

// Await implements Copies.
func (c copies) Await(uint64) bool {
	if c.e.copying > 0 {
		<-time.After(c.e.copying)
	}
	return !c.e.leaseless
}

func (e *estate) part(sp *table.Split, part int, role owner.Role) owner.Ref {
	return owner.Ref{Key: sp.PartKey(part), Name: sp.Name, Role: role}
}

// Plant implements Parts.
func (e *estate) Plant(_ context.Context, sp *table.Split, part int, records []*owner.Record, now int64) error {
	_, err := e.store.Put(now, e.part(sp, part, owner.Plant), records)
	return err
}

// Ask implements Parts.
func (e *estate) Ask(_ context.Context, sp *table.Split, part int, _ Question) (Report, error) {
	if e.report != nil {
		e.mu.Lock() // all parts are asked at once
		defer e.mu.Unlock()
		return e.report(sp, part), nil
	}
	r := Report{Weighed: sp.Weighed}
	_, err := e.store.Read(e.now(), e.part(sp, part, owner.Sample), objectOf(sp).kind, func(x *owner.Record, _ int64) { r.Value = x.Counter().Value })
	return r, err
}

// Reap implements Parts.
func (e *estate) Reap(_ context.Context, sp *table.Split, part int) (all []*owner.Record, err error) {
	_, err = e.store.Read(e.now(), e.part(sp, part, owner.Reap), objectOf(sp).kind, func(x *owner.Record, _ int64) { all = append(all, x.Clone()) })
	return all, err
}

// own is a key that this node owns.
func (e *estate) own() string {
	for i := 0; ; i++ {
		key := fmt.Sprint("key-", i)
		if m, _, _ := e.Table().Owner(ring.Hash(key)); m.Holder() == e.Self() {
			return key
		}
	}
}

// add adds 1 to a counter, or to a part of it.
func (e *estate) add(ref owner.Ref, id reqid.ID) owner.AddAnswer {
	e.t.Helper()
	a, err := e.store.Add(e.now(), ref, id, counter.AddOp{Delta: 1})
	if err != nil {
		e.t.Fatal(err)
	}
	return a
}

// divide begins a split of a counter into two parts, without the home's doing.
func (e *estate) divide(key string) *table.Split {
	e.t.Helper()
	o := Order{Kind: owner.KindCounter, Key: key, Name: "counter", Parts: 2}
	sp, err := divided(e.Table(), o, e.home.nodes(e.Table()))
	if err != nil {
		e.t.Fatal(err)
	}
	e.apply(table.Command{BeginSplit: &table.BeginSplit{Split: sp}})
	return e.reach(sp.ID, table.Opening)
}

// reach brings a split as far as a phase.
func (e *estate) reach(id uint64, phase table.SplitPhase) *table.Split {
	e.t.Helper()
	sp, _ := e.Table().SplitOf(id)
	if phase >= table.Open && sp.Phase < table.Open {
		e.apply(table.Command{OpenSplit: &table.OpenSplit{ID: id, Home: e.Self(), Base: 5}})
	}
	if phase >= table.Closing && sp.Phase < table.Closing {
		e.apply(table.Command{CloseSplit: &table.CloseSplit{ID: id}})
	}
	sp, _ = e.Table().SplitOf(id)
	at := *sp
	return &at
}
