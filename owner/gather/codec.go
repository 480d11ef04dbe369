package gather

import (
	"errors"
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/keystead/keystead/owner/wire"
)

// MaxObject is the most bytes that AppendTo writes, MaxMember that of AppendParty.
const (
	MaxObject = 17*wire.MaxNumber + 2*MaxName + maxParentKey + maxParentName
	MaxMember = 5*wire.MaxNumber + MaxName
)

// AppendTo writes the state without its parties.
func (s *State) AppendTo(w *wire.Writer) {
	w.Moment(s.At)
	w.Uint(s.Phase)
	w.Uint(s.Phase - s.Since)
	w.Uint(s.Broken)
	w.Uint(s.After)
	w.Uint(uint64(s.Cause))
	w.Text(s.Who)
	w.Uint(s.Passes)
	w.Uint(uint64(s.Need))
	appendEnd(w, s.Deadline, s.At)
	w.Uint(s.Next)
	w.Text(s.Parent.Key)
	if !s.Parent.Given() {
		return
	}
	w.Text(s.Parent.Name)
	w.Text(s.Parent.Party)
	w.Uint(s.Above)
	w.Uint(bit(s.Sent) | bit(s.Joined)<<1)
}

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// ReadFrom reads what AppendTo wrote. Nothing is judged but that it can have been written: see
// Valid.
func (s *State) ReadFrom(r *wire.Reader) {
	*s = State{At: r.Moment(), Phase: r.Uint(MaxPhase)}
	s.Since = s.Phase - r.Uint(s.Phase)
	s.Broken, s.After = r.Uint(MaxPhase), r.Uint(MaxPhase)
	s.Cause, s.Who = Cause(r.Uint(uint64(causes)-1)), string(r.Bytes(MaxName))
	s.Passes, s.Need = r.Uint(math.MaxUint64), uint32(r.Uint(MaxParties))
	s.Deadline, s.Next = readEnd(r, s.At), r.Uint(math.MaxInt64)
	if s.Parent.Key = string(r.Bytes(maxParentKey)); !s.Parent.Given() {
		return
	}
	s.Parent.Name, s.Parent.Party = string(r.Bytes(maxParentName)), string(r.Bytes(MaxName))
	s.Above = r.Uint(MaxPhase)
	flags := r.Uint(3)
	s.Sent, s.Joined = flags&1 != 0, flags&2 != 0
}

// AppendParty writes a party of a state whose last moment is at.
func AppendParty(w *wire.Writer, p *Party, at int64) {
	w.Uint(p.Phase)
	w.Uint(bit(p.Breaks))
	w.Uint(p.Child)
	appendEnd(w, p.Expires, at)
	w.Text(p.Name)
}

// ReadParty reads what AppendParty wrote of the party of a number.
func ReadParty(r *wire.Reader, number uint64, at int64) (p Party) {
	p.Number, p.Phase, p.Breaks, p.Child = number, r.Uint(MaxPhase), r.Uint(1) == 1, r.Uint(MaxPhase)
	p.Expires, p.Name = readEnd(r, at), string(r.Bytes(MaxName))
	return p
}

// appendEnd writes a moment that is after another one: how long after, 0 for none.
func appendEnd(w *wire.Writer, end, at int64) {
	if end == 0 {
		w.Uint(0)
		return
	}
	w.Uint(uint64(max(0, end-at)) + 1)
}

func readEnd(r *wire.Reader, at int64) int64 {
	left := r.Uint(uint64(max(MaxTTL, MaxWithin)) + 1)
	if left == 0 {
		return 0
	}
	return at + int64(left-1)
}

// ValidHead reports why a state without its parties that came from elsewhere cannot be one of
// this package.
func (s *State) ValidHead() error {
	switch {
	case s.Phase == 0:
		return errors.New("gather: it has no phase")
	case s.Since == 0:
		return errors.New("gather: it has no first phase")
	case (s.Broken == 0) != (s.After == 0), (s.Broken == 0) != (s.Cause == None):
		return errors.New("gather: a phase was broken, and was not")
	case s.Broken != 0 && (s.Broken < s.Since || s.After <= s.Broken || s.After > s.Phase):
		return errors.New("gather: the phase that was broken is out of range")
	case !utf8.ValidString(s.Who):
		return errors.New("gather: the party that was lost has no id that is one")
	case s.Need == 0 && s.Deadline != 0:
		return errors.New("gather: a phaser has a deadline")
	}
	return s.validTree()
}

// ValidParty reports why a party of a state cannot be one of it.
func (s *State) ValidParty(p *Party) error {
	switch err := ValidateName(p.Name); {
	case err != nil:
		return err
	case p.Number == 0 || p.Number > s.Next:
		return fmt.Errorf("gather: a party has the number %d of %d", p.Number, s.Next)
	case (p.Expires == 0) != (s.Need != 0):
		return errors.New("gather: a party of a phaser has no lease, or one of a barrier has one")
	case s.Need != 0 && p.Phase != s.Phase, p.Phase > s.Phase:
		return errors.New("gather: a party has arrived for a phase that is not under way")
	}
	return nil
}

// Add puts a party into a state that came from elsewhere, with all that is there, and reports why
// it cannot be one of it.
func (s *State) Add(p Party) error {
	if err := s.ValidParty(&p); err != nil {
		return err
	}
	if len(s.Parties) >= MaxParties || s.Find(p.Name) != nil || s.Numbered(p.Number) != nil {
		return errors.New("gather: a party is there twice, or there are too many")
	}
	s.Put(p)
	return nil
}
