package epoch

import (
	"context"
	"testing"

	"github.com/keystead/keystead/ring/epoch/table"
)

// TestLeaderAdoptsLevel: when nothing has changed for a while, the leader commits
// the level that all members know, and all nodes learn of it.
func TestLeaderAdoptsLevel(t *testing.T) {
	t.Parallel()
	groups := form(t, newPool(), 2, nil)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, g := range groups {
		for tab := g.Table(); !tab.Uses(table.Level); {
			next, err := g.Await(ctx, tab.Epoch)
			if err != nil {
				t.Fatalf("level %d of %d: %v", tab.Level, table.Level, err)
			}
			tab = next
		}
	}
}
