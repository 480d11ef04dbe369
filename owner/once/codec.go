package once

import (
	"math"

	"github.com/keystead/keystead/owner/wire"
)

// MaxState is the most bytes that AppendTo writes.
const MaxState = 1 + 4*wire.MaxNumber + wire.MaxNumber + MaxPrint + wire.MaxNumber + max(MaxResult, MaxHolder)

// AppendTo writes the state, which is not Absent.
func (s *State) AppendTo(w *wire.Writer) {
	w.Byte(byte(s.Phase))
	w.Uint(s.Token)
	w.Uint(uint64(s.Attempt))
	w.Moment(s.Since)
	w.Uint(uint64(s.Until - s.Since))
	w.Bytes(s.Print)
	if s.Phase == Finished {
		w.Bytes(s.Result)
	} else {
		w.Bytes(s.Holder)
	}
}

// ReadFrom reads what AppendTo wrote. Its texts are part of what is read. Nothing is judged but
// that it can have been written: see Valid.
func (s *State) ReadFrom(r *wire.Reader) {
	*s = State{Phase: Phase(r.Byte()), Token: r.Uint(MaxToken), Attempt: uint32(r.Uint(math.MaxUint32)), Since: r.Moment()}
	s.Until = s.Since + int64(r.Uint(wire.MaxAge))
	s.Print = some(r.Bytes(MaxPrint))
	switch s.Phase {
	case Finished:
		s.Result = some(r.Bytes(MaxResult))
	case UnderWay:
		s.Holder = some(r.Bytes(MaxHolder))
	default:
		r.Fail()
	}
}
