package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// makeDir makes the data directory, and says so: its name may be misspelt, or its disk not
// mounted. A node that runs alone then starts with nothing, which is worth a warning; one of
// a cluster is sent what it needs.
func (n *Node) makeDir(dir string) error {
	_, err := os.Stat(dir)
	isNew := errors.Is(err, fs.ErrNotExist)
	switch err := os.MkdirAll(dir, 0o700); {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("making the data directory: %w: give user %d the right to make it, or choose another --data-dir", err, os.Getuid())
	case err != nil:
		return fmt.Errorf("making the data directory: %w: see --data-dir", err)
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
