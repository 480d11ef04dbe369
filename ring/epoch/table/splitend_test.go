package table

import (
	"strings"
	"testing"

	"github.com/keystead/keystead/ring"
)

// TestEndOfAnotherPhase: a home that gives up opening, while its parts are served after
// all and then to be united, does not end that: nothing would be put together.
func TestEndOfAnotherPhase(t *testing.T) {
	tab := cluster(t, 2)
	apply := func(c Command) {
		t.Helper()
		next, err := tab.Apply(c)
		if err != nil {
			t.Fatal(err)
		}
		tab = next
	}
	id := tab.Epoch + 1
	salts, ok := tab.Place(id, []string{"n1", "n2"})
	if !ok {
		t.Fatal("no places")
	}
	apply(Command{BeginSplit: &BeginSplit{Split: Split{ID: id, Kind: "counter", Key: "k", Name: "c",
		Parts: []Part{{salts[0], FullWeight / 2}, {salts[1], FullWeight / 2}}}}})
	home, _, _ := tab.Owner(ring.Hash("k"))
	opening := Command{EndSplit: &EndSplit{ID: id, Home: home.Holder(), Since: tab.Epoch}}
	if _, err := tab.Apply(opening); err != nil {
		t.Errorf("the end of opening, while it is: %v", err)
	}
	apply(Command{OpenSplit: &OpenSplit{ID: id, Home: home.Holder()}})
	apply(Command{CloseSplit: &CloseSplit{ID: id}})
	if _, err := tab.Apply(opening); err == nil || !strings.Contains(err.Error(), "is closing since epoch") {
		t.Errorf("the end of opening, when it is closing: %v", err)
	}
	apply(Command{EndSplit: &EndSplit{ID: id, Home: home.Holder(), Since: tab.Epoch}})
	if len(tab.Splits) != 0 {
		t.Errorf("%d splits in the end", len(tab.Splits))
	}
}
