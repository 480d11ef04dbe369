//go:build system

package system

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// nextVersion are the changes that make a later version of this program: one of its
// commands says something that this version does not know.
var nextVersion = []struct{ file, old, text string }{
	{"ring/epoch/table/command.go", "type Compact struct{}", "type Compact struct{ Better bool `json:\"better,omitempty\"` }"},
	{"ring/epoch/table/level.go", "const Level = 9", "const Level = 10"},
	{"ring/epoch/table/level.go", "Level() uint32 {", "Level() uint32 {\n\tif c.Compact != nil && c.Compact.Better {\n\t\treturn 10\n\t}"},
	{"ring/epoch/leader.go", "&table.Compact{}", "&table.Compact{Better: true}"},
}

// buildNext builds the later version.
func buildNext(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	dir, replace, texts := t.TempDir(), map[string]string{}, map[string]string{}
	for _, c := range nextVersion {
		if texts[c.file] == "" {
			b, err := os.ReadFile(filepath.Join(root, c.file))
			if err != nil {
				t.Fatal(err)
			}
			texts[c.file] = string(b)
		}
		if strings.Count(texts[c.file], c.old) != 1 {
			t.Fatalf("%s has no single %q any more", c.file, c.old)
		}
		texts[c.file] = strings.Replace(texts[c.file], c.old, c.text, 1)
	}
	for file, text := range texts {
		to := filepath.Join(dir, strings.ReplaceAll(file, "/", "-"))
		replace[filepath.Join(root, file)] = to
		if err := os.WriteFile(to, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", filepath.Join(dir, "keystead"), "./cmd/keystead")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building the next version: %v\n%s", err, out)
	}
	return filepath.Join(dir, "keystead")
}

// A cluster is upgraded node by node, under load. As long as an old node is in it,
// nobody says what the old one does not know; afterwards they do, and an old one
// that comes stops and says why.
func TestRollingUpgrade(t *testing.T) {
	t.Parallel()
	next := buildNext(t)
	c := newCluster(t, 3, true, "--max-lock-ttl", "2h")
	c.protected(c.nodes...)
	k := fill(t, c.nodes[0], 100)
	l := startLoad(t, c, time.Millisecond)
	tidied := func() bool {
		return slices.ContainsFunc(c.nodes, func(n *testNode) bool {
			return n.prepare != nil && strings.Contains(n.err(), "command=compact")
		})
	}
	old := newTestNode(t, "n4", "", "--cluster-id", "c", "--join", c.addrs(nil))
	old.run()
	c.ready(append(slices.Clone(c.nodes), old)...)
	if r := keystead(t, "drain", "n4", "--wait", "--addr", c.nodes[0].grpc); r.code != 0 { // it only looks on
		t.Fatalf("drain ends with %d: %s%s", r.code, r.out, r.err)
	}
	for i, n := range c.nodes {
		stopped(t, n)
		n.flags = slices.DeleteFunc(n.flags, func(f string) bool { return f == "--bootstrap" })
		if !slices.Contains(n.flags, "--join") {
			n.flags = append(n.flags, "--join", c.addrs(n))
		}
		if i == len(c.nodes)-1 {
			<-time.After(3 * time.Second) // rows could be tidied up, and one of the next version leads
		}
		n.prepare = func(cmd *exec.Cmd) { cmd.Path, cmd.Args[0] = next, next }
		n.run()
		eventually(t, "it is back", func() bool { st, _, err := n.status(); return err == nil && st.RowsOwned > 0 })
		c.protected(c.nodes...)
		k.check(t, n)
	}
	if tidied() || !old.runs() {
		t.Errorf("a node of the next version says what the old one does not know: it says %s", old.err())
	}
	l.end(t, c.nodes[0])
	stopped(t, old)
	late := newTestNode(t, "n5", t.TempDir(), "--cluster-id", "c", "--join", c.addrs(nil))
	late.prepare = c.nodes[0].prepare
	late.run() // it makes rows to join when it goes
	eventually(t, "it joins", func() bool { st, _, err := late.status(); return err == nil && st.RowsOwned > 0 && !st.Changing })
	stopped(t, late)
	eventually(t, "the nodes say what all know now", tidied)
	late.prepare, late.disk = nil, t.TempDir()
	late.run()
	select {
	case <-late.done:
		if !strings.Contains(late.err(), "upgrade") {
			t.Errorf("the old node ended with %s", late.err())
		}
	case <-time.After(patience):
		t.Error("the old node goes on")
		late.signal(t, syscall.SIGKILL)
	}
	k.check(t, c.nodes[1])
}
