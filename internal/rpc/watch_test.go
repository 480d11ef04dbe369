package rpc

import (
	"context"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/keystead/keystead/internal/tests/agreed"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

func dialer(l *bufconn.Listener) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }
}

// reading is a table as a watcher puts it together.
type reading struct {
	epoch uint64
	rows  []row1
	ends  map[uint64]int
	parts map[uint64]*clusterpb.Split // by id
}

// row1 is a row as its reader knows it.
type row1 struct {
	end            uint64
	owner, standby string
	since, lost    uint64
}

func (r *reading) take(t *testing.T, m *clusterpb.WatchResponse) {
	t.Helper()
	rows, members := m.Snapshot.GetRows(), m.Snapshot.GetMembers()
	if m.Change != nil {
		rows, members = m.Change.Rows, m.Change.Members
		if m.Snapshot != nil || r.ends == nil {
			t.Fatal("a change that cannot be read")
		}
		r.epoch = m.Change.Epoch
		for _, id := range m.Change.Merged {
			if r.parts[id] == nil {
				t.Fatalf("split %d is over, and nobody told of it", id)
			}
			delete(r.parts, id)
		}
		for _, s := range m.Change.Splits {
			r.parts[s.Id] = s
		}
	} else {
		*r = reading{epoch: m.Snapshot.Epoch, ends: map[uint64]int{}, parts: map[uint64]*clusterpb.Split{}}
		for _, s := range m.Snapshot.Splits {
			r.parts[s.Id] = s
		}
		for i, x := range rows {
			r.rows, r.ends[x.End] = append(r.rows, row1{}), i
		}
	}
	name := func(i uint32) string {
		if i == 0 {
			return ""
		}
		return members[i-1].Id
	}
	for _, x := range rows {
		i, ok := r.ends[x.End]
		if !ok {
			t.Fatalf("a row that ends at %d came from nowhere", x.End)
		}
		r.rows[i] = row1{x.End, name(x.Owner), name(x.Standby), x.Since, x.Lost}
	}
}

// is reports whether the reading is the table.
func (r *reading) is(t *testing.T, want *table.Table) {
	t.Helper()
	if r.epoch != want.Epoch || len(r.rows) != len(want.Rows) {
		t.Fatalf("epoch %d with %d rows, want %d with %d", r.epoch, len(r.rows), want.Epoch, len(want.Rows))
	}
	for i, w := range want.Rows {
		if got := (row1{w.End, w.Owner.Node, w.Standby.Node, w.Since, w.Lost}); r.rows[i] != got {
			t.Fatalf("row %d is %v, want %v", i, r.rows[i], got)
		}
	}
	splits := wireSplits(want)
	for _, s := range splits {
		if !proto.Equal(r.parts[s.Id], s) {
			t.Fatalf("split %d is %v, want %v", s.Id, r.parts[s.Id], s)
		}
	}
	if len(r.parts) != len(splits) {
		t.Fatalf("%d splits, want %d", len(r.parts), len(splits))
	}
}

func TestWatchTellsChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBoard(t, "n2")
		_, c := clusterOf(t, Config{Cluster: b})
		w := must(c.Watch(bound(t), &clusterpb.WatchRequest{}))(t)
		var r reading
		expect := func(change bool, rows int) {
			t.Helper()
			m := must(w.Recv())(t)
			if (m.Change != nil) != change || change && len(m.Change.Rows) != rows {
				t.Errorf("a change %v with %d rows, want %v with %d", m.Change != nil, len(m.Change.GetRows()), change, rows)
			}
			r.take(t, m)
			r.is(t, b.Table())
		}
		expect(false, 0)
		b.admit("n1") // comes before n2 among the members: the places of the owners move
		expect(true, 0)
		b.Begin("n1", "n2") // splits rows
		expect(false, 0)
		b.flip(1)
		expect(true, 1)
		b.flip(1)
		expect(true, 1)
		b.Must(table.Command{Remove: &table.Remove{Members: []table.Holder{agreed.Holder("n1")}}})
		expect(true, 2)
		b.Must(table.Command{Remove: &table.Remove{Members: []table.Holder{agreed.Holder("n2")}}})
		expect(false, 0) // every row changed
	})
}

