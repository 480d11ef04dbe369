// Package mount shows a disk as a file system, over FUSE.
//
// The kernel asks for each write at once, and for each sync. It keeps pages of what was
// read or written for reads, so files can be mapped; it keeps the locks of files by itself.
// Nothing else is kept by it: names and attributes are asked for each time.
//
// Only fsync(2), fdatasync(2), O_SYNC and O_DSYNC sync. The kernel does not tell a file
// system in user space of sync(2), syncfs(2), sync_file_range(2) and RWF_DSYNC. Pages of a
// shared mapping that are written come here as writes, at msync(2) or munmap(2).
package mount

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/keystead/keystead/internal/tests/forgetfs/disk"
)

// maxWrite is the most that the kernel hands over at once.
const maxWrite = 1 << 20

// Mount is a disk that is mounted.
type Mount struct {
	point  string
	server *fuse.Server
}

// At mounts a disk at a directory. It needs root and /dev/fuse.
func At(point string, d *disk.Disk) (*Mount, error) {
	_ = syscall.Unmount(point, syscall.MNT_DETACH) // what a process left that was killed
	never := time.Duration(0)
	o := &fs.Options{EntryTimeout: &never, AttrTimeout: &never, NegativeTimeout: &never, NullPermissions: true}
	o.DirectMountStrict, o.Name, o.FsName = true, "forgetfs", "forgetfs"
	o.MaxWrite, o.ExplicitDataCacheControl, o.DisableXAttrs = maxWrite, true, true
	server, err := fs.Mount(point, &node{at: d.Root(), d: d}, o)
	if err != nil {
		return nil, fmt.Errorf("forgetfs: mounting at %s, which needs root and /dev/fuse: %w", point, err)
	}
	return &Mount{point, server}, nil
}

// Close takes the mount away, also if something uses it: that gets errors then, when this
// process has ended.
func (m *Mount) Close() error {
	err := syscall.Unmount(m.point, syscall.MNT_DETACH)
	if errors.Is(err, syscall.EINVAL) { // somebody else did
		err = nil
	}
	return err
}

// node is an inode, as the library wants it.
type node struct {
	fs.Inode
	at *disk.Inode
	d  *disk.Disk
}

var _ interface {
	fs.NodeLookuper
	fs.NodeGetattrer
	fs.NodeSetattrer
	fs.NodeReaddirer
	fs.NodeCreater
	fs.NodeMkdirer
	fs.NodeUnlinker
	fs.NodeRmdirer
	fs.NodeRenamer
	fs.NodeLinker
	fs.NodeOpener
	fs.NodeReader
	fs.NodeWriter
	fs.NodeFsyncer
	fs.NodeAllocater
	fs.NodeStatfser
} = (*node)(nil)

func mode(a disk.Attr) uint32 {
	if a.Dir {
		return a.Mode | syscall.S_IFDIR
	}
	return a.Mode | syscall.S_IFREG
}

func fill(out *fuse.Attr, a disk.Attr) {
	out.Ino, out.Mode, out.Size, out.Nlink = a.ID, mode(a), uint64(a.Size), uint32(a.Nlink)
	out.Blksize, out.Blocks = 4096, uint64(a.Size+disk.Sector-1)/disk.Sector
	out.SetTimes(&a.Mtime, &a.Mtime, &a.Mtime)
}

// child returns the node of an inode.
func (n *node) child(ctx context.Context, at *disk.Inode, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	a, e := at.Attr()
	if e != 0 {
		return nil, e
	}
	fill(&out.Attr, a)
	return n.NewInode(ctx, &node{at: at, d: n.d}, fs.StableAttr{Mode: mode(a), Ino: a.ID}), 0
}

func (n *node) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	at, e := n.at.Lookup(name)
	if e != 0 {
		return nil, e
	}
	return n.child(ctx, at, out)
}

func (n *node) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	a, e := n.at.Attr()
	fill(&out.Attr, a)
	return e
}

