package home

import (
	"errors"

	"github.com/keystead/keystead/hotkey/divide"
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch/table"
)

var (
	errNotReplicated = errors.New("this node lost its lease before the standby had acknowledged the object")
	errInGrace       = errors.New("what was kept of the key was lost, and the grace of that runs")
)

// readWhole reads the whole of an object that is being split, once its standby has all
// of it. The records are copies; their times are of the store's clock, as is now. Only
// the object's home can.
func (h *Home) readWhole(sp *table.Split) (records []*owner.Record, now int64, err error) {
	kind, ok := divide.KindOf(sp.Kind)
	if !ok {
		return nil, 0, divide.ErrKind
	}
	ref := owner.Ref{Key: sp.Key, Name: sp.Name, Role: owner.Carry, Split: sp.ID}
	meta, err := h.cfg.Store.Read(h.cfg.Now(), ref, kind, func(r *owner.Record, _ int64) {
		//guard:split-carry-copied r.Clone() -> r
		//guard:split-carry-many append(records, r.Clone()) -> append(records[:0], r.Clone())
		records = append(records, r.Clone())
	})
	switch {
	case err != nil:
	//guard:split-carry-lost
	case meta.Permit.Lost != 0:
		err = errInGrace // what is absent may stand for what was spent, and lost
	default:
		err = h.confirmed(meta)
	}
	if err != nil {
		return nil, 0, err
	}
	return records, h.cfg.Now(), nil
}

// putWhole makes an object whole, of what its parts were. It returns when the standby
// has it. Only the object's home can. Where there is no room for the request ids, they
// are dropped: their retries are too old from now on.
func (h *Home) putWhole(sp *table.Split, records []*owner.Record) error {
	now, ref := h.cfg.Now(), owner.Ref{Key: sp.Key, Name: sp.Name, Role: owner.Join, Split: sp.ID}
	meta, err := h.cfg.Store.Put(now, ref, records)
	if e := (*failure.Error)(nil); errors.As(err, &e) && e.Reason == failure.StoreFull {
		meta, err = h.cfg.Store.Put(now, ref, []*owner.Record{divide.Bare(records[0], now)})
	}
	if err != nil {
		return err
	}
	return h.confirmed(meta)
}

// confirmed returns nil when the standby has what was read or written, and this node
// still had the right to decide about it then.
func (h *Home) confirmed(m owner.Meta) error {
	//guard:split-carry-replicated
	if !h.cfg.Copies.Await(m.Permit.Hash) {
		return errNotReplicated
	}
	return h.cfg.Store.Confirm(m.Permit, h.cfg.Now())
}
