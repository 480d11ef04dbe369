//go:build system

package toykind

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/keystead/keystead/internal/tests/nemesis/cluster"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
)

// built is what the page makes of the program and of the nemesis.
type built struct{ keystead, nemesis string }

func build(t *testing.T) built {
	t.Helper()
	dir := t.TempDir()
	overlay, _, err := Overlay("../../..", page, dir)
	if err != nil {
		t.Fatal(err)
	}
	b := built{filepath.Join(dir, "keystead"), filepath.Join(dir, "nemesis")}
	for out, pkg := range map[string]string{b.keystead: "./cmd/keystead", b.nemesis: "./internal/tests/nemesis"} {
		cmd := exec.CommandContext(t.Context(), "go", "build", "-overlay", overlay, "-o", out, pkg)
		cmd.Dir = "../../.."
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", pkg, err, text)
		}
	}
	return b
}

// walk is a cluster of the program with flags.
type walk struct {
	*cluster.Cluster
	t       *testing.T
	program string
}

// flag runs `keystead flag` with a node, and returns what it prints.
func (w *walk) flag(by *cluster.Node, what, key string) string {
	w.t.Helper()
	conn, err := w.Connect(by)
	if err != nil {
		w.t.Fatal(err)
	}
	addr := strings.TrimPrefix(conn.Target(), "passthrough:///")
	_ = conn.Close()
	text, err := exec.CommandContext(w.t.Context(), w.program, "flag", what, key, "--addr", addr, "--timeout", "30s").CombinedOutput()
	if err != nil {
		w.t.Fatalf("flag %s %s by %s: %v\n%s", what, key, by.ID, err, text)
	}
	return strings.TrimSpace(string(text))
}

// awaitStable waits until all rows have an owner and a standby.
func (w *walk) awaitStable() cluster.View {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	v, err := w.Await(ctx, true)
	if err != nil {
		w.t.Fatal(err)
	}
	return v
}

const keys = 16

// set sets all flags, every other one on, by the command, which finds their owners.
func (w *walk) set() {
	w.t.Helper()
	nodes := w.Running()
	for i := range keys {
		on := i%2 == 0
		if got := w.flag(nodes[i%len(nodes)], map[bool]string{true: "on", false: "off"}[on], fmt.Sprint("flag-", i)); got != fmt.Sprint(on) {
			w.t.Errorf("flag %d was set to %q", i, got)
		}
	}
}

// get reads all flags by bare calls of all nodes that run: most of them pass them on.
func (w *walk) get(step string) {
	w.t.Helper()
	for _, n := range w.Running() {
		conn, err := w.Connect(n)
		if err != nil {
			w.t.Fatal(err)
		}
		for i := range keys {
			want := int64(1 - i%2)
			ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
			r := new(counterpb.GetResponse)
			for err = errors.New("not asked"); err != nil && ctx.Err() == nil; {
				if err = conn.Invoke(ctx, "/keystead.flag.v1.FlagService/Get", &counterpb.GetRequest{Key: fmt.Sprint("flag-", i)}, r); err != nil {
					<-time.After(50 * time.Millisecond)
				}
			}
			cancel()
			if err != nil || r.Value != want || r.Version == 0 || r.LostEpoch != 0 {
				w.t.Errorf("%s: flag %d by %s: %v, %v, want %d", step, i, n.ID, r, err, want)
			}
		}
		_ = conn.Close()
	}
}

// TestWalk: flags are set, read and waited for through any node, and live through a join,
// a drain and the death of an owner.
func TestWalk(t *testing.T) {
	b := build(t)
	c, err := cluster.Start(cluster.Config{Binary: b.keystead, Dir: t.TempDir(), Nodes: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	w := &walk{c, t, b.keystead}
	w.awaitStable()
	w.set()
	w.get("set")

	waited := make(chan string)
	go func() { waited <- w.flag(c.Nodes()[1], "wait", "gate") }()
	w.flag(c.Nodes()[2], "on", "gate")
	if got := <-waited; got != "true" {
		t.Errorf("one that waited was told %q", got)
	}

	if _, err := c.Join(); err != nil {
		t.Fatal(err)
	}
	w.awaitStable()
	w.get("after a join")
	if err := c.Drain(t.Context(), c.Nodes()[0]); err != nil {
		t.Fatal(err)
	}
	if err := c.AwaitDrained(t.Context(), c.Nodes()[0]); err != nil {
		t.Fatal(err)
	}
	w.get("after a drain")
	if err := c.Nodes()[1].Kill(); err != nil {
		t.Fatal(err)
	}
	w.get("after a kill -9")

	c.Close()

	// A new cluster has such objects when all of its nodes have been there for a while.
	out, err := exec.CommandContext(t.Context(), b.nemesis, "--binary", b.keystead, "--faults", "none", "--length", "16s", "--keys", "2", "--clients", "3",
		"--pause", "25s", "--served-within", "25s", "--keep", t.TempDir()).CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Errorf("a history with flags in it: %v", err)
	}
}
