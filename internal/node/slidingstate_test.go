package node

import (
	"testing"
	"time"

	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// TestStateOfSlidingWindows: a window that was kept in the state file has each hit at
// its distance from the others.
func TestStateOfSlidingWindows(t *testing.T) {
	dir := t.TempDir()
	n := startStandalone(t, dir, nil)
	ask := func(cost uint64, peek bool) *limitpb.CheckResponse {
		t.Helper()
		r, err := limitpb.NewLimitServiceClient(dial(t, n)).Check(bounded(t), &limitpb.CheckRequest{Key: "k", Limit: 5, PeriodNs: int64(time.Hour),
			Algorithm: limitpb.Algorithm_ALGORITHM_SLIDING_WINDOW, Cost: cost, Peek: peek})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	// distances are those between the oldest hit, the next one and the last one.
	distances := func() (d [2]int64) {
		t.Helper()
		r := ask(5, true) // takes all of them to be over
		if r.Allowed || r.Remaining != 0 || r.RetryAfterNs != r.ResetAfterNs {
			t.Fatalf("all of it: %v", r)
		}
		for i, cost := range []uint64{1, 3} {
			r := ask(cost, true)
			d[i] = r.ResetAfterNs - r.RetryAfterNs
		}
		return d
	}
	for _, cost := range []uint64{2, 1, 2} {
		if r := ask(cost, false); !r.Allowed {
			t.Fatal(r)
		}
	}
	before := distances()
	if before[1] <= 0 || before[0] <= before[1] {
		t.Fatalf("the hits are not apart: %v ns", before)
	}
	n.Stop()
	n = startStandalone(t, dir, nil)
	if after := distances(); after != before {
		t.Errorf("the hits were %v ns before the last one, and are %v", before, after)
	}
}
