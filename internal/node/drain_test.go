package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/rpc"
	"github.com/keystead/keystead/ring/epoch/table"
	"github.com/keystead/keystead/ring/member"
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

func TestJudgeDrain(t *testing.T) {
	for _, tc := range []struct {
		name   string
		table  *table.Table
		voters int
		order  rpc.DrainOrder
		done   bool
		why    failure.Reason // 0 = it may be given
		says   string
	}{
		{name: "one of three", table: tableOf(t, 3), voters: 3, order: rpc.DrainOrder{Node: "n1"}},
		{name: "again", table: tableOf(t, 3, 1), voters: 3, order: rpc.DrainOrder{Node: "n1"}, done: true},
		{name: "the second of three", table: tableOf(t, 3, 1), voters: 3, order: rpc.DrainOrder{Node: "n2"}, why: failure.TooFewLeft, says: "1 of 3 voters would be left that are not, and a majority is 2"},
		{name: "… forced", table: tableOf(t, 3, 1), voters: 3, order: rpc.DrainOrder{Node: "n2", Force: true}},
		{name: "the last, forced", table: tableOf(t, 3, 1, 2), voters: 3, order: rpc.DrainOrder{Node: "n3", Force: true}, why: failure.LastNode, says: "n3"},
		{name: "the second of five", table: tableOf(t, 5, 1), voters: 5, order: rpc.DrainOrder{Node: "n2"}},
		{name: "the third of five", table: tableOf(t, 5, 1, 2), voters: 5, order: rpc.DrainOrder{Node: "n3"}, why: failure.TooFewLeft},
		{name: "the voter of two", table: tableOf(t, 2), voters: 1, order: rpc.DrainOrder{Node: "n1"}, why: failure.TooFewLeft},
		{name: "who does not vote", table: tableOf(t, 2), voters: 1, order: rpc.DrainOrder{Node: "n2"}},
		{name: "the only one", table: tableOf(t, 1), voters: 1, order: rpc.DrainOrder{Node: "n1"}, why: failure.LastNode},
		{name: "unknown", table: tableOf(t, 3), voters: 3, order: rpc.DrainOrder{Node: "n9"}, why: failure.UnknownNode, says: `"n9"`},
		{name: "no table", table: &table.Table{}, order: rpc.DrainOrder{Node: "n1"}, why: failure.Unavailable},
		{name: "undo", table: tableOf(t, 3, 1, 2), voters: 3, order: rpc.DrainOrder{Node: "n2", Undo: true}},
		{name: "undo nothing", table: tableOf(t, 3, 1), voters: 3, order: rpc.DrainOrder{Node: "n2", Undo: true}, done: true},
		{name: "undo of nobody", table: tableOf(t, 3), voters: 3, order: rpc.DrainOrder{Node: "n9", Undo: true}, why: failure.UnknownNode},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var voters []string
			for i := range tc.voters {
				voters = append(voters, fmt.Sprint("n", i+1))
			}
			s, done, err := judgeDrain(tc.table, voters, tc.order)
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

func TestEmptied(t *testing.T) {
	tab := tableOf(t, 2, 1)
	state := func() rpc.DrainState {
		s, ok := rpc.DrainStateOf(tab, "n1")
		if !ok {
			t.Fatal("n1 is no member")
		}
		return s
	}
	if s := state(); emptied(tab, s) || s.Owned != 256 || s.Member.Phase != table.Leaving {
		t.Errorf("before the ring changes: %+v", s)
	}
	apply := func(c table.Command) {
		t.Helper()
		next, err := tab.Apply(c)
		if err != nil {
			t.Fatal(err)
		}
		tab = next
	}
	to := table.Holder{Node: "n2", Incarnation: 1}
	apply(table.Command{Begin: &table.Begin{Want: []table.Holder{to}}})
	var ends []uint64
	for _, m := range tab.Moves() {
		ends = append(ends, m.End)
	}
	flip := table.Flip{Transition: tab.Transition.ID, WantSince: tab.WantSince, From: state().Member.Holder(), To: to, Ends: ends[:1]}
	apply(table.Command{Flip: &flip})
	if s := state(); emptied(tab, s) || s.Owned != 255 {
		t.Errorf("with a row moved: %+v", s)
	}
	flip.Ends = ends[1:]
	apply(table.Command{Flip: &flip})
	if s := state(); !emptied(tab, s) || s.Member.Phase != table.Leaving {
		t.Errorf("with all rows moved: %+v", s)
	}
	apply(table.Command{End: &table.End{Transition: tab.Transition.ID}})
	if s := state(); !emptied(tab, s) || s.Member.Phase != table.Drained {
		t.Errorf("in the end: %+v", s)
	}
}

// TestDrainWithoutOthers asks nodes that cannot be drained: one that runs alone,
// and the only one of a cluster.
func TestDrainWithoutOthers(t *testing.T) {
	n := start(t, nil)
	if s, err := n.Drain(t.Context()); !errors.Is(err, errAlone) || s.Member.Node != n.cfg.ID || n.DrainState().Owned != 0 {
		t.Errorf("alone: %+v %v", s, err)
	}
	c := start(t, func(c *Config) {
		c.Cluster = ClusterConfig{ID: "c", Bootstrap: true, RaftAddr: "127.0.0.1:0", GossipAddr: "127.0.0.1:0", Profile: "local"}
	})
	eventually(t, "it is ready", func() bool { return c.ready() == nil && c.DrainState().Member.Phase == table.Active })
	if _, err := c.Drain(t.Context()); err == nil || !strings.Contains(err.Error(), "nobody would be left") {
		t.Errorf("the only one: %v", err)
	}
	if s := c.DrainState(); s.Member.Phase != table.Active || s.Owned != 256 {
		t.Errorf("it is %+v", s)
	}
	c.DrainBeforeStop(context.Background(), patience) // says so, and waits for nothing
	var h hint
	if err := json.Unmarshal(c.cluster.answer(statusQuery, nil), &h); err != nil || h.Node != "n1" || h.Phase != "active" || !h.Ready || h.RowsOwned != 256 || h.Leader != "n1" {
		t.Errorf("it answers %+v, %v", h, err)
	}
	if c.cluster.answer("keystead-other", nil) != nil {
		t.Error("it answers what it does not know")
	}
}

// TestHintFits makes the longest answer that there can be.
func TestHintFits(t *testing.T) {
	b, err := json.Marshal(hint{
		Node: strings.Repeat("n", 64), Phase: "leaving", Epoch: 1<<64 - 1, LeaseLeftMS: -1 << 63,
		RowsOwned: -1 << 63, RowsStandby: -1 << 63, Leader: strings.Repeat("l", 64),
	})
	if err != nil || len(b) > member.MaxAnswer {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

func TestWhoMayTake(t *testing.T) {
	tab := tableOf(t, 3, 1, 2)
	var takers []string
	for _, m := range tab.Members {
		if hasTakers(tab, m.Node) {
			takers = append(takers, m.Node)
		}
	}
	if !slices.Equal(takers, []string{"n1", "n2"}) {
		t.Errorf("%v have somebody to give to", takers)
	}
}
