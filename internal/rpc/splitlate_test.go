package rpc

import (
	"context"
	"errors"
	"testing"

	"github.com/keystead/keystead/hotkey/divide"
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/reqid"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	pb "github.com/keystead/keystead/proto/keystead/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// reap closes a split and puts together what its parts have.
func reap(t *testing.T, s *Server, b *board, sp *table.Split) (*table.Split, []*owner.Record) {
	t.Helper()
	closing := *b.reach(sp.ID, table.Closing)
	now := s.cfg.Clock.Now()
	var parts [][]*owner.Record
	for i := range closing.Parts {
		r, err := s.readPart(&peerv1.Part{Split: sp.ID, Index: uint32(i)}, &peerv1.ReadPartRequest{All: true})
		if err != nil {
			t.Fatal(err)
		}
		all, err := ReadRecords(r.Records, now)
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, all)
	}
	return &closing, divide.Unite(parts, &closing, now)
}

// TestWholeOfAnEarlierSplit: a home that was held up between reading the parts of a split
// and writing the whole, and comes to that when the object has been split anew and is put
// together again, must not write: the adds of the later split were lost, if what the later
// one is made of had been written before.
func TestWholeOfAnEarlierSplit(t *testing.T) {
	s, b := parting(t)
	add := func(sp *table.Split, n int) {
		t.Helper()
		for range n {
			if _, err := s.cfg.Store.Add(s.cfg.Clock.Now(), share{sp, 1}.ref(owner.Share), reqid.ID{}, counter.AddOp{Delta: 1}); err != nil {
				t.Fatal(err)
			}
		}
	}
	first := b.reach(b.divide(counterKind, "k", "n1", "n1"), table.Open)
	add(first, 3)
	closing, late := reap(t, s, b, first)
	if err := s.PutWhole(closing, late); err != nil { // another home, or the same one at its second attempt
		t.Fatal(err)
	}
	b.apply(table.Command{EndSplit: &table.EndSplit{ID: closing.ID, Home: b.home("k"), Since: closing.Since}})
	opening := b.reach(b.divide(counterKind, "k", "n1", "n1"), table.Opening)
	if _, _, err := s.TakeWhole(closing); reasonOf(err) != failure.NotOwner {
		t.Errorf("the whole is read for a split that is over: %v", err)
	}
	second := b.reach(opening.ID, table.Open)
	add(second, 40)
	closing2, all := reap(t, s, b, second)
	if err := s.PutWhole(closing2, all); err != nil {
		t.Fatal(err)
	}
	if err := s.PutWhole(closing, late); reasonOf(err) != failure.NotOwner {
		t.Errorf("the whole is written for a split that is over: %v", err)
	}
	b.apply(table.Command{EndSplit: &table.EndSplit{ID: closing2.ID, Home: b.home("k"), Since: closing2.Since}})
	got, err := s.cfg.Store.Get(s.cfg.Clock.Now(), owner.Ref{Key: "k", Name: counterKind})
	if want := closing2.Base + 40; err != nil || got.Value != want {
		t.Errorf("%d, %v; %d were added", got.Value, err, want)
	}
}

// reasonOf is the reason of an error, 0 if it is none of package owner's.
func reasonOf(err error) failure.Reason {
	var e *failure.Error
	if !errors.As(err, &e) {
		return 0
	}
	return e.Reason
}

// TestSubmitWhenClosed: a node that stops has no links any more, and its own calls about
// parts end at the same moment: whoever asks learns that nothing was sent.
func TestSubmitWhenClosed(t *testing.T) {
	b := newBoard(t, "n1", "n2")
	s := bare(newHouse(t, nil))
	s.cfg.Cluster = b
	s.links = newLinks(s)
	s.links.close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m, _ := b.Table().Member("n2")
	for range 100 { // both are over: either may be seen first
		a := s.links.submit(ctx, 1, m, 0, addOf(&pb.AddRequest{Key: "k"}))
		if _, err := a.wait(ctx, nil, nil); !errors.Is(err, errUnsent) {
			t.Fatal(err)
		}
	}
}
