package p2c

import (
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Outcome is what the end of a call says of the backend.
type Outcome int

// The outcomes.
const (
	Unknown   Outcome = iota // nothing: it never got there, or failed at the caller
	Answered                 // it did its work in the time that the call took
	Abandoned                // it had not answered when the caller went: it takes at least so long
	Failed                   // the caller has to ask another
)

// OutcomeOf judges a call by its error.
//
// Failures are UNAVAILABLE (no connection, or it may not act), DEADLINE_EXCEEDED
// (it was too slow for this caller, and may hang), RESOURCE_EXHAUSTED (it is
// overloaded, and says so at once), INTERNAL, UNKNOWN and DATA_LOSS (it is
// broken, or what stands before it is no gRPC server), UNIMPLEMENTED,
// UNAUTHENTICATED and PERMISSION_DENIED (an old or wrongly set up one among
// others; if it is the caller who is wrong, all refuse alike and none is
// preferred for it). CANCELED says that the caller went. All other codes are
// answers: NOT_FOUND, ALREADY_EXISTS, ABORTED, FAILED_PRECONDITION, OUT_OF_RANGE
// and INVALID_ARGUMENT are what the caller's request deserves, on any backend.
func OutcomeOf(err error) Outcome {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Internal, codes.Unknown, codes.DataLoss,
		codes.Unimplemented, codes.Unauthenticated, codes.PermissionDenied:
		return Failed
	case codes.Canceled:
		return Abandoned
	}
	return Answered
}

// judge returns the outcome of a call that gRPC tells of.
func judge(d balancer.DoneInfo) Outcome {
	switch {
	case d.Err == nil && !d.BytesReceived:
		return Unknown // the connection went between the choice and the call: gRPC chooses again
	case d.Err != nil && !d.BytesSent:
		// What could not be sent for want of a connection is the backend's fault; what
		// could not be encoded or had no credentials is the caller's.
		if c := status.Code(d.Err); c != codes.Unavailable && c != codes.DeadlineExceeded {
			return Unknown
		}
	}
	return OutcomeOf(d.Err)
}
