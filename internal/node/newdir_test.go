package node

import (
	"bytes"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
)

// A node that runs alone warns of a data directory that it had to make: one whose name is
// misspelt looks like that, and all that was counted is elsewhere.
func TestNewDataDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keysteda")
	for _, warned := range []bool{true, false} {
		var log bytes.Buffer
		n := startStandalone(t, dir, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		n.Stop()
		text := log.String()
		if got := strings.Contains(text, `level=WARN msg="new data directory`) && strings.Contains(text, "--data-dir is right"); got != warned {
			t.Errorf("it is warned of: %v, want %v; the log:\n%s", got, warned, text)
		}
	}
}

// What is missing on a disk is said in the unit in which people make room.
func TestMissingRoom(t *testing.T) {
	k := newKeeps(&Config{DataDir: "/d"})
	if problem, hint := k.roomWarning(); problem != "" || hint != "" {
		t.Errorf("there is room: %q, %q", problem, hint)
	}
	k.short.Store(3<<20 + 1)
	if problem, _ := k.roomWarning(); !strings.Contains(problem, ": 4 MiB more are needed") {
		t.Error(problem)
	}
}
