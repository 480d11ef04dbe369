package table

import "testing"

// TestBehind: who an answer waits for stands in front, and disks are told from their processes.
func TestBehind(t *testing.T) {
	n1, gone := Holder{Node: "n1", Incarnation: 1}, Holder{Node: "n1", Incarnation: 2}
	tab := &Table{Members: []Member{{Node: "n1", Incarnation: 1}}}
	for h, want := range map[Holder]bool{n1: true, DiskOf(n1): true, OwnDisk: true, gone: false, DiskOf(gone): false} {
		if tab.MayBehind(h) != want {
			t.Errorf("%v: %v", h, !want)
		}
	}
	b := Behind{n1, DiskOf(n1), OwnDisk}
	for _, h := range []Holder{n1, DiskOf(n1), OwnDisk} {
		if b[0] != h || !b.Has(h) || b.Has(gone) {
			t.Errorf("%v: %v", h, b)
		}
		b = b.Next()
	}
	if b != (Behind{}) {
		t.Error(b)
	}
}
