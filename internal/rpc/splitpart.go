package rpc

import (
	"context"

	"github.com/keystead/keystead/handoff/record"
	"github.com/keystead/keystead/hotkey/divide"
	"github.com/keystead/keystead/hotkey/home"
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/forward"
	"github.com/keystead/keystead/owner"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// maxPartRecords is how many records a part comes in at most: what package divide cuts its ids
// into.
const maxPartRecords = 64

var errPartRecords = &failure.Error{Reason: failure.Invalid, Field: "records", Message: "are not those of a part of this split"}

// phaseOfRead returns the phase in which a part is read: all of it when the split is closed.
func phaseOfRead(req *peerv1.ReadPartRequest) table.SplitPhase {
	if req.All {
		return table.Closing
	}
	return table.Open
}

// plant makes a part of this node's what its share of the whole object is. It returns when
// the standby has it.
func (s *Server) plant(part *peerv1.Part, req *peerv1.PlantRequest) (*peerv1.PlantResponse, error) {
	h, err := s.partOf(part)
	if err != nil {
		return nil, err
	}
	// Where the state of the object was lost with its home, the next one divides another
	// state; the two must not meet.
	home, _, ok := s.cfg.Cluster.Table().Owner(owner.Hash(h.split.Key))
	if !ok ||
		home.Holder() != (table.Holder{Node: req.Home, Incarnation: req.HomeIncarnation}) { //guard:split-plant-home
		return nil, forward.ErrNotOwner
	}
	now := s.cfg.Clock.Now()
	records, err := partRecords(req.Records, now)
	if err != nil || len(records) == 0 {
		return nil, errPartRecords
	}
	r := h.ref(owner.Plant)
	for _, x := range records {
		if string(x.Key) != r.Key || //guard:split-plant-address
			string(x.Name) != r.Name || x.Kind != h.kind() {
			return nil, errPartRecords
		}
	}
	meta, err := s.cfg.Store.Put(now, r, records)
	if err == nil {
		err = s.replicated(meta, false)
	}
	if err != nil {
		return nil, err
	}
	return &peerv1.PlantResponse{}, nil
}

// readPart reads a part of this node's: how it does, or, when the split is closed, all of
// it.
func (s *Server) readPart(part *peerv1.Part, req *peerv1.ReadPartRequest) (*peerv1.ReadPartResponse, error) {
	h, err := s.partOf(part)
	if err != nil {
		return nil, err
	}
	role := owner.Sample
	if req.All {
		role = owner.Reap
	}
	r := &peerv1.ReadPartResponse{Weighed: h.split.Weighed}
	var all []*owner.Record
	meta, err := s.cfg.Store.Read(s.cfg.Clock.Now(), h.ref(role), h.kind(), func(x *owner.Record, _ int64) {
		//guard:split-look-value -> x.Whole || x.More
		if x.Whole { // those that are More have no value
			r.Value = x.Counter().Value
		}
		if req.All {
			all = append(all, x.Clone())
		}
	})
	if err == nil {
		err = s.replicated(meta, true)
	}
	if err != nil {
		return nil, err
	}
	if req.All {
		// A part may have more request ids than there is room for in a message.
		//guard:split-trimmed divide.Trim(all) -> append(divide.Trim(all)[:0:0], all...)
		r.Records = s.encoded(divide.Trim(all), s.cfg.Clock.Now())
	}
	x := s.parts.of(h.split.ID, h.index)
	r.Operations, r.Asked, r.Refused, r.Left = x.operations.Load(), x.asked.Load(), x.refused.Load(), x.remaining.Load()
	if len(req.Left) == len(h.split.Parts) {
		for i, left := range req.Left {
			if i != h.index {
				s.parts.of(h.split.ID, i).remaining.Store(left)
			}
		}
	}
	if !req.All {
		x.elsewhere.Store(req.Elsewhere)
		x.heard.Store(true)
	}
	s.parts.prune(s.cfg.Cluster.Table())
	return r, nil
}

// partOf returns the part that a call from another node must name.
func (s *Server) partOf(part *peerv1.Part) (share, error) {
	if part == nil {
		return share{}, &failure.Error{Reason: failure.Invalid, Field: "part", Message: "is missing"}
	}
	return s.shareOf(part)
}

// replicated returns nil when a decision is with the copies, and this node still had the
// right to decide.
func (s *Server) replicated(m owner.Meta, read bool) error {
	if err := s.awaitCopies(m.Permit.Hash, read); err != nil {
		return err
	}
	return s.cfg.Store.Confirm(m.Permit, s.cfg.Clock.Now())
}

// encoded are records as they travel, as all members of the cluster read them. now is by
// the clock of their times.
func (s *Server) encoded(records []*owner.Record, now int64) [][]byte {
	b, level := make([][]byte, len(records)), s.cfg.Cluster.Table().Level
	for i, r := range records {
		b[i] = record.AppendAt(level, nil, r, now)
	}
	return b
}

// partRecords reads the records of a part that came from another node.
func partRecords(encoded [][]byte, now int64) ([]*owner.Record, error) {
	if len(encoded) > maxPartRecords {
		return nil, errPartRecords
	}
	records := make([]*owner.Record, len(encoded))
	for i, b := range encoded {
		records[i] = &owner.Record{}
		if err := record.Decode(b, now, records[i]); err != nil {
			return nil, err
		}
	}
	return records, nil
}

// Plant implements home.Parts.
func (s *Server) Plant(ctx context.Context, sp *table.Split, part int, records []*owner.Record, now int64) error {
	self := s.cfg.Cluster.Self()
	req := &peerv1.PlantRequest{Home: self.Node, HomeIncarnation: self.Incarnation, Records: s.encoded(records, now)}
	_, err := s.askPart(ctx, sp, part, partPlant, req)
	return err
}

// Ask implements home.Parts.
func (s *Server) Ask(ctx context.Context, sp *table.Split, part int, q home.Question) (home.Report, error) {
	r, err := s.askToRead(ctx, sp, part, &peerv1.ReadPartRequest{Elsewhere: q.Elsewhere, Left: q.Left})
	return home.Report{Value: r.GetValue(), Left: r.GetLeft(), Operations: r.GetOperations(), Asked: r.GetAsked(), Refused: r.GetRefused(), Weighed: r.GetWeighed()}, err
}

// Reap implements home.Parts.
func (s *Server) Reap(ctx context.Context, sp *table.Split, part int) ([]*owner.Record, error) {
	r, err := s.askToRead(ctx, sp, part, &peerv1.ReadPartRequest{All: true})
	if err != nil {
		return nil, err
	}
	return partRecords(r.GetRecords(), s.cfg.Clock.Now())
}

func (s *Server) askToRead(ctx context.Context, sp *table.Split, part int, req *peerv1.ReadPartRequest) (*peerv1.ReadPartResponse, error) {
	a, err := s.askPart(ctx, sp, part, partRead, req)
	if err != nil {
		return nil, err
	}
	return a.(*peerv1.ReadPartResponse), nil
}

// askPart asks the owner of a part, on whichever node it is.
func (s *Server) askPart(ctx context.Context, sp *table.Split, part int, o *operation, req forward.Message) (forward.Message, error) {
	c := o.Call(req)
	return s.router.PassToPart(ctx, &c, &peerv1.Part{Split: sp.ID, Index: uint32(part)}, false)
}
