package table

import "testing"

// TestCompactKeepsLosses: a row that is joined from others counts as lost if one of
// them was.
func TestCompactKeepsLosses(t *testing.T) {
	tab := cluster(t, 2)
	tab = joined(t, tab, "n3", 1)
	tab = grow(t, tab, Command{Remove: &Remove{Members: []Holder{holder("n3", 1)}}})
	joint := grow(t, tab, Command{Compact: &Compact{}})
	lost := 0
	for _, r := range tab.Rows {
		if r.Lost == 0 {
			continue
		}
		lost++
		if now, _ := at(joint, r.End); now.Lost < r.Lost {
			t.Fatalf("the loss in epoch %d of the row that ends at %d is forgotten: %d", r.Lost, r.End, now.Lost)
		}
	}
	if lost == 0 || len(joint.Rows) == len(tab.Rows) {
		t.Errorf("%d rows are lost, and %d of %d are left", lost, len(joint.Rows), len(tab.Rows))
	}
}
