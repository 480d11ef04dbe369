package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/keystead/keystead/handoff/disk"
	"github.com/keystead/keystead/internal/failure"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
)

// startDurable starts a standalone node that keeps what it decides on disk.
func startDurable(t *testing.T, dir, durability string, change func(*Config)) *Node {
	t.Helper()
	return startStandalone(t, dir, func(c *Config) {
		c.Durability = durability
		if change != nil {
			change(c)
		}
	})
}

// TestDeathOfADurableNode: a node that dies goes on with what it has answered, under always; under interval
// what is on disk is back, and the loss of its last moments is declared.
func TestDeathOfADurableNode(t *testing.T) {
	for _, durability := range []string{"always", "interval"} {
		t.Run(durability, func(t *testing.T) {
			dir := t.TempDir()
			n := startDurable(t, dir, durability, nil)
			u := use(t, n)
			if durability == "interval" {
				settled(t, n)
			}
			for range 3 {
				token, _ := given(t, n, "another")
				n.Kill()
				n = startDurable(t, dir, durability, nil)
				if !u.again(t, n) {
					t.Fatal("what was answered is gone")
				}
				if next, _ := given(t, n, "another"); next != 0 && next <= token {
					t.Errorf("a token %d after %d", next, token)
				}
				if lost := n.rule.lost != 0; lost != (durability == "interval") {
					t.Errorf("a loss is declared: %v", lost)
				}
			}
		})
	}
}

// settled waits until the disk has all that was decided before.
func settled(t *testing.T, n *Node) {
	t.Helper()
	k := n.keeper()
	for was := k.Status().Rounds; k.Status().Rounds < was+2; {
		pass(t)
	}
}

// TestOrderlyStopOfADurableNode: nothing is lost, and no loss declared, whatever the durability is next.
func TestOrderlyStopOfADurableNode(t *testing.T) {
	dir := t.TempDir()
	n := startDurable(t, dir, "interval", nil)
	u := use(t, n)
	for _, durability := range []string{"always", "none", "interval", "none", "none", "always", "interval"} {
		n.Stop()
		if err := n.Kept(); err != nil {
			t.Fatal(err)
		}
		if n = startDurable(t, dir, durability, nil); !u.again(t, n) || n.rule.lost != 0 {
			t.Fatalf("with %s: it is gone, or a loss of epoch %d is declared", durability, n.rule.lost)
		}
		if _, err := os.Stat(filepath.Join(dir, diskDirectory)); (err == nil) != (durability != "none") {
			t.Errorf("with %s: the store on disk: %v", durability, err)
		}
	}
}

// TestServedWithoutItsDisk: what is on disk does not count if a process has served since that did not keep it.
func TestServedWithoutItsDisk(t *testing.T) {
	dir := t.TempDir()
	n := startDurable(t, dir, "always", nil)
	u := use(t, n)
	n.Stop()
	away := filepath.Join(t.TempDir(), "disk")
	if err := os.Rename(filepath.Join(dir, diskDirectory), away); err != nil {
		t.Fatal(err)
	}
	startDurable(t, dir, "none", nil).Kill()
	if err := os.Rename(away, filepath.Join(dir, diskDirectory)); err != nil {
		t.Fatal(err)
	}
	if n = startDurable(t, dir, "always", nil); u.again(t, n) || n.rule.lost == 0 {
		t.Errorf("what was before is back, or no loss is declared (%d)", n.rule.lost)
	}
}

