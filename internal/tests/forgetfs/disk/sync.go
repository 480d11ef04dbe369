package disk

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"syscall"
)

// Sync is fsync(2), and fdatasync(2): of a file its data and size, of a directory its
// names. It fails when it was told to, and then drops what it should have kept.
func (n *Inode) Sync() syscall.Errno {
	d := n.d
	e := d.gate.enter(syncing)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.crashed {
		return syscall.EIO // it happened while this one waited
	}
	d.stats.Syncs++
	if n.Dir {
		d.stats.DirSyncs++
	}
	if e != 0 {
		d.stats.FailedSyncs++
		n.dirty = nil
		return e
	}
	if n.nlink == 0 && n.held == 0 && !d.opts.Ext4 {
		return 0 // nobody can see it after a crash
	}
	var err error
	if !n.Dir {
		err = n.flush()
	}
	if n.Dir || d.opts.Ext4 {
		err = errors.Join(err, d.keepNames(n.group()))
	}
	return d.failed(err)
}

// flush puts what is dirty of a file on the shelf; d.mu is held.
func (n *Inode) flush() error {
	if n.nlink == 0 && n.held == 0 || n.shelved && !n.sized && n.dirty.count() == 0 {
		return nil
	}
	if err := n.shelve(n.dirty, int64(len(n.data))); err != nil {
		return err
	}
	n.dirty, n.sized, n.least = nil, false, int64(len(n.data))
	return nil
}

// shelve puts some pieces of a file on the shelf, which then has a size.
func (n *Inode) shelve(some pieces, size int64) error {
	f, err := os.OpenFile(n.d.shelf(n), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	n.shelved = true
	if info, err := f.Stat(); err != nil {
		return err
	} else if n.least < info.Size() {
		err = f.Truncate(n.least) // what it has grown by since is zeros
		if err != nil {
			return err
		}
	}
	err = some.runs(func(from, to int64) error {
		end := min(to*Sector, int64(len(n.data)))
		_, err := f.WriteAt(n.data[from*Sector:end], from*Sector)
		return err
	})
	return errors.Join(err, f.Truncate(size))
}

// keepNames keeps the names of directories as they are; d.mu is held.
func (d *Disk) keepNames(dirs []*Inode) error {
	var err error
	for _, n := range d.replaced {
		err = errors.Join(err, n.flush())
	}
	d.replaced = nil
	want := map[*Inode]map[string]*Inode{}
	for _, n := range dirs {
		if len(n.log) > 0 {
			want[n] = maps.Clone(n.entries)
		}
		n.log, n.tied = nil, nil
	}
	return errors.Join(err, d.place(want))
}

// place makes the kept names of directories those that are wanted: first all that are
// gone, so that a directory that has moved is not in two places.
func (d *Disk) place(want map[*Inode]map[string]*Inode) error {
	var err error
	paths := d.paths()
	for n, names := range want {
		for name, was := range n.kept {
			if names[name] == was {
				continue
			}
			delete(n.kept, name)
			was.held--
			if at, ok := paths[n]; ok && (was.Dir || names[name] == nil || names[name].Dir) {
				was.lift()
				err = errors.Join(err, os.RemoveAll(filepath.Join(at, name)))
			}
			defer d.drop(was)
		}
	}
	paths = d.paths()
	for n, names := range want {
		for name, to := range names {
			if n.kept[name] == to {
				continue
			}
			n.kept[name] = to
			to.held++
			if at, ok := paths[n]; ok {
				err = errors.Join(err, to.put(filepath.Join(at, name), paths))
			}
		}
	}
	return err
}

// paths returns where the directories are that are placed.
func (d *Disk) paths() map[*Inode]string {
	found := map[*Inode]string{}
	var walk func(n *Inode, at string)
	walk = func(n *Inode, at string) {
		if !n.placed {
			return
		}
		found[n] = at
		for name, child := range n.kept {
			if child.Dir {
				walk(child, filepath.Join(at, name))
			}
		}
	}
	walk(d.root, d.backing)
	return found
}

// lift notes that a directory, and what is in it, is no longer in the backing directory.
func (n *Inode) lift() {
	n.placed = false
	for _, child := range n.kept {
		if child.Dir {
			child.lift()
		}
	}
}

// put puts an inode, and what is kept in it, into the backing directory.
func (n *Inode) put(at string, paths map[*Inode]string) error {
	if n.Dir {
		n.placed, paths[n] = true, at
		err := os.Mkdir(at, 0o700)
		for name, child := range n.kept {
			err = errors.Join(err, child.put(filepath.Join(at, name), paths))
		}
		return err
	}
	if !n.shelved {
		if err := n.shelve(nil, 0); err != nil {
			return err
		}
		n.sized = n.sized || len(n.data) > 0
	}
	// In one step, so that a name that is replaced is never missing.
	beside := n.d.shelf(n) + "+"
	if err := os.Link(n.d.shelf(n), beside); err != nil {
		return err
	}
	return os.Rename(beside, at)
}

// drop forgets an inode that has no name, neither live nor kept. Programs that have it
// open go on using it.
func (d *Disk) drop(n *Inode) {
	if n.nlink > 0 || n.held > 0 {
		return
	}
	delete(d.inodes, n.ID)
	for name, child := range n.kept {
		delete(n.kept, name)
		child.held--
		d.drop(child)
	}
	if d.crashed || !n.shelved {
		return
	}
	n.shelved = false
	if err := os.Remove(d.shelf(n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.failed(err)
	}
}
