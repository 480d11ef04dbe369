//go:build system

package system

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// smallDisk is a file system of its own, of so many bytes. It needs root.
func smallDisk(t *testing.T, bytes string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+bytes); err != nil {
		t.Fatalf("mounting a small disk: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fillUp takes all room that a disk has left, and returns what gives it back.
func fillUp(t *testing.T, dir string) (free func()) {
	t.Helper()
	path := filepath.Join(dir, "in the way")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	for block := make([]byte, 4096); ; {
		if _, err := f.Write(block); err != nil {
			break
		}
	}
	f.Close()
	return func() {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// A disk that fills up while a node runs does not take its state: the room for it was
// set aside before.
func TestFullDiskAfterTheStart(t *testing.T) {
	t.Parallel()
	dir := smallDisk(t, "16m")
	args := []string{"--id", "a", "--data-dir", dir, "--durability", "none", "--drain-timeout", "1s", "--stop-grace", "1s"}
	n := startNode(t, nil, "server", args...)
	succeeds(t, "counter", "add", "k", "42", "--addr", n.grpc)
	eventually(t, "room is set aside", func() bool { return len(files(t, dir)["state.reserve"]) > 0 })
	free := fillUp(t, dir)
	n.stop(t)
	free() // a start writes its epoch
	n = startNode(t, nil, "server", args...)
	if v := value(t, n, "k"); v != "42" {
		t.Errorf("the counter is %s", v)
	}
	n.stop(t)
}

// A node that finds too little room says so while it runs, and ends with an error if it
// cannot keep its state.
func TestFullDiskBeforeTheStart(t *testing.T) {
	t.Parallel()
	dir := smallDisk(t, "64k")
	n := startNode(t, nil, "server", "--id", "a", "--data-dir", dir, "--durability", "none", "--drain-timeout", "1s", "--stop-grace", "1s")
	succeeds(t, "counter", "add", "k", "42", "--addr", n.grpc)
	fillUp(t, dir)
	eventually(t, "it warns", func() bool {
		r := keystead(t, "status", "--exit-code", "--addr", n.grpc)
		return r.code == exitUnhealthy && strings.Contains(r.out, "too little room for the state")
	})
	if _, text := n.get(t, "/metrics"); strings.Contains(text, "\nkeystead_state_room_missing_bytes 0\n") {
		t.Error("the metric does not tell")
	}
	n.signal(t, syscall.SIGTERM)
	n.ends(t, 1)
	if !strings.Contains(n.err(), "no space left on device") {
		t.Errorf("it says %s", n.err())
	}
}

// A node whose store on disk finds no room refuses operations, says why, and goes on by itself when
// there is room again; what it had acknowledged is there after its death.
func TestFullDiskUnderTheStore(t *testing.T) {
	t.Parallel()
	dir := smallDisk(t, "32m")
	args := []string{"--id", "a", "--data-dir", dir, "--durability", "always"}
	n := startNode(t, nil, "server", args...)
	succeeds(t, "counter", "add", "k", "42", "--addr", n.grpc)
	free := fillUp(t, dir)
	eventually(t, "it refuses", func() bool {
		_ = keystead(t, "register", "put", "r", strings.Repeat("x", 60_000), "--addr", n.grpc)
		r := keystead(t, "status", "--exit-code", "--addr", n.grpc)
		return r.code == exitUnhealthy && strings.Contains(r.out, "the store on disk takes nothing")
	})
	r := keystead(t, "counter", "add", "other", "--addr", n.grpc, "--timeout", "1s")
	if r.code == 0 || !strings.Contains(r.err, "the disk of the node does not take what is decided") {
		t.Errorf("it says %d, %s", r.code, r.err)
	}
	free()
	eventually(t, "it goes on", func() bool { return keystead(t, "counter", "add", "k", "--addr", n.grpc).code == 0 })
	n.signal(t, syscall.SIGKILL)
	n.ends(t, -1)
	n = startNode(t, nil, "server", args...)
	if v := value(t, n, "k"); v != "43" {
		t.Errorf("the counter is %s", v)
	}
	n.stop(t)
}

// A full disk under the log of a cluster is an error in the log of the node, with the
// directory, and in its status.
func TestFullDiskUnderTheLog(t *testing.T) {
	t.Parallel()
	dir := smallDisk(t, "4m")
	n := startNode(t, nil, "server", "--id", "a", "--data-dir", dir, "--cluster-id", "c", "--bootstrap",
		"--raft-addr", "127.0.0.1:0", "--gossip-addr", "127.0.0.1:0", "--drain-timeout", "1s", "--stop-grace", "1s")
	st := object(t, succeeds(t, "status", "--json", "--wait", "20s", "--addr", n.grpc))
	startNode(t, nil, "server", "--id", "b", "--cluster-id", "c", "--join", st["gossip_addr"].(string),
		"--raft-addr", "127.0.0.1:0", "--gossip-addr", "127.0.0.1:0")
	succeeds(t, "status", "--wait", "20s", "--members", "2", "--addr", n.grpc)
	fillUp(t, dir)
	eventually(t, "it says so", func() bool {
		// Each is some entries of the log.
		_ = keystead(t, "drain", "b", "--wait", "--timeout", "2s", "--addr", n.grpc)
		_ = keystead(t, "undrain", "b", "--timeout", "2s", "--addr", n.grpc)
		return strings.Contains(n.err(), `"level":"ERROR","msg":"the log of the cluster cannot be written`)
	})
	r := keystead(t, "status", "--exit-code", "--addr", n.grpc)
	if r.code != exitUnhealthy || !strings.Contains(r.out, "the log of the cluster in "+filepath.Join(dir, "raft")+" cannot be written") {
		t.Errorf("the status: %d %s", r.code, r.out)
	}
	n.signal(t, syscall.SIGKILL)
	n.ends(t, -1)
}

// A full disk under a backup, or under what is made of it, is an error with what to do, and leaves nothing that looks
// whole.
func TestFullDiskUnderABackup(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := startNode(t, nil, "server", "--id", "a", "--data-dir", filepath.Join(dir, "a"))
	succeeds(t, "counter", "add", "k", "42", "--addr", n.grpc)
	file := filepath.Join(dir, "backup")
	succeeds(t, "backup", file, "--addr", n.grpc)
	full := smallDisk(t, "64k")
	free := fillUp(t, full)
	refuses(t, 1, "make room", "backup", filepath.Join(full, "backup"), "--addr", n.grpc)
	n.stop(t)
	to := filepath.Join(full, "data")
	refuses(t, 1, "nothing there counts", "restore", file, "--data-dir", to, "--id", "r")
	refuses(t, 1, "has not ended", "server", "--id", "r", "--data-dir", to, "--grpc-addr", "127.0.0.1:0", "--admin-addr", "")
	free()
	if names, err := filepath.Glob(filepath.Join(full, "backup*")); err != nil || len(names) > 0 {
		t.Errorf("left: %v, %v", names, err)
	}
	succeeds(t, "restore", file, "--data-dir", to, "--id", "r")
	succeeds(t, "disk", "verify", to)
}
