package rls

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
)

// errorDomain is that of the ErrorInfo of Keystead's API.
const errorDomain = "keystead"

// invalid returns the error of a request that makes no sense, with the same details as
// errors of Keystead's API.
func invalid(field, message, hint string) error {
	return asStatus(&commonpb.Error{Code: int32(codes.InvalidArgument), Reason: commonpb.Reason_REASON_INVALID, Field: field, Message: message, Hint: hint})
}

// errNoAnswer is that of a check to which there is no result; there always is one.
var errNoAnswer = errors.New("rls: a check has no result")

// errLate is that of a question whose owner did not answer in the time that the caller
// left them. Whether the hits were counted is not known.
var errLate = asStatus(&commonpb.Error{Code: int32(codes.DeadlineExceeded), Reason: commonpb.Reason_REASON_OUTCOME_UNKNOWN,
	Message: "the owners of the keys did not answer in time; the hits may have been counted", Hint: "allow more time, or look at `keystead status`"})

// errLeft is the same for a caller that has left.
var errLeft = asStatus(&commonpb.Error{Code: int32(codes.Canceled), Reason: commonpb.Reason_REASON_OUTCOME_UNKNOWN,
	Message: "the caller left before the owners of the keys had answered; the hits may have been counted"})

// errCrowded is that of a question that is not asked.
var errCrowded = asStatus(&commonpb.Error{Code: int32(codes.ResourceExhausted), Reason: commonpb.Reason_REASON_OVERLOADED, RetryAfterNs: int64(200 * time.Millisecond),
	Message: fmt.Sprintf("%d questions wait for owners that do not answer; this one was not asked, and nothing was counted", maxDeferred), Hint: "look at `keystead status`"})

// failure returns the error for a caller whose hits nobody decided: that of the check,
// or of the whole batch.
func failure(e *commonpb.Error, whole error) error {
	switch {
	case whole != nil:
		return whole
	case e == nil:
		return errNoAnswer
	}
	return asStatus(e)
}

// isInvalid reports whether an error is the fault of what was asked.
func isInvalid(e *commonpb.Error, whole error) bool {
	if whole != nil {
		return grpcstatus.Code(whole) == codes.InvalidArgument
	}
	return codes.Code(e.GetCode()) == codes.InvalidArgument || e.GetReason() == commonpb.Reason_REASON_POLICY_UNKNOWN
}

func asStatus(e *commonpb.Error) error {
	st := grpcstatus.New(codes.Code(e.Code), e.Message)
	info := &errdetails.ErrorInfo{Domain: errorDomain, Reason: strings.TrimPrefix(e.Reason.String(), "REASON_")}
	if e.Hint != "" {
		info.Metadata = map[string]string{"hint": e.Hint}
	}
	details := []protoadapt.MessageV1{info}
	if e.Field != "" {
		details = append(details, &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: e.Field, Description: e.Message}}})
	}
	if e.RetryAfterNs > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(time.Duration(e.RetryAfterNs))})
	}
	if with, err := st.WithDetails(details...); err == nil {
		st = with
	}
	return st.Err()
}
