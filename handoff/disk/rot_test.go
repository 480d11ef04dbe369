package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// churn commits until the store fails.
func churn(t *testing.T, s *Store, w *work) error {
	t.Helper()
	for range 20_000 {
		b := s.NewBatch()
		w.next(b)
		if err := s.Commit(b, false); err != nil {
			return err
		}
		w.states[len(w.states)-2] = nil // not needed any more
	}
	return nil
}

// begun is a store on mem with tables on several levels, that has not read them back yet.
func begun(t *testing.T, mem vfs.FS, w *work) *Store {
	t.Helper()
	s, err := Open("d", Options{FS: mem, tune: small})
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		b := s.NewBatch()
		w.next(b)
		mustCommit(t, s, b, false)
	}
	mustClose(t, s)
	if s, err = Open("d", Options{FS: mem, tune: small}); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestRotsWhileOpen: a table that changes or goes under a store that is open fails it, when that is merged or
// read. The process goes on, and nothing hangs.
func TestRotsWhileOpen(t *testing.T) {
	defer noLeak(t)
	for name, spoil := range map[string]func(*vfs.MemFS, string) error{
		"changed": func(m *vfs.MemFS, name string) error {
			f, err := m.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
			if err != nil {
				return err
			}
			i, err := f.Stat()
			if err != nil {
				return err
			}
			for off := int64(40); off < i.Size(); off += 512 {
				if _, err := f.WriteAt([]byte("rotten"), off); err != nil {
					return err
				}
			}
			return f.Close()
		},
		"gone": nil,
	} {
		mem, w := vfs.NewMem(), newWork(9)
		var lost errorfs.Toggle
		lost.Injector = errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind == errorfs.OpOpen && strings.HasSuffix(op.Path, ".sst") {
				return fs.ErrNotExist // the engine ends the process then
			}
			return nil
		})
		s := begun(t, errorfs.Wrap(mem, &lost), w)
		names, err := mem.List("d")
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, f := range names {
			if strings.HasSuffix(f, ".sst") && spoil != nil {
				if err := spoil(mem, "d/"+f); err != nil {
					t.Logf("%s: %v", f, err) // it was merged meanwhile
				}
				n++
			}
		}
		if spoil == nil {
			lost.On()
		} else if n == 0 {
			t.Fatal("there are no tables")
		}
		within(t, name, func() {
			err := churn(t, s, w)
			if !errors.Is(err, ErrFailed) {
				t.Errorf("%s: %v", name, err)
			}
			if name == "changed" && !errors.Is(err, ErrDamaged) {
				t.Errorf("%s: %v", name, err)
			}
			if err := s.Objects(func(uint64, []byte, []byte, []byte) error { return nil }); !errors.Is(err, ErrFailed) {
				t.Errorf("%s: read: %v", name, err)
			}
			if err := s.Close(); !errors.Is(err, ErrFailed) {
				t.Errorf("%s: closed: %v", name, err)
			}
		})
	}
}

// TestDirectoryGoes: a directory that is removed under a store fails it, at the latest with the next file.
func TestDirectoryGoes(t *testing.T) {
	defer noLeak(t)
	dir := t.TempDir() + "/disk"
	s, err := Open(dir, Options{tune: small})
	if err != nil {
		t.Fatal(err)
	}
	if err := vfs.Default.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	within(t, "churn", func() {
		if err := churn(t, s, newWork(3)); !errors.Is(err, ErrFailed) {
			t.Errorf("%v", err)
		}
		if err := s.Close(); !errors.Is(err, ErrFailed) {
			t.Errorf("closed: %v", err)
		}
	})
	mustClose(t, mustOpen(t, nil, dir))
}

// TestFigures: what was given and written is counted.
func TestFigures(t *testing.T) {
	s := mustOpen(t, vfs.NewMem(), "d")
	for i := range 100 {
		b := s.NewBatch()
		b.Put(uint64(i), []byte("k"), nil, value(fmt.Sprint(i)))
		mustCommit(t, s, b, i%10 == 0)
	}
	st := s.Stats()
	if st.Syncs.Count < 10 || st.Given < 100*20 || st.ToLog < st.Given-100*12 || st.LogBytes < 1000 || st.Amplification() < 0.5 || st.Memory == 0 {
		t.Errorf("%+v, amplification %.1f", st, st.Amplification())
	}
	mustClose(t, s)
	if after := s.Stats(); after.Given != st.Given || after.ToTables == 0 {
		t.Errorf("closed: %+v", after)
	}
	s = mustOpen(t, s.gate.FS, "d")
	if st := s.Stats(); st.Tables != 1 || st.DiskBytes < 500 {
		t.Errorf("opened again: %+v", st)
	}
	until(t, "nobody counts the keys", func() bool { return s.Stats().Keys >= 100 })
}

// roomy notes for how much room it is asked.
type roomy struct {
	nothing
	n int64
}

func (r *roomy) Preallocate(_, n int64) error { r.n += n; return nil }

// TestLittleRoom: an empty store does not occupy the room of full logs.
func TestLittleRoom(t *testing.T) {
	r := &roomy{}
	f := newGate(vfs.NewMem(), "d", false).file(r, logs, nil)
	if err := f.Preallocate(0, 100<<20); err != nil || r.n == 0 || r.n > maxPreallocate {
		t.Errorf("asked for %d bytes: %v", r.n, err)
	}
}
