package owner

import (
	"errors"
	"fmt"
	"time"
)

// Reason is why the store could not decide an operation. Over the limit, held
// by another and outside the bounds are answers, not reasons.
type Reason uint8

const (
	Invalid         Reason = iota + 1 // a field is missing, too long or out of range
	KindMismatch                      // (key, name) holds another kind of object
	RequestTooOld                     // the request id may have been done and forgotten
	RequestIDReused                   // the request id was used for another operation
	StoreFull                         // no room for a new object or request id
	TooManyWaiters                    // no room in the queue
	Unavailable                       // the serving rule does not let the operation in; nothing happened
	OutcomeUnknown                    // the serving rule no longer holds; the operation may have happened
	GaveUp                            // the caller left before the operation took effect; nothing happened
	NotOwner                          // another node owns the key, or this one has frozen it to hand it over; nothing happened
	Superseded                        // a newer attempt took this one's place in the queue
	Recovering                        // the row is in grace: what was lost may still be held; nothing happened
)

// Error is a call that the store could not decide.
type Error struct {
	Reason     Reason
	Field      string // of the request, for Invalid
	Message    string // what went wrong
	Hint       string // what to do about it
	RetryAfter time.Duration
}

func (e *Error) Error() string {
	if e.Field != "" {
		return e.Field + ": " + e.Message
	}
	return e.Message
}

// retrySoon is when a caller that met a limit of the node may try again.
const retrySoon = 100 * time.Millisecond

var (
	errTooOld = &Error{Reason: RequestTooOld,
		Message: "this request id may have been executed and forgotten; it was not executed now",
		Hint:    "read the object to learn its state, then decide; retry sooner, and send `settled` so that ids are kept exactly"}
	errReused = &Error{Reason: RequestIDReused, Field: "request_id",
		Message: "this request id was used for another operation on the object",
		Hint:    "draw a new client id when a process starts, and never use a sequence number twice"}
	errObjects = &Error{Reason: StoreFull, RetryAfter: retrySoon,
		Message: "the node holds as many objects as it may",
		Hint:    "raise --max-objects, add a node, or let idle counters expire (idle_ttl)"}
	errMemory = &Error{Reason: StoreFull, RetryAfter: retrySoon,
		Message: "the node's objects take as much memory as they may",
		Hint:    "raise --max-memory, add a node, or let idle counters expire (idle_ttl)"}
	errShare = &Error{Reason: StoreFull, RetryAfter: retrySoon,
		Message: "the node's own objects take what it may have beside the copies that it keeps for others",
		Hint:    "raise --max-memory or --max-objects, add a node, or let idle counters expire (idle_ttl)"}
	errIDs = &Error{Reason: StoreFull, RetryAfter: retrySoon,
		Message: "the node is nearly full, and remembers request ids of as many clients of this object as it then may",
		Hint:    "raise --max-memory, add a node, or send operations on the object by fewer clients"}
	errMoved = &Error{Reason: NotOwner, RetryAfter: retrySoon,
		Message: "the key has another owner now; nothing happened",
		Hint:    "try again: the call is passed on to the new owner"}
	errNotSplit = &Error{Reason: NotOwner, RetryAfter: retrySoon,
		Message: "the object is not split; nothing happened",
		Hint:    "try again: the call is passed on by the table of now"}
	errRole  = &Error{Reason: Invalid, Field: "role", Message: "is not one in which this operation comes"}
	errKind  = &Error{Reason: Invalid, Field: "kind", Message: "is none that is split: limits and counters are"}
	errQueue = &Error{Reason: TooManyWaiters, RetryAfter: retrySoon,
		Message: "as many callers wait for this lock as may",
		Hint:    "try again later, or raise --max-waiters-per-lock"}
	errWaiters = &Error{Reason: TooManyWaiters, RetryAfter: retrySoon,
		Message: "as many callers wait for locks on this node as may",
		Hint:    "try again later, or raise --max-waiters"}
	errGaveUp     = &Error{Reason: GaveUp, Message: "the caller gave up before the lock was granted"}
	errSuperseded = &Error{Reason: Superseded,
		Message: "a newer attempt with the same request id took this place in the queue",
		Hint:    "await the newer attempt"}
)

// ErrWhole is the error of an operation that a part of a split object cannot decide:
// a check of a limit that is no token bucket, or for more than a part ever has room
// for; an add with a bound, with an idle TTL, or beyond 2^61 in either direction; a
// compare-and-set and a reset.
var ErrWhole = &Error{Reason: NotOwner, RetryAfter: retrySoon,
	Message: "the operation needs the whole object, which is split; nothing happened",
	Hint:    "try again: the object is put together again"}

// ErrNotAccepted is the error of Install for a record that is not to be taken in.
var ErrNotAccepted error = &Error{Reason: NotOwner, Message: "the record is not from the owner of its key"}

func isNotOwner(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Reason == NotOwner
}

func invalid(field, format string, args ...any) *Error {
	return &Error{Reason: Invalid, Field: field, Message: fmt.Sprintf(format, args...)}
}

func mismatch(have, want Kind) *Error {
	return &Error{Reason: KindMismatch,
		Message: fmt.Sprintf("this key and name hold a %s, not a %s", have, want),
		Hint:    "use another name, or the calls of its kind"}
}
