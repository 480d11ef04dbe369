package handoff

import (
	"errors"
	"testing"

	"github.com/keystead/keystead/handoff/feed"
)

// TestTableBehindTheEnd: a table that comes when a source is closed makes no stream that nobody ends.
func TestTableBehindTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(2)
		s := n[0].source
		s.Close()
		s.Learn(w.agreed())
		s.mu.Lock()
		defer s.mu.Unlock()
		if l := s.plan.links[n[1].self]; l == nil || !errors.Is(l.feed.Err(), feed.ErrClosed) {
			t.Errorf("the link is %+v", l)
		}
	})
}
