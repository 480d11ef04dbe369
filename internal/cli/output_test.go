package cli

import (
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/internal/cli/bench"
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
		{(&remote{addr: "n1:7400"}).explain(status.Error(codes.Unimplemented, "unknown service keystead.cluster.v1.ClusterService")),
			"keystead: the node at n1:7400 does not know this call: unknown service keystead.cluster.v1.ClusterService\n" +
				"  hint: it is of another version than this program: use the keystead that it was started with (`keystead members` shows versions)\n"},
	} {
		var out strings.Builder
		printError(&out, tc.err)
		if out.String() != tc.want {
			t.Errorf("got %q, want %q", out.String(), tc.want)
		}
	}
}

// A table of measurements explains the columns that it has, and no others.
func TestBenchLegend(t *testing.T) {
	for _, tc := range []struct {
		result    bench.Result
		has, lack string
	}{
		{bench.Result{PerEcho: 0.8, PerTunedEcho: 0.7}, "÷ echo, ÷ tuned: ", "÷ gRPC: "},
		{bench.Result{PerNone: 0.9}, "÷ none: ", "÷ gRPC: "},
		{bench.Result{PerGRPC: 0.5}, "÷ gRPC: ", "÷ echo"},
	} {
		var out strings.Builder
		if err := writeBench(&out, []bench.Result{tc.result}); err != nil {
			t.Fatal(err)
		}
		_, legend, _ := strings.Cut(out.String(), "\n\n")
		if !strings.Contains(legend, tc.has) || strings.Contains(legend, tc.lack) {
			t.Errorf("%s", out.String())
		}
	}
	if text := benchLegend([]bench.Result{{}}); text != "" {
		t.Errorf("without ratios: %q", text)
	}
}

// What never happens is told in words, and not in the longest time that there is.
func TestNever(t *testing.T) {
	for _, tc := range []struct {
		d           time.Duration
		again, full string
	}{
		{0, "try again in 0s", "full in 0s"},
		{100 * 365 * 24 * time.Hour, "try again in 876000h0m0s", "full in 876000h0m0s"},
		{math.MaxInt64, "never passes", "never full"},
	} {
		if again, full := againIn(tc.d), fullIn(tc.d); again != tc.again || full != tc.full {
			t.Errorf("%s: %q and %q", tc.d, again, full)
		}
	}
}
