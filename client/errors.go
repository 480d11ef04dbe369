package client

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
)

// Reason is why a call failed. The reasons are errors to compare with:
// errors.Is(err, client.ErrStoreFull).
type Reason string

// Error makes the reasons errors.
func (r Reason) Error() string { return "keystead: " + string(r) }

// The reasons that nodes give; Reason in proto/keystead/common/v1/common.proto says
// more. Calls are retried by themselves for ErrUnavailable, ErrOutcomeUnknown,
// ErrOverloaded, ErrNotOwner and ErrRecovering, and fail with them only when time
// is up, or would be before it makes sense to try again.
const (
	ErrInvalid          Reason = "INVALID"           // a field is missing, too long or out of range
	ErrKindMismatch     Reason = "KIND_MISMATCH"     // key and name hold an object of another kind
	ErrCapacityMismatch Reason = "CAPACITY_MISMATCH" // a semaphore has another capacity, or a barrier other parties, than the caller says
	ErrOtherFingerprint Reason = "OTHER_FINGERPRINT" // the key of Once stands for other work
	ErrPolicyUnknown    Reason = "POLICY_UNKNOWN"    // there is no policy of the name
	ErrPolicyConflict   Reason = "POLICY_CONFLICT"   // the policies have another version than was expected
	ErrRequestTooOld    Reason = "REQUEST_TOO_OLD"   // not done now; whether an earlier attempt did it is unknown
	ErrRequestIDReused  Reason = "REQUEST_ID_REUSED" // two processes share a request id, or two requests an IdempotencyKey
	ErrStoreFull        Reason = "STORE_FULL"        // no room for a new object; see RetryAfter
	ErrTooManyWaiters   Reason = "TOO_MANY_WAITERS"  // no room in the queue of the lock; see RetryAfter
	ErrTooLarge         Reason = "TOO_LARGE"         // the batch is too large
	ErrUnavailable      Reason = "UNAVAILABLE"       // no node could decide in time; nothing happened
	ErrOutcomeUnknown   Reason = "OUTCOME_UNKNOWN"   // sent, and not known whether it took effect
	ErrGaveUp           Reason = "GAVE_UP"           // the context ended before it took effect; nothing happened
	ErrSuperseded       Reason = "SUPERSEDED"        // a newer attempt took this one's place in the queue
	ErrOverloaded       Reason = "OVERLOADED"        // the node has as many calls under way as it may
	ErrNotOwner         Reason = "NOT_OWNER"         // no node owned the key in time; nothing happened
	ErrRecovering       Reason = "RECOVERING"        // what was kept of the key was lost, and locks of it may still be held; see RetryAfter
	ErrUnknownNode      Reason = "UNKNOWN_NODE"      // Drain: no member has the id
	ErrLastNode         Reason = "LAST_NODE"         // Drain: no node would be left to take over what this one owns
	ErrTooFewLeft       Reason = "TOO_FEW_LEFT"      // Drain: too few voters would be left, and it was not forced
)

// The reasons that only this package gives.
const (
	ErrLockHeld Reason = "LOCK_HELD" // another has the lock; see Error.Holder
	// ErrNoPermits: too few permits of a semaphore are free, or others wait for them.
	ErrNoPermits Reason = "NO_PERMITS"
	// ErrOnceBusy: another does the work of a key of Once; see Error.Holder.
	ErrOnceBusy Reason = "ONCE_BUSY"
	// ErrNotElected: another leads, or others wait to.
	ErrNotElected Reason = "NOT_ELECTED"
	// ErrGroupFull: a group has as many members as it may have.
	ErrGroupFull Reason = "GROUP_FULL"
	// ErrReplaced: another has joined a group under the id of a member.
	ErrReplaced Reason = "MEMBER_REPLACED"
	// ErrNoTurn: a limit that is Spaced has no turn within the time that a Wait has left.
	ErrNoTurn Reason = "NO_TURN"
	// ErrNotAdmitted: a demand of an Admit refused, and nothing was charged.
	ErrNotAdmitted Reason = "NOT_ADMITTED"
	// ErrHoldUnknown: a hold was settled, never was, or is forgotten.
	ErrHoldUnknown Reason = "HOLD_UNKNOWN"
	ErrLockLost    Reason = "LOCK_LOST" // the lease ended, or could not be renewed in time
	// ErrBroken: the phase of a barrier ended before all had arrived.
	ErrBroken Reason = "BROKEN"
	// ErrLost: what was awaited was lost with all nodes that kept it, if it was there.
	ErrLost Reason = "LOST"
	// ErrPhaseOver: a party arrives for a phase that is not under way.
	ErrPhaseOver Reason = "PHASE_OVER"
	// ErrNotRegistered: the party of a phaser is not registered, or not any more.
	ErrNotRegistered Reason = "NOT_REGISTERED"
	ErrReleased      Reason = "RELEASED" // the cause with which a lock's context ends after Release
	ErrClosed        Reason = "CLOSED"   // the client was closed
)

