package disk

import (
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Kinds of files, for the counts of bytes.
const (
	other  = iota // manifests, options and markers
	logs          // the log of batches
	tables        // sorted tables
	kinds
)

func kindOf(name string) int {
	switch {
	case strings.HasSuffix(name, ".log"):
		return logs
	case strings.HasSuffix(name, ".sst"):
		return tables
	}
	return other
}

// file is a file behind the gate.
type file struct {
	vfs.File
	g    *gate
	kind int
	log  *written // nil: it is of no account to the promise
}

func (f *file) Write(p []byte) (int, error) {
	if f.g.shut() {
		return len(p), nil
	}
	f.log.add(p)
	n, err := f.File.Write(p)
	f.g.check(err)
	f.g.bytes[f.kind].Add(int64(n))
	return len(p), nil
}

func (f *file) WriteAt(p []byte, off int64) (int, error) {
	if f.g.shut() {
		return len(p), nil
	}
	_, err := f.File.WriteAt(p, off)
	f.g.check(err)
	return len(p), nil
}

func (f *file) Sync() error { return f.sync(f.File.Sync) }

func (f *file) SyncData() error { return f.sync(f.File.SyncData) }

func (f *file) sync(do func() error) error {
	if f.g.shut() || f.g.reader {
		return nil
	}
	n, sum := f.log.state()
	begin := time.Now()
	err := do()
	if f.kind == logs {
		f.g.syncs.add(time.Since(begin))
	}
	if f.g.check(err) && f.log != nil {
		f.g.promise.synced(f.log, n, sum)
		f.g.note(f.kind != logs)
	}
	return nil
}

func (f *file) SyncTo(n int64) (bool, error) {
	if f.g.shut() || f.g.reader {
		return false, nil
	}
	full, err := f.File.SyncTo(n)
	f.g.check(err)
	return full, nil
}

func (f *file) Read(p []byte) (int, error) {
	n, err := f.File.Read(p)
	f.g.read(err)
	return n, err
}

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.File.ReadAt(p, off)
	f.g.read(err)
	return n, err
}

// Preallocate asks for room; a file system that has no such thing is as good.
func (f *file) Preallocate(off, n int64) error {
	if f.g.shut() || f.g.reader {
		return nil
	}
	return f.File.Preallocate(off, n)
}

func (f *file) Close() error {
	if !f.g.drop(f.File) {
		return nil
	}
	err := f.File.Close()
	if f.g.shut() || f.g.reader {
		return nil
	}
	f.g.check(err)
	return nil
}

// nothing is a file that a closed gate hands out: what is written to it is gone, and there is
// nothing to read.
type nothing struct {
	name string
	size int64
}

func (n *nothing) Close() error { return nil }

func (n *nothing) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func (n *nothing) ReadAt([]byte, int64) (int, error) { return 0, io.ErrUnexpectedEOF }

func (n *nothing) Write(p []byte) (int, error) { n.size += int64(len(p)); return len(p), nil }

func (n *nothing) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }

func (n *nothing) Preallocate(int64, int64) error { return nil }

func (n *nothing) Stat() (vfs.FileInfo, error) { return nothingInfo{n}, nil }

func (n *nothing) Sync() error { return nil }

func (n *nothing) SyncTo(int64) (bool, error) { return false, nil }

func (n *nothing) SyncData() error { return nil }

func (n *nothing) Prefetch(int64, int64) error { return nil }

func (n *nothing) Fd() uintptr { return vfs.InvalidFd }

type nothingInfo struct{ *nothing }

func (i nothingInfo) Name() string           { return i.name }
func (i nothingInfo) Size() int64            { return i.size }
func (i nothingInfo) Mode() fs.FileMode      { return 0o600 }
func (i nothingInfo) ModTime() time.Time     { return time.Time{} }
func (i nothingInfo) IsDir() bool            { return false }
func (i nothingInfo) Sys() any               { return nil }
func (i nothingInfo) DeviceID() vfs.DeviceID { return vfs.DeviceID{} }
