package owner

import (
	"math"

	"github.com/keystead/keystead/owner/lock"
	"github.com/keystead/keystead/owner/wire"
)

// oldLocks are locks behind a header of version 1. The queue stands behind the grant: the
// number of its places, and of each the request, its times and who asked.
type oldLocks struct{}

func (oldLocks) version(*Record) byte { return 1 }

// write implements old.
func (oldLocks) write(r *Record, to []byte, now int64) []byte {
	w := wire.Writer{B: locks{}.write(r, to, now)}
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
	var s lock.State
	s.ReadFrom(&from)
	r.State = ReadState(before[:len(before)-len(from.B)], from.Now)
	var places wire.Writer
	for range from.Count(minPlace) {
		m := Move{Waiter: lock.ReadWaiter(&from, s.At)}
		id := &m.Caller.ID
		if id.Sequence = from.Uint(math.MaxUint64); id.Given() {
			id.Client.Hi, id.Client.Lo = from.Fixed64(), from.Fixed64()
			id.Settled, m.Caller.Print = from.Uint(math.MaxUint64), from.Fixed32()
		}
		if from.Bad {
			return from
		}
		r.addPlace(&places, &m, s.At)
	}
	return from
}
