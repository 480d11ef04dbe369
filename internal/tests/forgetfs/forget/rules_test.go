package forget

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// What a power cut leaves of what programs did.
func TestWhatIsLeft(t *testing.T) {
	type files = map[string]string
	old := files{"a": "old"}
	for _, c := range []struct {
		name string
		do   func(t *testing.T, dir string, a *os.File) // a holds "old", and all of it is kept
		want files
		ext4 files // nil: the same
	}{
		{"nothing", func(*testing.T, string, *os.File) {}, old, nil},
		{"a write", func(t *testing.T, _ string, a *os.File) { put(t, a, "new") }, old, nil},
		{"a write and a sync", func(t *testing.T, _ string, a *os.File) { put(t, a, "newer"); must(t, a.Sync()) }, files{"a": "newer"}, nil},
		{"a write and fdatasync", func(t *testing.T, _ string, a *os.File) {
			put(t, a, "newer")
			must(t, syscall.Fdatasync(int(a.Fd())))
		}, files{"a": "newer"}, nil},
		{"a sync and a write", func(t *testing.T, _ string, a *os.File) { must(t, a.Sync()); put(t, a, "new") }, old, nil},
		{"a sync through another descriptor", func(t *testing.T, dir string, a *os.File) {
			put(t, a, "new")
			syncDir(t, dir+"/a") // any descriptor will do
		}, files{"a": "new"}, nil},
		{"O_DSYNC", func(t *testing.T, dir string, _ *os.File) {
			f, err := os.OpenFile(dir+"/a", os.O_WRONLY|syscall.O_DSYNC, 0)
			must(t, err)
			put(t, f, "new")
			must(t, f.Close())
		}, files{"a": "new"}, nil},
		{"O_SYNC", func(t *testing.T, dir string, _ *os.File) {
			f, err := os.OpenFile(dir+"/a", os.O_WRONLY|os.O_SYNC|os.O_APPEND, 0)
			must(t, err)
			_, err = f.WriteString("er")
			must(t, err)
			must(t, f.Close())
		}, files{"a": "older"}, nil},
		{"truncation", func(t *testing.T, dir string, _ *os.File) { must(t, os.Truncate(dir+"/a", 1)) }, old, nil},
		{"truncation and a sync", func(t *testing.T, _ string, a *os.File) { must(t, a.Truncate(1)); must(t, a.Sync()) }, files{"a": "o"}, nil},
		{"a hole", func(t *testing.T, _ string, a *os.File) {
			must(t, a.Truncate(1))
			must(t, a.Truncate(3))
			must(t, a.Sync())
		}, files{"a": "o\x00\x00"}, nil},
		{"O_TRUNC", func(t *testing.T, dir string, _ *os.File) { create(t, dir+"/a", "") }, old, nil},
		{"a file, synced without its name", func(t *testing.T, dir string, _ *os.File) { must(t, create(t, dir+"/b", "b").Sync()) }, old, files{"a": "old", "b": "b"}},
		{"a name without the file", func(t *testing.T, dir string, _ *os.File) { create(t, dir+"/b", "b"); syncDir(t, dir) }, files{"a": "old", "b": ""}, nil},
		{"both", func(t *testing.T, dir string, _ *os.File) { stored(t, dir+"/b", "b") }, files{"a": "old", "b": "b"}, nil},
		{"a name first, then the file", func(t *testing.T, dir string, _ *os.File) {
			f := create(t, dir+"/b", "")
			syncDir(t, dir)
			put(t, f, "b")
			must(t, f.Sync())
		}, files{"a": "old", "b": "b"}, nil},
		{"a rename", func(t *testing.T, dir string, _ *os.File) { must(t, os.Rename(dir+"/a", dir+"/b")) }, old, nil},
		{"a rename and a sync of the file", func(t *testing.T, dir string, a *os.File) {
			must(t, os.Rename(dir+"/a", dir+"/b"))
			must(t, a.Sync())
		}, old, files{"b": "old"}},
		{"a rename and its directory", func(t *testing.T, dir string, _ *os.File) {
			must(t, os.Rename(dir+"/a", dir+"/b"))
			syncDir(t, dir)
		}, files{"b": "old"}, nil},
		{"replaced, but only the name is kept", func(t *testing.T, dir string, _ *os.File) {
			create(t, dir+"/b", "new")
			must(t, os.Rename(dir+"/b", dir+"/a"))
			syncDir(t, dir)
		}, files{"a": ""}, files{"a": "new"}},
		{"replaced, but the name is not kept", func(t *testing.T, dir string, _ *os.File) {
			must(t, create(t, dir+"/b", "new").Sync())
			must(t, os.Rename(dir+"/b", dir+"/a"))
		}, old, files{"a": "old", "b": "new"}},
		{"replaced as it should be", func(t *testing.T, dir string, _ *os.File) {
			must(t, create(t, dir+"/b", "new").Sync())
			must(t, os.Rename(dir+"/b", dir+"/a"))
			syncDir(t, dir)
		}, files{"a": "new"}, nil},
		{"a removal", func(t *testing.T, dir string, _ *os.File) { must(t, os.Remove(dir+"/a")) }, old, nil},
		{"a removal and its directory", func(t *testing.T, dir string, _ *os.File) { must(t, os.Remove(dir+"/a")); syncDir(t, dir) }, files{}, nil},
		{"removed, and made anew without a sync", func(t *testing.T, dir string, _ *os.File) {
			must(t, os.Remove(dir+"/a"))
			must(t, create(t, dir+"/a", "new").Sync())
		}, old, files{"a": "new"}},
		{"a link", func(t *testing.T, dir string, a *os.File) {
			must(t, os.Link(dir+"/a", dir+"/b"))
			syncDir(t, dir)
			put(t, a, "new")
			must(t, a.Sync())
		}, files{"a": "new", "b": "new"}, nil},
		{"a directory whose name is not kept", func(t *testing.T, dir string, _ *os.File) {
			must(t, os.Mkdir(dir+"/d", 0o700))
			stored(t, dir+"/d/b", "b")
		}, old, files{"a": "old", "d/b": "b"}},
		{"a directory", func(t *testing.T, dir string, _ *os.File) {
			must(t, os.Mkdir(dir+"/d", 0o700))
			stored(t, dir+"/d/b", "b")
			syncDir(t, dir)
		}, files{"a": "old", "d/b": "b"}, nil},
		{"a directory that is renamed", func(t *testing.T, dir string, _ *os.File) {
			must(t, os.Mkdir(dir+"/d", 0o700))
			syncDir(t, dir)
			f := stored(t, dir+"/d/b", "b")
			must(t, os.Rename(dir+"/d", dir+"/e"))
			syncDir(t, dir)
			put(t, f, "c")
			must(t, f.Sync())
			stored(t, dir+"/e/f", "f")
		}, files{"a": "old", "e/b": "c", "e/f": "f"}, nil},
		{"a rename between directories, of which one is synced", func(t *testing.T, dir string, _ *os.File) {
			must(t, os.Mkdir(dir+"/d", 0o700))
			syncDir(t, dir)
			must(t, os.Rename(dir+"/a", dir+"/d/a"))
			syncDir(t, dir)
		}, files{"d/a": "old"}, nil},
		{"a directory that is removed with what was in it", func(t *testing.T, dir string, _ *os.File) {
			must(t, os.Mkdir(dir+"/d", 0o700))
			stored(t, dir+"/d/b", "b")
			syncDir(t, dir)
			must(t, os.RemoveAll(dir+"/d"))
			syncDir(t, dir)
		}, old, nil},
	} {
		for names, want := range map[string]files{"posix": c.want, "ext4": c.ext4} {
			if want == nil {
				want = c.want
			}
			t.Run(c.name+"/"+names, func(t *testing.T) {
				t.Parallel()
				d := fresh(t, names)
				a := stored(t, filepath.Join(d.Path, "a"), "old")
				c.do(t, d.Path, a)
				cut(t, d, "")
				holds(t, d, want)
			})
		}
	}
}

