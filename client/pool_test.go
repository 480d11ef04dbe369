package client

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
)

// How a call ends, by its last attempt and those before.
func TestFinal(t *testing.T) {
	for what, x := range map[string]struct {
		last    Error
		unknown bool
		over    error
		want    Reason
	}{
		"no connection, time is up":   {Error{Code: codes.Unavailable, broken: true}, false, context.DeadlineExceeded, ErrUnavailable},
		"no connection, cancelled":    {Error{Code: codes.Unavailable, broken: true}, false, context.Canceled, ErrGaveUp},
		"no answer":                   {Error{Code: codes.Unavailable, broken: true}, true, context.DeadlineExceeded, ErrOutcomeUnknown},
		"no answer, then no right":    {Error{Reason: ErrUnavailable}, true, context.DeadlineExceeded, ErrOutcomeUnknown},
		"no right":                    {Error{Reason: ErrUnavailable}, false, context.DeadlineExceeded, ErrUnavailable},
		"no room":                     {Error{Reason: ErrStoreFull}, false, nil, ErrStoreFull},
		"no answer, then no room":     {Error{Reason: ErrStoreFull}, true, nil, ErrOutcomeUnknown},
		"no answer, then too old":     {Error{Reason: ErrRequestTooOld}, true, nil, ErrRequestTooOld},
		"the node saw the caller go":  {Error{Reason: ErrGaveUp}, false, context.DeadlineExceeded, ErrGaveUp},
		"refused by grpc, not a node": {Error{Code: codes.Unimplemented}, false, nil, ""},
	} {
		err := final(&x.last, x.unknown, x.over)
		var e *Error
		if !errors.As(err, &e) || e.Reason != x.want || x.over != nil && !errors.Is(err, x.over) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
