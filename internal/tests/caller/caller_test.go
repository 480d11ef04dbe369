package caller

import (
	"errors"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func refusal(code codes.Code, domain, reason string) error {
	st, err := status.New(code, "no").WithDetails(&errdetails.ErrorInfo{Domain: domain, Reason: reason})
	if err != nil {
		panic(err)
	}
	return st.Err()
}

// An attempt did nothing only if that is certain: everything else may have acted.
func TestFateOfAnAttempt(t *testing.T) {
	for what, tc := range map[string]struct {
		err        error
		sent       bool
		want       Fate
		unexpected bool
	}{
		"the node does not serve":    {err: refusal(codes.Unavailable, "keystead", "UNAVAILABLE"), sent: true, want: Nothing},
		"another node owns it":       {err: refusal(codes.FailedPrecondition, "keystead", "NOT_OWNER"), sent: true, want: Nothing},
		"what it was is lost":        {err: refusal(codes.Unavailable, "keystead", "RECOVERING"), sent: true, want: Nothing},
		"the node does not know":     {err: refusal(codes.Unknown, "keystead", "OUTCOME_UNKNOWN"), sent: true, want: Lost},
		"a grant was given back":     {err: refusal(codes.DeadlineExceeded, "keystead", "GAVE_UP"), sent: true, want: Lost},
		"its id was forgotten":       {err: refusal(codes.FailedPrecondition, "keystead", "REQUEST_TOO_OLD"), sent: true, want: Over},
		"a field is wrong":           {err: refusal(codes.InvalidArgument, "keystead", "INVALID"), sent: true, want: Over, unexpected: true},
		"another one's word":         {err: refusal(codes.Unavailable, "elsewhere", "UNAVAILABLE"), sent: true, want: Lost},
		"the connection broke":       {err: status.Error(codes.Unavailable, "EOF"), sent: true, want: Lost},
		"there was no connection":    {err: status.Error(codes.Unavailable, "refused"), want: Nothing},
		"the deadline passed":        {err: status.Error(codes.DeadlineExceeded, ""), sent: true, want: Lost},
		"… before it was sent":       {err: status.Error(codes.DeadlineExceeded, ""), want: Nothing},
		"something that is no gRPC":  {err: errors.New("no"), sent: true, want: Lost},
		"an internal error, unnamed": {err: status.Error(codes.Internal, ""), sent: true, want: Lost},
	} {
		if got, unexpected := FateOf(tc.err, tc.sent); got != tc.want || (unexpected != "") != tc.unexpected {
			t.Errorf("%s: %d, %q", what, got, unexpected)
		}
	}
}

// Requests are settled below the oldest that is open, and later attempts have an age.
func TestRequests(t *testing.T) {
	now := int64(100)
	c := New(7, 9, func() int64 { return now })
	a := c.Begin()
	first := a.ID()
	if first.Sequence != 1 || first.Settled != 1 || first.AgeNs != 0 || len(first.Client) != 16 || first.Client[7] != 7 || first.Client[15] != 9 {
		t.Errorf("%+v", first)
	}
	b := c.Begin()
	if id := b.ID(); id.Sequence != 2 || id.Settled != 1 {
		t.Errorf("while another is open: %+v", id)
	}
	if id := a.ID(); id.AgeNs != 1 {
		t.Errorf("a retry at once: %+v", id)
	}
	now = 150
	if id := a.ID(); id.AgeNs != 50 || id.Sequence != 1 {
		t.Errorf("a retry: %+v", id)
	}
	a.End()
	if id := b.ID(); id.Settled != 2 || id.AgeNs != 50 {
		t.Errorf("alone: %+v", id)
	}
}
