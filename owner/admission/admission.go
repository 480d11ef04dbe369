// Package admission keeps what was reserved and is not settled yet: holds, each with what it has
// reserved of several limits, counters and slots. It is a pure state machine, and knows nothing
// of these but their names: package owner charges them when a hold is made, and corrects them
// when it is settled or its time is over, in the same step.
//
// # Guarantee
//
// A hold is found by the id of the request that made it, and ends once: it is settled, or its
// time ends it, whichever is first. What it has charged is then exactly what it cost, or what
// its expiry says: everything (Charge), or nothing (Release). After its time it is remembered
// for Remember: what it really cost may still be told, and corrects what its expiry did.
//
// # Picture
//
//	Add ──▶ Held ── Settle ───────────────────────▶ gone
//	          │                                       ▲
//	          └─ Until ─▶ Charged, Released ─ Settle ─┤
//	                          └──── Until + Remember ─┘
//
// A hold takes some 90 bytes: terms that holds share are kept once, and what stands in a hold is
// a number for each and a cost.
//
// # Non-guarantee
//
// Of two holds under one id, only a caller that looks before it adds keeps the second away.
package admission

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
)

// Bounds, with their reasons.
const (
	MaxDemands = 16                     // levels of a hierarchy that anybody has
	MaxHolds   = 8192                   // of one object: a record of all of them fits a message, with MaxText
	MaxText    = 1 << 20                // bytes that all holds of an object take in a record
	MinHold    = 10_000_000             // ns, 10 ms: below, a hold ends while the answer travels
	MaxHold    = 24 * 3_600_000_000_000 // ns
	Remember   = 300_000_000_000        // ns for which a hold is known whose time is over
	MaxName    = 128                    // bytes of the name of what is demanded
	MaxCost    = limit.MaxLimit
)

// ID names a hold: the client and the sequence of the request that made it.
type ID struct {
	Client   reqid.Client
	Sequence uint64
}

// TagOf returns the client of the ids of the holds that have a tag. It is that of no request: 16 bytes of SHA-256 are
// not found twice.
func TagOf(tag string) reqid.Client {
	sum := sha256.Sum256(append([]byte("hold\x00"), tag...))
	return reqid.Client{Hi: binary.BigEndian.Uint64(sum[:]), Lo: binary.BigEndian.Uint64(sum[8:]) | 1}
}

// Resource is what a demand is about.
type Resource uint8

const (
	Limit   Resource = iota + 1 // tokens of a rate limit
	Counter                     // a counter that may not rise above a bound
	Slots                       // the same, and all of it comes back when the hold ends
)

// Term is what is demanded, but for how much.
type Term struct {
	Of     Resource
	Name   string       // of the object, under the key of the admission
	Params limit.Params // of a limit
	Max    int64        // of a counter and of slots: the greatest value
	Rate   Rate         // of a limit that was overridden when it was charged; none of a calendar window
	Ends   int64        // of a calendar window, the end of the period in which it was charged, ns since 1970
}

// Rate is how a limit was refilled while it was overridden. The zero Rate is that of no override.
type Rate struct {
	Limit  uint64
	Period int64
}

// Charged returns the parameters under which a limit was charged.
func (t *Term) Charged() limit.Params {
	p := t.Params
	//guard:admission-rate false
	if t.Rate.Limit != 0 {
		p.Limit, p.Period = t.Rate.Limit, t.Rate.Period
	}
	return p
}

// Demand is a term and what of it is reserved.
type Demand struct {
	Term
	Cost uint64
	Into limit.Into // of a fixed window, where in it that was charged
}

// Fits judges a demand, but for whether there can ever be so much: of a limit there may be under an
// override. never is the error then, as an *failure.Error like err.
func (d *Demand) Fits() (never, err error) {
	switch d.Of {
	case Limit:
		op := limit.Op{Params: d.Params, Cost: d.Cost}
		return op.Fits()
	case Counter, Slots:
	default:
		return nil, failure.Invalidf("of", "is missing: a demand is one of a limit, a counter or slots")
	}
	switch {
	case d.Max < 1 || d.Max > MaxCost:
		return nil, failure.Invalidf("max", "is %d; choose 1 to %d", d.Max, int64(MaxCost))
	case d.Cost == 0:
		return nil, failure.Invalidf("cost", "is 0; choose 1 to %d", d.Max)
	case d.Cost > uint64(d.Max):
		return failure.Invalidf("cost", "is %d; choose 1 to %d, or it would never be admitted", d.Cost, d.Max), nil
	}
	return nil, nil
}

