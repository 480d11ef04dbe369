package statefile

import (
	"errors"
	"os"
	"syscall"
)

// allocate has the file system set aside blocks for the first bytes of a file.
func allocate(f *os.File, bytes int64) error {
	err := syscall.Fallocate(int(f.Fd()), 0, 0, bytes)
	if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) {
		return errNoReserve
	}
	return err
}

// freeSpace returns how many bytes the file system of a directory has left.
func freeSpace(dir string) (int64, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, err
	}
	return int64(s.Bavail) * int64(s.Bsize), nil
}
