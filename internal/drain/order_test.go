package drain

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/tests/agreed"
	"github.com/keystead/keystead/ring/epoch/table"
)

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
		{name: "one of three", table: agreed.Ring(t, 3), voters: 3, order: Order{Node: "n1"}},
		{name: "again", table: agreed.Ring(t, 3, 1), voters: 3, order: Order{Node: "n1"}, done: true},
		{name: "the second of three", table: agreed.Ring(t, 3, 1), voters: 3, order: Order{Node: "n2"}, why: failure.TooFewLeft, says: "1 of 3 voters would be left that are not, and a majority is 2"},
		{name: "… forced", table: agreed.Ring(t, 3, 1), voters: 3, order: Order{Node: "n2", Force: true}},
		{name: "the last, forced", table: agreed.Ring(t, 3, 1, 2), voters: 3, order: Order{Node: "n3", Force: true}, why: failure.LastNode, says: "n3"},
		{name: "the second of five", table: agreed.Ring(t, 5, 1), voters: 5, order: Order{Node: "n2"}},
		{name: "the third of five", table: agreed.Ring(t, 5, 1, 2), voters: 5, order: Order{Node: "n3"}, why: failure.TooFewLeft},
		{name: "the voter of two", table: agreed.Ring(t, 2), voters: 1, order: Order{Node: "n1"}, why: failure.TooFewLeft},
		{name: "one that does not vote", table: agreed.Ring(t, 2), voters: 1, order: Order{Node: "n2"}},
		{name: "the only one", table: agreed.Ring(t, 1), voters: 1, order: Order{Node: "n1"}, why: failure.LastNode},
		{name: "unknown", table: agreed.Ring(t, 3), voters: 3, order: Order{Node: "n9"}, why: failure.UnknownNode, says: `"n9"`},
		{name: "no table", table: &table.Table{}, order: Order{Node: "n1"}, why: failure.Unavailable},
		{name: "undo", table: agreed.Ring(t, 3, 1, 2), voters: 3, order: Order{Node: "n2", Undo: true}},
		{name: "undo nothing", table: agreed.Ring(t, 3, 1), voters: 3, order: Order{Node: "n2", Undo: true}, done: true},
		{name: "undo of nobody", table: agreed.Ring(t, 3), voters: 3, order: Order{Node: "n9", Undo: true}, why: failure.UnknownNode},
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
