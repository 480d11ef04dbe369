package admission

import (
	"encoding/binary"
	"math"
	"unsafe"

	"github.com/keystead/keystead/owner/limit"
)

// home returns where the index begins to look for an id. Ids are random in their clients and
// dense in their sequences.
func (s *State) home(id ID) uint32 {
	h := (id.Client.Hi ^ id.Client.Lo*0x9E3779B97F4A7C15 ^ id.Sequence) * 0xC2B2AE3D27D4EB4F
	return uint32((h >> 32) * uint64(len(s.index)) >> 32)
}

func (s *State) after(i uint32) uint32 {
	if i++; i == uint32(len(s.index)) {
		return 0
	}
	return i
}

// link puts a hold into the index, of which a quarter is empty at least.
func (s *State) link(n uint32) {
	if 4*(s.Len()+1) > 3*len(s.index) {
		s.index = make([]uint32, 4+len(s.index)+len(s.index)/4)
		s.Each(func(other uint32) bool {
			s.put(other)
			return true
		})
	}
	s.put(n)
}

func (s *State) put(n uint32) {
	i := s.home(s.holds[n].ID)
	for s.index[i] != 0 {
		i = s.after(i)
	}
	s.index[i] = n + 1
}

// unlink takes a hold out, and closes the gap.
func (s *State) unlink(n uint32) {
	gap := s.home(s.holds[n].ID)
	for s.index[gap] != n+1 {
		gap = s.after(gap)
	}
	size := uint32(len(s.index))
	for i := s.after(gap); s.index[i] != 0; i = s.after(i) {
		home := s.home(s.holds[s.index[i]-1].ID)
		if (i+size-home)%size >= (i+size-gap)%size { // it was looked for from the gap or before
			s.index[gap] = s.index[i]
			gap = i
		}
	}
	s.index[gap] = 0
}

// pack keeps the demands of a hold.
func (s *State) pack(n uint32, demands []Demand) {
	k := &s.holds[n]
	b := k.room[:0]
	for i := range demands {
		b = binary.AppendUvarint(b, uint64(s.number(&demands[i].Term)))
		b = binary.AppendUvarint(b, demands[i].Cost)
		if demands[i].windowed() {
			b = binary.AppendUvarint(b, uint64(demands[i].Into))
		}
	}
	if k.size = uint8(len(b)); len(b) <= roomSize {
		return // it stands there
	}
	k.size = inLong
	if s.long == nil {
		s.long = map[uint32]string{}
	}
	s.long[n] = string(b)
}

// windowed reports whether it is known where in its window the demand was charged.
func (t *Term) windowed() bool { return t.Of == Limit && t.Params.Algorithm == limit.FixedWindow }

// number returns the number of a term, and counts a hold that has it. Most requests demand the same, in the same
// order: so the term after the last one is looked at first.
func (s *State) number(t *Term) uint32 {
	n := s.guess
	if n >= uint32(len(s.terms)) {
		n = 0
	}
	if n >= uint32(len(s.terms)) || s.terms[n].Term != *t {
		var ok bool
		if n, ok = s.numbers[*t]; !ok {
			n = s.newTerm(t)
		}
	}
	s.terms[n].holds++
	s.guess = n + 1
	return n
}

// newTerm keeps a term that is not known. It may have the place of one that no hold has any more.
func (s *State) newTerm(t *Term) (n uint32) {
	if s.numbers == nil {
		s.numbers = map[Term]uint32{}
	}
	n = uint32(len(s.terms))
	for last := len(s.spare) - 1; last >= 0 && n == uint32(len(s.terms)); last-- {
		of := s.spare[last]
		s.spare = s.spare[:last]
		if s.terms[of].spare = false; s.terms[of].holds == 0 {
			n = of
		}
	}
	if n < uint32(len(s.terms)) {
		s.names -= len(s.terms[n].Name)
		delete(s.numbers, s.terms[n].Term)
	} else {
		s.terms = append(s.terms, term{})
	}
	s.terms[n].Term = *t
	s.names += len(t.Name)
	s.numbers[*t] = n
	return n
}

// packed returns the demands of a hold as they are kept.
func (s *State) packed(n uint32) []byte {
	k := &s.holds[n]
	if k.size == inLong {
		return []byte(s.long[n])
	}
	return k.room[:k.size]
}

// Demands appends those of a hold.
func (s *State) Demands(n uint32, to []Demand) []Demand {
	for b := s.packed(n); len(b) > 0; {
		number, size := binary.Uvarint(b)
		cost, more := binary.Uvarint(b[size:])
		b = b[size+more:]
		to = append(to, Demand{})
		d := &to[len(to)-1]
		d.Term, d.Cost = s.terms[number].Term, cost
		if d.windowed() {
			into, size := binary.Uvarint(b)
			d.Into, b = limit.Into(into), b[size:]
		}
	}
	return to
}

// unpack forgets the demands of a hold, and returns how many bytes they took in a record.
func (s *State) unpack(n uint32) (text int) {
	text = holdText
	for b := s.packed(n); len(b) > 0; {
		number, size := binary.Uvarint(b)
		_, more := binary.Uvarint(b[size:])
		b = b[size+more:]
		t := &s.terms[number]
		if text += t.text(); t.windowed() {
			_, size := binary.Uvarint(b)
			b = b[size:]
		}
		if t.holds--; t.holds == 0 && !t.spare {
			t.spare = true // it stays known, until another one needs the place
			s.spare = append(s.spare, uint32(number))
		}
	}
	delete(s.long, n)
	return text
}

// What a hold and a demand take in a record, at most, beside names.
const (
	holdText   = 16 + 10 + 1 + 3 + 1 + 10 + 10 + 1
	demandText = 1 + 2 + 6 + 1 + 6 + 8 + 6 + 3
	rateText   = 6 + 8
	datedText  = 1 + 1 + 1 + 2 + 6 // beside the zone
)

// MaxMember is the most bytes that AppendHold writes.
const MaxMember = 1200

// Fits reports whether a hold of such demands fits a record.
func Fits(demands []Demand) bool { return textOf(demands) <= MaxMember }

func textOf(demands []Demand) int {
	n := holdText
	for i := range demands {
		n += demands[i].text()
	}
	return n
}

// text returns how many bytes a demand of the term takes in a record, at most.
func (t *Term) text() int {
	n := demandText + len(t.Name)
	if t.Rate.Limit != 0 {
		n += rateText
	}
	if t.Of == Limit && t.Params.Algorithm == limit.CalendarWindow {
		n += datedText + len(limit.Calendar(t.Params.Period).Zone().Name())
	}
	return n
}

const (
	perTerm = 2*int(unsafe.Sizeof(term{})) + 24 // in the list and as a key
	perLong = 48 + MaxDemands*8
	perHold = int(unsafe.Sizeof(hold{})) + 4*4 // with its places in the index and a heap
)

// Size is what a hold of such demands takes, at most, that has a place of its own and terms that no other one has.
func Size(demands []Demand) int {
	n := perHold + perLong + len(demands)*perTerm
	for i := range demands {
		n += len(demands[i].Name)
	}
	return n
}

// Bytes is about what the state takes beside itself.
func (s *State) Bytes() int {
	n := cap(s.holds)*int(unsafe.Sizeof(hold{})) + 4*(cap(s.index)+cap(s.due)+cap(s.over)+cap(s.spare)) + cap(s.terms)*perTerm + s.names
	return min(n+len(s.long)*perLong, math.MaxUint32)
}
