package rpc

import (
	"testing"

	"github.com/keystead/keystead/internal/failure"
)

// TestPlaceOfADemand: an error about a demand names it by its place in the whole request, in its text too; others stay.
func TestPlaceOfADemand(t *testing.T) {
	for field, want := range map[string]string{
		"demands[0]": "demands[2]", "demands[1].limit": "demands[5].limit", "demands[1].limit.burst": "demands[5].limit.burst",
		"demands[2].cost": "demands[2].cost", "demands[x].cost": "demands[x].cost", "demands[-1]": "demands[-1]", "demands[0": "demands[0", "demands": "demands", "key": "key",
	} {
		w := wire(atPlace([]int{2, 5}, failure.Invalidf(field, "is wrong")))
		if w.Field != want || w.Message != want+": is wrong" || w.Reason != wire(failure.Invalidf("", "")).Reason {
			t.Errorf("%s becomes %q: %q", field, w.Field, w.Message)
		}
	}
}