// put writes at the beginning of a file.
func put(t *testing.T, f *os.File, text string) {
	t.Helper()
	_, err := f.WriteAt([]byte(text), 0)
	must(t, err)
}

// An orderly end keeps all; a process that is killed leaves what a power cut leaves.
func TestEnds(t *testing.T) {
	d := fresh(t, "posix")
	create(t, d.Path+"/a", "a")
	must(t, d.Unmount())
	must(t, d.Mount())
	holds(t, d, map[string]string{"a": "a"})
	stored(t, d.Path+"/b", "b")
	create(t, d.Path+"/c", "c")
	must(t, d.cmd.Process.Kill())
	_ = d.cmd.Wait()
	d.cmd = nil
	must(t, d.Mount())
	holds(t, d, map[string]string{"a": "a", "b": "b"})
}

// After a crash nothing works, also what is open; nothing changes what is left.
func TestCrashedFails(t *testing.T) {
	d := fresh(t, "posix")
	f := stored(t, d.Path+"/a", "old")
	do(t, d, "crash")
	_, err := f.WriteAt([]byte("new"), 0)
	fails(t, "a write", err, syscall.EIO)
	fails(t, "a sync", f.Sync(), syscall.EIO)
	_, err = os.Create(d.Path + "/b")
	fails(t, "a new file", err, syscall.EIO)
	_, err = os.Open(d.Path + "/a")
	fails(t, "a file that is opened", err, syscall.EIO)
	must(t, d.Remount())
	holds(t, d, map[string]string{"a": "old"})
}

