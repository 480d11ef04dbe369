package record

import (
	"math"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/lock"
	"github.com/keystead/keystead/owner/reqid"
)

// Flags of a record of version 4, and of a member.
const (
	withState   = 1 << 0
	withDone    = 1 << 1
	withMembers = 1 << 2

	memberGone = 1 << 0
)

// byPlace writes a change of a lock and of some places in its queue.
func (e *encoder) byPlace(r *owner.Record) {
	flags := uint64(0)
	if r.Lock != nil {
		flags |= withState
	}
	if len(r.Done) > 0 {
		flags |= withDone
	}
	if len(r.Moves) > 0 {
		flags |= withMembers
	}
	e.b = append(e.b, Version)
	e.uint(uint64(r.Kind))
	e.uint(flags)
	e.bytes(r.Key)
	e.bytes(r.Name)
	e.uint(r.Version)
	e.age(r.At)
	if r.Lock != nil {
		from := len(e.b)
		e.grant(r.Lock)
		e.sized(from)
	}
	if len(r.Done) > 0 {
		e.done(r.Done)
	}
	if len(r.Moves) == 0 {
		return
	}
	e.uint(uint64(len(r.Moves)))
	for i := range r.Moves {
		e.member(&r.Moves[i], r.Lock)
	}
}

func (e *encoder) member(m *owner.Move, s *lock.State) {
	e.client(m.Caller.ID.Client)
	e.uint(m.Caller.ID.Sequence)
	if m.Gone {
		e.uint(memberGone)
		return
	}
	e.uint(0)
	at := int64(0)
	if s != nil {
		at = s.At
	}
	w, from := &m.Waiter, len(e.b)
	e.uint(w.Caller.ID.Settled)
	e.fixed32(w.Caller.Print)
	e.text(w.Request.Holder)
	e.bytes(w.Request.Metadata)
	e.uint(uint64(w.Request.TTL))
	e.uint(uint64(at - w.Since))
	e.uint(uint64(w.GiveUp - w.Since))
	e.sized(from)
}

// byPlace reads what the encoder's byPlace wrote.
func (d *decoder) byPlace(r *owner.Record) error {
	kind, flags := d.uint(math.MaxUint8), d.uint(withState|withDone|withMembers)
	r.Kind, r.ByPlace = owner.Kind(kind), true
	r.Key, r.Name = d.bytes(owner.MaxKey), d.bytes(owner.MaxName)
	r.Version = d.uint(math.MaxUint64)
	r.At = d.age()
	r.Hash = owner.Hash(string(r.Key))
	if r.Kind != owner.KindLock {
		return ErrDamaged // no other kind has members
	}
	if flags&withState != 0 {
		r.Lock = &lock.State{}
		part := d.sized()
		part.grant(r.Lock)
		d.ends(&part)
	}
	if flags&withDone != 0 {
		d.done(r)
	}
	if flags&withMembers != 0 {
		for range d.count(minMember) {
			r.Moves = append(r.Moves, d.member(r.Lock))
		}
	}
	if d.bad || len(d.b) > 0 || flags&withDone != 0 && len(r.Done) == 0 || flags&withMembers != 0 && len(r.Moves) == 0 {
		return ErrDamaged
	}
	return nil
}

func (d *decoder) member(s *lock.State) owner.Move {
	m := owner.Move{}
	m.Caller.ID = reqid.ID{Client: d.client(), Sequence: d.uint(math.MaxUint64)}
	if m.Gone = d.uint(memberGone) != 0; m.Gone {
		return m
	}
	part := d.sized()
	w := &m.Waiter
	w.Caller.ID.Settled, w.Caller.Print = part.uint(math.MaxUint64), part.fixed32()
	w.Request.Holder, w.Request.Metadata, w.Request.TTL = string(part.bytes(lock.MaxHolder)), part.copied(lock.MaxMetadata), int64(part.uint(lock.MaxTTL))
	if s != nil {
		w.Since = s.At
	}
	w.Since -= int64(part.uint(maxAge))
	w.GiveUp = w.Since + int64(part.uint(maxAge))
	d.ends(&part)
	return m
}
