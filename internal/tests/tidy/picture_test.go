package tidy

import "testing"

// A package stands above all that it imports, and only arrows that nothing else implies
// are drawn.
func TestPicture(t *testing.T) {
	g := Graph{
		"cmd/keystead":        {"internal/cli", "os"},
		"internal/cli":        {"owner", "ring", "internal/node"},
		"internal/node":       {"owner", "ring"},
		"owner":               {"owner/limit"},
		"owner/limit":         nil,
		"ring":                {"strings"},
		"internal/tests/tidy": {"ring"},
		"strings":             nil,
	}
	want := " 4  cmd/keystead   → internal/cli\n" +
		" 3  internal/cli   → internal/node\n" +
		" 2  internal/node  → owner, ring\n" +
		" 1  owner          → owner/limit\n" +
		" 0  owner/limit\n" +
		"    ring\n"
	if got := Picture(g); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if _, err := Redraw("no place", want); err == nil {
		t.Error("a page without a place for it is no error")
	}
}
