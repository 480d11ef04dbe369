package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/keystead/keystead/handoff/disk"
	"github.com/keystead/keystead/internal/durably"
	"github.com/keystead/keystead/owner"
)

// restoring is the directory in a data directory in which a restore works. As long as it is there,
// the rest is of that restore, no node starts, and another restore begins anew.
const restoring = "restore.partial"

// ErrNotEmpty is the error of a restore into a directory that has something.
var ErrNotEmpty = errors.New("is not empty: a backup is restored into an empty directory, or one that is not there, and overwrites nothing")

// Restore makes the data directory of a node of a backup, which VerifyBackup has found whole: the node that
// starts there goes on from it, under an epoch above the backup's, and not below the clock's.
// The error is ErrInUse, ErrNotEmpty, that of the backup, or that of the file system. After an error
// no node starts there, and Restore may be called again.
func Restore(from io.Reader, dir, id string, wall time.Time) (err error) {
	if err := (Config{ID: id}).withDefaults().Validate(); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	release, err := lockDir(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	if err := clearForRestore(dir); err != nil {
		return err
	}
	work := filepath.Join(dir, restoring)
	if err := errors.Join(os.MkdirAll(filepath.Join(work, diskDirectory), 0o700), durably.Names(dir), durably.Names(filepath.Dir(dir))); err != nil {
		return err
	}
	if err := fillForRestore(from, work, id, wall); err != nil {
		return err
	}
	return placeRestored(dir)
}

// clearForRestore removes what a restore has left that did not end. Anything else is an error.
func clearForRestore(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	_, err = os.Lstat(filepath.Join(dir, restoring))
	ours := err == nil
	for _, e := range entries {
		switch name := e.Name(); {
		case name == "LOCK" || name == "lost+found" || name == restoring:
		case ours && (name == diskDirectory || name == filepath.Base(epochPath("")) || name == policiesFile):
		default:
			//guard:restore-not-empty
			return fmt.Errorf("%s %w: %q is there", dir, ErrNotEmpty, name)
		}
	}
	if !ours {
		return nil
	}
	// The mark goes last: until then the rest is known to be no data directory.
	for _, name := range []string{filepath.Base(epochPath("")), policiesFile, diskDirectory} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return errors.Join(durably.Names(dir), os.RemoveAll(filepath.Join(dir, restoring)), durably.Names(dir))
}

// fillForRestore writes all files into work.
func fillForRestore(from io.Reader, work, id string, wall time.Time) error {
	epoch := uint64(0)
	stores := filepath.Join(work, diskDirectory)
	err := disk.RestoreBackup(from, disk.StoreDir(stores, 1), disk.Options{}, func(h disk.Head) disk.Head {
		//guard:restore-versions disk.ElapsedVersions(wall.Sub(time.Unix(0, h.Written))) -> 0
		h.Versions += disk.ElapsedVersions(wall.Sub(time.Unix(0, h.Written)))
		h.Node, h.Clean, h.Restored = id, false, max(h.Written, 1)
		epoch = max(h.Epoch, wallEpoch(wall))
		return h
	}, func(policies []byte) error {
		return durably.Replace(filepath.Join(work, policiesFile), policies)
	})
	if err != nil {
		return err
	}
	if epoch == 0 || epoch > owner.MaxEpoch {
		return fmt.Errorf("%w: its epoch is %d", disk.ErrBackupDamaged, epoch)
	}
	b, err := json.Marshal(epochFile{epochFileVersion, epoch, id, true})
	if err != nil {
		return err
	}
	return errors.Join(durably.Replace(epochPath(work), append(b, '\n')), durably.Names(stores), durably.Names(work))
}

// placeRestored puts the files where a node finds them. It may be interrupted anywhere.
func placeRestored(dir string) error {
	work := filepath.Join(dir, restoring)
	for _, name := range []string{diskDirectory, policiesFile, filepath.Base(epochPath(""))} {
		err := os.Rename(filepath.Join(work, name), filepath.Join(dir, name))
		if err != nil && !(name == policiesFile && errors.Is(err, fs.ErrNotExist)) {
			return err
		}
	}
	return errors.Join(durably.Names(dir), os.RemoveAll(work), durably.Names(dir))
}

// neverHalfRestored refuses to run where a restore has not ended.
func neverHalfRestored(dir string) error {
	//guard:restore-half
	if _, err := os.Lstat(filepath.Join(dir, restoring)); err == nil {
		return fmt.Errorf("a restore into the data directory %s has not ended, and nothing there counts: run `keystead restore` again, or remove the directory", dir)
	}
	return nil
}

// neverRestoredInCluster refuses to run in a cluster on what was restored for a node that runs alone: the cluster would
// not go on from it.
func neverRestoredInCluster(dir string) error {
	stores := filepath.Join(dir, diskDirectory)
	numbers, err := disk.Stores(vfs.Default, stores)
	if err != nil || len(numbers) != 1 {
		return err
	}
	s, err := disk.Open(disk.StoreDir(stores, numbers[0]), disk.Options{Reader: true})
	if err != nil {
		return nil // no restore has left it so
	}
	h, _ := s.Head()
	if err := s.Close(); err != nil || h.Restored == 0 {
		return err
	}
	return fmt.Errorf("the data directory %s was restored from a backup, which only a node that runs alone goes on from: leave --cluster-id out, or choose another --data-dir", dir)
}
