package node

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// TestRuleInCluster: what the store is told is what the serving rule says, before
// an operation and before its answer.
func TestRuleInCluster(t *testing.T) {
	n1, n2 := table.Holder{Node: "n1", Incarnation: 1}, table.Holder{Node: "n2", Incarnation: 1}
	tab := &table.Table{}
	apply := func(c table.Command) {
		t.Helper()
		next, err := tab.Apply(c)
		if err != nil {
			t.Fatal(c.Kind(), err)
		}
		tab = next
	}
	apply(table.Command{Init: &table.Init{Cluster: "test", Epoch: 100, LockTTL: 1000}})
	for _, h := range []table.Holder{n1, n2} {
		apply(table.Command{Admit: &table.Admit{Member: table.Member{Node: h.Node, Incarnation: h.Incarnation, HashKey: h.Node}}})
	}
	apply(table.Command{Begin: &table.Begin{Want: []table.Holder{n1, n2}}})
	mine, theirs := uint64(0), uint64(0)
	for _, r := range tab.Rows {
		if r.Owner == n1 {
			mine = r.End
		} else {
			theirs = r.End
		}
	}
	r := serving.New(n1)
	r.Clock(func() int64 { return 500 })
	r.Learn(tab)
	r.Cleaned(tab.Epoch)
	r.Extend(1000)
	rule := &inCluster{rule: r, window: 300}
	rule.refusals("n1")
	admit := func(what string, h uint64, now int64, want failure.Reason) {
		t.Helper()
		_, err := rule.Admit(h, now)
		var why *failure.Error
		if !errors.As(err, &why) || why.Reason != want || want == failure.Unavailable && !strings.Contains(why.Message, `node "n1"`) {
			t.Errorf("%s: %v", what, err)
		}
	}
	p, err := rule.Admit(mine, 999)
	if p.Since != math.MinInt64 {
		t.Errorf("of a whole row, request ids are unknown from before %d", p.Since)
	}
	if err != nil || p.Hash != mine || p.Seen != tab.Epoch || p.Epoch != tab.Rows[tab.Find(mine)].Since {
		t.Errorf("%+v, %v", p, err)
	}
	admit("a row of another", theirs, 999, failure.NotOwner)
	admit("no lease", mine, 1000, failure.Unavailable)
	if err := rule.Confirm(p, 999); err != nil {
		t.Error(err)
	}
	var why *failure.Error
	if err := rule.Confirm(p, 1000); !errors.As(err, &why) || why.Reason != failure.OutcomeUnknown || !strings.Contains(why.Message, `node "n1"`) {
		t.Errorf("an answer after the lease: %v", err)
	}
	apply(table.Command{Remove: &table.Remove{Members: []table.Holder{n2}}})
	r.Learn(tab)
	r.Cleaned(tab.Epoch)
	// Who has done something there before the loss, and asks again, must not do it twice.
	if p, err := rule.Admit(theirs, 999); err != nil || p.Lost != tab.Epoch || p.LostAt != 500 || p.Since != 500 {
		t.Errorf("in a lost row: %+v, %v", p, err)
	}
	// When the grace is over, it is as with a row that came whole, if that was longer than
	// anybody may ask again.
	for lockTTL, since := range map[int64]int64{299: 500, 300: math.MinInt64} {
		after := *tab
		after.Epoch, after.LockTTL, after.Rows = tab.Epoch+1, lockTTL, slices.Clone(tab.Rows)
		for i := range after.Rows {
			after.Rows[i].Grace = false
		}
		r.Learn(&after)
		r.Cleaned(after.Epoch)
		if p, err := rule.Admit(theirs, 999); err != nil || p.Lost != 0 || p.LostAt != 0 || p.Since != since {
			t.Errorf("after a grace of %d: %+v, %v", lockTTL, p, err)
		}
	}
	r.Quiet()
	admit("a node that stops", mine, 999, failure.NotOwner)
}