// Settle returns what is to be taken in addition, and what is to be given back, when a hold of the
// demand that is in a phase cost so much in the end. Slots cost nothing when their hold has ended.
func (d *Demand) Settle(of Phase, cost uint64) (take, back uint64) {
	charged := d.Cost
	//guard:settle-released
	if of == Released || of == Charged && d.Of == Slots {
		charged = 0
	}
	if d.Of == Slots {
		cost = 0
	}
	if cost > charged {
		return cost - charged, 0
	}
	return 0, charged - cost
}

// Phase is how far a hold has come.
type Phase uint8

const (
	Unknown  Phase = iota // it never was, or is forgotten
	Held                  // its demands are charged
	Charged               // its time is over, and they stay so
	Released              // its time is over, and they were given back
)

// Hold is a reservation. Its demands are told by State.Demands.
type Hold struct {
	ID
	Made   int64
	Until  int64 // end of its time; of one whose time is over: when it is forgotten
	Phase  Phase
	Charge bool // what its expiry does
}

// hold is a Hold as it is kept. Its demands are numbers of terms and costs, as varints: in room, or
// if they are longer, in State.long.
type hold struct {
	ID
	made, until int64
	place       uint32 // in the heap of its phase; of one that is free, the next that is
	phase       Phase
	charge      bool
	size        uint8 // of the demands; inLong = they are there
	room        [roomSize]byte
}

const (
	roomSize = 25
	inLong   = 255
)

// State is the holds of one object. The zero State has none.
type State struct {
	At int64 // of the last change

	holds []hold
	free  uint32   // 1 + the first that is; 0 = none
	index []uint32 // 1 + place of the hold with such a hash, or of a later one; 0 = none. Linear probing
	due   []uint32 // heaps by until: of holds that are held,
	over  []uint32 // and of those that are only remembered
	long  map[uint32]string

	terms   []term
	numbers map[Term]uint32
	spare   []uint32 // numbers of terms that no hold has, or had none
	guess   uint32   // number of the term that is demanded next, as it seems
	names   int      // bytes of the names of terms

	text, overText int // bytes in a record, at most; and those of holds that are only remembered
}

type term struct {
	Term
	holds uint32 // that have it; 0 = it is only known
	spare bool   // it is among those that are spare
}

// ErrFull is the error of a hold for which an object has no room.
var ErrFull = errors.New("admission: the object has as many holds as it may")

// Len returns how many holds there are, those that are only remembered included.
func (s *State) Len() int { return len(s.due) + len(s.over) }

// Absent reports whether there are none.
func (s *State) Absent() bool { return s.Len() == 0 }

// Find returns the number of a hold; ok is false if it is unknown.
func (s *State) Find(id ID) (n uint32, ok bool) {
	if len(s.index) == 0 {
		return 0, false
	}
	for i := s.home(id); s.index[i] != 0; i = s.after(i) {
		if n = s.index[i] - 1; s.holds[n].ID == id {
			return n, true
		}
	}
	return 0, false
}

// Hold returns a hold by its number.
func (s *State) Hold(n uint32) Hold {
	h := &s.holds[n]
	return Hold{h.ID, h.made, h.until, h.phase, h.charge}
}

// Room returns ErrFull if there is none for a hold with such demands, though what is only remembered be
// forgotten for it.
func (s *State) Room(demands []Demand) error {
	//guard:admission-bound
	if len(s.due) >= MaxHolds || s.text-s.overText+textOf(demands) > MaxText {
		return ErrFull
	}
	return nil
}

// InTheWay returns the hold to drop next before one with such demands is added, for which there is room.
func (s *State) InTheWay(demands []Demand) (n uint32, ok bool) {
	if len(s.over) == 0 || s.Len() < MaxHolds && s.text+textOf(demands) <= MaxText {
		return 0, false
	}
	return s.over[0], true
}

// Oldest returns the one that is forgotten first of the holds that are only remembered.
func (s *State) Oldest() (n uint32, ok bool) {
	if len(s.over) == 0 {
		return 0, false
	}
	return s.over[0], true
}

// Spare reports whether there is the place of a hold that was dropped.
func (s *State) Spare() bool { return s.free != 0 }

// Add keeps a hold of an id that is unknown. There is room for it: see Room, and nothing is in its way.
func (s *State) Add(h Hold, demands []Demand) {
	var n uint32
	if s.free != 0 {
		n = s.free - 1
		s.free = s.holds[n].place
	} else {
		n = uint32(len(s.holds))
		s.holds = grown(s.holds)
		s.holds = append(s.holds, hold{})
	}
	s.holds[n] = hold{ID: h.ID, made: h.Made, until: h.Until, phase: h.Phase, charge: h.Charge}
	s.pack(n, demands)
	text := textOf(demands)
	s.text += text
	if h.Phase != Held {
		s.overText += text
	}
	s.link(n)
	s.push(n)
}

