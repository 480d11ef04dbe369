package disk

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Stores returns the numbers of the stores in the directory of a Keeper, in order: none if the
// directory is missing. The last one that has a Head counts. One behind it was begun after a
// failure and never became whole; those before it are of before one.
func Stores(files vfs.FS, dir string) ([]int, error) {
	names, err := files.List(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var numbers []int
	for _, name := range names {
		if n, err := strconv.Atoi(name); err == nil && n > 0 {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

// StoreDir returns the directory of a store in that of a Keeper.
func StoreDir(dir string, number int) string { return filepath.Join(dir, strconv.Itoa(number)) }
