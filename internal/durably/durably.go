// Package durably has files and their names outlive a power cut. What was written to a
// file is on disk when the file is synced; that the file is there under its name, or is not any
// more, when its directory is.
package durably

import (
	"errors"
	"os"
	"path/filepath"
)

// Names has the names in a directory outlive a power cut.
func Names(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Replace replaces a file so that after a crash it holds the old content or the new one, and
// after a return the new one.
func Replace(path string, data []byte) error {
	partial := path + ".tmp"
	f, err := os.OpenFile(partial, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(partial, path); err != nil {
		return err
	}
	return Names(filepath.Dir(path))
}
