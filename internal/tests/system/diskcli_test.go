package system

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestDiskCommands: what a killed node has on disk is shown and checked; a running one is refused, and so is
// what has changed since.
func TestDiskCommands(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := startNode(t, nil, "server", "--id", "a", "--data-dir", dir, "--durability", "always")
	succeeds(t, "counter", "add", "stock", "42", "--addr", n.grpc)
	succeeds(t, "lock", "acquire", "stock", "--ttl", "10m", "--addr", n.grpc)
	refuses(t, 1, "is in use by a running node", "disk", "inspect", dir)
	refuses(t, 1, "is in use by a running node", "disk", "verify", dir)
	n.signal(t, syscall.SIGKILL)
	n.ends(t, -1)
	v := object(t, succeeds(t, "disk", "inspect", dir, "--json"))
	if v["node"] != "a" || v["stopped_in_order"] != false || v["durability"] != "always" || v["objects"].(map[string]any)["counter"] == nil {
		t.Errorf("inspected: %v", v)
	}
	if text := succeeds(t, "disk", "inspect", dir); !strings.Contains(text, "not in order; all that was answered is here") || !strings.Contains(text, "stock  ") {
		t.Errorf("inspected: %s", text)
	}
	if text := succeeds(t, "disk", "inspect", dir, "--key", "stock"); !strings.Contains(text, "42 at version") || !strings.Contains(text, "held by") {
		t.Errorf("the key: %s", text)
	}
	if text := succeeds(t, "disk", "verify", dir); !strings.Contains(text, "all is well: 2 objects") {
		t.Errorf("verified: %s", text)
	}
	logs, err := filepath.Glob(filepath.Join(dir, "disk", "1", "*.log"))
	if err != nil || len(logs) == 0 {
		t.Fatal(logs, err)
	}
	log := logs[len(logs)-1]
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	write(t, log, string(b))
	if r := keystead(t, "disk", "verify", dir); r.code != 1 || !strings.Contains(r.out, "DAMAGED") || !strings.Contains(r.out, "restore a backup") {
		t.Errorf("of a changed log: %d %s %s", r.code, r.out, r.err)
	}
	refuses(t, 1, "`keystead disk verify DIR`", "disk", "inspect", dir)
	refuses(t, 1, "has no store on disk", "disk", "verify", t.TempDir())
}