// Error is how every call fails.
type Error struct {
	// Code is the gRPC code of the last attempt.
	Code codes.Code
	// Reason is why; "" for errors that do not come from a node.
	Reason Reason
	// Message is for people.
	Message string
	// Hint is what to do about it, for people; "" = nothing is known.
	Hint string
	// Field is the field at fault, for ErrInvalid.
	Field string
	// RetryAfter is when to try again; 0 = trying again does not help.
	RetryAfter time.Duration
	// Holder has the lock, for ErrLockHeld, the turn, for ErrOnceBusy, or
	// leads, for ErrNotElected; nil if it is not known.
	Holder *Holder
	// Place is the caller's place in the queue when it gave up, from 1, for
	// ErrLockHeld, ErrNoPermits and ErrNotElected.
	Place int
	// Waiting says that this place stands, for the next Acquire under the same IdempotencyKey: see
	// Ticket.
	Waiting bool
	// Op is the operation that failed, such as "add"; Key the key that it was about, ""
	// if it has none; Node the node that was asked last, by its id or address, "" if
	// none was.
	Op, Key, Node string

	cause     error
	ownerAddr string // for ErrNotOwner; "" = not known
	epoch     uint64 // for ErrNotOwner: of the row that says so
	unknown   bool   // it may have taken effect
	passes    bool   // the reason is of a later version, and its code says that it may pass
	broken    bool   // the connection failed, or no answer came
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("keystead: ")
	if e.Op != "" {
		b.WriteString(e.Op)
		if e.Key != "" {
			b.WriteByte(' ')
			b.WriteString(quoted(e.Key))
		}
		if e.Node != "" {
			b.WriteString(" at " + e.Node)
		}
		b.WriteString(": ")
	}
	if e.Reason != "" {
		b.WriteString(string(e.Reason) + ": ")
	}
	b.WriteString(e.said())
	if e.Hint != "" {
		b.WriteString(" (" + e.Hint + ")")
	}
	return b.String()
}

// shownKey is how much of a key an error shows, in bytes.
const shownKey = 80

// quoted is a key as an error shows it.
func quoted(key string) string {
	if len(key) <= shownKey {
		return strconv.Quote(key)
	}
	return strconv.Quote(strings.ToValidUTF8(key[:shownKey], "")) + "…"
}

// goFields are the names that fields of the API have in this package.
var goFields = map[string]string{
	"key": "Key", "name": "Name", "limit": "Limit", "period_ns": "Period", "burst": "Burst", "cost": "Cost", "refund": "Refund",
	"algorithm": "Algorithm", "anywhere": "Anywhere", "peek": "Peek", "idle_ttl_ns": "IdleTTL", "idempotency_key": "IdempotencyKey", "min": "Min", "max": "Max",
	"ttl_ns": "TTL", "wait_ns": "Wait", "holder": "Holder", "metadata": "Metadata", "address": "address",
	"fallback.cap": "LocalCap", "fallback.period_ns": "LocalCap", "fallback.known_for_ns": "LastKnown", "fallback.budget_ns": "Budget",
	"party": "Party", "within_ns": "Within",
}

// said returns the message, with the field at fault by its name in this package.
func (e *Error) said() string {
	if what, ok := strings.CutPrefix(e.Message, e.Field+": "); ok && goFields[e.Field] != "" {
		return goFields[e.Field] + " " + what
	}
	return e.Message
}

// about completes an error with the call that failed, unless it names one, and returns
// it. The caller must be its only owner.
func about(err error, op, key, node string) error {
	if e, ok := err.(*Error); ok && e.Op == "" {
		e.Op, e.Key, e.Node = op, key, node
	}
	return err
}

// Is reports whether target is the reason of e.
func (e *Error) Is(target error) bool {
	r, ok := target.(Reason)
	return ok && r == e.Reason
}

// Unwrap returns what ended the call, such as context.DeadlineExceeded.
func (e *Error) Unwrap() error { return e.cause }

// GRPCStatus lets status.Code see the code.
func (e *Error) GRPCStatus() *status.Status { return status.New(e.Code, e.Message) }

// retry reports whether another attempt makes sense.
func (e *Error) retry() bool {
	switch e.Reason {
	case ErrUnavailable, ErrOutcomeUnknown, ErrOverloaded, ErrNotOwner, ErrRecovering, ErrSuperseded:
		return true
	case ErrGaveUp:
		return true // of an attempt: the caller's own context has not ended
	}
	return e.broken || e.passes
}

