package owner

import (
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/lock"
	"github.com/keystead/keystead/owner/reqid"
)

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

	// The state of the object's kind; the zero state says that it is absent.
	Limit   limit.State
	Marks   []limit.Mark // of Limit, if it is a sliding window that has some
	Counter counter.State
	Lock    *lock.State // Tickets, Away and Grace of its queue mean nothing elsewhere

	// ByPlace says that the record is a change of a lock that names the places that it
	// changed, in Moves, in the order in which they are to be applied; Lock.Queue means
	// nothing then. Without a Lock nobody waits any more.
	ByPlace bool
	Moves   []Move

	At   int64  // when it took effect
	Done []Done // the request ids that it answered, in the order in which they are remembered

	// Whole says that the record is not a change: it has all that there is of
	// the object, and IDs is not nil. What does not fit into it follows in records
	// of the same object that are More: they add to IDs and have no state.
	Whole, More bool
	IDs         *reqid.Kept
}

// Move is what a change did to one place in the queue of a lock. It is absolute: the
// place is known by its request id, and is gone or is what the Waiter says, where it stands
// or, if it stands nowhere, at the end. Ticket and Away mean nothing. Places without a
// request id are nobody's elsewhere, and are not mentioned.
type Move struct {
	lock.Waiter
	Gone bool
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

// PlaceSink is a Sink that may get changes of locks place by place.
type PlaceSink interface {
	Sink
	// ByPlace reports whether it gets them so now. It is asked under the shard lock,
	// before each of them. If not, a record has the whole queue.
	ByPlace() bool
}
