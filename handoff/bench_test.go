package handoff

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// BenchmarkStepIdle is what a source does every 50 ms on a node of a calm cluster, in
// which all rows and standbys stand where the ring wants them.
func BenchmarkStepIdle(b *testing.B) {
	for _, nodes := range []int{16, 50, table.MaxMembers} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			tab, self := calm(b, nodes)
			rule := serving.New(self)
			rule.Extend(int64(time.Hour))
			s := New(Config{
				Propose: func(_ context.Context, c table.Command) (uint64, error) {
					b.Errorf("%s is proposed", c.Kind())
					return 0, &table.Refused{}
				},
				Dial: func(ctx context.Context, _ table.Holder) (grpc.ClientConnInterface, error) {
					<-ctx.Done()
					return nil, ctx.Err()
				},
				Rule: rule, NewID: func() string { return "id" }, Now: func() int64 { return 1 }, Log: slog.New(slog.DiscardHandler),
			})
			defer s.Close()
			s.Learn(tab)
			rule.Learn(tab)
			rule.Cleaned(tab.Epoch)
			s.mu.Lock()
			s.plan.gained, s.plan.gone = nil, nil // nothing is stored
			s.mu.Unlock()
			b.ReportAllocs()
			for b.Loop() {
				s.step()
			}
		})
	}
}

// calm returns the table of a cluster in which every row has its standby, and one of its
// members.
func calm(b *testing.B, nodes int) (*table.Table, table.Holder) {
	b.Helper()
	tab := &table.Table{}
	apply := func(c table.Command) {
		next, err := tab.Apply(c)
		if err != nil {
			b.Fatal(err)
		}
		tab = next
	}
	apply(table.Command{Init: &table.Init{Cluster: "test", Epoch: 100}})
	var all []table.Holder
	for i := range nodes {
		h := table.Holder{Node: fmt.Sprintf("n%03d", i), Incarnation: 1}
		apply(table.Command{Admit: &table.Admit{Member: table.Member{Node: h.Node, Incarnation: 1, HashKey: h.Node}}})
		all = append(all, h)
	}
	apply(table.Command{Begin: &table.Begin{Want: all}})
	syncs := map[[2]table.Holder][]table.Stamp{}
	for i, r := range tab.Rows {
		_, standby := tab.Wants(r.End)
		after, upTo := tab.Segment(i)
		pair := [2]table.Holder{r.Owner, standby}
		syncs[pair] = append(syncs[pair], table.Stamp{After: after, End: upTo, Since: r.Since})
	}
	for pair, rows := range syncs {
		if pair[0] == all[0] { // only its own standbys matter to a source
			apply(table.Command{Sync: &table.Sync{WantSince: tab.WantSince, Owner: pair[0], Standby: pair[1], Rows: rows}})
		}
	}
	apply(table.Command{End: &table.End{Transition: tab.Transition.ID}})
	return tab, all[0]
}
