// Package failure is what every refusal of the program is made of: a reason, the
// field that it is about, what went wrong, what to do about it, and when to try
// again.
//
// It imports nothing of this module, so that a state machine, the store and the
// services can all return the same error. internal/rpc alone turns an Error into a
// gRPC status, and gives each reason its code and its name on the wire
// (docs/api.md has them).
//
// An answer is no failure: over the limit, held by another and outside the bounds
// are results of an operation that was decided.
package failure

import (
	"errors"
	"fmt"
	"time"
)

// Reason is why an operation could not be decided. The numbers stay in the
// process.
type Reason uint8

// The reasons of the store, and of what decides in its place.
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

	// Those of the services: the store sees no messages and no deadlines.

	TooLarge   // the message, or its answer, has more bytes than are allowed
	Deadline   // the caller's deadline passed before the operation took effect; nothing happened
	Overloaded // as many calls are under way as the node allows; nothing happened

	// Those of a drain.

	UnknownNode // no member has the id
	LastNode    // nobody would be left to take what the node owns
	TooFewLeft  // too few voters would be left that are not drained

	UnknownMethod // nothing of this name is served; nothing happened

	// That of what is held under a capacity.

	CapacityMismatch // the object has another capacity than the caller says; nothing happened

	// That of work that is done once.

	OtherFingerprint // the key stands for other work; nothing happened

	// Those of policies.

	PolicyUnknown  // there is no policy of the name; nothing happened
	PolicyConflict // the policies have another version than the caller says; nothing happened

	end // of the reasons; it is none
)

// Reasons returns every reason, in order.
func Reasons() []Reason {
	all := make([]Reason, 0, end-1)
	for r := Invalid; r < end; r++ {
		all = append(all, r)
	}
	return all
}

// Error is an operation that could not be decided.
type Error struct {
	Reason     Reason
	Field      string        // of the request, by its name in the API; for Invalid
	Message    string        // what went wrong
	Hint       string        // what to do about it
	RetryAfter time.Duration // when to try again; 0 where that does not help
}

// Error returns the message, behind the field if there is one.
func (e *Error) Error() string {
	if e.Field != "" {
		return e.Field + ": " + e.Message
	}
	return e.Message
}

// Invalidf returns the error of a field that is missing or out of range. The
// message goes on from the field's name: "is empty", "must be at least 1".
func Invalidf(field, format string, args ...any) *Error {
	return &Error{Reason: Invalid, Field: field, Message: fmt.Sprintf(format, args...)}
}

// ReasonOf returns the reason of an error that wraps an Error, and 0 for any
// other.
func ReasonOf(err error) Reason {
	var e *Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return 0
}
