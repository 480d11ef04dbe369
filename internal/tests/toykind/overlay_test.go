package toykind

import (
	"testing"
)

const page = "../../../docs/adding-a-kind.md"

// What files that are not the kind's own may get.
const maxLines, maxFiles = 8, 8

// TestReach: the page fits the tree as it is, and adds few lines to files that are not the
// kind's own.
func TestReach(t *testing.T) {
	_, c, err := Overlay("../../..", page, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	lines := 0
	for _, n := range c.Edited {
		lines += n
	}
	t.Logf("%d new files; %d lines in %d files edited: %v", len(c.New), lines, len(c.Edited), c.Edited)
	if lines == 0 || lines > maxLines || len(c.Edited) > maxFiles {
		t.Errorf("%d lines in %d files are edited; at most %d in %d", lines, len(c.Edited), maxLines, maxFiles)
	}
}