func (n *node) Setattr(ctx context.Context, f fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	if size, ok := in.GetSize(); ok {
		if e := n.at.Truncate(int64(size)); e != 0 {
			return e
		}
	}
	if m, ok := in.GetMode(); ok {
		if e := n.at.SetMode(m); e != 0 {
			return e
		}
	}
	if t, ok := in.GetMTime(); ok {
		if e := n.at.SetTime(t); e != 0 {
			return e
		}
	}
	return n.Getattr(ctx, f, out)
}

func (n *node) Readdir(context.Context) (fs.DirStream, syscall.Errno) {
	names, e := n.at.Names()
	list := make([]fuse.DirEntry, 0, len(names))
	for _, name := range names {
		at, gone := n.at.Lookup(name)
		if gone != 0 {
			continue
		}
		a, gone := at.Attr()
		if gone == 0 {
			list = append(list, fuse.DirEntry{Name: name, Ino: a.ID, Mode: mode(a)})
		}
	}
	return fs.NewListDirStream(list), e
}

// file is what a program has opened.
type file struct {
	sync bool // each write is synced
}

func open(flags uint32) *file { return &file{sync: flags&(syscall.O_SYNC|syscall.O_DSYNC) != 0} }

func (n *node) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	at, e := n.at.Create(name, false, mode)
	if e != 0 {
		return nil, nil, 0, e
	}
	child, e := n.child(ctx, at, out)
	return child, open(flags), fuse.FOPEN_KEEP_CACHE, e
}

func (n *node) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	at, e := n.at.Create(name, true, mode)
	if e != 0 {
		return nil, e
	}
	return n.child(ctx, at, out)
}

func (n *node) Unlink(_ context.Context, name string) syscall.Errno { return n.at.Remove(name, false) }

func (n *node) Rmdir(_ context.Context, name string) syscall.Errno { return n.at.Remove(name, true) }

// Flags of renameat2(2).
const renameAlone = 1

func (n *node) Rename(_ context.Context, name string, to fs.InodeEmbedder, newName string, flags uint32) syscall.Errno {
	if flags&^renameAlone != 0 {
		return syscall.EINVAL
	}
	return n.at.Rename(name, to.(*node).at, newName, flags&renameAlone != 0)
}

func (n *node) Link(ctx context.Context, target fs.InodeEmbedder, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	at := target.(*node).at
	if e := n.at.Link(name, at); e != 0 {
		return nil, e
	}
	return n.child(ctx, at, out)
}

func (n *node) Open(_ context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	if _, e := n.at.Attr(); e != 0 {
		return nil, 0, e
	}
	if flags&syscall.O_TRUNC != 0 {
		if e := n.at.Truncate(0); e != 0 {
			return nil, 0, e
		}
	}
	return open(flags), fuse.FOPEN_KEEP_CACHE, 0
}

func (n *node) Read(_ context.Context, _ fs.FileHandle, to []byte, at int64) (fuse.ReadResult, syscall.Errno) {
	read, e := n.at.Read(to, at)
	return fuse.ReadResultData(to[:read]), e
}

func (n *node) Write(_ context.Context, f fs.FileHandle, data []byte, at int64) (uint32, syscall.Errno) {
	opened, ok := f.(*file)
	written, e := n.at.Write(data, at, ok && opened.sync)
	return uint32(written), e
}

func (n *node) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno { return n.at.Sync() }

func (n *node) Allocate(_ context.Context, _ fs.FileHandle, at, size uint64, mode uint32) syscall.Errno {
	return n.at.Allocate(int64(at), int64(size), mode)
}

// Statfs tells a disk of 64 GiB unless there is a limit.
func (n *node) Statfs(_ context.Context, out *fuse.StatfsOut) syscall.Errno {
	const block, size = 4096, 64 << 30
	s := n.d.Stats()
	if s.Crashed {
		return syscall.EIO
	}
	all := int64(size)
	if s.Limit > 0 {
		all = s.Limit
	}
	free := uint64(max(0, all-s.Bytes)) / block
	*out = fuse.StatfsOut{Bsize: block, Frsize: block, Blocks: uint64(all) / block, Bfree: free, Bavail: free, Files: 1 << 20, Ffree: 1 << 19, NameLen: 255}
	return 0
}
