package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// gate is the file system of an engine. The first write, sync, creation, renaming or removal
// that fails closes it: from then on it answers that everything has worked, and does
// nothing. The directory stays what it is at this moment, as if the machine had stopped; and
// the engine, which would panic or end the process at an error, runs into none.
//
// Invariant: failed is closed before the engine gets the answer to what has failed.
type gate struct {
	vfs.FS
	dir    string
	reader bool

	failed chan struct{}
	parked chan struct{} // closed when a goroutine of the engine stands still for ever
	cause  atomic.Pointer[error]
	ending atomic.Bool // the store is being closed
	stuck  atomic.Bool // the engine has panicked

	mu      sync.Mutex             // guards what follows
	open    map[io.Closer]struct{} // what has to be closed if the engine does not
	denied  error                  // the first error of reading that is not about a missing file
	listed  []string               // the names in the directory, at the last look
	once    sync.Once
	parking sync.Once

	promise promise
	bytes   [kinds]atomic.Int64 // written, by kind of file
	syncs   syncTimes
}

func newGate(inner vfs.FS, dir string, reader bool) *gate {
	return &gate{FS: inner, dir: dir, reader: reader, failed: make(chan struct{}), parked: make(chan struct{}), open: map[io.Closer]struct{}{}}
}

// fail closes the gate.
func (g *gate) fail(err error) {
	g.once.Do(func() {
		err = fmt.Errorf("%w: %w", ErrFailed, err)
		g.cause.Store(&err)
		close(g.failed)
	})
}

// park closes the gate and never returns: the engine wants to end the process. To return
// would be to go on with a broken invariant, and to end the goroutine runs deferred calls
// that release locks it does not hold.
func (g *gate) park(err error) {
	g.fail(err)
	g.parking.Do(func() { close(g.parked) })
	select {}
}

func (g *gate) err() error {
	if p := g.cause.Load(); p != nil {
		return *p
	}
	return nil
}

func (g *gate) shut() bool { return g.cause.Load() != nil }

// check takes note of an error of writing, and reports whether there was none.
func (g *gate) check(err error) bool {
	if err != nil {
		g.fail(err)
	}
	return err == nil
}

// read takes note of an error of reading.
func (g *gate) read(err error) {
	if err == nil || err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, fs.ErrNotExist) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.denied == nil {
		g.denied = err
	}
}

// refused is the first error of reading that is not about a missing file.
func (g *gate) refused() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.denied
}

// release closes what the engine has left open.
func (g *gate) release() {
	g.mu.Lock()
	left := g.open
	g.open = map[io.Closer]struct{}{}
	g.mu.Unlock()
	for c := range left {
		_ = c.Close()
	}
}

// keep has a file closed by release, if not before.
func (g *gate) keep(c io.Closer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open[c] = struct{}{}
}

func (g *gate) drop(c io.Closer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.open, c)
}

func (g *gate) made(f vfs.File, name string, err error) (vfs.File, error) {
	//guard:disk-create-fails !g.check(err) -> err != nil
	if !g.check(err) {
		return &nothing{name: g.PathBase(name)}, nil
	}
	base := g.PathBase(name)
	return g.file(f, kindOf(base), account(base)), nil
}

func (g *gate) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if g.reader {
		return nil, ErrReader
	}
	if g.shut() {
		return &nothing{name: g.PathBase(name)}, nil
	}
	//guard:disk-marker-last g.settle(name) -> error(nil)
	if err := g.settle(name); !g.check(err) {
		return &nothing{name: g.PathBase(name)}, nil
	}
	f, err := g.FS.Create(name, c)
	return g.made(f, name, err)
}

// settle syncs the directory before a marker comes or goes: a marker names a file, which has to be
// in the directory first, and takes the place of another marker, which has to go last. The engine
// leaves both to the order in which a file system happens to write.
func (g *gate) settle(name string) error {
	if !strings.HasPrefix(g.PathBase(name), "marker.") || g.shut() {
		return nil
	}
	d, err := g.FS.OpenDir(g.PathDir(name))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (g *gate) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	if g.reader {
		return nil, ErrReader
	}
	if g.shut() {
		return &nothing{name: g.PathBase(name)}, nil
	}
	f, err := g.FS.OpenReadWrite(name, c, o...)
	return g.made(f, name, err)
}

