package handoff

import "testing"

// TestPlacesNeedTheLevel: before the cluster has committed the level, some member may not
// be able to read records that name places.
func TestPlacesNeedTheLevel(t *testing.T) {
	w := newWorld(t)
	p := w.start("n1", 1)
	for level := range uint32(5) {
		next := *w.agreed()
		next.Level = level
		p.source.Learn(&next)
		if got := p.source.ByPlace(); got != (level >= 3) {
			t.Errorf("level %d: %v", level, got)
		}
	}
}
