package node

import (
	"testing"

	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
)

// TestPartLook: what a part was asked for counts once, also when another owner has taken
// the part over and counts from 0.
func TestPartLook(t *testing.T) {
	p := &partLook{}
	for i, tc := range []struct {
		operations, asked, refused uint64
		want                       uint64 // operations since the last look
		tokens, missed             float64
	}{
		{10, 30, 5, 10, 30, 5},
		{10, 30, 5, 0, 30, 5},
		{14, 42, 6, 4, 42, 6},
		{3, 7, 2, 3, 49, 8}, // another owner
		{4, 9, 2, 1, 51, 8},
	} {
		got := p.take(&peerv1.ReadPartResponse{Value: int64(i), Operations: tc.operations, Asked: tc.asked, Refused: tc.refused})
		if got != tc.want || p.tokens != tc.tokens || p.missed != tc.missed || p.value != int64(i) {
			t.Errorf("look %d: %d operations, %+v", i, got, p)
		}
	}
}