func (g *gate) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if g.reader {
		return nil, ErrReader
	}
	if g.shut() {
		return &nothing{name: g.PathBase(to)}, nil
	}
	g.forget(g.PathBase(from))
	f, err := g.FS.ReuseForWrite(from, to, c)
	return g.made(f, to, err)
}

// change does something to names.
func (g *gate) change(f func() error) error {
	if g.reader {
		return ErrReader
	}
	if g.shut() {
		return nil
	}
	err := f()
	//guard:disk-rename-fails g.check(err) -> _ = err
	g.check(err)
	return nil
}

func (g *gate) Link(from, to string) error {
	return g.change(func() error { return g.FS.Link(from, to) })
}

func (g *gate) Rename(from, to string) error {
	return g.change(func() error { return g.FS.Rename(from, to) })
}

// Remove removes a file; that it is missing already is for the engine to judge.
func (g *gate) Remove(name string) error {
	g.forget(g.PathBase(name))
	var missing error
	err := g.change(func() error {
		//guard:disk-marker-first g.settle(name) -> error(nil)
		if err := g.settle(name); err != nil {
			return err
		}
		err := g.FS.Remove(name)
		if errors.Is(err, fs.ErrNotExist) {
			missing, err = err, nil
		}
		return err
	})
	return errors.Join(err, missing)
}

func (g *gate) RemoveAll(name string) error {
	return g.change(func() error { return g.FS.RemoveAll(name) })
}

func (g *gate) MkdirAll(dir string, perm os.FileMode) error {
	return g.change(func() error { return g.FS.MkdirAll(dir, perm) })
}

func (g *gate) Open(name string, o ...vfs.OpenOption) (vfs.File, error) {
	f, err := g.FS.Open(name, o...)
	if g.read(err); err != nil {
		if g.shut() {
			return &nothing{name: g.PathBase(name)}, nil // it may be one that was not written
		}
		return nil, err
	}
	return g.file(f, other, nil), nil
}

func (g *gate) OpenDir(name string) (vfs.File, error) {
	f, err := g.FS.OpenDir(name)
	if g.read(err); err != nil {
		if g.shut() {
			return &nothing{name: g.PathBase(name)}, nil
		}
		return nil, err
	}
	return g.file(f, other, nil), nil
}

// List fails only the first time: an engine that cannot list its directory at the end of its opening
// gives up while its goroutines run, and one of those would panic.
func (g *gate) List(dir string) ([]string, error) {
	names, err := g.FS.List(dir)
	g.read(err)
	g.mu.Lock()
	last := g.listed
	if err == nil {
		g.listed = slices.Clone(names)
	}
	g.mu.Unlock()
	//guard:disk-list-again err != nil && last != nil -> false
	if err != nil && last != nil {
		g.fail(err)
		return slices.Clone(last), nil
	}
	return names, err
}

// GetDiskUsage is for the pace at which the engine removes files, which is not bounded.
func (g *gate) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{}, vfs.ErrUnsupported
}

func (g *gate) Stat(name string) (vfs.FileInfo, error) {
	i, err := g.FS.Stat(name)
	g.read(err)
	return i, err
}

// Unwrap hides what is below: the engine takes no way past the gate.
func (g *gate) Unwrap() vfs.FS { return nil }

// Lock locks the directory. For a reader a directory that cannot be written is as good as locked.
func (g *gate) Lock(name string) (io.Closer, error) {
	c, err := g.FS.Lock(name)
	var path *fs.PathError
	switch {
	case err == nil:
		l := &lock{g: g, c: c}
		g.keep(l)
		return l, nil
	case errors.As(err, &path) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.EIO):
		if g.reader && (errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS)) {
			return &nothing{}, nil
		}
		return nil, err
	}
	return nil, fmt.Errorf("%w (%w)", ErrInUse, err)
}

// lock is closed once, by the engine or by release.
type lock struct {
	g      *gate
	c      io.Closer
	closed atomic.Bool
}

func (l *lock) Close() error {
	if l.closed.Swap(true) {
		return nil
	}
	l.g.drop(l)
	return l.c.Close()
}
