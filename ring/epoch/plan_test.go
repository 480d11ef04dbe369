package epoch

import (
	"testing"
	"time"

	"github.com/keystead/keystead/ring/epoch/table"
)

// TestMisplaced: a transition ends without the standbys that it wants, and an owner dies.
// Its rows belong to the standbys of before, where the ring does not want them. The leader
// moves them, although nobody comes or goes.
func TestMisplaced(t *testing.T) {
	t.Parallel()
	p := newPool()
	groups := form(t, p, 2, func(c *Config) { c.TTL = 500 * time.Millisecond })
	n1, n2 := groups[0], groups[1]
	c := &table.Sync{WantSince: n1.Table().WantSince, Owner: n1.Self(), Standby: n2.Self()}
	for i, r := range n1.Table().Rows {
		if r.Owner == c.Owner {
			after, upTo := n1.Table().Segment(i)
			c.Rows = append(c.Rows, table.Stamp{After: after, End: upTo, Since: r.Since})
		}
	}
	if _, err := n1.Propose(t.Context(), table.Command{Sync: c}); err != nil {
		t.Fatal(err)
	}
	n3 := join(t, p, "n3", func(c *Config) { c.TTL = 500 * time.Millisecond })
	flips(t, n3)
	until(t, n3, "three are members", stableWith(3))
	voters(t, 3, n1, n2, n3)
	n1.Kill()
	p.dead("n1")
	tab := until(t, n2, "n1 is removed", without(n1.Self()))
	if tab.Transition == nil && len(tab.Moves()) == 0 {
		t.Fatal("every row is where the ring wants it already")
	}
	until(t, n2, "every row is where the ring wants it", stableWith(2))
}
