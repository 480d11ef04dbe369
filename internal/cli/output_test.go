package cli

import (
	"strings"
	"testing"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/internal/failure"
)

// Errors are in the words and units of the command line, wherever they come from.
func TestErrorsAreInWordsOfTheCommandLine(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want string
	}{
		{&client.Error{Reason: client.ErrInvalid, Field: "key", Message: "key: is empty"}, "keystead: key: is empty (INVALID)\n"},
		{&client.Error{Reason: client.ErrInvalid, Field: "idle_ttl_ns", Message: "idle_ttl_ns: is -5s; choose 1ms to 8784h0m0s, or 0 for never"},
			"keystead: --idle-ttl -5s: choose 1ms to 8784h, or 0 for never (INVALID)\n"},
		{storeSetting(failure.Invalidf("MaxLockTTL", "must be from 10ms to 24h0m0s, is 48h0m0s")), "keystead: --max-lock-ttl: must be from 10ms to 24h, is 48h\n"},
	} {
		var out strings.Builder
		printError(&out, tc.err)
		if out.String() != tc.want {
			t.Errorf("got %q, want %q", out.String(), tc.want)
		}
	}
}
