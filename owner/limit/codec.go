package limit

import (
	"slices"

	"github.com/keystead/keystead/owner/wire"
)

// AppendTo writes the state and the marks that it has. Of a sliding window, the marks but
// for the last one, which the state tells: their number, and of each, the last one first,
// the time to the next and the tokens. A weight stands at the end, if there is one.
func (s *State) AppendTo(w *wire.Writer, marks []Mark) {
	w.Byte(byte(s.Algorithm))
	if s.Algorithm == CalendarWindow {
		s.appendDated(w)
		return
	}
	if s.Spent != 0 {
		w.Moment(s.At)
	} else {
		w.Uint(0) // it says nothing but its weight
	}
	w.Uint(s.Spent)
	w.Uint(s.Carry)
	w.Uint(s.Limit)
	w.Uint(uint64(s.Period))
	if s.Algorithm == SlidingWindow {
		older := max(len(marks)-1, 0)
		w.Uint(uint64(older))
		for i := older - 1; i >= 0; i-- {
			w.Uint(uint64(marks[i+1].At - marks[i].At))
			w.Uint(marks[i].Tokens)
		}
	}
	if s.Weight != 0 {
		w.Uint(uint64(s.Weight))
	}
}

// ReadFrom reads what AppendTo wrote, to the end of r: a weight, if there is one. The marks
// are put into those given, if they have room. What is read is not judged: see Valid and
// ValidMarks.
func (s *State) ReadFrom(r *wire.Reader, marks []Mark) []Mark {
	marks = s.ReadWhole(r, marks)
	if len(r.B) > 0 {
		s.ReadWeight(r)
	}
	return marks
}

// ReadWhole is ReadFrom of a state that has no weight. It leaves what is behind.
func (s *State) ReadWhole(r *wire.Reader, marks []Mark) []Mark {
	algorithm := Algorithm(r.Byte())
	if algorithm == CalendarWindow {
		s.readDated(r)
		return marks[:0]
	}
	*s = State{
		Algorithm: algorithm, At: r.Moment(), Spent: r.Uint(MaxLimit), Carry: r.Uint(MaxPeriod),
		Limit: r.Uint(MaxLimit), Period: int64(r.Uint(MaxPeriod)),
	}
	marks = marks[:0]
	if s.Algorithm != SlidingWindow {
		return marks
	}
	older := r.Uint(MaxMarks - 1)
	if older == 0 {
		return marks
	}
	m := Mark{At: s.At, Tokens: s.Spent}
	marks = append(marks, m)
	for range older {
		m = Mark{At: m.At - int64(r.Uint(MaxPeriod)), Tokens: r.Uint(MaxLimit)}
		marks[0].Tokens -= m.Tokens // below 0 it is none that ValidMarks lets pass
		marks = append(marks, m)
	}
	slices.Reverse(marks)
	return marks
}

// ReadWeight reads the weight of a state that has one, behind the rest.
func (s *State) ReadWeight(r *wire.Reader) {
	s.Weight = uint32(r.Uint(FullWeight))
	if s.Spent == 0 && s.At == r.Now {
		s.At = 0
	}
}
