package handoff

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/keystead/keystead/handoff/feed"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/reqid"
)

// TestCrowdIsHeldBack: while the standby does not acknowledge, callers that queue are
// held back before what they say makes the stream fail. They go on when it does.
func TestCrowdIsHeldBack(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(2)
		w.set("unsync", held)
		n[0].to(n[1].self).stall()
		queued, most := 0, 2*feed.DefaultMaxUnacked/hold.MaxMetadata
		key := w.keys(1, ownedBy(n[0], n[1]))[0]
		crowd := func(locks string, within time.Duration) error {
			for i := range most {
				ctx, cancel := context.WithTimeout(t.Context(), within)
				err := n[0].source.Room(ctx, owner.Hash(key))
				cancel()
				if err != nil {
					return err
				}
				_, wait, err := n[0].store.Acquire(w.now(), owner.Ref{Key: key, Name: fmt.Sprint(locks, i/10)}, reqid.ID{Client: reqid.Client{Hi: 1, Lo: uint64(i)}, Sequence: 1},
					owner.AcquireLock{Holder: fmt.Sprint(i), Metadata: []byte(strings.Repeat("m", hold.MaxMetadata)), TTL: int64(time.Hour), Wait: int64(time.Hour)})
				if err != nil {
					t.Fatal(err)
				}
				if wait != nil {
					queued++
				}
			}
			return nil
		}
		if err := crowd("early", 100*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) || queued == 0 {
			t.Fatalf("%d wait: %v", queued, err)
		}
		l := n[0].source.plan.links[n[1].self]
		if err := l.feed.Err(); err != nil {
			t.Fatal(err)
		}
		n[0].to(n[1].self).flow()
		if err := crowd("late", time.Minute); err != nil || l.feed.Err() != nil {
			t.Errorf("%v, %v", err, l.feed.Err())
		}
	})
}
