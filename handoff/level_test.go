package handoff

import (
	"testing"

	"github.com/keystead/keystead/handoff/record"
	"github.com/keystead/keystead/ring/epoch/table"
)

// TestPlacesNeedTheLevel: before the cluster has committed the level, some member may not
// be able to read records that name places.
func TestPlacesNeedTheLevel(t *testing.T) {
	w := newWorld(t)
	p := w.start("n1", 1)
	for level := range uint32(5) {
		next := *w.agreed()
		next.Level = level
		p.source.Learn(&next)
		if got := p.source.Partial(); got != (level >= 3) {
			t.Errorf("level %d: %v", level, got)
		}
	}
}

// TestRecordsNeedTheLevel: before the cluster has committed the level, some member may not
// be able to read records of version 4, nor objects of a kind that came with it.
func TestRecordsNeedTheLevel(t *testing.T) {
	w := newWorld(t)
	p := w.start("n1", 1)
	for level := range uint32(record.Level + 2) {
		next := *w.agreed()
		next.Level = level
		p.source.Learn(&next)
		r := w.counter("k", 1)
		if b := p.source.encode(nil, r, r.At); (b[0] == record.Version) != (level >= record.Level) {
			t.Errorf("level %d: a record of version %d", level, b[0])
		}
		if !sends(&next, 0) || sends(&next, record.Level) != (level >= record.Level) {
			t.Errorf("level %d: kinds that some member does not know are sent", level)
		}
	}
	if table.Level < record.Level {
		t.Errorf("level %d is never committed", record.Level)
	}
}
