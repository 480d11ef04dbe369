package system

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// blockState keeps a node from writing its state: something is where it writes.
func blockState(t *testing.T, dir string) (unblock func()) {
	t.Helper()
	partial := filepath.Join(dir, "state.partial")
	if err := os.MkdirAll(filepath.Join(partial, "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.RemoveAll(partial); err != nil {
			t.Fatal(err)
		}
	}
}

// A node that cannot write its state when it stops says so with its exit code. A state of
// before stays whole.
func TestStopThatCannotKeep(t *testing.T) {
	for name, more := range map[string][]string{"alone": {"--durability", "none"}, "cluster of one": {"--cluster-id", "c", "--bootstrap", "--raft-addr", "127.0.0.1:0", "--gossip-addr", "127.0.0.1:0"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			n := startNode(t, nil, "server", append([]string{"--id", "a", "--data-dir", dir, "--drain-timeout", "1s", "--stop-grace", "1s"}, more...)...)
			succeeds(t, "status", "--wait", "20s", "--addr", n.grpc)
			succeeds(t, "counter", "add", "k", "42", "--addr", n.grpc)
			blockState(t, dir)
			n.signal(t, syscall.SIGTERM)
			n.ends(t, 1)
			for _, want := range []string{"trying on", "keystead: the state was not kept for the next process", "hint: make room on the disk of --data-dir " + dir} {
				if !strings.Contains(n.err(), want) {
					t.Errorf("it does not say %q: %s", want, n.err())
				}
			}
		})
	}
}

// A node whose disk is mended within the time of its stop keeps its state after all.
func TestStopTriesOn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	args := []string{"--id", "a", "--data-dir", dir, "--durability", "none", "--drain-timeout", "10m"}
	n := startNode(t, nil, "server", args...)
	succeeds(t, "counter", "add", "k", "42", "--addr", n.grpc)
	unblock := blockState(t, dir)
	n.signal(t, syscall.SIGTERM)
	eventually(t, "it tries", func() bool { return strings.Contains(n.err(), "trying on") })
	unblock()
	n.ends(t, 0)
	n = startNode(t, nil, "server", args...)
	if v := value(t, n, "k"); v != "42" {
		t.Errorf("the counter is %s", v)
	}
	// Told once more, it waits for nothing.
	blockState(t, dir)
	n.signal(t, syscall.SIGTERM)
	eventually(t, "it ends", func() bool {
		_ = n.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-n.done:
			return true
		default:
			return false
		}
	})
	n.ends(t, 1)
}

// Several signals within milliseconds are one order to stop: the state is whole after
// each of them.
func TestManySignalsKeepTheState(t *testing.T) {
	for _, durability := range []string{"none", "interval"} {
		t.Run(durability, func(t *testing.T) {
			t.Parallel()
			stopWithManySignals(t, durability)
		})
	}
}

func stopWithManySignals(t *testing.T, durability string) {
	dir, want := t.TempDir(), 0
	for i := range 20 {
		n := startNode(t, nil, "server", "--id", "a", "--data-dir", dir, "--durability", durability)
		if v := value(t, n, "k"); v != strconv.Itoa(want) {
			t.Fatalf("the counter is %s after %d stops, and was %d", v, i, want)
		}
		succeeds(t, "counter", "add", "k", "--addr", n.grpc)
		want++
		gap := time.NewTicker(time.Duration(1+i%4) * time.Millisecond)
		for j := range 2 + i%3 {
			if j > 0 {
				<-gap.C
			}
			_ = n.cmd.Process.Signal([]os.Signal{syscall.SIGTERM, syscall.SIGINT}[j%2])
		}
		gap.Stop()
		if n.ends(t, 0); durability == "none" && files(t, dir)["state"] == "" {
			t.Fatalf("no state after stop %d: %s", i, n.err())
		}
	}
}
