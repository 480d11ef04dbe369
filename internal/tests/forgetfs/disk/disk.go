package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// Options of a Disk.
type Options struct {
	// Ext4 keeps names as ext4 does with its defaults, instead of as little as POSIX
	// promises.
	Ext4 bool
}

// shelf holds the data of all files that were synced, under the number of their inode.
// The names of the backing directory are hard links to them.
const shelf = ".forgetfs"

// Disk is a file system. Its methods, and those of its inodes, may be called from any
// goroutine.
type Disk struct {
	backing string
	opts    Options
	gate    gate

	mu       sync.Mutex
	crashed  bool // nothing happens to the backing directory any more
	root     *Inode
	inodes   map[uint64]*Inode // those that have a name, live or kept
	last     uint64            // number of the newest inode
	step     uint64            // number of the newest change of a name
	bytes    int64             // size of all live files
	replaced []*Inode          // Ext4: files to be kept with their names
	stats    Stats
}

// Open makes a Disk of what a backing directory holds, which is made if there is none.
func Open(backing string, o Options) (*Disk, error) {
	d := &Disk{backing: backing, opts: o, inodes: map[uint64]*Inode{}}
	d.gate.init()
	if err := os.RemoveAll(filepath.Join(backing, shelf)); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(backing, shelf), 0o700); err != nil {
		return nil, err
	}
	d.root = d.inode(true, 0o755)
	d.root.placed, d.root.nlink, d.root.held = true, 1, 1
	if err := d.load(d.root, backing, map[uint64]*Inode{}); err != nil {
		return nil, fmt.Errorf("forgetfs: reading what %s holds: %w", backing, err)
	}
	return d, nil
}

// load reads a directory. seen are files by their number in the backing file system.
func (d *Disk) load(dir *Inode, path string, seen map[uint64]*Inode) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name, at := e.Name(), filepath.Join(path, e.Name())
		if dir == d.root && name == shelf {
			continue
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		child := (*Inode)(nil)
		switch {
		case info.IsDir():
			child = d.inode(true, uint32(info.Mode().Perm()))
			child.placed = true
			if err := d.load(child, at, seen); err != nil {
				return err
			}
		case info.Mode().IsRegular():
			if child, err = d.loadFile(at, info, seen); err != nil {
				return err
			}
		default:
			return fmt.Errorf("%s is neither a file nor a directory", at)
		}
		dir.entries[name], dir.kept[name] = child, child
		child.nlink++
		child.held++
	}
	return nil
}

func (d *Disk) loadFile(at string, info os.FileInfo, seen map[uint64]*Inode) (*Inode, error) {
	number := info.Sys().(*syscall.Stat_t).Ino
	if known := seen[number]; known != nil {
		return known, nil
	}
	f := d.inode(false, uint32(info.Mode().Perm()))
	seen[number] = f
	var err error
	if f.data, err = os.ReadFile(at); err != nil {
		return nil, err
	}
	f.least, f.shelved, f.mtime = int64(len(f.data)), true, info.ModTime()
	d.bytes += int64(len(f.data))
	return f, os.Link(at, d.shelf(f))
}

// inode makes one that has no name yet.
func (d *Disk) inode(dir bool, mode uint32) *Inode {
	d.last++
	n := &Inode{d: d, ID: d.last, Dir: dir, mode: mode, mtime: time.Now()}
	if dir {
		n.entries, n.kept = map[string]*Inode{}, map[string]*Inode{}
	}
	d.inodes[n.ID] = n
	return n
}

func (d *Disk) shelf(n *Inode) string { return filepath.Join(d.backing, shelf, fmt.Sprint(n.ID)) }

// Root returns the directory at the top.
func (d *Disk) Root() *Inode { return d.root }

// Close syncs all, as an orderly unmount does, unless the disk has crashed.
func (d *Disk) Close() error {
	d.gate.crash() // nothing new begins
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.crashed {
		return nil
	}
	var err error
	for _, n := range d.sorted() {
		if !n.Dir {
			err = errors.Join(err, n.flush())
		}
	}
	err = errors.Join(err, d.keepNames(d.directories()))
	d.crashed = true
	return errors.Join(err, os.RemoveAll(filepath.Join(d.backing, shelf)))
}

// failed turns an error of the backing directory into that of a disk, and says it.
func (d *Disk) failed(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "forgetfs: the backing directory:", err)
	return syscall.EIO
}
