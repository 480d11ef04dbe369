package handoff

import (
	"fmt"
	"testing"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/ring/epoch/table"
)

// TestVersionsOfTheDeleted: a node that gets rows of which nothing is left does not give the
// versions of deleted counters a second time. Members of before do not know what says so,
// and are not told.
func TestVersionsOfTheDeleted(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(2)
		w.apply(table.Command{Adopt: &table.Adopt{Level: owner.DeleteLevel}})
		w.awaitStable()
		owned := func(nodes []*process, key string) *process {
			for _, p := range nodes {
				if p.source.owns(owner.Hash(key)) {
					return p
				}
			}
			t.Fatalf("nobody owns %s", key)
			return nil
		}
		last := map[string]uint64{}
		for i := range 64 {
			ref := owner.Ref{Key: fmt.Sprint("deleted", i), Name: "n"}
			s := owned(n, ref.Key).store
			if _, err := s.Add(w.now(), ref, reqid.ID{}, counter.AddOp{Delta: 1}); err != nil {
				t.Fatal(err)
			}
			a, err := s.Delete(w.now(), ref, reqid.ID{})
			if err != nil || !a.Deleted {
				t.Fatalf("%+v %v", a, err)
			}
			last[ref.Key] = a.Version
		}
		n3 := w.start("n3", 1)
		w.towards(n[0], n[1], n3)
		w.awaitStable()
		came := 0
		for key, was := range last {
			p := owned([]*process{n[0], n[1], n3}, key)
			a, err := p.store.Add(w.now(), owner.Ref{Key: key, Name: "n"}, reqid.ID{}, counter.AddOp{Delta: 1})
			if err != nil || a.Version <= was {
				t.Errorf("%s at %s: version %d after %d: %v", key, p.self.Node, a.Version, was, err)
			}
			if p == n3 {
				came++
			}
		}
		if came == 0 {
			t.Error("no key has moved")
		}
	})
}

// Before its level, the control record is not sent: a member of before would end the copy.
func TestVersionsNeedTheLevel(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(2)
		if err := n[0].store.RaiseVersions(1000); err != nil {
			t.Fatal(err)
		}
		n3 := w.start("n3", 1)
		w.towards(n[0], n[1], n3)
		w.awaitStable()
		if w.agreed().Uses(owner.DeleteLevel) || n3.store.LastVersion() >= 1000 {
			t.Errorf("told of version %d at level %d", n3.store.LastVersion(), w.agreed().Level)
		}
	})
}
