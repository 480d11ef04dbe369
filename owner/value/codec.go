package value

import "github.com/keystead/keystead/owner/wire"

// MaxState is the most bytes that AppendTo writes.
const MaxState = 4*wire.MaxNumber + 1 + MaxValue

const exists = 1 << 0

// AppendTo writes the state.
func (s *State) AppendTo(w *wire.Writer) {
	flags := byte(0)
	if s.Exists {
		flags |= exists
	}
	w.Byte(flags)
	w.Moment(s.At)
	w.Uint(s.Version)
	w.Uint(s.Fence)
	if s.Exists {
		w.Bytes(s.Value)
	}
}

// ReadFrom reads what AppendTo wrote. The value is part of what is read. Nothing is judged
// but that it can have been written: see Valid.
func (s *State) ReadFrom(r *wire.Reader) {
	flags := r.Byte()
	if flags&^exists != 0 {
		r.Fail()
	}
	*s = State{Exists: flags&exists != 0, At: r.Moment(), Version: r.Uint(MaxToken), Fence: r.Uint(MaxToken)}
	if s.Exists {
		s.Value = r.Bytes(MaxValue)
	}
}
