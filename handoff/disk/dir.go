package disk

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// The file that says whose the directory is. It is written when the rest is made.
const (
	formatName    = "format"
	formatPartial = "format.partial"
	formatWord    = "keystead disk "
	// Format is the version of what this program writes.
	Format = 1
)

func (s *Store) path(name string) string { return s.gate.PathJoin(s.dir, name) }

func (s *Store) readAll(name string) ([]byte, error) {
	f, err := s.gate.Open(s.path(name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, 1<<20))
}

// prepare locks the directory and looks at what is in it, before the engine does. fresh says
// that the store is to be made.
func (s *Store) prepare() (l *pebble.Lock, fresh bool, err error) {
	if err := s.makeDir(); err != nil {
		return nil, false, err
	}
	if l, err = pebble.LockDirectory(s.dir, s.gate); err != nil {
		return nil, false, err
	}
	version, err := s.readFormat()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if fresh = true; s.reader {
			return nil, false, fmt.Errorf("there is no store: %w", fs.ErrNotExist)
		}
		if err := s.clear(); err != nil {
			return nil, false, err
		}
	case err != nil:
		return nil, false, err
	//guard:disk-newer version > Format -> false
	case version > Format:
		return nil, false, fmt.Errorf("%w: it has format %d, this program knows %d", ErrNewer, version, Format)
	default:
		if err := s.kept(); err != nil {
			return nil, false, err
		}
	}
	if s.reader {
		return l, false, nil
	}
	if err := s.beginPromise(); err != nil {
		return nil, false, err
	}
	return l, fresh, s.Err()
}

func (s *Store) makeDir() error {
	if s.reader {
		_, err := s.gate.Stat(s.dir)
		return err
	}
	if _, err := s.gate.Stat(s.dir); err == nil {
		return nil
	}
	if err := s.gate.FS.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	return s.syncDir(s.gate.PathDir(s.dir))
}

func (s *Store) syncDir(dir string) error {
	d, err := s.gate.FS.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// readFormat returns the version in the file that says it.
func (s *Store) readFormat() (int, error) {
	b, err := s.readAll(formatName)
	if err != nil {
		return 0, err
	}
	damaged := fmt.Errorf("%w: its file %q is not ours", ErrDamaged, formatName)
	fields := strings.Fields(strings.TrimPrefix(string(b), formatWord))
	if len(fields) != 2 {
		return 0, damaged
	}
	version, err := strconv.Atoi(fields[0])
	if err != nil || version < 1 || string(b) != formatLine(version) {
		return 0, damaged
	}
	return version, nil
}

// formatLine is the content of the file: a version and a checksum, so that a changed
// digit is not another version.
func formatLine(version int) string {
	line := formatWord + strconv.Itoa(version)
	return fmt.Sprintf("%s %08x\n", line, crc32.Checksum([]byte(line), castagnoli))
}

func (s *Store) writeFormat() error {
	f, err := s.gate.Create(s.path(formatPartial), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, werr := f.Write([]byte(formatLine(Format)))
	if err := errors.Join(werr, f.Sync(), f.Close(), s.gate.Rename(s.path(formatPartial), s.path(formatName))); err != nil {
		return err
	}
	if s.Err() != nil {
		return s.Err()
	}
	return s.syncDir(s.dir)
}

// clear removes what a making that was interrupted has left. A directory with anything else
// is not ours, or its file that says so is missing.
func (s *Store) clear() error {
	names, err := s.gate.List(s.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		remains, err := s.remains(name)
		if err != nil {
			return err
		}
		//guard:disk-not-ours !remains -> !remains && false
		if !remains {
			return fmt.Errorf("%w: %s is there, but no file %q", ErrDamaged, s.path(name), formatName)
		}
	}
	for _, name := range names {
		if name == "LOCK" {
			continue
		}
		if err := s.gate.FS.Remove(s.path(name)); err != nil {
			return err
		}
	}
	return nil
}

// remains reports whether a file may be of a store that was never made: it has no tables, and
// nothing in its log.
func (s *Store) remains(name string) (bool, error) {
	switch {
	case name == "LOCK" || name == promiseName || name == formatPartial:
		return true, nil
	case strings.HasPrefix(name, "marker."), strings.HasPrefix(name, "OPTIONS-"),
		strings.HasPrefix(name, "MANIFEST-"), strings.HasPrefix(name, "temporary.") && strings.HasSuffix(name, ".dbtmp"):
		return true, nil
	case strings.HasSuffix(name, ".log"):
		i, err := s.gate.Stat(s.path(name))
		return err == nil && i.Size() <= 64, err // the mark of its end has eleven bytes
	}
	return false, nil
}
