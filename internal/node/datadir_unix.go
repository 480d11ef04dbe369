//go:build unix

package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// lockDir makes sure that no other process uses the data directory. The lock
// goes with the process, however it ends.
func lockDir(dir string) (release func() error, err error) {
	f, err := os.OpenFile(filepath.Join(dir, "LOCK"), os.O_CREATE|os.O_RDWR, 0o600)
	if errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("the data directory cannot be used: %w: give user %d the right to write there, or choose another --data-dir", err, os.Getuid())
	}
	if err != nil {
		return nil, fmt.Errorf("the data directory cannot be used: %w: see --data-dir", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("data directory %s is in use by another keystead process (%w): stop it, or choose another --data-dir", dir, err)
	}
	return f.Close, nil
}

// shareDir makes sure that no process runs on the data directory, and none starts there. It
// makes no file.
func shareDir(dir string) (release func() error, err error) {
	f, err := os.Open(filepath.Join(dir, "LOCK"))
	if errors.Is(err, fs.ErrNotExist) {
		return func() error { return nil }, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the data directory cannot be read: %w", err)
	}
	//guard:offline-in-use
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("the data directory %s %w", dir, ErrInUse)
	}
	return f.Close, nil
}
