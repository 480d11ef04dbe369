package owner

import (
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/reqid"
)

// KeyLevel is the level of the cluster from which on operations carry idempotency keys: a
// node of an earlier one would do a request and not look at its key.
const KeyLevel = 5

// ErrKeyLevel is the error of an idempotency key where not all nodes know them.
var ErrKeyLevel = &failure.Error{Reason: failure.Unavailable, Field: keyField, RetryAfter: time.Second,
	Message: "not all nodes of the cluster know idempotency keys yet; nothing happened",
	Hint:    "try again when all nodes are upgraded, or send a request_id: `keystead status` shows their versions"}

var (
	errKeyReused = &failure.Error{Reason: failure.RequestIDReused, Field: keyField,
		Message: "this idempotency key was used for another request on the object",
		Hint:    "send the very same request again, or draw a new key for another one"}
	errKeys = &failure.Error{Reason: failure.StoreFull, Field: keyField, RetryAfter: time.Second,
		Message: "the node has no room for another idempotency key of this object: it remembers nearly as many as it may; nothing happened",
		Hint:    "raise --idempotency-keys, add a node, or send a request_id with `settled`, which is forgotten sooner"}
	errObjectKeys = &failure.Error{Reason: failure.StoreFull, Field: keyField, RetryAfter: time.Second,
		Message: "the object remembers as many idempotency keys as it may; nothing happened",
		Hint:    "raise --idempotency-keys-per-object, or send a request_id with `settled`, which is forgotten sooner"}
)

const keyField = "idempotency_key"

// deleteRoom is what deletions may take beyond Config.Keys and KeysPerObject, as a part of
// these: they give back more than they take.
const deleteRoom = 16

// reused returns the error of an id that was used for another operation.
func reused(id *reqid.ID) error {
	if id.Keyed() {
		return errKeyReused
	}
	return errReused
}

// unsure returns the error of a key that may have been used and forgotten; in so many
// nanoseconds, what may be forgotten is older than keys are kept.
func unsure(left int64) error {
	return &failure.Error{Reason: failure.Recovering, Field: keyField, RetryAfter: max(time.Duration(left), retrySoon),
		Message: "whether this idempotency key was used before is not known, for what was remembered of the object's keys was lost; nothing happened now",
		Hint:    "read the object to learn its state, then decide: send the request without a key or with a request_id, or try again when the time is over"}
}

// keysUsed reports whether all nodes know keys.
func (t *target) keysUsed() bool {
	s := t.sh.store
	return s.levels == nil || s.levels.Uses(KeyLevel)
}

// keysKnown returns the error of an id that is a key where not all nodes know keys.
func (t *target) keysKnown(id *reqid.ID) error {
	//guard:key-level
	if id.Keyed() && !t.keysUsed() {
		return ErrKeyLevel
	}
	return nil
}

// keyRoomLocked returns the error of a key that there is no room for. Keys of copies are
// not refused, and neither are those of callers that wait: as many more as may wait for an
// object find room when they are answered.
//
// An object may remember as many keys as there is room left for those of all others: the
// more is used up, the fewer it may have. So one with few keys finds room beside any number
// of busy ones, and all of it is used up only by as many objects as there may be keys.
func (t *target) keyRoomLocked(id *reqid.ID) *failure.Error {
	if !id.Keyed() {
		return nil
	}
	s, have := t.sh.store, 0
	if t.e != nil {
		have = t.sh.ids.Keys(t.e.ids)
	}
	most, all := s.cfg.KeysPerObject, s.cfg.Keys
	//guard:key-delete
	if t.frees {
		most, all = most+max(1, most/deleteRoom), all+max(1, all/deleteRoom)
	}
	left := all - s.keys.Load()
	switch {
	//guard:key-bound-object
	case have >= most:
		return errObjectKeys
	//guard:key-fair have -> 0
	//guard:key-bound-node
	case int64(have) >= left:
		return errKeys
	}
	return nil
}

// fewIDs reports whether an id may take of what is kept for ids when the memory is used up.
func (t *target) fewIDs(id *reqid.ID) bool {
	if id.Keyed() {
		return t.sh.ids.Keys(t.e.ids) < reserveKeys
	}
	return t.sh.ids.Few(t.e.ids, id.Client, reserveClients)
}

// idsHaveRoom reports whether an id needs no more memory.
func (t *target) idsHaveRoom(id *reqid.ID) bool {
	if id.Keyed() {
		return t.sh.ids.KeyRoom()
	}
	return t.sh.ids.Room()
}
