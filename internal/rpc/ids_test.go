package rpc

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/keystead/keystead/internal/ids"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	idpb "github.com/keystead/keystead/proto/keystead/id/v1"
)

// TestIDs: as many as asked for, one if nothing is said; wrong counts are refused.
func TestIDs(t *testing.T) {
	var epoch uint64 = 70
	source := ids.New(ids.Config{Now: func() int64 { return 0 }, Claim: func(context.Context) (uint64, error) { epoch++; return epoch, nil }})
	t.Cleanup(source.Close)
	g := grouped(t, 1, false, func(c *Config) { c.IDs = source })
	c := idpb.NewIdServiceClient(g.nodes["n1"].conn)
	next := func(count uint32) *idpb.NextResponse {
		t.Helper()
		return must(c.Next(bound(t), &idpb.NextRequest{Count: count}))(t)
	}
	at := uint64(71 << ids.SeqBits)
	for _, count := range []uint32{0, 1, 2, ids.MaxCount, 0} {
		r := next(count)
		if want := max(count, 1); r.First != at || r.Count != want || r.Node != "n1" {
			t.Errorf("%d ids: %v, want %d", count, r, at)
		}
		at += uint64(max(count, 1))
	}
	for _, count := range []uint32{ids.MaxCount + 1, 1<<32 - 1} {
		_, err := c.Next(bound(t), &idpb.NextRequest{Count: count})
		badField("count").check(t, err)
	}
	m := g.nodes["n1"].metrics
	if given, failed := count(t, m.ops[opNext].yes), count(t, m.ops[opNext].errored); given != 5 || failed != 2 {
		t.Errorf("%v calls were answered, %v not", given, failed)
	}
}

func TestNoIDs(t *testing.T) {
	h := build(t, nil)
	_, err := idpb.NewIdServiceClient(h.conn).Next(bound(t), &idpb.NextRequest{})
	refusal{code: codes.Unavailable, why: commonpb.Reason_REASON_UNAVAILABLE, hint: true, retry: 1e9}.check(t, err)
}
