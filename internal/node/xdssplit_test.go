package node

import (
	"slices"
	"testing"

	"github.com/keystead/keystead/internal/tests/agreed"
	"github.com/keystead/keystead/ring"
	"github.com/keystead/keystead/ring/epoch/table"
)

// xDS clients are told of keys while parts of them are served, and not of weights.
func TestSplitKeys(t *testing.T) {
	tab := agreed.Ring(t, 3)
	apply := func(c table.Command, want ...string) {
		t.Helper()
		next, err := tab.Apply(c)
		if err != nil {
			t.Fatal(c.Kind(), err)
		}
		if tab = next; !slices.Equal(splitKeys(tab), want) {
			t.Errorf("%s: %q, want %q", c.Kind(), splitKeys(tab), want)
		}
	}
	home := func(key string) table.Holder { return tab.Rows[tab.Find(ring.Hash(key))].Owner }
	var ids []uint64
	for _, name := range []string{"a", "b"} { // of one key
		ids = append(ids, tab.Epoch+1)
		apply(table.Command{BeginSplit: &table.BeginSplit{Split: table.Split{ID: tab.Epoch + 1, Kind: "limit", Key: "hot", Name: name,
			Parts: []table.Part{{Weight: 9}, {Weight: 9}}}}})
	}
	apply(table.Command{OpenSplit: &table.OpenSplit{ID: ids[0], Home: home("hot")}}, "hot")
	apply(table.Command{Weigh: &table.Weigh{ID: ids[0], Home: home("hot"), Expect: ids[0], Weights: []uint32{8, 7}}}, "hot")
	apply(table.Command{OpenSplit: &table.OpenSplit{ID: ids[1], Home: home("hot")}}, "hot", "hot")
	apply(table.Command{CloseSplit: &table.CloseSplit{ID: ids[0]}}, "hot")
	apply(table.Command{EndSplit: &table.EndSplit{ID: ids[0], Home: home("hot"), Since: tab.Epoch}}, "hot")
	apply(table.Command{CloseSplit: &table.CloseSplit{ID: ids[1]}})
}
