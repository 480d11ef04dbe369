package kinds

import (
	"testing"
	"time"

	"github.com/keystead/keystead/internal/tests/history"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

// The model of a semaphore finds a writer beside a reader, and lets readers be.
func TestSharedLockModel(t *testing.T) {
	acquired := func(at int64, shared bool, token uint64) history.Call {
		return history.Call{Object: "s", Start: at, End: at + 1,
			Input:  history.SemaphoreInput{Op: history.PermitsAcquire, Permits: shares(&lockpb.Holder{Shared: shared}), Capacity: allShares, TTL: 100},
			Output: history.SemaphoreOutput{OK: true, Token: token, TTL: 100, Bare: true}}
	}
	released := func(at int64, token uint64) history.Call {
		return history.Call{Object: "s", Start: at, End: at + 1, Input: history.SemaphoreInput{Op: history.PermitsRelease, Token: token}, Output: history.SemaphoreOutput{OK: true}}
	}
	const reads, writes = true, false
	for name, c := range map[string]struct {
		bad   bool
		calls []history.Call
	}{
		"readers":                    {false, []history.Call{acquired(0, reads, 1), acquired(2, reads, 2)}},
		"a writer after readers":     {false, []history.Call{acquired(0, reads, 1), acquired(2, reads, 2), released(4, 1), released(6, 2), acquired(8, writes, 3)}},
		"a writer beside a reader":   {true, []history.Call{acquired(0, reads, 1), acquired(2, reads, 2), released(4, 1), acquired(8, writes, 3)}},
		"a reader beside a writer":   {true, []history.Call{acquired(0, writes, 1), acquired(2, reads, 2)}},
		"writers":                    {true, []history.Call{acquired(0, writes, 1), acquired(2, writes, 2)}},
		"a token that does not rise": {true, []history.Call{acquired(0, reads, 2), acquired(2, reads, 1)}},
	} {
		if err := history.Check(Slack{}.Of(&SharedLock), c.calls, time.Second); (err != nil) != c.bad {
			t.Errorf("%s: %v", name, err)
		}
	}
}
