package rpc

import (
	"context"
	"errors"
	"time"

	"github.com/keystead/keystead/handoff/record"
	"github.com/keystead/keystead/hotkey/divide"
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// maxPartRecords is how many records a part comes in at most: what package divide cuts its ids
// into.
const maxPartRecords = 64

var errPartRecords = &failure.Error{Reason: failure.Invalid, Field: "records", Message: "are not those of a part of this split"}

// kindOfSplit is the kind of a split's objects.
func kindOfSplit(sp *table.Split) owner.Kind {
	if sp.Kind == counterKind {
		return owner.KindCounter
	}
	return owner.KindLimit
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
		return nil, errNotOwner
	}
	now := s.cfg.Clock.Now()
	records, err := ReadRecords(req.Records, now)
	if err != nil || len(records) == 0 {
		return nil, errPartRecords
	}
	r := h.ref(owner.Plant)
	for _, x := range records {
		if string(x.Key) != r.Key || //guard:split-plant-address
			string(x.Name) != r.Name || x.Kind != kindOfSplit(h.split) {
			return nil, errPartRecords
		}
	}
	meta, err := s.cfg.Store.Put(now, r, records)
	if err == nil {
		err = s.told(meta, false)
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
	role := owner.Look
	if req.All {
		role = owner.Reap
	}
	r := &peerv1.ReadPartResponse{Weighed: h.split.Weighed}
	var encoded [][]byte
	meta, err := s.cfg.Store.Take(s.cfg.Clock.Now(), h.ref(role), kindOfSplit(h.split), func(x *owner.Record, now int64) {
		//guard:split-look-value -> x.Whole || x.More
		if x.Whole { // those that are More have no value
			r.Value = x.Counter.Value
		}
		if req.All {
			encoded = append(encoded, record.Append(nil, x, now))
		}
	})
	if err == nil {
		err = s.told(meta, true)
	}
	if err == nil && req.All {
		//guard:split-trimmed -> r.Records = encoded
		r.Records, err = trimmed(encoded, s.cfg.Clock.Now())
	}
	if err != nil {
		return nil, err
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
	if !req.All && kindOfSplit(h.split) == owner.KindCounter {
		x.elsewhere.Store(req.Elsewhere)
		x.told.Store(true)
	}
	s.parts.prune(s.cfg.Cluster.Table())
	return r, nil
}

// partOf is the part that a call from another node must name.
func (s *Server) partOf(part *peerv1.Part) (share, error) {
	if part == nil {
		return share{}, &failure.Error{Reason: failure.Invalid, Field: "part", Message: "is missing"}
	}
	return s.shareOf(part)
}

// told returns nil when a decision may be told: the copies have it, and it was this
// node's to take.
func (s *Server) told(m owner.Meta, read bool) error {
	if err := s.awaitCopies(m.Permit.Hash, read); err != nil {
		return err
	}
	return s.cfg.Store.Confirm(m.Permit, s.cfg.Clock.Now())
}

// trimmed are the records of a part as they travel: with as many request ids as the
// whole object may bring along. A part may have more than there is room for in a message.
func trimmed(encoded [][]byte, now int64) ([][]byte, error) {
	records, err := readRecords(encoded, now)
	if err != nil {
		return nil, err
	}
	fewer := divide.Trim(records)
	if &fewer[0] == &records[0] {
		return encoded, nil
	}
	encoded = encoded[:0]
	for _, x := range fewer {
		encoded = append(encoded, record.Append(nil, x, now))
	}
	return encoded, nil
}

// ReadRecords reads records that came from another node.
func ReadRecords(encoded [][]byte, now int64) ([]*owner.Record, error) {
	if len(encoded) > maxPartRecords {
		return nil, errPartRecords
	}
	return readRecords(encoded, now)
}

func readRecords(encoded [][]byte, now int64) ([]*owner.Record, error) {
	records := make([]*owner.Record, len(encoded))
	for i, b := range encoded {
		records[i] = &owner.Record{}
		if err := record.Decode(b, now, records[i]); err != nil {
			return nil, err
		}
	}
	return records, nil
}

var errInGrace = &failure.Error{Reason: failure.Unavailable, RetryAfter: time.Second,
	Message: "what was kept of the key was lost, and the grace of that runs", Hint: "try again when it is over"}

// TakeWhole reads the whole of an object that is being split, when its standby has all
// of it. Only its home can.
func (s *Server) TakeWhole(sp *table.Split) (records []*owner.Record, now int64, err error) {
	var encoded [][]byte
	r := owner.Ref{Key: sp.Key, Name: sp.Name, Role: owner.Carry, Split: sp.ID}
	meta, err := s.cfg.Store.Take(s.cfg.Clock.Now(), r, kindOfSplit(sp), func(x *owner.Record, now int64) {
		encoded = append(encoded, record.Append(nil, x, now)) // it points into the store
	})
	now = s.cfg.Clock.Now()
	switch {
	case err != nil:
	case meta.Permit.Lost != 0:
		err = errInGrace // what is absent may stand for what was spent, and lost
	default:
		err = s.told(meta, true)
	}
	if err == nil {
		//guard:split-carry-many readRecords -> ReadRecords
		records, err = readRecords(encoded, now)
	}
	return records, now, err
}

// PutWhole makes an object whole, of what its parts were. It returns when the standby
// has it. Only its home can. Where there is no room for the request ids, they are dropped:
// their retries are too old from now on.
func (s *Server) PutWhole(sp *table.Split, records []*owner.Record) error {
	now, r := s.cfg.Clock.Now(), owner.Ref{Key: sp.Key, Name: sp.Name, Role: owner.Join, Split: sp.ID}
	meta, err := s.cfg.Store.Put(now, r, records)
	if e := (*failure.Error)(nil); errors.As(err, &e) && e.Reason == failure.StoreFull {
		meta, err = s.cfg.Store.Put(now, r, []*owner.Record{divide.Bare(records[0], now)})
	}
	if err != nil {
		return err
	}
	return s.told(meta, false)
}

// Plant has the owner of a part take it in. The times of the records are of this node's
// clock, and now is of it.
func (s *Server) Plant(ctx context.Context, sp *table.Split, index int, records []*owner.Record, now int64) error {
	home := s.cfg.Cluster.Self()
	req := &peerv1.PlantRequest{Home: home.Node, HomeIncarnation: home.Incarnation}
	for _, x := range records {
		req.Records = append(req.Records, record.Append(nil, x, now))
	}
	_, err := s.askPart(ctx, sp, index, &peerv1.ForwardCall{Call: &peerv1.ForwardCall_Plant{Plant: req}})
	return err
}

// ReadPart asks the owner of a part how it does.
func (s *Server) ReadPart(ctx context.Context, sp *table.Split, index int, req *peerv1.ReadPartRequest) (*peerv1.ReadPartResponse, error) {
	a, err := s.askPart(ctx, sp, index, &peerv1.ForwardCall{Call: &peerv1.ForwardCall_ReadPart{ReadPart: req}})
	return a.GetReadPart(), err
}

// askPart asks the owner of a part, whoever that is.
func (s *Server) askPart(ctx context.Context, sp *table.Split, index int, c *peerv1.ForwardCall) (*peerv1.ForwardAnswer, error) {
	p := newPassage(ctx, s, c, time.Now())
	p.fixed, p.part = true, &peerv1.Part{Split: sp.ID, Index: uint32(index)}
	return p.run()
}
