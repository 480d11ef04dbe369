package owner

import "github.com/keystead/keystead/owner/reqid"

// Record is one object: its absolute state after a change, and the request ids
// that the change answered, or, of a copy that is made (Store.Export), all that is
// remembered of it. Installing it twice is the same as once, and of two records of
// an object the later one is the state.
//
// Its times are moments of this process's clock. What points to lists may point
// into the store: it is valid under the lock of the shard only.
type Record struct {
	Hash    uint64 // of the key: its position on the ring
	Key     []byte
	Name    []byte
	Kind    Kind
	Version uint64 // rises with every change in a shard, hence with every change of an object

	// State is the state of the object, which only its kind reads; zero if it is absent.
	State State
	// Members are the parts of the state that travel one by one, such as the places in the
	// queue of a lock: all of them, in order, or, if the record is Partial, those that the
	// change changed, in the order in which that is to be applied. The others stay then,
	// unless the object is absent.
	Members []Member
	Partial bool

	// Beside are other objects of the key that the same step has changed: each with its name, its kind and
	// its state, and nothing else. A copy takes all of the step in, or nothing.
	Beside []Record

	At   int64  // when it took effect
	Done []Done // the request ids that it answered, in the order in which they are remembered

	// Whole says that the record is not a change: it has all that there is of
	// the object, and IDs is not nil. What does not fit into it follows in records
	// of the same object that are More: they add to IDs and have no state.
	Whole, More bool
	IDs         *reqid.Kept
}

// Member is one part of the state of an object. It is absolute: it is gone, or is what its
// State says, where it stands already or, if it stands nowhere, at the end.
type Member struct {
	ID    MemberID
	Gone  bool
	State []byte // which only the kind reads; its moments are told from one in the object's state
}

// MemberID names a member within its object, everywhere: a client and its request, or what
// a kind puts in their place.
type MemberID struct {
	Client   reqid.Client
	Sequence uint64
}

// Done is a request id, and what is remembered of it.
type Done struct {
	ID      reqid.ID
	Outcome reqid.Outcome
}

// Sink is told of every change, in order, under the shard lock. It must be
// quick and must not keep the record or anything that it points to.
type Sink interface {
	Changed(r *Record)
}

// PartialSink is a Sink that may get changes of objects that have members as records that
// are Partial.
type PartialSink interface {
	Sink
	// Partial reports whether it gets them so now. It is asked under the shard lock,
	// before each of them. If not, a record has all members.
	Partial() bool
}
