package forget

import (
	"errors"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// What databases do with files: they map them, lock them and reserve room.
func TestFilesOfDatabases(t *testing.T) {
	d := fresh(t, "posix")
	f := stored(t, d.Path+"/a", strings.Repeat("o", 8192))
	page, err := syscall.Mmap(int(f.Fd()), 0, 8192, syscall.PROT_READ, syscall.MAP_SHARED)
	must(t, err)
	if string(page[:3]) != "ooo" {
		t.Errorf("the map shows %q", page[:3])
	}
	put(t, f, "new")
	if string(page[:4]) != "newo" {
		t.Errorf("after a write the map shows %q", page[:4])
	}
	second, err := os.OpenFile(f.Name(), os.O_RDWR, 0)
	must(t, err)
	defer second.Close()
	put(t, second, "NEW")
	if string(page[:4]) != "NEWo" {
		t.Errorf("after a write through another descriptor the map shows %q", page[:4])
	}
	must(t, syscall.Munmap(page))

	must(t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX))
	if err := syscall.Flock(int(second.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Errorf("a second lock: %v", err)
	}
	must(t, syscall.Flock(int(f.Fd()), syscall.LOCK_UN))
	must(t, syscall.Flock(int(second.Fd()), syscall.LOCK_EX|syscall.LOCK_NB))
	must(t, syscall.FcntlFlock(second.Fd(), syscall.F_SETLK, &syscall.Flock_t{Type: syscall.F_WRLCK}))

	must(t, syscall.Fallocate(int(f.Fd()), 1, 0, 1<<20)) // KEEP_SIZE
	if info, err := f.Stat(); err != nil || info.Size() != 8192 {
		t.Errorf("reserved room is part of the size: %v, %v", info.Size(), err)
	}
	must(t, syscall.Fallocate(int(f.Fd()), 0, 0, 1<<20))
	must(t, f.Sync())
	cut(t, d, "")
	holds(t, d, map[string]string{"a": "NEW" + strings.Repeat("o", 8189) + strings.Repeat("\x00", 1<<20-8192)})
}

// What is written into a shared map is kept by msync.
func TestMapWritten(t *testing.T) {
	d := fresh(t, "posix")
	f := stored(t, d.Path+"/a", strings.Repeat("o", 4096))
	page, err := syscall.Mmap(int(f.Fd()), 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	must(t, err)
	copy(page, "new")
	must(t, f.Sync())
	copy(page, "gone")
	cut(t, d, "")
	b, err := os.ReadFile(d.Path + "/a")
	must(t, err)
	if string(b[:4]) != "newo" {
		t.Errorf("there is %q", b[:4])
	}
	_ = syscall.Munmap(page)
}

// A file that is open is used after its name is gone, and directories are as they are.
func TestNames(t *testing.T) {
	d := fresh(t, "posix")
	f := create(t, d.Path+"/a", "text")
	must(t, os.Remove(f.Name()))
	put(t, f, "TEXT")
	must(t, f.Sync())
	b := make([]byte, 4)
	if _, err := f.ReadAt(b, 0); err != nil || string(b) != "TEXT" {
		t.Errorf("a removed file: %q, %v", b, err)
	}
	must(t, os.Mkdir(d.Path+"/d", 0o700))
	create(t, d.Path+"/d/x", "x")
	create(t, d.Path+"/y", "y")
	fails(t, "a directory with something in it", syscall.Rmdir(d.Path+"/d"), syscall.ENOTEMPTY)
	fails(t, "a file over a directory", os.Rename(d.Path+"/y", d.Path+"/d"), syscall.EEXIST)
	fails(t, "a directory again", os.Mkdir(d.Path+"/d", 0o700), syscall.EEXIST)
	fails(t, "a link to a directory", os.Link(d.Path+"/d", d.Path+"/e"), syscall.EPERM)
	_, err := os.OpenFile(d.Path+"/y", os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	fails(t, "a file again", err, syscall.EEXIST)
	entries, err := os.ReadDir(d.Path)
	must(t, err)
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if !slices.Equal(names, []string{"d", "y"}) {
		t.Errorf("there are %q", names)
	}
}
