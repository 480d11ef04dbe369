package drain

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/ring/epoch/table"
)

// tableOf is a ring of n1 to nk, of which some are drained.
func tableOf(t *testing.T, k int, drained ...int) *table.Table {
	t.Helper()
	tab := &table.Table{}
	apply := func(c table.Command) {
		t.Helper()
		next, err := tab.Apply(c)
		if err != nil {
			t.Fatal(c.Kind(), err)
		}
		tab = next
	}
	apply(table.Command{Init: &table.Init{Cluster: "c", Epoch: 1}})
	var all []table.Holder
	for i := 1; i <= k; i++ {
		m := table.Member{Node: fmt.Sprint("n", i), Incarnation: 1, HashKey: fmt.Sprint("k", i)}
		apply(table.Command{Admit: &table.Admit{Member: m}})
		all = append(all, m.Holder())
	}
	apply(table.Command{Begin: &table.Begin{Want: all}})
	apply(table.Command{End: &table.End{Transition: tab.Epoch}})
	for _, i := range drained {
		apply(table.Command{Drain: &table.Drain{Member: all[i-1]}})
	}
	return tab
}

func TestJudge(t *testing.T) {
	for _, tc := range []struct {
		name   string
		table  *table.Table
		voters int
		order  Order
		done   bool
		why    failure.Reason // 0 = it may be given
		says   string
	}{
		{name: "one of three", table: tableOf(t, 3), voters: 3, order: Order{Node: "n1"}},
		{name: "again", table: tableOf(t, 3, 1), voters: 3, order: Order{Node: "n1"}, done: true},
		{name: "the second of three", table: tableOf(t, 3, 1), voters: 3, order: Order{Node: "n2"}, why: failure.TooFewLeft, says: "1 of 3 voters would be left that are not, and a majority is 2"},
		{name: "… forced", table: tableOf(t, 3, 1), voters: 3, order: Order{Node: "n2", Force: true}},
		{name: "the last, forced", table: tableOf(t, 3, 1, 2), voters: 3, order: Order{Node: "n3", Force: true}, why: failure.LastNode, says: "n3"},
		{name: "the second of five", table: tableOf(t, 5, 1), voters: 5, order: Order{Node: "n2"}},
		{name: "the third of five", table: tableOf(t, 5, 1, 2), voters: 5, order: Order{Node: "n3"}, why: failure.TooFewLeft},
		{name: "the voter of two", table: tableOf(t, 2), voters: 1, order: Order{Node: "n1"}, why: failure.TooFewLeft},
		{name: "who does not vote", table: tableOf(t, 2), voters: 1, order: Order{Node: "n2"}},
		{name: "the only one", table: tableOf(t, 1), voters: 1, order: Order{Node: "n1"}, why: failure.LastNode},
		{name: "unknown", table: tableOf(t, 3), voters: 3, order: Order{Node: "n9"}, why: failure.UnknownNode, says: `"n9"`},
		{name: "no table", table: &table.Table{}, order: Order{Node: "n1"}, why: failure.Unavailable},
		{name: "undo", table: tableOf(t, 3, 1, 2), voters: 3, order: Order{Node: "n2", Undo: true}},
		{name: "undo nothing", table: tableOf(t, 3, 1), voters: 3, order: Order{Node: "n2", Undo: true}, done: true},
		{name: "undo of nobody", table: tableOf(t, 3), voters: 3, order: Order{Node: "n9", Undo: true}, why: failure.UnknownNode},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var voters []string
			for i := range tc.voters {
				voters = append(voters, fmt.Sprint("n", i+1))
			}
			s, done, err := judge(tc.table, voters, tc.order)
			var e *failure.Error
			if errors.As(err, &e) != (tc.why != 0) || done != tc.done {
				t.Fatalf("done %v, %v", done, err)
			}
			if e != nil && (e.Reason != tc.why || e.Hint == "" || !strings.Contains(e.Message, tc.says)) {
				t.Errorf("%d %s; %s", e.Reason, e.Message, e.Hint)
			}
			if e == nil && s.Member.Node != tc.order.Node {
				t.Errorf("the state is %+v", s)
			}
		})
	}
}
