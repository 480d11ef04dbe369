package handoff

import (
	"testing"
	"time"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch/table"
)

// TestNoRoomIsCounted: a standby that has no room ends the stream, and the owner counts it.
func TestNoRoomIsCounted(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(2)
		if got := n[0].source.Progress().Totals.Refused; got != 0 {
			t.Errorf("%d streams were refused", got)
		}
		n[1].target.Intake.Forget(n[0].self) // a stream that breaks otherwise does not count
		n[0].to(n[1].self).cut()
		w.until("there is another copy", func() bool { return n[0].source.Progress().Totals.Dropped > 0 })
		w.awaitStable()
		if got := n[0].source.Progress().Totals.Refused; got != 0 {
			t.Errorf("%d streams were refused", got)
		}
		small, err := owner.New(owner.Config{Rule: n[1], Shards: 4, MaxObjects: 8}, w.now())
		if err != nil {
			t.Fatal(err)
		}
		n[1].target.cfg.Store = small
		n[0].put(w.keys(100, ownedBy(n[0], n[1])), 1)
		if got := n[0].source.Full(); got != "" {
			t.Errorf("%s is full", got)
		}
		w.until("it is counted", func() bool { return n[0].source.Progress().Totals.Refused > 0 })
		w.until("it is told who is full", func() bool { return n[0].source.Full() == n[1].self.Node })
		pass(time.Second)
		w.apply(table.Command{Remove: &table.Remove{Members: []table.Holder{n[1].self}, Reason: "died"}})
		pass(2 * time.Minute)
		if got := n[0].source.Full(); got != "" {
			t.Errorf("%s is still full", got)
		}
	})
}
