package home

import (
	"context"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keystead/keystead/hotkey/divide"
	"github.com/keystead/keystead/internal/tests/agreed"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/ring/epoch/table"
)

// estate is a cluster in which one store owns everything. It is the rule of the store, and
// for a home the cluster and the parts.
type estate struct {
	*agreed.Cluster
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
	proposed int // guarded by mu
}

func newEstate(t testing.TB, change func(*Config), nodes ...string) *estate {
	t.Helper()
	members := make([]table.Member, len(nodes))
	for i, n := range nodes {
		members[i] = table.Member{Node: n, Incarnation: 1, HashKey: n, Level: table.Level}
	}
	e := &estate{Cluster: agreed.New(t, 100, members...), t: t, began: time.Now()}
	e.hot.Store(&HotKeys{})
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

// Self implements Cluster.
func (e *estate) Self() table.Holder { return agreed.Nth(1) }

// Propose implements Cluster.
func (e *estate) Propose(_ context.Context, c table.Command) (uint64, error) {
	e.mu.Lock()
	e.proposed++
	e.mu.Unlock()
	if e.refuse != nil {
		return 0, e.refuse
	}
	return e.Apply(c)
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
func (e *estate) own() string { return e.Key(e.Self().Node) }

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
	e.Must(table.Command{BeginSplit: &table.BeginSplit{Split: sp}})
	return e.Reach(sp.ID, table.Opening)
}
