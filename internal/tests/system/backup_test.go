package system

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/keystead/keystead/client"
)

// TestBackupUnderLoad: a backup that is made while clients change two counters of a key by one Admit has both of each
// key from one moment, and what was acknowledged before it began; what is restored of it serves.
func TestBackupUnderLoad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := startNode(t, nil, "server", "--id", "a", "--data-dir", filepath.Join(dir, "a"))
	c, err := client.Dial(t.Context(), n.grpc)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const keys = 8
	var mu sync.Mutex
	acked := [keys]int64{} // guarded by mu
	var wg sync.WaitGroup
	for i := range keys {
		key := "k" + strconv.Itoa(i)
		op := client.Admit{Key: key, Demands: []client.Demand{c.Counter("one").Demand(1, 1e12), c.Counter("two").Demand(1, 1e12)}}
		wg.Go(func() {
			for {
				if a, err := c.Admit(ctx, op); err != nil || !a.OK {
					if ctx.Err() == nil {
						t.Errorf("%s: %v", key, err)
					}
					return
				}
				mu.Lock()
				acked[i]++
				mu.Unlock()
			}
		})
	}
	now := func() [keys]int64 { mu.Lock(); defer mu.Unlock(); return acked }
	eventually(t, "all are changed", func() bool {
		for _, n := range now() {
			if n < 20 {
				return false
			}
		}
		return true
	})
	file := filepath.Join(dir, "backup")
	before := now()
	for range 3 {
		before = now()
		succeeds(t, "backup", file, "--force", "--addr", n.grpc)
	}
	refuses(t, 1, "is there already", "backup", file, "--addr", n.grpc)
	after := now()
	cancel()
	wg.Wait()
	last := token(t, "a-lock", "--addr", n.grpc)
	n.stop(t)
	refuses(t, 1, "is not empty", "restore", file, "--data-dir", filepath.Join(dir, "a"), "--id", "a")
	succeeds(t, "restore", file, "--data-dir", filepath.Join(dir, "b"), "--id", "b")
	succeeds(t, "disk", "verify", filepath.Join(dir, "b"))
	refuses(t, 1, "only a node that runs alone goes on from", "server", "--id", "b", "--data-dir", filepath.Join(dir, "b"), "--cluster-id", "c", "--bootstrap",
		"--grpc-addr", "127.0.0.1:0", "--raft-addr", "127.0.0.1:0", "--gossip-addr", "127.0.0.1:0", "--admin-addr", "")
	n = startNode(t, nil, "server", "--id", "b", "--data-dir", filepath.Join(dir, "b"))
	for i := range keys {
		var is [2]int64
		for j, name := range []string{"one", "two"} {
			is[j], _ = strconv.ParseInt(strings.TrimSpace(keystead(t, "counter", "get", "k"+strconv.Itoa(i), "--name", name, "--addr", n.grpc).out), 10, 64)
		}
		if is[0] != is[1] || is[0] < before[i] || is[0] > after[i]+1 {
			t.Errorf("k%d is %v; %d were acknowledged before the backup, and %d after it", i, is, before[i], after[i])
		}
	}
	if next := token(t, "a-lock", "--addr", n.grpc); next <= last {
		t.Errorf("the token %d after %d", next, last)
	}
	if status := succeeds(t, "status", "--addr", n.grpc); !strings.Contains(status, "from a backup of") {
		t.Errorf("the status: %s", status)
	}
	n.stop(t)
}

// TestBackupInterrupted: a backup and a restore that are killed leave nothing that looks whole.
func TestBackupInterrupted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := startNode(t, nil, "server", "--id", "a", "--data-dir", filepath.Join(dir, "a"))
	succeeds(t, "counter", "add", "stock", "42", "--addr", n.grpc)
	file := filepath.Join(dir, "backup")
	n.signal(t, syscall.SIGSTOP) // what is asked of it hangs
	b := begun(t, "backup", file, "--addr", n.grpc)
	eventually(t, "it has begun", func() bool { _, err := os.Stat(file + ".partial"); return err == nil })
	b()
	n.signal(t, syscall.SIGCONT)
	if _, err := os.Stat(file); err == nil {
		t.Error("a backup that was killed is there")
	}
	refuses(t, 1, "no backup", "restore", file+".partial", "--data-dir", filepath.Join(dir, "b"), "--id", "b")
	if _, err := os.Stat(filepath.Join(dir, "b")); err == nil {
		t.Error("a directory was made of no backup")
	}
	succeeds(t, "backup", file, "--addr", n.grpc)
	n.stop(t)
	for i := range 8 {
		to := filepath.Join(dir, "r"+strconv.Itoa(i))
		kill := begun(t, "restore", file, "--data-dir", to, "--id", "r")
		<-time.After(time.Duration(5*i) * time.Millisecond)
		kill()
		if keystead(t, "disk", "verify", to).code == 0 {
			continue // it was done
		}
		succeeds(t, "restore", file, "--data-dir", to, "--id", "r")
		if text := succeeds(t, "disk", "inspect", to, "--key", "stock"); !strings.Contains(text, "42 at version") {
			t.Errorf("restored again: %s", text)
		}
	}
}

// begun starts the program, and returns what kills it.
func begun(t *testing.T, args ...string) (kill func()) {
	t.Helper()
	cmd := exec.Command(binary, args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}
