package disk

import (
	"io"
	"io/fs"
	"strings"
	"sync/atomic"
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

// file is a file behind the gate. It may be closed while an operation hangs in it: then it
// is when that ends, so that none meets another file under the same number.
type file struct {
	vfs.File
	g      *gate
	kind   int
	log    *written // nil: it is of no account to the promise
	closed atomic.Bool
	users  atomic.Int32 // operations, and one for being open
}

func (g *gate) file(f vfs.File, kind int, log *written) *file {
	w := &file{File: f, g: g, kind: kind, log: log}
	w.users.Store(1)
	g.keep(w)
	return w
}

// begin reports whether an operation may begin; it ends with end.
func (f *file) begin() bool {
	for {
		n := f.users.Load()
		if n == 0 || f.closed.Load() {
			return false
		}
		if f.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (f *file) end() error {
	if f.users.Add(-1) > 0 {
		return nil
	}
	return f.File.Close()
}

// change does something that changes the file, unless the gate is closed.
func (f *file) change(do func() error) {
	if f.g.shut() || f.g.reader || !f.begin() {
		return
	}
	//guard:disk-write-fails f.g.check(do()) -> do()
	f.g.check(do())
	_ = f.end()
}

func (f *file) Write(p []byte) (int, error) {
	f.change(func() error {
		f.log.add(p)
		n, err := f.File.Write(p)
		f.g.bytes[f.kind].Add(int64(n))
		return err
	})
	return len(p), nil
}

func (f *file) WriteAt(p []byte, off int64) (int, error) {
	f.change(func() error {
		_, err := f.File.WriteAt(p, off)
		return err
	})
	return len(p), nil
}

func (f *file) Sync() error { return f.sync(f.File.Sync) }

func (f *file) SyncData() error { return f.sync(f.File.SyncData) }

func (f *file) sync(do func() error) error {
	f.change(func() error {
		n, sum := f.log.state()
		begin := time.Now()
		err := do()
		if f.kind == logs {
			f.g.syncs.add(time.Since(begin))
		}
		if err == nil && f.log != nil {
			f.g.promise.synced(f.log, n, sum)
			f.g.note(f.kind != logs)
		}
		return err
	})
	return nil
}

func (f *file) SyncTo(n int64) (full bool, _ error) {
	f.change(func() (err error) {
		full, err = f.File.SyncTo(n)
		return err
	})
	return full, nil
}

func (f *file) Read(p []byte) (int, error) {
	return f.read(func() (int, error) { return f.File.Read(p) })
}

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	return f.read(func() (int, error) { return f.File.ReadAt(p, off) })
}

func (f *file) read(do func() (int, error)) (int, error) {
	if !f.begin() {
		return 0, fs.ErrClosed
	}
	n, err := do()
	f.g.read(err)
	_ = f.end()
	return n, err
}

func (f *file) Stat() (vfs.FileInfo, error) {
	if !f.begin() {
		return nil, fs.ErrClosed
	}
	i, err := f.File.Stat()
	f.g.read(err)
	_ = f.end()
	return i, err
}

// maxPreallocate bounds the room that a log asks for in advance, in bytes. The engine asks for a whole
// memtable for each of the logs that it keeps to use again: a store of a few objects would
// occupy a hundred MiB.
const maxPreallocate = 1 << 20

// Preallocate asks for room; a file system that has no such thing is as good.
func (f *file) Preallocate(off, n int64) error {
	f.change(func() error {
		_ = f.File.Preallocate(off, min(n, maxPreallocate))
		return nil
	})
	return nil
}

func (f *file) Prefetch(off, n int64) error {
	if f.begin() {
		_ = f.File.Prefetch(off, n)
		_ = f.end()
	}
	return nil
}

func (f *file) Close() error {
	if f.closed.Swap(true) {
		return nil
	}
	f.g.drop(f)
	if err := f.end(); !f.g.shut() && !f.g.reader {
		f.g.check(err)
	}
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
