package disk

import (
	"maps"
	"slices"
	"syscall"
	"time"
)

// Inode is a file or a directory, in whichever places it has a name.
//
// Invariant of files: what was synced is on the shelf, if shelved, and equals data but
// for the dirty pieces, those that a failed sync has dropped, and the sizes.
type Inode struct {
	ID  uint64
	Dir bool
	d   *Disk

	// Disk.mu guards what follows.
	mode  uint32
	mtime time.Time
	nlink int // live names
	held  int // kept names

	// Of files.
	data    []byte
	dirty   pieces
	least   int64 // smallest size since the last sync, that then included
	sized   bool  // the size is not kept
	shelved bool

	// Of directories.
	entries map[string]*Inode // live
	kept    map[string]*Inode // after a power cut
	log     []change          // what makes kept of entries, in order
	tied    []*Inode          // directories whose log has the other half of a rename
	placed  bool              // it is in the backing directory, for its own name is kept
}

// change is one of a name: to an inode, or to none.
type change struct {
	step uint64
	name string
	to   *Inode
}

// Attr is what stat says of an inode.
type Attr struct {
	ID    uint64
	Dir   bool
	Mode  uint32 // permissions
	Size  int64
	Nlink int
	Mtime time.Time
}

// Attr returns it. It fails after a crash.
func (n *Inode) Attr() (Attr, syscall.Errno) {
	if e := n.d.gate.enter(reading); e != 0 {
		return Attr{}, e
	}
	n.d.mu.Lock()
	defer n.d.mu.Unlock()
	return n.attrLocked(), 0
}

func (n *Inode) attrLocked() Attr {
	return Attr{ID: n.ID, Dir: n.Dir, Mode: n.mode, Size: int64(len(n.data)), Nlink: n.nlink, Mtime: n.mtime}
}

// SetMode sets the permissions.
func (n *Inode) SetMode(mode uint32) syscall.Errno {
	if e := n.d.gate.enter(changing); e != 0 {
		return e
	}
	n.d.mu.Lock()
	defer n.d.mu.Unlock()
	n.mode = mode & 0o7777
	return 0
}

// SetTime sets the time of the last change.
func (n *Inode) SetTime(t time.Time) syscall.Errno {
	if e := n.d.gate.enter(changing); e != 0 {
		return e
	}
	n.d.mu.Lock()
	defer n.d.mu.Unlock()
	n.mtime = t
	return 0
}

// Read reads what was written last, synced or not.
func (n *Inode) Read(to []byte, at int64) (int, syscall.Errno) {
	if e := n.d.gate.enter(reading); e != 0 {
		return 0, e
	}
	n.d.mu.Lock()
	defer n.d.mu.Unlock()
	if at >= int64(len(n.data)) {
		return 0, 0
	}
	return copy(to, n.data[at:]), 0
}

// Write writes; with sync it syncs as well, as for a file opened with O_DSYNC.
func (n *Inode) Write(p []byte, at int64, sync bool) (int, syscall.Errno) {
	if e := n.d.gate.enter(writing); e != 0 {
		return 0, e
	}
	e := n.write(p, at)
	if e == 0 && sync {
		e = n.Sync()
	}
	if e != 0 {
		return 0, e
	}
	return len(p), 0
}

func (n *Inode) write(p []byte, at int64) syscall.Errno {
	d, end := n.d, at+int64(len(p))
	d.mu.Lock()
	defer d.mu.Unlock()
	if grows := end - int64(len(n.data)); grows > 0 {
		if d.gate.full(d.bytes + grows) {
			return syscall.ENOSPC
		}
		n.resize(end)
	}
	copy(n.data[at:], p)
	n.dirty.add(at/Sector, sectors(end))
	n.mtime = time.Now()
	d.stats.Writes++
	d.stats.Written += int64(len(p))
	return 0
}

// resize sets the size; d.mu is held. What a file grows by is zeros, and not dirty:
// so it is on the shelf, too.
func (n *Inode) resize(size int64) {
	was := int64(len(n.data))
	if n.nlink > 0 {
		n.d.bytes += size - was
	}
	n.sized = true
	if size > was {
		n.data = slices.Grow(n.data, int(size-was))[:size]
		clear(n.data[was:])
		return
	}
	n.data = n.data[:size]
	n.dirty.cut(sectors(size))
	n.least = min(n.least, size)
}

// Truncate sets the size.
func (n *Inode) Truncate(size int64) syscall.Errno {
	if n.Dir {
		return syscall.EISDIR
	}
	if e := n.d.gate.enter(changing); e != 0 {
		return e
	}
	n.d.mu.Lock()
	defer n.d.mu.Unlock()
	if n.d.gate.full(n.d.bytes + size - int64(len(n.data))) {
		return syscall.ENOSPC
	}
	n.resize(size)
	n.mtime = time.Now()
	return 0
}

// Modes of fallocate(2).
const (
	keepSize  = 0x1
	punchHole = 0x2
	zeroRange = 0x10
)

// Allocate is fallocate(2).
func (n *Inode) Allocate(at, size int64, mode uint32) syscall.Errno {
	if e := n.d.gate.enter(changing); e != 0 {
		return e
	}
	d, end := n.d, at+size
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case mode&^(keepSize|punchHole|zeroRange) != 0:
		return syscall.EOPNOTSUPP
	case d.gate.full(d.bytes + max(0, end-int64(len(n.data)))):
		return syscall.ENOSPC
	}
	if mode&keepSize == 0 && end > int64(len(n.data)) {
		n.resize(end)
	}
	if end = min(end, int64(len(n.data))); mode&(punchHole|zeroRange) != 0 && at < end {
		clear(n.data[at:end])
		n.dirty.add(at/Sector, sectors(end))
	}
	return 0
}

// Names returns the names in a directory, sorted.
func (n *Inode) Names() ([]string, syscall.Errno) {
	if e := n.d.gate.enter(reading); e != 0 {
		return nil, e
	}
	n.d.mu.Lock()
	defer n.d.mu.Unlock()
	return slices.Sorted(maps.Keys(n.entries)), 0
}

// Lookup returns what has a name in a directory.
func (n *Inode) Lookup(name string) (*Inode, syscall.Errno) {
	if e := n.d.gate.enter(reading); e != 0 {
		return nil, e
	}
	n.d.mu.Lock()
	defer n.d.mu.Unlock()
	if child := n.entries[name]; child != nil {
		return child, 0
	}
	return nil, syscall.ENOENT
}
