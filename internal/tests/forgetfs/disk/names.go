package disk

import (
	"slices"
	"syscall"
	"time"
)

// set gives a name in a directory to an inode, or to none; d.mu is held.
func (n *Inode) set(name string, to *Inode) {
	d := n.d
	if was := n.entries[name]; was != nil {
		was.nlink--
		if was.nlink == 0 && !was.Dir {
			d.bytes -= int64(len(was.data))
		}
		defer d.drop(was)
	}
	if to == nil {
		delete(n.entries, name)
	} else {
		if to.nlink == 0 && !to.Dir {
			d.bytes += int64(len(to.data))
		}
		to.nlink++
		n.entries[name] = to
	}
	n.log = append(n.log, change{d.step, name, to})
	n.mtime = time.Now()
}

// Create makes a file or a directory.
func (n *Inode) Create(name string, dir bool, mode uint32) (*Inode, syscall.Errno) {
	if e := n.d.gate.enter(changing); e != 0 {
		return nil, e
	}
	n.d.mu.Lock()
	defer n.d.mu.Unlock()
	if e := n.mayName(name); e != 0 {
		return nil, e
	}
	child := n.d.inode(dir, mode&0o7777)
	child.sized = !dir
	n.d.step++
	n.set(name, child)
	return child, 0
}

// mayName reports why a name cannot be made in a directory.
func (n *Inode) mayName(name string) syscall.Errno {
	switch {
	case n.nlink == 0:
		return syscall.ENOENT // it was removed
	case n.entries[name] != nil:
		return syscall.EEXIST
	case n == n.d.root && name == shelf:
		return syscall.EPERM
	case len(name) > 255:
		return syscall.ENAMETOOLONG
	}
	return 0
}

// Link gives a file one more name.
func (n *Inode) Link(name string, file *Inode) syscall.Errno {
	if e := n.d.gate.enter(changing); e != 0 {
		return e
	}
	n.d.mu.Lock()
	defer n.d.mu.Unlock()
	if file.Dir {
		return syscall.EPERM
	}
	if e := n.mayName(name); e != 0 {
		return e
	}
	n.d.step++
	n.set(name, file)
	return 0
}

// Remove removes the name of a file, or of an empty directory if dir says so.
func (n *Inode) Remove(name string, dir bool) syscall.Errno {
	if e := n.d.gate.enter(changing); e != 0 {
		return e
	}
	n.d.mu.Lock()
	defer n.d.mu.Unlock()
	child := n.entries[name]
	if child == nil {
		return syscall.ENOENT
	}
	if e := child.mayGo(dir); e != 0 {
		return e
	}
	n.d.step++
	n.set(name, nil)
	return 0
}

// mayGo reports why the name of an inode cannot be removed, as a file's or a directory's.
func (n *Inode) mayGo(dir bool) syscall.Errno {
	switch {
	case dir && !n.Dir:
		return syscall.ENOTDIR
	case !dir && n.Dir:
		return syscall.EISDIR
	case len(n.entries) > 0:
		return syscall.ENOTEMPTY
	}
	return 0
}

// Rename gives the inode of one name another one, and takes that from what had it.
// With alone, nothing may have it.
func (n *Inode) Rename(name string, to *Inode, newName string, alone bool) syscall.Errno {
	if e := n.d.gate.enter(changing); e != 0 {
		return e
	}
	d := n.d
	d.mu.Lock()
	defer d.mu.Unlock()
	child, other := n.entries[name], to.entries[newName]
	switch {
	case child == nil:
		return syscall.ENOENT
	case other == child:
		return 0
	case other != nil && alone:
		return syscall.EEXIST
	case other == nil:
		if e := to.mayName(newName); e != 0 {
			return e
		}
	default:
		if e := other.mayGo(child.Dir); e != 0 {
			return e
		}
	}
	d.step++
	child.nlink++ // it has a name all the time
	n.set(name, nil)
	to.set(newName, child)
	child.nlink--
	if n != to {
		n.tied, to.tied = append(n.tied, to), append(to.tied, n)
	}
	if other != nil && d.opts.Ext4 && !child.Dir {
		d.replaced = append(d.replaced, child)
	}
	return 0
}

// group returns the directories whose names are kept together with one's own: all with
// Ext4, otherwise those that it shares a rename with, directly or not. d.mu is held.
func (n *Inode) group() []*Inode {
	if n.d.opts.Ext4 {
		return n.d.directories()
	}
	found := []*Inode{n}
	for i := 0; i < len(found); i++ {
		for _, t := range found[i].tied {
			if !slices.Contains(found, t) {
				found = append(found, t)
			}
		}
	}
	return found
}

// sorted returns all inodes in the order of their making.
func (d *Disk) sorted() []*Inode {
	all := make([]*Inode, 0, len(d.inodes))
	for _, n := range d.inodes {
		all = append(all, n)
	}
	slices.SortFunc(all, func(a, b *Inode) int { return int(a.ID) - int(b.ID) })
	return all
}

func (d *Disk) directories() []*Inode {
	return slices.DeleteFunc(d.sorted(), func(n *Inode) bool { return !n.Dir })
}
