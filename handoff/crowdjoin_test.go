package handoff

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/keystead/keystead/handoff/feed"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/reqid"
)

// TestCrowdBesideAJoin: a node that joins, and does not acknowledge, is nobody's standby.
// Callers that queue are not held back for it while the standby is well.
func TestCrowdBesideAJoin(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(2)
		n = append(n, w.start("n3", 1))
		n[0].to(n[2].self).stall() // the copy is not whole
		w.towards(n...)
		key := w.keys(1, moving(n[0], n[2]))[0]
		w.until("the joiner is fed", func() bool {
			rt := n[0].source.routes.Load()
			return len(rt.rows[rt.table.Find(owner.Hash(key))].feeds) > 1
		})
		for i := range feed.DefaultCrowdWindow / hold.MaxMetadata * 5 / 4 {
			_, _, err := n[0].store.Acquire(w.now(), owner.Ref{Key: key, Name: fmt.Sprint("l", i)}, reqid.ID{},
				owner.AcquireLock{Holder: "h", Metadata: []byte(strings.Repeat("m", hold.MaxMetadata)), TTL: int64(time.Hour)})
			if err != nil {
				t.Fatalf("%d: %#v", i, err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := n[0].source.Room(ctx, owner.Hash(key)); err != nil {
			t.Errorf("held back: %v", err)
		}
		n[0].to(n[2].self).flow()
		w.awaitStable()
	})
}
