package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/keystead/keystead/internal/durably"
)

// makeDir makes the data directory, and says so: its name may be misspelt, or its disk not
// mounted. A node that runs alone then starts with nothing, which is worth a warning; one of
// a cluster is sent what it needs.
func (n *Node) makeDir(dir string) error {
	missing := countMissing(dir)
	isNew := missing > 0
	switch err := os.MkdirAll(dir, 0o700); {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("making the data directory: %w: give user %d the right to make it, or choose another --data-dir", err, os.Getuid())
	case err != nil:
		return fmt.Errorf("making the data directory: %w: see --data-dir", err)
	}
	if err := keepName(dir, missing); err != nil && isNew {
		return fmt.Errorf("making the data directory: %w: a power cut could take it away; make it beforehand", err)
	}
	const what = "new data directory: nothing is kept there yet"
	switch {
	case isNew && n.cfg.Cluster.ID == "":
		n.cfg.Log.Warn(what, "data directory", dir, "hint", "if this node has run before, see that --data-dir is right and its disk mounted")
	case isNew:
		n.cfg.Log.Info(what, "data directory", dir)
	}
	return nil
}

// countMissing returns how many directories have to be made for one to be there.
func countMissing(dir string) (n int) {
	for at := filepath.Clean(dir); ; at = filepath.Dir(at) {
		if _, err := os.Stat(at); !errors.Is(err, fs.ErrNotExist) {
			return n
		}
		n++
	}
}

// keepName has the name of a directory outlive a power cut, and those of so many
// directories above it as were made with it. That of one that was there already may have
// been made by a process that was killed before it synced it.
func keepName(dir string, made int) error {
	at := filepath.Clean(dir)
	for range max(made, 1) {
		if err := durably.Names(filepath.Dir(at)); err != nil {
			return err
		}
		at = filepath.Dir(at)
	}
	return nil
}