// Of splits, too, a watcher is told what is different, and no more.
func TestWatchTellsSplits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBoard(t, "n1", "n2", "n3", "n4")
		x, y := b.Key("n1"), b.Key("n2")
		_, c := clusterOf(t, Config{Cluster: b})
		eager, lazy := must(c.Watch(bound(t), &clusterpb.WatchRequest{}))(t), must(c.Watch(bound(t), &clusterpb.WatchRequest{}))(t)
		var r, late reading
		r.take(t, must(eager.Recv())(t))
		expect := func(what string, differ int, merged ...uint64) {
			t.Helper()
			m := must(eager.Recv())(t)
			if ch := m.GetChange(); ch == nil || len(ch.Splits) != differ || !slices.Equal(ch.Merged, merged) {
				t.Errorf("%s: %v", what, m)
			}
			r.take(t, m)
			r.is(t, b.Table())
		}
		first := b.Divide(limitKind, x, "n1", "n3")
		expect("begun", 1)
		second := b.Divide(counterKind, y, "n3", "n2")
		expect("another", 1)
		b.Reach(first, table.Open)
		expect("open", 1)
		b.Reach(second, table.Open)
		expect("both", 1)
		sp, _ := b.Table().SplitOf(first)
		b.Must(table.Command{Weigh: &table.Weigh{ID: first, Home: b.Owner(x), Expect: sp.Weighed, Weights: []uint32{1, 2}}})
		expect("weighed", 1)
		b.Must(table.Command{Raise: &table.Raise{Above: b.Table().Epoch}})
		expect("nothing about them", 0)
		b.Must(table.Command{Remove: &table.Remove{Members: []table.Holder{agreed.Holder("n4")}}})
		expect("a node that has no part", 0)
		b.Must(table.Command{Remove: &table.Remove{Members: []table.Holder{agreed.Holder("n3")}}})
		expect("the node of a part of each", 2)
		b.Must(table.Command{CloseSplit: &table.CloseSplit{ID: first, Reason: "over"}})
		expect("closing", 1)
		b.Must(table.Command{EndSplit: &table.EndSplit{ID: first, Home: b.Owner(x), Since: b.Table().Epoch}})
		expect("over", 0, first)
		b.Divide(limitKind, x, "n2", "n1")
		expect("anew", 1)
		for late.epoch != b.Table().Epoch {
			late.take(t, must(lazy.Recv())(t))
		}
		late.is(t, b.Table())
	})
}

// A watcher that does not read misses epochs, and nothing is kept for it.
func TestSlowWatcherSkips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBoard(t, "n1", "n2", "n3", "n4")
		_, c := clusterOf(t, Config{Cluster: b})
		w := must(c.Watch(bound(t), &clusterpb.WatchRequest{}))(t)
		synctest.Wait()
		for range 300 {
			b.Must(table.Command{Raise: &table.Raise{Above: b.Table().Epoch}})
			b.Must(table.Command{Remove: &table.Remove{Members: []table.Holder{agreed.Holder("n4")}}})
			b.admit("n4")
			synctest.Wait()
		}
		var r reading
		n := 0
		for r.epoch != b.Table().Epoch {
			r.take(t, must(w.Recv())(t))
			n++
		}
		r.is(t, b.Table())
		if n >= 900 {
			t.Errorf("%d messages: no epoch was left out", n)
		}
	})
}

func TestWatchEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, c := clusterOf(t, Config{})
		ctx, leave := context.WithCancel(context.Background())
		gone := must(c.Watch(ctx, &clusterpb.WatchRequest{}))(t)
		stays := must(c.Watch(bound(t), &clusterpb.WatchRequest{}))(t)
		must(gone.Recv())(t)
		must(stays.Recv())(t)
		// A lone node has no news.
		began := time.Now()
		go func() {
			time.Sleep(10 * time.Second)
			leave()
		}()
		if _, err := gone.Recv(); err == nil || time.Since(began) != 10*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		synctest.Wait()
		go h.server.Stop(time.Minute)
		_, err := stays.Recv()
		refusal{code: codes.Unavailable, why: commonpb.Reason_REASON_UNAVAILABLE, hint: true, retry: 500 * time.Millisecond}.check(t, err)
		if since := time.Since(began); since > 11*time.Second {
			t.Errorf("the stop took until %v", since)
		}
	})
}

func TestWatchesAreBounded(t *testing.T) {
	h := newHouse(t, nil)
	c := newCluster(bare(h))
	c.watches.Store(MaxWatches)
	refusal{code: codes.ResourceExhausted, why: commonpb.Reason_REASON_OVERLOADED, hint: true, retry: time.Second}.check(t, c.Watch(nil, nil))
	if n := c.watches.Load(); n != MaxWatches {
		t.Errorf("%d watches are counted", n)
	}
}
