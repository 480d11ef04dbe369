package forward

import (
	"errors"
	"testing"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
)

// TestEveryOutcomeHasANext: what becomes of an attempt is known, and what follows it.
func TestEveryOutcomeHasANext(t *testing.T) {
	for o, next := range afterOutcome {
		if next == nil {
			t.Errorf("nothing follows outcome %d", o)
		}
	}
	other := errors.New("the caller has left")
	for want, got := range map[outcome]outcome{
		answered:   outcomeOf(&peerv1.ForwardAnswer{}, nil),
		refused:    outcomeOf(Failed(1, &commonpb.Error{Reason: commonpb.Reason_REASON_INVALID}), nil),
		declined:   outcomeOf(Failed(1, &commonpb.Error{Reason: commonpb.Reason_REASON_NOT_OWNER}), nil),
		moved:      outcomeOf(nil, ErrMoved),
		unsent:     outcomeOf(nil, ErrUnsent),
		unanswered: outcomeOf(nil, ErrBroken),
		abandoned:  outcomeOf(nil, other),
	} {
		if got != want {
			t.Errorf("outcome %d is taken for %d", want, got)
		}
	}
}
