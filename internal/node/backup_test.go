package node

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/keystead/keystead/internal/failure"
	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	registerpb "github.com/keystead/keystead/proto/keystead/register/v1"
)

// backedUp returns a backup of a node.
func backedUp(t *testing.T, n *Node) []byte {
	t.Helper()
	stream, err := adminpb.NewAdminServiceClient(dial(t, n)).Backup(bounded(t), &adminpb.BackupRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var file []byte
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return file
		}
		if err != nil {
			t.Fatal(err)
		}
		file = append(file, r.Data...)
	}
}

// TestBackupAndRestore: what a node has is backed up while it runs, and another one goes on from it, under higher
// tokens and versions, with the loss declared for as long as it is named.
func TestBackupAndRestore(t *testing.T) {
	n := startDurable(t, t.TempDir(), "always", nil)
	u := use(t, n)
	const policies = "policies: {a: {limit: 3/s}}"
	if _, err := adminpb.NewAdminServiceClient(dial(t, n)).ApplyPolicies(bounded(t), &adminpb.ApplyPoliciesRequest{Text: policies}); err != nil {
		t.Fatal(err)
	}
	file := backedUp(t, n)
	info, err := VerifyBackup(bytes.NewReader(file))
	if err != nil || info.Objects != 3 || info.Entries == 0 || info.Node != n.cfg.ID {
		t.Fatalf("%+v, %v", info, err)
	}
	var last *counterpb.AddResponse
	for range 5 {
		if last, err = counterpb.NewCounterServiceClient(dial(t, n)).Add(bounded(t), &counterpb.AddRequest{Key: "k", Delta: 1}); err != nil {
			t.Fatal(err)
		}
	}
	token, _ := given(t, n, "another")
	n.Kill()
	dir := filepath.Join(t.TempDir(), "a", "b")
	if err := Restore(bytes.NewReader(file), dir, "r", time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(dir, restoring)); err == nil {
		t.Error("the restore has left its mark")
	}
	restored := func(c *Config) { c.ID = "r" }
	n = startDurable(t, dir, "always", restored)
	if next, _ := given(t, n, "another"); next <= token {
		t.Errorf("a token %d after %d", next, token)
	}
	if !u.again(t, n) {
		t.Error("what was backed up is gone")
	}
	r, err := counterpb.NewCounterServiceClient(dial(t, n)).Add(bounded(t), &counterpb.AddRequest{Key: "k", Delta: 1})
	if err != nil || r.Version <= last.Version {
		t.Errorf("version %d after %d, %v", r.GetVersion(), last.Version, err)
	}
	if p, err := adminpb.NewAdminServiceClient(dial(t, n)).GetPolicies(bounded(t), &adminpb.GetPoliciesRequest{}); err != nil || p.Text != policies {
		t.Errorf("policies %v, %v", p, err)
	}
	for _, how := range []func(n *Node){(*Node).Stop, (*Node).Kill} {
		if problem, _ := n.lossWarning(); !strings.Contains(problem, "from a backup of") || n.rule.lost == 0 {
			t.Errorf("it says %q of a loss in epoch %d", problem, n.rule.lost)
		}
		lost := n.rule.lost
		how(n)
		if n = startDurable(t, dir, "always", restored); n.rule.lost != lost {
			t.Errorf("the loss of epoch %d is that of %d now", lost, n.rule.lost)
		}
	}
}