// TestDeathWhileItBegins: a process that dies before its store on disk is whole leaves what it went on from, and what did
// not count before does not count then.
func TestDeathWhileItBegins(t *testing.T) {
	die := func(t *testing.T, dir string) {
		t.Helper()
		var writes atomic.Int64
		dies := errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
			// The store is made, and what is to be in it is not written.
			if op.Kind == errorfs.OpFileWrite && strings.HasSuffix(op.Path, ".log") {
				writes.Add(1)
				return syscall.EIO
			}
			return nil
		}))
		_, err := Start(Config{ID: "n1", GRPCAddr: "127.0.0.1:0", DataDir: dir, Durability: "always", Wires: Wires{Disk: dies}})
		if err == nil || writes.Load() == 0 {
			t.Fatalf("it starts without a disk: %v", err)
		}
	}
	t.Run("state file", func(t *testing.T) {
		dir := t.TempDir()
		n := startDurable(t, dir, "none", nil)
		u := use(t, n)
		n.Stop()
		die(t, dir)
		die(t, dir)
		if n = startDurable(t, dir, "always", nil); !u.again(t, n) || n.rule.lost != 0 {
			t.Errorf("what was before is gone, or a loss is declared (%d)", n.rule.lost)
		}
	})
	t.Run("none", func(t *testing.T) {
		dir := t.TempDir()
		n := startDurable(t, dir, "always", nil)
		u := use(t, n)
		n.Stop()
		blocks := epochPath(dir) + ".tmp"
		if err := os.Mkdir(blocks, 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := Start(Config{ID: "n1", GRPCAddr: "127.0.0.1:0", DataDir: dir, Durability: "none"}); err == nil {
			t.Fatal("it starts without an epoch")
		}
		remove(t, blocks)
		left := filepath.Join(dir, diskDirectory+".removing")
		if err := os.Mkdir(left, 0o700); err != nil {
			t.Fatal(err)
		}
		if n = startDurable(t, dir, "none", nil); !u.again(t, n) || n.rule.lost != 0 {
			t.Errorf("what was before is gone, or a loss is declared (%d)", n.rule.lost)
		}
		for _, path := range []string{left, filepath.Join(dir, diskDirectory)} {
			if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s is there: %v", path, err)
			}
		}
	})
	t.Run("not used", func(t *testing.T) {
		dir := t.TempDir()
		n := startDurable(t, dir, "always", nil)
		u := use(t, n)
		n.Stop()
		away := filepath.Join(t.TempDir(), "disk")
		if err := os.Rename(filepath.Join(dir, diskDirectory), away); err != nil {
			t.Fatal(err)
		}
		startDurable(t, dir, "none", nil).Kill()
		if err := os.Rename(away, filepath.Join(dir, diskDirectory)); err != nil {
			t.Fatal(err)
		}
		die(t, dir)
		if n = startDurable(t, dir, "always", nil); u.again(t, n) || n.rule.lost == 0 {
			t.Errorf("what did not count is back, or no loss is declared (%d)", n.rule.lost)
		}
	})
}

