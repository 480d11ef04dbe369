package failure_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/keystead/keystead/internal/failure"
)

func TestErrorSaysItsFieldFirst(t *testing.T) {
	for want, err := range map[string]error{
		"ttl_ns: is 1ns; choose 10ms to 24h": failure.Invalidf("ttl_ns", "is %s; choose 10ms to 24h", "1ns"),
		"the key has another owner now":      &failure.Error{Reason: failure.NotOwner, Message: "the key has another owner now"},
	} {
		if got := err.Error(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestReasonOf(t *testing.T) {
	for _, c := range []struct {
		err  error
		want failure.Reason
	}{
		{nil, 0},
		{errors.New("other"), 0},
		{failure.Invalidf("key", "is empty"), failure.Invalid},
		{fmt.Errorf("in a batch: %w", &failure.Error{Reason: failure.StoreFull}), failure.StoreFull},
	} {
		if got := failure.ReasonOf(c.err); got != c.want {
			t.Errorf("%v has reason %d, want %d", c.err, got, c.want)
		}
	}
}

func TestReasonsAreAll(t *testing.T) {
	all := failure.Reasons()
	if all[0] != failure.Invalid || all[len(all)-1] != failure.PolicyConflict {
		t.Errorf("the reasons are %v", all)
	}
}
