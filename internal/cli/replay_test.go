package cli

import (
	"bytes"
	"testing"
	"time"

	"github.com/keystead/keystead/internal/cli/replay"
)

func TestReplaying(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		at   replay.Progress
		part float64
		want string
	}{
		{replay.Progress{Lines: 1000, Elapsed: time.Millisecond}, 0.5, "1,000 lines"},
		{replay.Progress{Lines: 1_000_000, Elapsed: 2 * time.Second}, 0.25, "1,000,000 lines, 500,000 lines/s, 6s left"},
		{replay.Progress{Lines: 1_000_000, Elapsed: 2 * time.Second}, -1, "1,000,000 lines, 500,000 lines/s"},
		{replay.Progress{Lines: 1_000_000, Elapsed: 2 * time.Second, Verifying: true, Verified: 17, Keys: 2000}, 1, "1,000,000 lines, 17 of 2,000 counters compared"},
	} {
		if got := replaying(tc.at, tc.part); got != tc.want {
			t.Errorf("%+v: %q, want %q", tc.at, got, tc.want)
		}
	}
}

// Without a terminal there is a line now and then, and none for a run that is short.
func TestReplayProgressInALogFile(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := newReplayProgress(&out)
	for s := range 25 {
		p.show(replay.Progress{Read: int64(s), Size: 100, Lines: int64(s) * 100, Elapsed: time.Duration(s) * time.Second})
	}
	p.show(replay.Progress{Read: 100, Size: 100, Elapsed: time.Hour, Finished: true})
	want := "keystead: 10 %, 1,000 lines, 100 lines/s, 1m30s left\nkeystead: 20 %, 2,000 lines, 100 lines/s, 1m20s left\n"
	if out.String() != want {
		t.Errorf("it says %q", out.String())
	}
}
