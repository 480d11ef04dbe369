package node

import (
	"testing"
	"time"

	"github.com/keystead/keystead/internal/tests/agreed"
	"github.com/keystead/keystead/ring/epoch/table"
)

// TestAwaited: for how long rows wait for a disk is counted from when this node has known of the
// first of them.
func TestAwaited(t *testing.T) {
	c := agreed.New(t, 1, agreed.Numbered(4, table.DiskLevel)...)
	c.Must(table.Command{Adopt: &table.Adopt{Level: table.DiskLevel, Durable: table.Always}})
	var a awaited
	at := time.Unix(1000, 0)
	is := func(want map[string]time.Duration) {
		t.Helper()
		a.learn(c.Table(), at)
		all := a.list(at)
		for _, x := range all {
			if d, ok := want[x.Holder.Node]; !ok || d != x.For {
				t.Errorf("%v for %s, want %v", x.Holder, x.For, want)
			}
		}
		if len(all) != len(want) {
			t.Errorf("%v, want %v", all, want)
		}
		at = at.Add(time.Minute)
	}
	is(nil)
	c.Must(table.Command{Remove: &table.Remove{Members: []table.Holder{agreed.Nth(1)}}})
	is(map[string]time.Duration{"n1": 0})
	c.Must(table.Command{Remove: &table.Remove{Members: []table.Holder{agreed.Nth(2)}}})
	is(map[string]time.Duration{"n1": time.Minute, "n2": 0})
	c.Must(table.Command{Forgo: &table.Forgo{Holders: []table.Holder{agreed.Nth(1)}}})
	is(map[string]time.Duration{"n2": time.Minute})
	c.Must(table.Command{Forgo: &table.Forgo{Holders: []table.Holder{agreed.Nth(2)}}})
	is(nil)
}
