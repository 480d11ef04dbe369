package owner

import (
	"errors"
	"fmt"
	"time"

	"github.com/keystead/keystead/internal/failure"
)

// retrySoon is when a caller that met a limit of the node may try again.
const retrySoon = 100 * time.Millisecond

var (
	errTooOld = &failure.Error{Reason: failure.RequestTooOld,
		Message: "this request id may have been executed and forgotten; it was not executed now",
		Hint:    "read the object to learn its state, then decide; retry sooner, and send `settled` so that ids are kept exactly"}
	errReused = &failure.Error{Reason: failure.RequestIDReused, Field: "request_id",
		Message: "this request id was used for another operation on the object",
		Hint:    "draw a new client id when a process starts, and never use a sequence number twice"}
	errObjects = &failure.Error{Reason: failure.StoreFull, RetryAfter: retrySoon,
		Message: "the node holds as many objects as it may",
		Hint:    "raise --max-objects, add a node, or let idle counters expire (idle_ttl)"}
	errMemory = &failure.Error{Reason: failure.StoreFull, RetryAfter: retrySoon,
		Message: "the node's objects take as much memory as they may",
		Hint:    "raise --max-memory, add a node, or let idle counters expire (idle_ttl)"}
	errShare = &failure.Error{Reason: failure.StoreFull, RetryAfter: retrySoon,
		Message: "the node's own objects take what it may have beside the copies that it keeps for others",
		Hint:    "raise --max-memory or --max-objects, add a node, or let idle counters expire (idle_ttl)"}
	errIDs = &failure.Error{Reason: failure.StoreFull, RetryAfter: retrySoon,
		Message: "the node is nearly full, and remembers request ids of as many clients of this object as it then may",
		Hint:    "raise --max-memory, add a node, or send operations on the object by fewer clients"}
	errMoved = &failure.Error{Reason: failure.NotOwner, RetryAfter: retrySoon,
		Message: "the key has another owner now; nothing happened",
		Hint:    "try again: the call is passed on to the new owner"}
	errNotSplit = &failure.Error{Reason: failure.NotOwner, RetryAfter: retrySoon,
		Message: "the object is not split; nothing happened",
		Hint:    "try again: it will be routed by the current table"}
	errRole  = &failure.Error{Reason: failure.Invalid, Field: "role", Message: "is not valid for this operation"}
	errKind  = &failure.Error{Reason: failure.Invalid, Field: "kind", Message: "cannot be split: limits and counters can"}
	errQueue = &failure.Error{Reason: failure.TooManyWaiters, RetryAfter: retrySoon,
		Message: "as many callers wait for this lock as may",
		Hint:    "try again later, or raise --max-waiters-per-lock"}
	errWaiters = &failure.Error{Reason: failure.TooManyWaiters, RetryAfter: retrySoon,
		Message: "as many callers wait for locks on this node as may",
		Hint:    "try again later, or raise --max-waiters"}
	errGaveUp  = &failure.Error{Reason: failure.GaveUp, Message: "the caller gave up before the lock was granted"}
	errLowered = &failure.Error{Reason: failure.Invalid, Field: "permits",
		Message: "are more than the capacity, which was lowered: they would never be granted",
		Hint:    "ask for fewer"}
	errUpgrade = &failure.Error{Reason: failure.Invalid, Field: "token",
		Message: "is that of a grant, and a shared grant never becomes an exclusive one: two holders that both want that would wait for each other for ever",
		Hint:    "release it, and acquire the lock exclusively under a new token"}
	errSuperseded = &failure.Error{Reason: failure.Superseded,
		Message: "a newer attempt with the same request id took this place in the queue",
		Hint:    "await the newer attempt"}
)

// ErrWhole is the error of an operation that a part of a split object cannot decide:
// a check of a limit that is no token bucket, or for more than a part ever has room
// for; an add with a bound, with an idle TTL, or beyond 2^61 in either direction; a
// compare-and-set and a reset.
var ErrWhole = &failure.Error{Reason: failure.NotOwner, RetryAfter: retrySoon,
	Message: "the operation needs the whole object, which is split; nothing happened",
	Hint:    "try again: the object is put together again"}

// ErrNotAccepted is the error of Install for a record that is not to be taken in.
var ErrNotAccepted error = &failure.Error{Reason: failure.NotOwner, Message: "the record is not from the owner of its key"}

func invalid(field, format string, args ...any) *failure.Error {
	return failure.Invalidf(field, format, args...)
}

func mismatch(have, want Kind) *failure.Error {
	return &failure.Error{Reason: failure.KindMismatch,
		Message: fmt.Sprintf("this key and name hold a %s, not a %s", have, want),
		Hint:    "use another name, or the calls of its kind"}
}

func capacityDiffers(have, want uint32) *failure.Error {
	return &failure.Error{Reason: failure.CapacityMismatch,
		Message: fmt.Sprintf("the capacity is %d, not %d; nothing happened", have, want),
		Hint:    "have all callers say the same one, or none; SetCapacity changes it"}
}

// inDemand has an error name the demand that it is about.
func inDemand(i int, err error) error {
	var e *failure.Error
	if !errors.As(err, &e) || err == ErrDemandSplit {
		return err
	}
	of := *e
	if of.Field = fmt.Sprintf("demands[%d]", i); e.Field != "" {
		of.Field += "." + e.Field
	}
	return &of
}
