package rpc

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/keystead/keystead/owner"
	pb "github.com/keystead/keystead/proto/keystead/v1"
)

// Domain is the domain of every ErrorInfo.
const Domain = "keystead"

// kinds says how each reason of the store travels.
var kinds = map[owner.Reason]struct {
	code   codes.Code
	reason pb.Reason
}{
	owner.Invalid:         {codes.InvalidArgument, pb.Reason_REASON_INVALID},
	owner.KindMismatch:    {codes.FailedPrecondition, pb.Reason_REASON_KIND_MISMATCH},
	owner.RequestTooOld:   {codes.FailedPrecondition, pb.Reason_REASON_REQUEST_TOO_OLD},
	owner.RequestIDReused: {codes.InvalidArgument, pb.Reason_REASON_REQUEST_ID_REUSED},
	owner.StoreFull:       {codes.ResourceExhausted, pb.Reason_REASON_STORE_FULL},
	owner.TooManyWaiters:  {codes.ResourceExhausted, pb.Reason_REASON_TOO_MANY_WAITERS},
	owner.Unavailable:     {codes.Unavailable, pb.Reason_REASON_UNAVAILABLE},
	owner.OutcomeUnknown:  {codes.Unknown, pb.Reason_REASON_OUTCOME_UNKNOWN},
	owner.GaveUp:          {codes.Canceled, pb.Reason_REASON_GAVE_UP},
	owner.NotOwner:        {codes.FailedPrecondition, pb.Reason_REASON_NOT_OWNER},
	owner.Superseded:      {codes.Aborted, pb.Reason_REASON_SUPERSEDED},
	owner.Recovering:      {codes.Unavailable, pb.Reason_REASON_RECOVERING},
	deadline:              {codes.DeadlineExceeded, pb.Reason_REASON_GAVE_UP},
	overloaded:            {codes.ResourceExhausted, pb.Reason_REASON_OVERLOADED},
	tooLarge:              {codes.ResourceExhausted, pb.Reason_REASON_TOO_LARGE},
	UnknownNode:           {codes.NotFound, pb.Reason_REASON_UNKNOWN_NODE},
	LastNode:              {codes.FailedPrecondition, pb.Reason_REASON_LAST_NODE},
	TooFewLeft:            {codes.FailedPrecondition, pb.Reason_REASON_TOO_FEW_LEFT},
}

// Reasons that only this package has: the store sees no messages and no
// deadlines.
const (
	tooLarge owner.Reason = 255 - iota
	deadline
	overloaded

	// Those of Cluster.Drain.

	UnknownNode // no member has the id
	LastNode    // nobody would be left to take what the node owns
	TooFewLeft  // too few voters would be left that are not drained
)

var errStopping = &owner.Error{Reason: owner.Unavailable, RetryAfter: 500 * time.Millisecond,
	Message: "the node is stopping; nothing happened",
	Hint:    "try again: the node comes back, or another one takes over"}

var errOverloaded = &owner.Error{Reason: overloaded, RetryAfter: 100 * time.Millisecond,
	Message: "as many calls are under way as this node allows; nothing happened",
	Hint:    "try again later, use batches, or raise --max-calls"}

// ErrUnknownNode is the error of a drain of a node that is no member.
func ErrUnknownNode(node string) error {
	return &owner.Error{Reason: UnknownNode, Message: fmt.Sprintf("%q is no member of the cluster", node),
		Hint: "`keystead members` lists those that are"}
}

// ErrLastNode is the error of a drain after which nobody would own anything.
func ErrLastNode(node string) error {
	return &owner.Error{Reason: LastNode, Message: fmt.Sprintf("nobody would be left to take what %s owns", node),
		Hint: "start another node, or take back the drain of one; to shut the service down, stop the node without a drain (--drain-timeout 0): with --data-dir its next process goes on from what it has, without it that ends"}
}

// ErrTooFewLeft is the error of a drain after which so many of the voters would
// be left that are not drained.
func ErrTooFewLeft(node string, left, voters int) error {
	return &owner.Error{Reason: TooFewLeft,
		Message: fmt.Sprintf("with %s drained, %d of %d voters would be left that are not, and a majority is %d: when the drained ones are stopped, the cluster stops", node, left, voters, voters/2+1),
		Hint:    "bring the nodes that are drained back first, or start others and wait until they vote; --force drains it all the same"}
}

// gaveUp is the error of a call whose caller has left: by its deadline, or
// because it cancelled.
func gaveUp(ctx context.Context) *owner.Error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &owner.Error{Reason: deadline, Message: "the caller's deadline passed before the operation took effect"}
	}
	return &owner.Error{Reason: owner.GaveUp, Message: "the caller cancelled before the operation took effect"}
}

// wire is what a store error looks like to the caller.
func wire(err error) *pb.Error {
	var from *remote
	if errors.As(err, &from) {
		return from.w
	}
	var e *owner.Error
	if !errors.As(err, &e) {
		return &pb.Error{Code: int32(codes.Internal), Message: err.Error()}
	}
	k := kinds[e.Reason]
	return &pb.Error{
		Code: int32(k.code), Message: e.Error(), Reason: k.reason,
		Hint: e.Hint, Field: e.Field, RetryAfterNs: int64(e.RetryAfter),
	}
}

// Status is the gRPC status of an error: the code, and google.rpc details with
// reason, hint, field and the time to try again.
func Status(err error) error {
	if err == nil {
		return nil
	}
	w := wire(err)
	st := status.New(codes.Code(w.Code), w.Message)
	info := &errdetails.ErrorInfo{Domain: Domain, Reason: reasonName(w.Reason)}
	if w.Hint != "" {
		info.Metadata = map[string]string{"hint": w.Hint}
	}
	if w.Reason == pb.Reason_REASON_NOT_OWNER {
		info.Metadata["owner"], info.Metadata["owner_addr"] = w.Owner, w.OwnerAddr
		info.Metadata["epoch"] = strconv.FormatUint(w.Epoch, 10)
	}
	details := []protoadapt.MessageV1{info}
	if w.Field != "" {
		details = append(details, &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
			{Field: w.Field, Description: w.Message},
		}})
	}
	if w.RetryAfterNs > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(time.Duration(w.RetryAfterNs))})
	}
	if with, err := st.WithDetails(details...); err == nil {
		st = with
	}
	return st.Err()
}

// reasonName is a reason as it stands in an ErrorInfo: without its prefix.
func reasonName(r pb.Reason) string {
	const prefix = "REASON_"
	return r.String()[len(prefix):]
}