// TestDiskOfADurableNode: one that is damaged, or of a newer program, is refused, and stays as it is.
func TestDiskOfADurableNode(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(t *testing.T, dir string)
		want   string
	}{
		"newer":   {func(t *testing.T, dir string) { write(t, filepath.Join(dir, "format"), "keystead disk 9 ") }, "restore a backup"},
		"damaged": {func(t *testing.T, dir string) { write(t, filepath.Join(dir, "format"), "something") }, "restore a backup"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			n := startDurable(t, dir, "always", nil)
			use(t, n)
			n.Stop()
			tc.change(t, filepath.Join(dir, diskDirectory, "1"))
			if n, err := Start(Config{ID: "n1", GRPCAddr: "127.0.0.1:0", DataDir: dir}); err == nil || !strings.Contains(err.Error(), tc.want) {
				if err == nil {
					n.Stop()
				}
				t.Errorf("it says %v", err)
			}
			if _, err := os.Stat(filepath.Join(dir, diskDirectory, "1", "format")); err != nil {
				t.Error(err)
			}
		})
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestDurabilitySettings: what makes no sense is refused with what to do.
func TestDurabilitySettings(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"unknown":  {func(c *Config) { c.Durability, c.DataDir = "sometimes", "d" }, "choose none, interval or always"},
		"no disk":  {func(c *Config) { c.Durability = "always" }, "--data-dir"},
		"cluster":  {func(c *Config) { c.Durability, c.DataDir, c.Cluster.ID = "interval", "d", "c" }, map[bool]string{false: "runs alone"}[Config{}.disks()]},
		"interval": {func(c *Config) { c.DurabilityInterval = time.Hour }, "50ms to 5m"},
		"ack owner": {func(c *Config) {
			c.Durability, c.DataDir, c.AckOwner = "interval,counters=always", "d", []string{"counters"}
		}, "contradict"},
		"none alone":      {func(c *Config) { c.Durability = "none" }, ""},
		"cluster of none": {func(c *Config) { c.Durability, c.DataDir, c.Cluster.ID = "none", "d", "c" }, ""},
	} {
		c := Config{ID: "n1"}
		tc.change(&c)
		if err := c.Validate(); (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestDiskFails: when the disk takes nothing, answers that wait for it are unknown, and new operations are refused; when it
// does again, the node goes on, and what it had is not lost.
func TestDiskFails(t *testing.T) {
	dir := t.TempDir()
	broken, faulty := brokenDisk()
	n := startDurable(t, dir, "always", func(c *Config) { c.Wires.Disk = faulty })
	u := use(t, n)
	counters := counterpb.NewCounterServiceClient(dial(t, n))
	add := func() error {
		_, err := counters.Add(bounded(t), &counterpb.AddRequest{Key: "f", Delta: 1})
		return err
	}
	if err := add(); err != nil {
		t.Fatal(err)
	}
	broken.Store(true)
	if err := add(); err == nil || !strings.Contains(err.Error(), "did not take the operation") {
		t.Errorf("while it fails: %v", err)
	}
	for range 3 {
		if err := add(); err == nil || !strings.Contains(err.Error(), "nothing happened") {
			t.Errorf("when it has failed: %v", err)
		}
	}
	var refused *failure.Error
	if err := n.keeper().Admit(); !errors.As(err, &refused) || refused.Hint == "" {
		t.Errorf("it admits: %v", err)
	}
	if ws := n.warnings(); len(ws) != 1 || !strings.Contains(ws[0].Problem, "takes nothing") {
		t.Errorf("the status warns of %v", ws)
	}
	broken.Store(false)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for add() != nil {
		if ctx.Err() != nil {
			t.Fatal("it does not go on")
		}
		pass(t)
	}
	n.Kill()
	if n = startDurable(t, dir, "always", nil); !u.again(t, n) {
		t.Error("what was answered is gone")
	}
	if k := n.keeper().Status(); k.Problem != "" || k.Settings.Default != disk.Always {
		t.Errorf("%+v", k)
	}
}

// smallDisk is a file system that has little left.
type smallDisk struct {
	vfs.FS
	left uint64
}

func (d smallDisk) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: d.left, TotalBytes: 1 << 40}, nil
}

// TestDiskNearlyFull: the status warns of a disk before that is full.
func TestDiskNearlyFull(t *testing.T) {
	for left, warns := range map[uint64]bool{32 << 20: true, 1 << 30: false} {
		n := startDurable(t, t.TempDir(), "interval", func(c *Config) { c.Wires.Disk = smallDisk{vfs.Default, left} })
		ws := n.warnings()
		if is := len(ws) == 1 && strings.Contains(ws[0].Problem, "nearly full: 32 MiB are left") && ws[0].Hint != ""; is != warns || !warns && len(ws) > 0 {
			t.Errorf("with %d bytes left: %v", left, ws)
		}
	}
}

func pass(t *testing.T) {
	t.Helper()
	select {
	case <-t.Context().Done():
	case <-time.After(20 * time.Millisecond):
	}
}

// brokenDisk returns a file system that takes nothing while broken is set.
func brokenDisk() (broken *atomic.Bool, faulty vfs.FS) {
	broken = new(atomic.Bool)
	return broken, errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if broken.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			return syscall.EIO
		}
		return nil
	}))
}

// TestStopAfterTheDiskFailed: a node that is stopped when its disk has failed keeps all that it has if
// the disk is mended in time, and says so if it is not.
func TestStopAfterTheDiskFailed(t *testing.T) {
	for name, mended := range map[string]bool{"mended": true, "not mended": false} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			broken, faulty := brokenDisk()
			n := startDurable(t, dir, "interval", func(c *Config) { c.Wires.Disk = faulty })
			u := use(t, n)
			broken.Store(true)
			for n.keeper().Status().Problem == "" {
				pass(t)
			}
			broken.Store(!mended)
			n.Stop()
			if kept := n.Kept() == nil; kept != mended {
				t.Fatalf("it says that it has kept the state: %v", n.Kept())
			}
			broken.Store(false)
			if n = startDurable(t, dir, "interval", nil); mended && (!u.again(t, n) || n.rule.lost != 0) || !mended && n.rule.lost == 0 {
				t.Errorf("what it had is gone, or the loss of epoch %d is declared, or not", n.rule.lost)
			}
		})
	}
}
