package gather

import (
	"math"
	"time"
	"unicode/utf8"

	"github.com/keystead/keystead/internal/failure"
)

const (
	// MaxParties bounds those of one barrier: a record of the whole has to fit a message
	// between nodes.
	MaxParties = 10_000
	// MaxName is the most bytes of a party's id.
	MaxName = 64
	// MaxPhase is the greatest number of a phase.
	MaxPhase = math.MaxInt64

	MinTTL    = int64(10 * time.Millisecond) // of a registration
	MaxTTL    = int64(24 * time.Hour)
	MaxWithin = int64(24 * time.Hour) // until a phase of a barrier is broken

	// Keep is how long a State is kept that is not used, so that a caller that asks late hears
	// what became of its phase.
	Keep = int64(10 * time.Minute)
)

// Cause is why a phase was broken.
type Cause uint8

const (
	None     Cause = iota
	Reset          // Break has
	Late           // not all had arrived by the deadline
	Lost           // the lease of a party has ended
	OfParent       // the phase of the parent was broken
	causes         // how many there are
)

// String returns the cause in words.
func (c Cause) String() string {
	return [...]string{"none", "reset", "late", "lost", "parent", "unknown"}[min(c, causes)]
}

// Verdict is what became of a phase.
type Verdict uint8

const (
	Unknown  Verdict = iota // it is not known here: it was before a loss, or is long over
	UnderWay                // not all have arrived
	Passed                  // all had arrived
	Broken                  // it ended before
)

// String returns the verdict in words.
func (v Verdict) String() string {
	return [...]string{"unknown", "under way", "passed", "broken"}[v]
}

// State is a barrier. The zero State is one that never was.
type State struct {
	At     int64  // the latest moment seen. Invariant: never falls
	Phase  uint64 // that is under way; 0 only in the zero State. Invariant: rises
	Since  uint64 // the phases from this one on that are below Phase were passed, …
	Broken uint64 // … but this one, the last that was broken; 0 = none
	After  uint64 // the phase that followed it
	Cause  Cause  // … why it was broken
	Who    string // … and which party was lost, for Lost

	Parent Parent // of which it is a party; of phasers
	Above  uint64 // the phase of the parent that this one is for; 0 = not known yet
	Sent   bool   // all have arrived, and so does it at the parent; until the phase ends
	Joined bool   // the parent may have it as a party

	Passes   uint64 // how many phases were passed
	Need     uint32 // parties of a barrier; 0: a phaser, all that are registered
	Deadline int64  // when the phase is broken; 0 = never
	Next     uint64 // the number of the last party. Invariant: never falls

	Parties []Party // in no order
	Arrived int     // Invariant: as many of them have Phase as theirs
	names   map[string]int
	numbers map[uint64]int
	soon    int64 // no lease ends before; 0 = none ends
}

// Party is one that takes part.
type Party struct {
	Name    string
	Number  uint64 // its own in this State
	Phase   uint64 // the last one that it has arrived for; 0 = none
	Expires int64  // when its lease ends; 0 = never: it is one of a barrier
	Breaks  bool   // the phase is broken when its lease ends
	Child   uint64 // its own last phase, if it is a phaser: what one before has sent is late
}

// Effects is what a step has changed.
type Effects struct {
	Changed bool
	Parties []uint64 // numbers of those that are new, have changed, or are gone
	Ended   uint64   // the phase that has ended; 0 = none
	Lapsed  int      // parties whose leases have ended
}

// Reset makes it the effects of nothing.
func (fx *Effects) Reset() { *fx = Effects{Parties: fx.Parties[:0]} }

// Arrive is a party that arrives.
type Arrive struct {
	Party  string
	Need   uint32 // parties of the barrier; 0: what it has, or the registered ones
	Phase  uint64 // for which it arrives; 0: the one that is under way
	Within int64  // until the phase is broken, ns; 0 = as long as may be. For barriers
	Child  uint64 // of a party that is a phaser: its own phase
}

// Register is a party that registers.
type Register struct {
	Party  string
	TTL    int64  // until its lease ends, ns
	Breaks bool   // the phase is broken then
	Parent Parent // of this phaser: of the first one to register
	Child  uint64 // of a party that is a phaser: its own phase
}

// Leave is a party that leaves.
type Leave struct {
	Party string
	Phase uint64 // of a barrier: for which it has arrived; 0 = the one that is under way
	Child uint64 // of a party that is a phaser: its own phase
}

// Outcome is what became of an operation.
type Outcome uint8

const (
	Done        Outcome = iota // it counts, or counted before
	Over                       // the phase is not under way
	NotThere                   // the party is not registered
	Differs                    // there is another number of parties, or they are registered
	TooMany                    // as many are registered as may be
	OtherParent                // the phaser has another parent, or none
	Stale                      // the party is a phaser, and has begun another phase
)

// Validate reports a parameter that is out of range, as a *failure.Error.
func (op *Arrive) Validate() error {
	switch {
	case op.Need > MaxParties:
		return failure.Invalidf("parties", "are %d; choose 1 to %d, or 0 for those that are registered", op.Need, MaxParties)
	case max(op.Phase, op.Child) > MaxPhase:
		return failure.Invalidf("phase", "is %d; no phase has such a number", max(op.Phase, op.Child))
	case op.Within < 0 || op.Within > MaxWithin:
		return failure.Invalidf("within_ns", "is %s; choose 0 to %s", time.Duration(op.Within), time.Duration(MaxWithin))
	case op.Need == 0 && op.Within != 0:
		return failure.Invalidf("within_ns", "is for barriers of a number of parties; a registered party has a lease")
	}
	return ValidateName(op.Party)
}

