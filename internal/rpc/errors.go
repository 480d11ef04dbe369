package rpc

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/forward"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
)

// Domain is the domain of every ErrorInfo.
const Domain = "keystead"

// kinds has the code and the name under which each reason travels.
var kinds = map[failure.Reason]struct {
	code   codes.Code
	reason commonpb.Reason
}{
	failure.Invalid:          {codes.InvalidArgument, commonpb.Reason_REASON_INVALID},
	failure.KindMismatch:     {codes.FailedPrecondition, commonpb.Reason_REASON_KIND_MISMATCH},
	failure.RequestTooOld:    {codes.FailedPrecondition, commonpb.Reason_REASON_REQUEST_TOO_OLD},
	failure.RequestIDReused:  {codes.InvalidArgument, commonpb.Reason_REASON_REQUEST_ID_REUSED},
	failure.StoreFull:        {codes.ResourceExhausted, commonpb.Reason_REASON_STORE_FULL},
	failure.TooManyWaiters:   {codes.ResourceExhausted, commonpb.Reason_REASON_TOO_MANY_WAITERS},
	failure.Unavailable:      {codes.Unavailable, commonpb.Reason_REASON_UNAVAILABLE},
	failure.OutcomeUnknown:   {codes.Unknown, commonpb.Reason_REASON_OUTCOME_UNKNOWN},
	failure.GaveUp:           {codes.Canceled, commonpb.Reason_REASON_GAVE_UP},
	failure.NotOwner:         {codes.FailedPrecondition, commonpb.Reason_REASON_NOT_OWNER},
	failure.Superseded:       {codes.Aborted, commonpb.Reason_REASON_SUPERSEDED},
	failure.Recovering:       {codes.Unavailable, commonpb.Reason_REASON_RECOVERING},
	failure.Deadline:         {codes.DeadlineExceeded, commonpb.Reason_REASON_GAVE_UP},
	failure.Overloaded:       {codes.ResourceExhausted, commonpb.Reason_REASON_OVERLOADED},
	failure.TooLarge:         {codes.ResourceExhausted, commonpb.Reason_REASON_TOO_LARGE},
	failure.UnknownNode:      {codes.NotFound, commonpb.Reason_REASON_UNKNOWN_NODE},
	failure.LastNode:         {codes.FailedPrecondition, commonpb.Reason_REASON_LAST_NODE},
	failure.TooFewLeft:       {codes.FailedPrecondition, commonpb.Reason_REASON_TOO_FEW_LEFT},
	failure.UnknownMethod:    {codes.Unimplemented, commonpb.Reason_REASON_UNKNOWN_METHOD},
	failure.CapacityMismatch: {codes.FailedPrecondition, commonpb.Reason_REASON_CAPACITY_MISMATCH},
	failure.OtherFingerprint: {codes.FailedPrecondition, commonpb.Reason_REASON_OTHER_FINGERPRINT},
	failure.PolicyUnknown:    {codes.NotFound, commonpb.Reason_REASON_POLICY_UNKNOWN},
	failure.PolicyConflict:   {codes.Aborted, commonpb.Reason_REASON_POLICY_CONFLICT},
}

var errStopping = &failure.Error{Reason: failure.Unavailable, RetryAfter: 500 * time.Millisecond,
	Message: "the node is stopping; nothing happened",
	Hint:    "try again: the node comes back, or another one takes over"}

var errOverloaded = &failure.Error{Reason: failure.Overloaded, RetryAfter: 100 * time.Millisecond,
	Message: "as many calls are under way as this node allows; nothing happened",
	Hint:    "try again later, use batches, or raise --max-calls"}

// gaveUp returns the error of a call whose caller has left: by its deadline, or
// because it cancelled.
func gaveUp(ctx context.Context) *failure.Error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &failure.Error{Reason: failure.Deadline, Message: "the caller's deadline passed before the operation took effect"}
	}
	return &failure.Error{Reason: failure.GaveUp, Message: "the caller cancelled before the operation took effect"}
}

// wire returns what a store error looks like to the caller.
func wire(err error) *commonpb.Error {
	var from *forward.Remote
	if errors.As(err, &from) {
		return readable(from.Wire)
	}
	var e *failure.Error
	if !errors.As(err, &e) {
		return &commonpb.Error{Code: int32(codes.Internal), Message: err.Error()}
	}
	k := kinds[e.Reason]
	return &commonpb.Error{
		Code: int32(k.code), Message: e.Error(), Reason: k.reason,
		Hint: e.Hint, Field: e.Field, RetryAfterNs: int64(e.RetryAfter),
	}
}

// readable returns an error of another node as one that this node knows what to do with: that
// one may be of a later version.
func readable(w *commonpb.Error) *commonpb.Error {
	_, known := commonpb.Reason_name[int32(w.Reason)]
	if known && w.Code != int32(codes.OK) {
		return w
	}
	w = proto.Clone(w).(*commonpb.Error)
	if !known {
		w.Reason = commonpb.Reason_REASON_UNSPECIFIED
	}
	//guard:error-has-a-code
	if w.Code == int32(codes.OK) { // it would be no error
		w.Code, w.Message = int32(codes.Unknown), cmp.Or(w.Message, "the node answered with an error that says nothing: it may be of a later version")
	}
	return w
}

// Status returns the gRPC status of an error: the code, and google.rpc details with
// reason, hint, field and the time to try again.
func Status(err error) error {
	if err == nil {
		return nil
	}
	w := wire(err)
	st := status.New(codes.Code(w.Code), w.Message)
	info := &errdetails.ErrorInfo{Domain: Domain, Reason: reasonName(w.Reason), Metadata: map[string]string{}}
	if w.Hint != "" {
		info.Metadata["hint"] = w.Hint
	}
	if w.Reason == commonpb.Reason_REASON_NOT_OWNER {
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
func reasonName(r commonpb.Reason) string {
	const prefix = "REASON_"
	return r.String()[len(prefix):]
}
