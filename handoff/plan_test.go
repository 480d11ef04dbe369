package handoff

import (
	"testing"

	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// What a plan has been told of an earlier table is thrown away with its ranges, and the
// share of objects follows the ranges that are held.
func TestPlanExpects(t *testing.T) {
	n1, n2 := table.Holder{Node: "n1", Incarnation: 1}, table.Holder{Node: "n2", Incarnation: 1}
	p := newPlan()
	if n := p.expected([]serving.Range{{After: 1, UpTo: 2}}, 100); n != 0 {
		t.Errorf("nothing is held, and %d objects are expected", n)
	}
	p.self = n1
	p.table = &table.Table{Epoch: 2, Rows: []table.Row{{End: 1 << 62, Owner: n1}, {End: 1 << 63, Owner: n2, Standby: n1}, {End: 3 << 62, Owner: n2}}}
	// Rows end at a quarter, a half and three quarters; the first one goes around the end.
	if n := p.expected([]serving.Range{{After: 1 << 62, UpTo: 1 << 63}}, 300); n != 100 {
		t.Errorf("a third of what is held: %d objects are expected of 300", n)
	}
	if p.handover() != nil {
		t.Error("rows are handed over without a transition")
	}
}
