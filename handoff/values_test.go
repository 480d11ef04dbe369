package handoff

import (
	"testing"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/owner/value"
	"github.com/keystead/keystead/ring/epoch/table"
)

// TestUnackedValues: who writes long values is told how far the standby is behind, and stops long
// before the stream to it fails.
func TestUnackedValues(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(2)
		w.apply(table.Command{Adopt: &table.Adopt{Level: owner.RegisterLevel}})
		w.set("unsync", held)
		key := w.keys(1, ownedBy(n[0], n[1]))[0]
		hash := owner.Hash(key)
		put := func() {
			_, err := n[0].store.SetRegister(w.now(), owner.Ref{Key: key, Name: "register"}, reqid.ID{},
				owner.SetRegister{Set: value.Set{Value: make([]byte, value.MaxValue)}})
			if err != nil {
				t.Fatal(err)
			}
		}
		w.until("the level is known", func() bool { return sends(n[0].source.routes.Load().table, owner.RegisterLevel) })
		n[0].to(n[1].self).stall()
		const window = 8 << 20
		puts := 0
		for n[0].source.Unacked(hash) < window && puts < 1000 {
			put()
			puts++
		}
		if least := window / value.MaxValue; puts < least || puts > least+2 {
			t.Errorf("%d values of %d bytes are %d bytes behind", puts, value.MaxValue, n[0].source.Unacked(hash))
		}
		l := n[0].source.plan.links[n[1].self]
		if err := l.feed.Err(); err != nil {
			t.Fatal(err)
		}
		n[0].to(n[1].self).flow()
		w.until("the standby has all of it", func() bool { return n[0].source.Unacked(hash) == 0 })
		if l.feed.Err() != nil {
			t.Error(l.feed.Err())
		}
	})
}
