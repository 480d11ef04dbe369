package owner

import (
	"math"

	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/lock"
	"github.com/keystead/keystead/owner/queue"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/owner/wire"
)

const (
	_ = uint(MaxState - lock.MaxGrant)
	_ = uint(MaxMember - (wire.MaxNumber + 4 + lock.MaxWaiter))
)

// Move is what a change did to one place in the queue of a lock: it is gone, or is what the
// Waiter says. Ticket and Away mean nothing. Places without a request id are nobody's
// elsewhere, and are not mentioned.
type Move struct {
	hold.Waiter
	Gone bool
}

// SetLock makes the record that of a lock with all its queue, in the old form, and returns it.
func (r *Record) SetLock(s hold.State) *Record {
	moves := make([]Move, s.Queue.Len())
	for i, p := range s.Queue.All() {
		moves[i].Waiter = *p
	}
	r.SetMoves(s, moves...)
	r.Partial = false
	return r
}

// SetMoves makes the record that of a change of a lock that changed these places in its
// queue, in the old form, and returns it.
func (r *Record) SetMoves(s hold.State, moves ...Move) *Record {
	var state, places wire.Writer
	state.Now = s.At
	lock.AppendTo(&state, &s)
	r.Kind, r.Partial, r.State, r.Members = KindLock, true, ReadState(state.B, s.At), nil
	for i := range moves {
		r.addEntrant(&places, &moves[i].Waiter, moves[i].Gone, s.At)
	}
	return r
}

// oldLocks are locks behind a header of version 1. The queue stands behind the grant: the
// number of its places, and of each the request, its times and who asked.
type oldLocks struct{}

func (oldLocks) version(*Record) byte { return 1 }

// write implements old.
func (oldLocks) write(r *Record, to []byte, now int64) []byte {
	if !r.plain() {
		if s := r.Hold(); s != nil {
			r = new(Record).SetLock(*s)
		}
	}
	w := wire.Writer{B: holds{}.write(r, to, now)}
	w.Uint(uint64(len(r.Members)))
	for i := range r.Members {
		m := &r.Members[i]
		from := wire.Reader{B: m.State}
		settled, print := from.Uint(math.MaxUint64), from.Fixed32()
		w.B = append(w.B, from.B...)
		w.Uint(m.ID.Sequence)
		w.Fixed64(m.ID.Client.Hi)
		w.Fixed64(m.ID.Client.Lo)
		w.Uint(settled)
		w.Fixed32(print)
	}
	return w.B
}

// minPlace is the least that a place takes.
const minPlace = 1 + 1 + 1 + 1 + 1 + 1

// read implements old.
func (oldLocks) read(r *Record, from wire.Reader, _ byte) wire.Reader {
	before := from.B
	s := lock.ReadFrom(&from)
	r.State = ReadState(before[:len(before)-len(from.B)], from.Now)
	var places wire.Writer
	for range from.Count(minPlace) {
		place := lock.ReadWaiter(&from, queue.Caller{}, s.At)
		id := reqid.ID{}
		if id.Sequence = from.Uint(math.MaxUint64); id.Given() {
			id.Client.Hi, id.Client.Lo = from.Fixed64(), from.Fixed64()
			id.Settled, place.Caller.Print = from.Uint(math.MaxUint64), from.Fixed32()
		}
		if from.Bad {
			return from
		}
		place.Caller.ID = id
		r.addEntrant(&places, &place, false, s.At)
	}
	return from
}
