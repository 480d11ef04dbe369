package home

import "testing"

// TestPartReport: what a part was asked for counts once, also when another owner has taken
// the part over and counts from 0.
func TestPartReport(t *testing.T) {
	p := &partReport{}
	for i, tc := range []struct {
		operations, asked, refused uint64
		want                       uint64 // operations since the last report
		tokens, missed             float64
	}{
		{10, 30, 5, 10, 30, 5},
		{10, 30, 5, 0, 30, 5},
		{14, 42, 6, 4, 42, 6},
		{3, 7, 2, 3, 49, 8}, // another owner
		{4, 9, 2, 1, 51, 8},
	} {
		got := p.receive(Report{Value: int64(i), Operations: tc.operations, Asked: tc.asked, Refused: tc.refused})
		if got != tc.want || p.tokens != tc.tokens || p.missed != tc.missed || p.value != int64(i) {
			t.Errorf("report %d: %d operations, %+v", i, got, p)
		}
	}
}
