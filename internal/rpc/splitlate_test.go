package rpc

import (
	"context"
	"errors"
	"testing"

	"github.com/keystead/keystead/internal/forward"
	pb "github.com/keystead/keystead/proto/keystead/v1"
)

// TestSubmitWhenClosed: a node that stops has no links any more, and its own calls about
// parts end at the same moment: whoever asks learns that nothing was sent.
func TestSubmitWhenClosed(t *testing.T) {
	b := newBoard(t, "n1", "n2")
	s := bare(newHouse(t, nil))
	s.cfg.Cluster = b
	s.links = forward.NewLinks(forward.LinksConfig{Table: b, Full: errOverloaded})
	s.links.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m, _ := b.Table().Member("n2")
	for range 100 { // both are over: either may be seen first
		a := s.links.Submit(ctx, 1, m, 0, addOf(&pb.AddRequest{Key: "k"}))
		if _, err := a.Wait(ctx, callerGone, nil, nil, nil); !errors.Is(err, forward.ErrUnsent) {
			t.Fatal(err)
		}
	}
}
