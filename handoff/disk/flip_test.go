package disk

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// lay writes files into a new file system.
func lay(t testing.TB, m map[string]string, dir string) *vfs.MemFS {
	t.Helper()
	fs := vfs.NewMem()
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, b := range m {
		f, err := fs.Create(fs.PathJoin(dir, name), vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		if len(b) > 0 {
			if _, err := f.Write([]byte(b)); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return fs
}

// few makes a store with a table and, if it has died, a log. It returns its files and its content.
func few(t testing.TB, clean bool) (m, want map[string]string) {
	t.Helper()
	fs := vfs.NewCrashableMem()
	s := mustOpen(t, fs, "d")
	for i := range 6 {
		if i == 3 {
			mustClose(t, s)
			s = mustOpen(t, fs, "d")
		}
		b := s.NewBatch()
		b.Put(uint64(i)<<60, []byte("key"), []byte("name"), value(fmt.Sprint("value ", i)))
		b.Put(42, []byte("same"), nil, value(fmt.Sprint("value ", i)))
		b.Log(int64(i)*Bucket, fmt.Append(nil, "entry ", i))
		b.SetHead(Head{Node: "n1", Cluster: "c", UID: "u", Epoch: 5, Round: uint64(i)})
		mustCommit(t, s, b, true)
	}
	want = mustContent(t, s)
	died := fs.CrashClone(vfs.CrashCloneCfg{})
	for k, v := range files(t, fs, "d") {
		if k == promiseName { // the process is killed, the machine goes on
			f, err := died.OpenReadWrite("d/"+k, vfs.WriteCategoryUnspecified)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt([]byte(v), 0); err != nil || f.Close() != nil {
				t.Fatal(err)
			}
		}
	}
	mustClose(t, s)
	if clean {
		return files(t, fs, "d"), want
	}
	return files(t, died, "d"), want
}

// wholeOrDamaged opens a store of these files, and fails if it neither holds what is wanted nor is damaged. It
// returns whether it is.
func wholeOrDamaged(t *testing.T, m, want map[string]string, reader bool, what string) (damaged bool) {
	t.Helper()
	fs, times := lay(t, m, "d"), 2
	if reader {
		times = 1
	}
	for range times {
		s, err := Open("d", Options{FS: fs, Reader: reader})
		if err != nil {
			if !errors.Is(err, ErrDamaged) {
				t.Errorf("%s: %v", what, err)
			}
			return true
		}
		got, _, err := content(s)
		_, verr := s.Verify(context.Background(), nil)
		if err == nil && !maps.Equal(got, want) {
			t.Errorf("%s: it holds %v", what, got)
		}
		if err = errors.Join(err, verr, s.Close()); err != nil {
			if !errors.Is(err, ErrDamaged) {
				t.Errorf("%s: %v", what, err)
			}
			return true
		}
	}
	return false
}

// TestFlips: whichever bit of a store changes, it holds what it held or is damaged.
func TestFlips(t *testing.T) {
	for _, clean := range []bool{true, false} {
		m, want := few(t, clean)
		if wholeOrDamaged(t, m, want, false, "nothing has changed") {
			t.Fatalf("clean: %v: a store of which nothing has changed is damaged", clean)
		}
		for _, name := range slices.Sorted(maps.Keys(m)) {
			noticed, step := 0, 1
			if kind := name[:3]; kind == "OPT" || name == promiseName {
				step = 9 // long, and hardly anything of them counts
			}
			for i := 0; i < len(m[name]); i += step {
				b := []byte(m[name])
				b[i] ^= 1 << (i % 8)
				flipped := maps.Clone(m)
				flipped[name] = string(b)
				within(t, fmt.Sprint(name, i), func() {
					if wholeOrDamaged(t, flipped, want, i%4 != 0, fmt.Sprintf("clean: %v: byte %d of %s", clean, i, name)) {
						noticed++
					}
				})
			}
			t.Logf("clean: %v: %s: %d bytes, %d flips are noticed", clean, name, len(m[name]), noticed)
		}
	}
}

// TestMissing: a store of which a file is missing or cut is damaged, or holds what it held.
func TestMissing(t *testing.T) {
	for _, clean := range []bool{true, false} {
		m, want := few(t, clean)
		for name, b := range m {
			less := maps.Clone(m)
			delete(less, name)
			wholeOrDamaged(t, less, want, false, fmt.Sprintf("clean: %v: without %s", clean, name))
			if name == promiseName {
				continue // the log is cut below
			}
			less[name] = b[:len(b)/2]
			wholeOrDamaged(t, less, want, false, fmt.Sprintf("clean: %v: half of %s", clean, name))
		}
	}
}
