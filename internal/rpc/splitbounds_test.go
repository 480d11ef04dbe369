package rpc

import (
	"sync"
	"testing"

	"github.com/keystead/keystead/internal/chunk"
	"github.com/keystead/keystead/internal/tests/agreed"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/ring/epoch/table"
)

// splitLimit has a limit split into parts of these weights, wherever they are.
func splitLimit(t *testing.T, b *board, key string, weights ...uint32) *table.Split {
	t.Helper()
	sp := table.Split{ID: b.Table().Epoch + 1, Kind: limitKind, Key: key, Name: limitKind}
	for _, w := range weights {
		sp.Parts = append(sp.Parts, table.Part{Weight: w})
	}
	b.Must(table.Command{BeginSplit: &table.BeginSplit{Split: sp}})
	m, _, _ := b.Table().Owner(owner.Hash(key))
	b.Must(table.Command{OpenSplit: &table.OpenSplit{ID: sp.ID, Home: m.Holder()}})
	open, ok := b.Table().SplitOf(sp.ID)
	if !ok {
		t.Fatal("it is not split")
	}
	return open
}

// TestPartsAreForgotten: a node that owns no part forgets those of splits that are over,
// too, however many calls look at once.
func TestPartsAreForgotten(t *testing.T) {
	b := newBoard(t, "n1", "n2")
	sp := splitLimit(t, b, "k", table.FullWeight/2, table.FullWeight/2)
	s := bare(newHouse(t, nil))
	s.cfg.Cluster = b
	b.self = agreed.Holder("n3") // which owns nothing
	for i := range maxPartStates {
		s.parts.of(1, i)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { s.choose(b.Table(), sp, nil) })
	}
	wg.Wait()
	have := int64(0)
	s.parts.all.Range(func(any, any) bool { have++; return true })
	if n := s.parts.n.Load(); n != have || have > int64(len(sp.Parts)) {
		t.Errorf("%d are remembered, and %d were counted", have, n)
	}
}

// TestChunksFitParts: what a node takes of a limit at once, the least part can have.
func TestChunksFitParts(t *testing.T) {
	b := newBoard(t, "n1")
	bucket := &chunk.Bucket{Key: "k", Name: limitKind, Limit: 1000, Period: 1e9, Burst: 1000}
	if got := least(b.Table(), bucket); got != 750 {
		t.Errorf("%d of a limit that is not split", got)
	}
	sp := splitLimit(t, b, "k", table.FullWeight/16, table.FullWeight/2)
	got := least(b.Table(), bucket)
	if got != 46 {
		t.Errorf("%d", got)
	}
	for _, p := range sp.Parts {
		req := lessened(bucket, got)
		op := limit.Op{Params: limit.Params{Limit: req.Limit, Period: req.PeriodNs, Burst: req.Burst}, Cost: req.Cost}
		if _, ok := op.Part(p.Weight); !ok {
			t.Errorf("a part of weight %d has no room for it", p.Weight)
		}
		if op.Cost++; p.Weight == table.FullWeight/16 {
			if _, ok := op.Part(p.Weight); ok {
				t.Error("it has room for more")
			}
		}
	}
}
