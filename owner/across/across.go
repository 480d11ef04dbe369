package across

import (
	"errors"
	"math/bits"

	"github.com/keystead/keystead/owner/reqid"
)

// Bounds, with their reasons. Durations are ns.
const (
	MaxKeys    = 16            // participants: as many as one Admit has demands
	MaxDemands = 16            // of one Admit, under all keys
	MaxHeld    = 4096          // holds of one object that are not forgotten: a record of all fits a message, with MaxText
	MaxDenied  = 4096          // refusals and marks of one object, apart from the holds, so that neither has the other's room
	MaxText    = 1 << 19       // bytes that all holds of an object take in a record
	MaxVote    = 1200          // bytes that one of them takes there
	Patience   = 1_000_000_000 // for which a participant waits for the coordinator before it asks the others
	MaxPause   = 30 * Patience // between two questions, which come ever more slowly
)

// Reserved is the cost of a demand that cost what it had reserved.
const Reserved = 1<<63 - 1

// ID names an admission and its holds, at all participants: the client and the sequence of the
// request.
type ID struct {
	Client   reqid.Client
	Sequence uint64
}

// Set is a set of participants or of demands, by their places.
type Set uint16

// All returns the set of the first n.
func All(n int) Set { return Set(1<<n - 1) }

// One returns the set of one.
func One(i uint8) Set { return 1 << i }

// Has reports whether one is in the set.
func (s Set) Has(i uint8) bool { return s&One(i) != 0 }

// Len returns how many are in the set.
func (s Set) Len() int { return bits.OnesCount16(uint16(s)) }

// Phase is what a participant knows of an admission.
type Phase uint8

const (
	Unknown   Phase = iota // nothing that could be said; in an answer: ask again
	Held                   // its demands are charged here, and may be given back
	Admitted               // all participants hold, or did; the time of the hold runs
	Charged                // all did, and its time is over: what was charged stays so
	Released               // all did, and its time is over: what was charged was given back
	Settled                // all did, and the caller has said what it cost
	Refused                // the demands of this participant did not fit
	Aborted                // it had not seen the admission when it was asked, and never will
	Cancelled              // it held, and gave that back, because one of the others denies
	Lost                   // its row was lost since the request was sent, so it may have held
	Forgotten              // only in an answer: it knows nothing, and need not
	phases
)

// Holds reports whether a participant in the phase has held without giving back what others
// could still charge.
func (p Phase) Holds() bool { return p >= Held && p <= Settled }

// Admits reports whether a participant in the phase knows that all have held.
func (p Phase) Admits() bool { return p >= Admitted && p <= Settled }

// Denies reports whether a participant in the phase never held, or not any more, so that no other
// one may charge.
func (p Phase) Denies() bool { return p >= Refused && p <= Cancelled }

// ends reports whether only to be remembered is left.
func (p Phase) ends() bool { return p >= Charged && p <= Settled }

// Terms are the same at all participants.
type Terms struct {
	Keys   []string // of the participants, each once
	Of     []uint8  // the participant of each demand
	Names  []uint32 // what each demand is called by those that settle, in the words of their user
	Hold   int64    // how long it is held once it is admitted; 0 = it is spent at once
	Charge bool     // what the end of that time does; a hold of no time is always charged
	Print  uint32   // of the request, to tell a retry from an id that is used again
}

var errTerms = errors.New("across: an admission that is none")

// Valid reports what cannot be.
func (t *Terms) Valid() error {
	if len(t.Keys) < 1 || len(t.Keys) > MaxKeys || len(t.Of) < len(t.Keys) || len(t.Of) > MaxDemands || len(t.Names) != len(t.Of) || t.Hold < 0 {
		return errTerms
	}
	var of Set
	for _, k := range t.Of {
		if int(k) >= len(t.Keys) {
			return errTerms
		}
		of |= One(k)
	}
	if of != All(len(t.Keys)) {
		return errTerms
	}
	return nil
}

// Hold asks a participant to charge what is demanded of it.
type Hold struct {
	ID
	Terms
	Self  uint8  // the participant, of Keys
	Epoch uint64 // of the table that the first attempt went by; 0 = this is a retry by the caller
	Age   int64  // since the caller first sent the request, as far as is known
	Own   []byte // what the owner of the key has to know to give back what it charges
}

// Refusal says why demands do not fit.
type Refusal struct {
	Demands   Set   // that do not
	RetryAt   int64 // when all of this participant could pass, if nothing else comes
	Contended bool  // they would fit but for holds that are not decided
}

// Vote is what a participant has to remember of an admission.
type Vote struct {
	ID
	Terms   // of a mark: none
	Refusal // of Refused
	Phase   Phase
	Self    uint8
	Epoch   uint64   // of the first attempt's Hold; 0 = it has not come
	Began   int64    // when the request was first sent, or later
	Made    int64    // when the vote came to be
	Until   int64    // of Held and Admitted the end of the hold's time; otherwise, until when it is remembered
	Costs   []uint64 // of all demands, of Settled; of Held what the caller has said before it was decided
	Own     []byte

	place, text int // in State.due, and the bytes in a record

	// What the next owner finds out again.
	heard Set // of Held: others that may have held; of what has ended: others that know
	next  int64
	pause int64
}

// Question is what a participant asks another one about a hold.
type Question struct {
	ID
	To    uint8
	Key   string
	Epoch uint64 // of the first attempt, if it is known
	Age   int64  // of the request, or less
	Print uint32
}

// Answer is what a participant knows, told to the coordinator or to another participant.
type Answer struct {
	Phase   Phase
	Refusal // of Refused
	Costs   []uint64
}

// Word is news of an admission. It is true for good: a word that comes late, or again, is no other.
type Word struct {
	ID
	To    uint8
	Key   string
	Epoch uint64
	Phase Phase    // Cancelled: one denies. Admitted: all have held. Settled: what it cost. Released: its time is over at one
	Costs []uint64 // of Settled
	All   bool     // all participants know it
	Print uint32
}

// Effect is what the owner of a key has to do to what is charged there, in the same step.
type Effect struct {
	ID    ID
	From  Phase // the phase before: Held, Admitted and Charged are charged, Released is not
	To    Phase // Cancelled, Charged, Released, Settled; Unknown = nothing
	Of    []uint8
	Self  uint8
	Made  int64
	Own   []byte
	Costs []uint64 // of all demands, of Settled
}
