//go:build unix

package node

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// lockDir makes sure that no other process uses the data directory. The lock
// goes with the process, however it ends.
func lockDir(dir string) (release func() error, err error) {
	f, err := os.OpenFile(filepath.Join(dir, "LOCK"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("data directory %s is in use by another keystead process (%w): stop it, or choose another --data-dir", dir, err)
	}
	return f.Close, nil
}
