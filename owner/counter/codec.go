package counter

import (
	"math"

	"github.com/keystead/keystead/owner/wire"
)

// AppendTo writes the state.
func (s *State) AppendTo(w *wire.Writer) {
	w.Int(s.Value)
	w.Uint(s.Version)
	w.Moment(s.At)
	w.Uint(uint64(s.IdleTTL))
}

// ReadFrom reads what AppendTo wrote. What is read is not judged: see Valid.
func (s *State) ReadFrom(r *wire.Reader) {
	*s = State{Value: r.Int(), Version: r.Uint(math.MaxUint64), At: r.Moment(), IdleTTL: int64(r.Uint(wire.MaxAge))}
}
