package statefile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// roomStep is what the room is rounded up to, in bytes.
const roomStep = 1 << 20

// errNoReserve says that the system or the file system cannot set room aside.
var errNoReserve = errors.New("room cannot be set aside here")

// Reserve sets aside at least so many bytes for the next Write, in the file Spare, and
// gives back what is far too much. It returns how many of them are missing, and why.
// Where room cannot be set aside it is only looked whether there is enough.
func Reserve(dir string, bytes int64) (missing int64, err error) {
	bytes = (bytes + roomStep - 1) / roomStep * roomStep
	f, err := os.OpenFile(filepath.Join(dir, Spare), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return bytes, fmt.Errorf("setting room aside for the state: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return bytes, fmt.Errorf("setting room aside for the state: %w", err)
	}
	have := info.Size()
	switch {
	case bytes <= have && have <= 2*bytes+roomStep:
		return 0, nil
	case bytes <= have:
		return 0, f.Truncate(bytes)
	}
	err = allocate(f, bytes)
	if errors.Is(err, errNoReserve) {
		free, err := freeSpace(dir)
		return max(bytes-have-free, 0), err
	}
	if err != nil {
		_ = f.Truncate(have) // what was had before stays
		return bytes - have, fmt.Errorf("setting room aside for the state: %w", err)
	}
	return 0, nil
}

// Release gives the room back.
func Release(dir string) error {
	err := os.Remove(filepath.Join(dir, Spare))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
