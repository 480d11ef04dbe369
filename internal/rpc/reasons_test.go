package rpc

import (
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/keystead/keystead/internal/failure"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
)

// What each reason is on the wire, in the order of the reasons. Clients of all
// versions go by these.
func TestReasonsOnTheWire(t *testing.T) {
	want := []struct {
		of     failure.Reason
		code   codes.Code
		reason commonpb.Reason
		number int32
	}{
		{failure.Invalid, codes.InvalidArgument, commonpb.Reason_REASON_INVALID, 1},
		{failure.KindMismatch, codes.FailedPrecondition, commonpb.Reason_REASON_KIND_MISMATCH, 2},
		{failure.RequestTooOld, codes.FailedPrecondition, commonpb.Reason_REASON_REQUEST_TOO_OLD, 3},
		{failure.RequestIDReused, codes.InvalidArgument, commonpb.Reason_REASON_REQUEST_ID_REUSED, 4},
		{failure.StoreFull, codes.ResourceExhausted, commonpb.Reason_REASON_STORE_FULL, 5},
		{failure.TooManyWaiters, codes.ResourceExhausted, commonpb.Reason_REASON_TOO_MANY_WAITERS, 6},
		{failure.Unavailable, codes.Unavailable, commonpb.Reason_REASON_UNAVAILABLE, 8},
		{failure.OutcomeUnknown, codes.Unknown, commonpb.Reason_REASON_OUTCOME_UNKNOWN, 9},
		{failure.GaveUp, codes.Canceled, commonpb.Reason_REASON_GAVE_UP, 10},
		{failure.NotOwner, codes.FailedPrecondition, commonpb.Reason_REASON_NOT_OWNER, 13},
		{failure.Superseded, codes.Aborted, commonpb.Reason_REASON_SUPERSEDED, 11},
		{failure.Recovering, codes.Unavailable, commonpb.Reason_REASON_RECOVERING, 17},
		{failure.TooLarge, codes.ResourceExhausted, commonpb.Reason_REASON_TOO_LARGE, 7},
		{failure.Deadline, codes.DeadlineExceeded, commonpb.Reason_REASON_GAVE_UP, 10},
		{failure.Overloaded, codes.ResourceExhausted, commonpb.Reason_REASON_OVERLOADED, 12},
		{failure.UnknownNode, codes.NotFound, commonpb.Reason_REASON_UNKNOWN_NODE, 14},
		{failure.LastNode, codes.FailedPrecondition, commonpb.Reason_REASON_LAST_NODE, 15},
		{failure.TooFewLeft, codes.FailedPrecondition, commonpb.Reason_REASON_TOO_FEW_LEFT, 16},
		{failure.UnknownMethod, codes.Unimplemented, commonpb.Reason_REASON_UNKNOWN_METHOD, 18},
		{failure.CapacityMismatch, codes.FailedPrecondition, commonpb.Reason_REASON_CAPACITY_MISMATCH, 19},
		{failure.OtherFingerprint, codes.FailedPrecondition, commonpb.Reason_REASON_OTHER_FINGERPRINT, 20},
		{failure.PolicyUnknown, codes.NotFound, commonpb.Reason_REASON_POLICY_UNKNOWN, 30},
		{failure.PolicyConflict, codes.Aborted, commonpb.Reason_REASON_POLICY_CONFLICT, 31},
	}
	for i, r := range failure.Reasons() {
		if i >= len(want) || want[i].of != r {
			t.Fatalf("reason %d has no row here", r)
		}
		w := wire(&failure.Error{Reason: r, Message: "m"})
		if w.Code != int32(want[i].code) || w.Reason != want[i].reason || int32(w.Reason) != want[i].number {
			t.Errorf("reason %d is %v %v (%d) on the wire, want %v %v (%d)",
				r, codes.Code(w.Code), w.Reason, w.Reason, want[i].code, want[i].reason, want[i].number)
		}
	}
	if len(kinds) != len(want) {
		t.Errorf("%d reasons have a code, there are %d", len(kinds), len(want))
	}
}