// ValidateName reports an id of a party that is none, as a *failure.Error.
func ValidateName(name string) error {
	switch {
	case name == "":
		return failure.Invalidf("party", "is empty")
	case len(name) > MaxName:
		return failure.Invalidf("party", "has %d bytes; at most %d are allowed", len(name), MaxName)
	case !utf8.ValidString(name):
		return failure.Invalidf("party", "is not valid UTF-8")
	}
	return nil
}

// ValidateTTL reports a lease that is too short or too long, as a *failure.Error.
func ValidateTTL(ttl int64) error {
	if ttl < MinTTL || ttl > MaxTTL {
		return failure.Invalidf("ttl_ns", "is %s; choose %s to %s", time.Duration(ttl), time.Duration(MinTTL), time.Duration(MaxTTL))
	}
	return nil
}

// Absent reports whether the state equals one that never was, at a moment.
func (s *State) Absent(now int64) bool {
	return s.Phase == 0 || len(s.Parties) == 0 && !s.Sent && now-s.At >= Keep
}

// Judge returns what became of a phase.
func (s *State) Judge(phase uint64) Verdict {
	switch {
	//guard:phase-unknown phase < s.Since -> false
	case phase == 0 || phase > s.Phase || phase < s.Since:
		return Unknown
	case phase == s.Phase:
		return UnderWay
	case phase == s.Broken:
		return Broken
	}
	return Passed
}

// Quorum returns how many have to arrive for the phase.
func (s *State) Quorum() int {
	if s.Need != 0 {
		return int(s.Need)
	}
	return len(s.Parties)
}

// Find returns a party by its id, nil if it is none.
func (s *State) Find(name string) *Party {
	if i, ok := s.names[name]; ok {
		return &s.Parties[i]
	}
	return nil
}

// Numbered returns a party by its number, nil if there is none.
func (s *State) Numbered(number uint64) *Party {
	if i, ok := s.numbers[number]; ok {
		return &s.Parties[i]
	}
	return nil
}

// Bytes returns about how many bytes the state refers to.
func (s *State) Bytes() int {
	const party, entry = 56, 48 // in the list, and in both maps
	n := len(s.Who) + cap(s.Parties)*party + len(s.Parent.Key) + len(s.Parent.Name) + len(s.Parent.Party)
	return n + len(s.Parties)*(entry+MaxName/2)
}

// Put makes a party what it says: one of its number, new or there already.
func (s *State) Put(p Party) {
	if s.names == nil {
		s.names, s.numbers = map[string]int{}, map[uint64]int{}
	}
	i, ok := s.numbers[p.Number]
	if !ok {
		i = len(s.Parties)
		s.Parties = append(s.Parties, Party{})
		s.names[p.Name], s.numbers[p.Number] = i, i
	} else if s.Parties[i].Phase == s.Phase {
		s.Arrived--
	}
	s.Parties[i], s.Next = p, max(s.Next, p.Number)
	if p.Phase == s.Phase {
		s.Arrived++
	}
	if p.Expires != 0 && (s.soon == 0 || p.Expires < s.soon) {
		s.soon = p.Expires
	}
}

// Drop removes a party, and does nothing if there is none of the number.
func (s *State) Drop(number uint64) {
	i, ok := s.numbers[number]
	if !ok {
		return
	}
	p := &s.Parties[i]
	if p.Phase == s.Phase {
		s.Arrived--
	}
	delete(s.names, p.Name)
	delete(s.numbers, number)
	last := len(s.Parties) - 1
	if *p = s.Parties[last]; i != last {
		s.names[p.Name], s.numbers[p.Number] = i, i
	}
	s.Parties[last] = Party{}
	s.Parties = s.Parties[:last]
}

// clear removes all parties, and the room that they take.
func (s *State) clear() {
	s.Parties, s.names, s.numbers, s.Arrived, s.soon = nil, nil, nil, 0, 0
}

// Turn makes another phase the one that is under way. The parties of a barrier are forgotten.
// It is what end does, and what a copy does that is told of another phase.
func (s *State) Turn(phase uint64) {
	if phase == s.Phase {
		return
	}
	s.Above, s.Sent = 0, false
	//guard:phase-forgets
	if s.Phase, s.Arrived, s.Deadline = phase, 0, 0; s.Need != 0 {
		s.clear()
	}
}

// Head returns the state without its parties.
func (s *State) Head() State {
	h := *s
	h.Parties, h.names, h.numbers, h.Arrived, h.soon = nil, nil, nil, 0, 0
	return h
}

// SetHead makes the state of a copy what another one says without its parties.
func (s *State) SetHead(head *State) {
	next := max(s.Next, head.Next)
	s.Turn(head.Phase)
	s.Since, s.Broken, s.After, s.Cause, s.Who = head.Since, head.Broken, head.After, head.Cause, head.Who
	s.Passes, s.Need, s.Deadline, s.Next = head.Passes, head.Need, head.Deadline, next
	s.Parent, s.Above, s.Sent, s.Joined = head.Parent, head.Above, head.Sent, head.Joined
}
