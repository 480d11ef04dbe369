package owner

import (
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/lock"
	"github.com/keystead/keystead/owner/reqid"
)

// Kind is what an object is.
type Kind uint8

const (
	KindLimit Kind = iota + 1
	KindCounter
	KindLock
)

func (k Kind) String() string {
	switch k {
	case KindLimit:
		return "limit"
	case KindCounter:
		return "counter"
	case KindLock:
		return "lock"
	}
	return "object of an unknown kind"
}

// Record is one change: the absolute new state of one object, and the request
// id that the change came with. Installing it twice is the same as once, and of
// two records of an object the later one is the state.
type Record struct {
	Hash    uint64 // of the key: its position on the ring
	Key     []byte
	Name    []byte
	Kind    Kind
	Version uint64 // rises with every change in a shard, hence with every change of an object

	// The state of the object's kind; the zero state says that it is absent.
	Limit   limit.State
	Counter counter.State
	Lock    *lock.State

	// The id that the change came with, if any, and what is remembered of it.
	ID      reqid.ID
	Outcome reqid.Outcome
	At      int64 // when it took effect
}

// Sink is told of every change, in order, under the shard lock. It must be
// quick and must not keep the record or anything that it points to.
type Sink interface {
	Changed(r *Record)
}