// judgeReason completes an error of a node with what its reason says of the operation. Of a
// reason of a later version the code tells, as docs/languages.md has it.
func (e *Error) judgeReason() {
	e.unknown = e.Reason == ErrOutcomeUnknown
	//guard:client-later-reason
	if _, known := commonpb.Reason_value["REASON_"+string(e.Reason)]; !known {
		e.unknown = e.Code == codes.Unknown || e.Code == codes.DeadlineExceeded || e.Code == codes.Internal
		e.passes = e.Code == codes.Unknown || e.Code == codes.DeadlineExceeded || e.Code == codes.Unavailable
	}
}

func invalid(field, format string, args ...any) *Error {
	return &Error{Code: codes.InvalidArgument, Reason: ErrInvalid, Field: field, Message: field + ": " + fmt.Sprintf(format, args...)}
}

func errClosed() *Error {
	return &Error{Code: codes.Canceled, Reason: ErrClosed, Message: "the client was closed"}
}

// fromItem returns the error of an item of a batch.
func fromItem(e *commonpb.Error) *Error {
	out := &Error{
		Code: codes.Code(e.Code), Message: e.Message, Hint: e.Hint, Field: e.Field,
		RetryAfter: time.Duration(e.RetryAfterNs), ownerAddr: e.OwnerAddr, epoch: e.Epoch,
	}
	if e.Reason != commonpb.Reason_REASON_UNSPECIFIED {
		out.Reason = Reason(strings.TrimPrefix(e.Reason.String(), "REASON_"))
		out.judgeReason()
	}
	return out
}

// domain is the domain of the ErrorInfo of a node.
const domain = "keystead"

// fromCall returns the error of an attempt. sent means that it was given to a connection.
func fromCall(err error, sent bool) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return &Error{Code: status.FromContextError(err).Code(), Message: silent(err), cause: err, unknown: sent, broken: true}
	}
	st := status.Convert(err)
	out := &Error{Code: st.Code(), Message: plain(st)}
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			if d.Domain == domain {
				out.Reason, out.Hint, out.ownerAddr = Reason(d.Reason), d.Metadata["hint"], d.Metadata["owner_addr"]
				out.epoch, _ = strconv.ParseUint(d.Metadata["epoch"], 10, 64) // 0 if it is not there
			}
		case *errdetails.BadRequest:
			if len(d.FieldViolations) > 0 {
				out.Field = d.FieldViolations[0].Field
			}
		case *errdetails.RetryInfo:
			out.RetryAfter = d.RetryDelay.AsDuration()
		}
	}
	if out.Reason != "" {
		out.judgeReason()
		return out
	}
	switch out.Code { // not from a node: from the connection, or from grpc itself
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		out.broken, out.unknown = true, sent
	case codes.Unimplemented, codes.ResourceExhausted, codes.Unauthenticated, codes.PermissionDenied, codes.InvalidArgument:
		// refused before anything was done
	default:
		out.unknown = sent
	}
	return out
}

// final returns the error with which a call ends, given that of the last attempt.
// unknown means that some attempt may have taken effect; over is the error of
// the context if that is what ended the call.
func final(e *Error, unknown bool, over error) error {
	out := *e
	if over != nil {
		out.cause = over
	}
	switch {
	case unknown && e.Reason != ErrRequestTooOld && e.Reason != ErrRequestIDReused && e.Reason != ErrInvalid:
		// Also when a later attempt was refused for want of room: the earlier one
		// may still arrive.
		out.Reason = ErrOutcomeUnknown
		if !e.unknown {
			out.Message = "an earlier attempt had no answer and may have taken effect; the last one: " + e.Message
		}
	case e.broken && over != nil && errors.Is(over, context.Canceled), e.Reason == ErrGaveUp:
		out.Reason = ErrGaveUp
	case e.broken:
		out.Reason = ErrUnavailable
	}
	switch {
	case over == nil:
	case errors.Is(over, errNoTime):
		if e.RetryAfter > maxPause {
			out.Message += fmt.Sprintf("; it can be tried again in %s, later than the call may last", e.RetryAfter.Round(time.Millisecond))
		}
	case !strings.Contains(out.Message, over.Error()):
		out.Message += "; " + over.Error()
	}
	return &out
}

// errNoTime is why a call ends before its context does: the next attempt would come
// after the deadline.
var errNoTime = fmt.Errorf("no time is left to try again: %w", context.DeadlineExceeded)

// silent returns the message of an attempt that the client ended.
func silent(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "no answer in time"
	}
	return err.Error()
}

// plain returns the message of a status that may come from grpc itself, without what grpc
// puts around the error of the network.
func plain(st *status.Status) string {
	msg := st.Message()
	if st.Code() == codes.DeadlineExceeded && msg == context.DeadlineExceeded.Error() {
		return silent(context.DeadlineExceeded)
	}
	if _, why, ok := strings.Cut(msg, "transport: Error while dialing: "); ok {
		return strings.TrimSuffix(why, "\"")
	}
	return msg
}