// TestBackupOfNothing: a node that keeps nothing on disk says so.
func TestBackupOfNothing(t *testing.T) {
	n := startStandalone(t, t.TempDir(), func(c *Config) { c.Durability = "none" })
	stream, err := adminpb.NewAdminServiceClient(dial(t, n)).Backup(bounded(t), &adminpb.BackupRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if err == nil || !strings.Contains(err.Error(), "keeps nothing on disk") {
		t.Error(err)
	}
}

// TestBackupSlow: a reader that takes nothing is given up, and one backup runs at a time.
func TestBackupSlow(t *testing.T) {
	n := startDurable(t, t.TempDir(), "always", func(c *Config) {})
	use(t, n)
	n.stall = 20 * time.Millisecond
	hangs := make(chan struct{})
	err := n.backup(t.Context(), func([]byte, int64) error {
		nothing := func([]byte, int64) error { return nil }
		var wrong *failure.Error
		if err := n.backup(t.Context(), nothing); !errors.As(err, &wrong) || wrong.Message != errBackupRuns.Message {
			t.Errorf("a second one: %v", err)
		}
		<-hangs
		return nil
	})
	close(hangs)
	var wrong *failure.Error
	if !errors.As(err, &wrong) || !strings.Contains(wrong.Message, "too slow") {
		t.Errorf("a slow reader: %v", err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := n.backup(gone, func([]byte, int64) error { return nil }); err == nil {
		t.Error("it goes on for nobody")
	}
	if _, err := VerifyBackup(bytes.NewReader(backedUp(t, n))); err != nil {
		t.Error(err)
	}
}

// TestRestoredLater: epoch and versions are above all that may have been given since the backup.
func TestRestoredLater(t *testing.T) {
	n := startDurable(t, t.TempDir(), "always", nil)
	use(t, n)
	file := backedUp(t, n)
	dir, later := t.TempDir(), time.Now().Add(time.Hour)
	if err := Restore(bytes.NewReader(file), dir, "r", later); err != nil {
		t.Fatal(err)
	}
	h := offline(t, dir).Counting().Head
	if h.Versions < uint64(50*time.Minute) || h.Clean || h.Node != "r" || h.Restored == 0 {
		t.Errorf("its head is %+v", h)
	}
	if last, err := readEpoch(epochPath(dir)); err != nil || last < wallEpoch(later) {
		t.Errorf("epoch %d, %v", last, err)
	}
}

// TestRestoreRefuses: nothing is overwritten, and of a file that is torn or changed nothing is restored.
func TestRestoreRefuses(t *testing.T) {
	n := startDurable(t, t.TempDir(), "always", nil)
	use(t, n)
	file := backedUp(t, n)
	n.Stop()
	if err := Restore(bytes.NewReader(file), n.cfg.DataDir, "r", time.Now()); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("into a data directory: %v", err)
	}
	for i := range file {
		flipped := bytes.Clone(file)
		flipped[i] ^= 1 << (i % 8)
		if _, err := VerifyBackup(bytes.NewReader(flipped)); !errors.Is(err, ErrBackupDamaged) && !errors.Is(err, ErrBackupNewer) {
			t.Fatalf("byte %d is flipped: %v", i, err)
		}
		if _, err := VerifyBackup(bytes.NewReader(file[:i])); !errors.Is(err, ErrBackupDamaged) {
			t.Fatalf("torn at %d: %v", i, err)
		}
	}
	newer := bytes.Replace(file, []byte("backup 1\n"), []byte("backup 2\n"), 1)
	if _, err := VerifyBackup(bytes.NewReader(newer)); !errors.Is(err, ErrBackupNewer) {
		t.Errorf("of a newer program: %v", err)
	}
}

// TestRestoreInterrupted: what a restore has left that did not end is no data directory, wherever it was, and another
// one begins anew.
func TestRestoreInterrupted(t *testing.T) {
	n := startDurable(t, t.TempDir(), "always", nil)
	u := use(t, n)
	file := backedUp(t, n)
	n.Stop()
	for name, interrupt := range map[string]func(dir string) error{
		"in the file": func(dir string) error {
			if err := Restore(bytes.NewReader(file[:len(file)-1]), dir, "r", time.Now()); !errors.Is(err, ErrBackupDamaged) {
				return errors.Join(err, errors.New("it was whole"))
			}
			return nil
		},
		"when the store is in its place": func(dir string) error {
			if err := Restore(bytes.NewReader(file), dir, "r", time.Now()); err != nil {
				return err
			}
			work := filepath.Join(dir, restoring)
			return errors.Join(os.Mkdir(work, 0o700), os.Rename(epochPath(dir), epochPath(work)))
		},
		"before the mark was removed": func(dir string) error {
			if err := Restore(bytes.NewReader(file), dir, "r", time.Now()); err != nil {
				return err
			}
			return os.Mkdir(filepath.Join(dir, restoring), 0o700)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := interrupt(dir); err != nil {
				t.Fatal(err)
			}
			const says = "has not ended"
			if _, err := Start(Config{ID: "r", DataDir: dir, GRPCAddr: "127.0.0.1:0"}); err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("a node starts there: %v", err)
			}
			if _, err := OpenOffline(dir); err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("it is read: %v", err)
			}
			if err := Restore(bytes.NewReader(file), dir, "r", time.Now()); err != nil {
				t.Fatal(err)
			}
			if n := startDurable(t, dir, "always", func(c *Config) { c.ID = "r" }); !u.again(t, n) {
				t.Error("what was restored again is not there")
			}
		})
	}
}

// TestBackupUnread: a client that does not read is given up, and another one is served meanwhile and after it.
func TestBackupUnread(t *testing.T) {
	n := startDurable(t, t.TempDir(), "always", nil)
	conn := dial(t, n)
	for i := range 100 {
		if _, err := registerpb.NewRegisterServiceClient(conn).Put(bounded(t), &registerpb.PutRequest{Key: strconv.Itoa(i), Value: make([]byte, 60<<10)}); err != nil {
			t.Fatal(err)
		}
	}
	n.stall = 20 * time.Millisecond
	stream, err := adminpb.NewAdminServiceClient(conn).Backup(bounded(t), &adminpb.BackupRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is given up", func() bool { return !n.backingUp.Load() })
	for err == nil {
		_, err = stream.Recv()
	}
	if !strings.Contains(err.Error(), "too slow") {
		t.Errorf("it ends with %v", err)
	}
	n.stall = 0
	if info, err := VerifyBackup(bytes.NewReader(backedUp(t, n))); err != nil || info.Objects != 100 {
		t.Errorf("%+v, %v", info, err)
	}
}
