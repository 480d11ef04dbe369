package node

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/keystead/keystead/handoff/disk/statefile"
)

// block keeps a node from writing its state.
func block(t *testing.T, dir string) (unblock func()) {
	t.Helper()
	partial := filepath.Join(dir, statefile.Partial)
	if err := os.MkdirAll(filepath.Join(partial, "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.RemoveAll(partial); err != nil {
			t.Fatal(err)
		}
	}
}

// TestKeep: a stop that cannot write the state has an error. With time left it tries on,
// until that helps or it is told to hurry.
func TestKeep(t *testing.T) {
	for name, tc := range map[string]struct {
		within time.Duration
		then   func(n *Node, unblock func()) // while it tries
		kept   bool
	}{
		"no time":            {},
		"mended meanwhile":   {within: time.Hour, then: func(_ *Node, unblock func()) { unblock() }, kept: true},
		"told to hurry then": {within: time.Hour, then: func(n *Node, _ func()) { n.Hurry() }},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			n := startStandalone(t, dir, nil)
			u := use(t, n)
			unblock := block(t, dir)
			if tc.within > 0 {
				n.KeepUntil(time.Now().Add(tc.within))
			}
			stopped := make(chan struct{})
			go func() { defer close(stopped); n.Stop() }()
			if tc.then != nil {
				eventually(t, "it has tried", func() bool { return n.keeps.tries.Load() > 0 })
				tc.then(n, unblock)
			}
			select {
			case <-stopped:
			case <-time.After(patience):
				t.Fatal("it does not stop")
			}
			if err := n.Kept(); (err == nil) != tc.kept || isThere(stateFile(dir)) != tc.kept || n.Keeping() {
				t.Fatalf("%v; a state is there: %v", err, isThere(stateFile(dir)))
			}
			if tc.kept && !u.again(t, startStandalone(t, dir, nil)) {
				t.Error("it is not what it was")
			}
		})
	}
}