// Of what was not synced a torn crash leaves some pieces, the same for the same seed, and
// nothing of it changes what was synced.
func TestTorn(t *testing.T) {
	const size, grain = 64 << 10, 512
	before, after := bytes.Repeat([]byte("o"), size), bytes.Repeat([]byte("n"), size)
	seen := map[string]bool{}
	both, moved := 0, 0
	for _, seed := range []string{"1", "2", "3", "4", "5", "6", "7", "8", "8"} {
		d := fresh(t, "posix")
		f := stored(t, d.Path+"/a", string(before))
		other := stored(t, d.Path+"/b", "kept")
		put(t, f, string(after))
		must(t, os.Rename(other.Name(), d.Path+"/c"))
		cut(t, d, " --torn "+seed)
		got, err := os.ReadFile(d.Path + "/a")
		must(t, err)
		if len(got) != size {
			t.Fatalf("%d bytes of %d", len(got), size)
		}
		for p := range len(got) / grain {
			if piece := got[p*grain : (p+1)*grain]; !bytes.Equal(piece, before[:grain]) && !bytes.Equal(piece, after[:grain]) {
				t.Fatalf("piece %d is neither the old one nor the new one", p)
			}
		}
		if bytes.Contains(got, []byte("on")) && bytes.Contains(got, []byte("no")) {
			both++
		}
		_, gone := os.ReadFile(d.Path + "/b")
		b, err := os.ReadFile(d.Path + "/c")
		if (gone == nil) == (err == nil) {
			t.Errorf("a rename left both names, or none: %v, %v", gone, err)
		}
		if err == nil {
			moved++
			if string(b) != "kept" {
				t.Errorf("what was synced is %q", b)
			}
		}
		seen[string(got)] = true
		d.Close()
	}
	if len(seen) != 8 || both != 9 || moved == 0 || moved == 9 {
		t.Errorf("8 seeds, one of them twice: %d different files, %d of 9 of both, %d of 9 renamed", len(seen), both, moved)
	}
}

// A torn append may leave a part of it: what was synced before is whole.
func TestTornAppend(t *testing.T) {
	sizes := map[int64]bool{}
	for _, seed := range []string{"1", "2", "3", "4", "5", "6", "7", "8"} {
		d := fresh(t, "posix")
		f := stored(t, d.Path+"/a", strings.Repeat("o", 1000))
		_, err := f.WriteString(strings.Repeat("n", 9000))
		must(t, err)
		cut(t, d, " --torn "+seed)
		got, err := os.ReadFile(d.Path + "/a")
		must(t, err)
		if len(got) < 1000 || string(got[:1000]) != strings.Repeat("o", 1000) || len(got) > 10_000 {
			t.Errorf("seed %s: %d bytes, which begin with %.10q", seed, len(got), got)
		}
		sizes[int64(len(got))] = true
		d.Close()
	}
	if len(sizes) < 3 {
		t.Errorf("sizes %v", sizes)
	}
}