// Drop forgets a hold.
func (s *State) Drop(n uint32) {
	k := &s.holds[n]
	text := s.unpack(n)
	s.text -= text
	if k.phase != Held {
		s.overText -= text
	}
	s.unlink(n)
	s.pull(n)
	*k = hold{place: s.free}
	s.free = n + 1
	if s.Absent() {
		s.empty()
	}
}

// keptHolds is how many holds an empty state keeps room for.
const keptHolds = 8

// empty lets go of the room for many holds, when there are none. That for a few is used again, and so are their terms.
func (s *State) empty() {
	if cap(s.holds) > keptHolds || cap(s.terms) > 4*keptHolds {
		*s = State{At: s.At}
		return
	}
	s.holds, s.free, s.due, s.over = s.holds[:0], 0, s.due[:0], s.over[:0]
}

// Prolong has a hold end at another moment.
func (s *State) Prolong(n uint32, until int64) {
	k := &s.holds[n]
	k.until = until
	h := s.heapOf(k.phase)
	h.down(h.up(k.place))
}

// Next returns the hold whose time ends first, and when that is.
func (s *State) Next() (n uint32, at int64, ok bool) {
	switch {
	case s.Absent():
		return 0, 0, false
	case len(s.due) == 0 || len(s.over) > 0 && s.holds[s.over[0]].until < s.holds[s.due[0]].until:
		n = s.over[0]
	default:
		n = s.due[0]
	}
	return n, s.holds[n].until, true
}

// Expire ends the time of a hold: it is known for a while, as one that its expiry has charged or
// released, and then it is dropped. It reports whether it was dropped.
func (s *State) Expire(n uint32, now int64) (dropped bool) {
	k := &s.holds[n]
	if k.phase != Held {
		s.Drop(n)
		return true
	}
	s.pull(n)
	k.phase = Released
	if k.charge {
		k.phase = Charged
	}
	var room [MaxDemands]Demand
	s.overText += textOf(s.Demands(n, room[:0]))
	k.until = max(k.until, now) + Remember
	s.push(n)
	return false
}

// Each shows all holds, in no order, until show returns false.
func (s *State) Each(show func(n uint32) bool) {
	for _, all := range [...][]uint32{s.due, s.over} {
		for _, n := range all {
			if !show(n) {
				return
			}
		}
	}
}

// grown returns a slice with room for one more. It grows by an eighth: most of what is kept is in
// slices that are long.
func grown[T any](all []T) []T {
	if len(all) < cap(all) {
		return all
	}
	to := make([]T, len(all), len(all)+max(1, len(all)/8))
	copy(to, all)
	return to
}

// heap is holds by until, the first of which is at 0.
type heap struct {
	s  *State
	of *[]uint32
}

func (s *State) heapOf(p Phase) heap {
	if p == Held {
		return heap{s, &s.due}
	}
	return heap{s, &s.over}
}

// push puts a hold into the heap of its phase, and pull takes it out.
func (s *State) push(n uint32) {
	h := s.heapOf(s.holds[n].phase)
	*h.of = append(grown(*h.of), n)
	s.holds[n].place = uint32(len(*h.of) - 1)
	h.up(s.holds[n].place)
}

func (s *State) pull(n uint32) {
	h := s.heapOf(s.holds[n].phase)
	at, last := s.holds[n].place, uint32(len(*h.of)-1)
	h.swap(at, last)
	if *h.of = (*h.of)[:last]; at < last {
		h.down(h.up(at))
	}
}

func (h heap) less(a, b uint32) bool {
	return h.s.holds[(*h.of)[a]].until < h.s.holds[(*h.of)[b]].until
}

func (h heap) swap(a, b uint32) {
	of := *h.of
	of[a], of[b] = of[b], of[a]
	h.s.holds[of[a]].place, h.s.holds[of[b]].place = a, b
}

// up and down move what is at a place of the heap to where it belongs, and return that.
func (h heap) up(at uint32) uint32 {
	for at > 0 && h.less(at, (at-1)/2) {
		h.swap(at, (at-1)/2)
		at = (at - 1) / 2
	}
	return at
}

func (h heap) down(at uint32) uint32 {
	for {
		child := 2*at + 1
		if child >= uint32(len(*h.of)) {
			return at
		}
		if child+1 < uint32(len(*h.of)) && h.less(child+1, child) {
			child++
		}
		if !h.less(child, at) {
			return at
		}
		h.swap(at, child)
		at = child
	}
}