// A sync that fails drops what it should have kept: it is still read, the next sync
// succeeds, and a crash forgets it.
func TestFailedSyncDrops(t *testing.T) {
	d := fresh(t, "posix")
	f := stored(t, d.Path+"/a", "old")
	put(t, f, "new")
	do(t, d, "fail sync 2")
	must(t, f.Sync())
	put(t, f, "gone")
	fails(t, "the second sync", f.Sync(), syscall.EIO)
	must(t, f.Sync()) // and it is lost nevertheless
	holds(t, d, map[string]string{"a": "gone"})
	cut(t, d, "")
	holds(t, d, map[string]string{"a": "new\x00"})
	f, err := os.OpenFile(d.Path+"/a", os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	do(t, d, "fail sync 1 forever")
	fails(t, "a sync", f.Sync(), syscall.EIO)
	fails(t, "the next one", f.Sync(), syscall.EIO)
	do(t, d, "fail sync 0")
	must(t, f.Sync())
}

func TestFailedWrites(t *testing.T) {
	d := fresh(t, "posix")
	f := stored(t, d.Path+"/a", "old")
	do(t, d, "fail write 1")
	_, err := f.WriteAt([]byte("new"), 0)
	fails(t, "a write", err, syscall.EIO)
	put(t, f, "New")
	holds(t, d, map[string]string{"a": "New"})
}

func TestFull(t *testing.T) {
	d := fresh(t, "posix")
	f := create(t, d.Path+"/a", strings.Repeat("a", 4000))
	do(t, d, "full 5000")
	_, err := f.WriteString(strings.Repeat("a", 4000))
	fails(t, "a write", err, syscall.ENOSPC)
	fails(t, "fallocate", syscall.Fallocate(int(f.Fd()), 0, 0, 6000), syscall.ENOSPC)
	put(t, f, "b") // in place
	must(t, f.Sync())
	var s syscall.Statfs_t
	must(t, syscall.Statfs(d.Path, &s))
	if free := int64(s.Bfree) * int64(s.Bsize); free > 1000 {
		t.Errorf("%d bytes are free", free)
	}
	must(t, os.Remove(f.Name()))
	create(t, d.Path+"/b", strings.Repeat("b", 4000))
	do(t, d, "full 0")
	create(t, d.Path+"/c", strings.Repeat("c", 4000))
}

func TestReadOnly(t *testing.T) {
	d := fresh(t, "posix")
	f := stored(t, d.Path+"/a", "old")
	do(t, d, "readonly")
	_, err := f.WriteAt([]byte("new"), 0)
	fails(t, "a write", err, syscall.EROFS)
	_, err = os.Create(d.Path + "/b")
	fails(t, "a new file", err, syscall.EROFS)
	fails(t, "a rename", os.Rename(d.Path+"/a", d.Path+"/b"), syscall.EROFS)
	holds(t, d, map[string]string{"a": "old"})
	do(t, d, "readonly off")
	put(t, f, "new")
}

// A sync that is slow holds up what does not sync as little as it would elsewhere.
func TestSlowSync(t *testing.T) {
	d := fresh(t, "posix")
	f := stored(t, d.Path+"/a", "old")
	do(t, d, "slow sync 300ms")
	began := time.Now()
	done := make(chan error)
	go func() { done <- f.Sync() }()
	create(t, d.Path+"/b", "b")
	must(t, <-done)
	if took := time.Since(began); took < 300*time.Millisecond {
		t.Errorf("a sync took %s", took)
	}
}

// What hangs goes on, or fails with the crash.
func TestHang(t *testing.T) {
	d := fresh(t, "posix")
	f := stored(t, d.Path+"/a", "old")
	done := make(chan error)
	write := func() { _, err := f.WriteAt([]byte("new"), 0); done <- err }
	do(t, d, "hang")
	go write()
	select {
	case err := <-done:
		t.Fatal("it does not hang:", err)
	case <-time.After(50 * time.Millisecond):
	}
	do(t, d, "hang off")
	must(t, <-done)
	do(t, d, "hang")
	go write() // before the crash or after it: it fails
	do(t, d, "crash")
	fails(t, "a write", <-done, syscall.EIO)
}

func TestStats(t *testing.T) {
	d := fresh(t, "posix")
	stored(t, d.Path+"/a", "abc")
	create(t, d.Path+"/b", "abc")
	s, err := d.Stats()
	must(t, err)
	if s.Writes != 2 || s.Written != 6 || s.Syncs != 2 || s.DirSyncs != 1 || s.Bytes != 6 || s.Unsynced != 512 || s.Names != 1 || s.Crashed {
		t.Errorf("%+v", s)
	}
	for _, wrong := range []string{"", "what", "crash now", "crash --torn x", "fail sync", "fail all 1", "fail sync -1", "slow sync", "full", "full x", "hang on", "readonly on"} {
		if answer, err := d.Do(strings.Fields(wrong)...); err == nil {
			t.Errorf("%q: %q", wrong, answer)
		}
	}
}
