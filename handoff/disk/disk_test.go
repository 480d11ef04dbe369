package disk

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

func mustOpen(t testing.TB, fs vfs.FS, dir string) *Store {
	t.Helper()
	s, err := Open(dir, Options{FS: fs})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func mustClose(t testing.TB, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func mustCommit(t testing.TB, s *Store, b *Batch, sync bool) {
	t.Helper()
	if err := s.Commit(b, sync); err != nil {
		t.Fatal(err)
	}
}

func value(v string) []byte { return append(make([]byte, 8), v...) }

// content is all that a store holds, as text by key of the engine, and in its order.
func content(s *Store) (m map[string]string, order []string, err error) {
	m = map[string]string{}
	put := func(k, v string) {
		m[k] = v
		order = append(order, k)
	}
	if h, ok := s.Head(); ok {
		put("head", fmt.Sprintf("%+v", h))
	}
	err = s.Objects(func(hash uint64, key, name, value []byte) error {
		put(fmt.Sprintf("o %d %q %q", hash, key, name), string(value))
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	i := 0
	err = s.Entries(0, func(clock int64, entry []byte) error {
		put(fmt.Sprintf("i %d", i), fmt.Sprintf("%d %s", clock, entry))
		i++
		return nil
	})
	return m, order, err
}

func mustContent(t testing.TB, s *Store) map[string]string {
	t.Helper()
	m, _, err := content(s)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestComesBack: what is committed is there, in order, before and after the store is opened again.
func TestComesBack(t *testing.T) {
	for name, fs := range map[string]vfs.FS{"mem": vfs.NewMem(), "disk": vfs.Default} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir() + "/data/disk"
			s := mustOpen(t, fs, dir)
			if _, ok := s.Head(); ok {
				t.Error("a new store has a head")
			}
			b := s.NewBatch()
			for _, hash := range []uint64{5, 0, math.MaxUint64, 7} {
				b.Put(hash, []byte("a"), []byte("x"), value("1"))
				b.Put(hash, []byte("a"), nil, value("2"))
				b.Put(hash, []byte("ax"), nil, value("3"))
			}
			b.Delete(7, []byte("ax"), nil)
			b.SetHead(Head{Node: "n1", Epoch: 3, Clock: 44, Round: 1})
			mustCommit(t, s, b, true)
			for i := range 3 {
				b := s.NewBatch()
				b.Log(25*Bucket, fmt.Append(nil, "later", i))
				b.Log(3*Bucket+5, fmt.Append(nil, "sooner", i))
				mustCommit(t, s, b, i == 2)
			}
			want := []string{"head"}
			for _, hash := range []uint64{0, 5, 7, math.MaxUint64} {
				want = append(want, fmt.Sprintf(`o %d "a" ""`, hash), fmt.Sprintf(`o %d "a" "x"`, hash))
				if hash != 7 {
					want = append(want, fmt.Sprintf(`o %d "ax" ""`, hash))
				}
			}
			for i := range 6 {
				want = append(want, fmt.Sprint("i ", i))
			}
			for i := range 3 {
				m, order, err := content(s)
				if err != nil || !slices.Equal(order, want) {
					t.Fatalf("opened %d times: %v, not %v; %v", i, order, want, err)
				}
				if m["head"] != fmt.Sprintf("%+v", Head{Node: "n1", Epoch: 3, Clock: 44, Round: 1}) ||
					m[`o 5 "a" "x"`] != string(value("1")) || m["i 0"] != "30000000005 sooner0" || m["i 5"] != "250000000000 later2" {
					t.Errorf("opened %d times: %v", i, m)
				}
				if r, err := s.Verify(context.Background(), nil); err != nil || r.Objects != 11 || r.Entries != 6 || r.Head == nil {
					t.Errorf("verified: %+v, %v", r, err)
				}
				mustClose(t, s)
				s = mustOpen(t, fs, dir)
			}
		})
	}
}

// TestEntries: entries are given from a moment on, dropped by ten seconds, and those of a
// new process do not replace any.
func TestEntries(t *testing.T) {
	fs := vfs.NewMem()
	s := mustOpen(t, fs, "d")
	var want []string
	for i := range 5 {
		b := s.NewBatch()
		for j := range 3 {
			b.Log(int64(i)*Bucket/2+int64(j), fmt.Appendf(nil, "%d.%d", i, j))
			want = append(want, fmt.Sprintf("%d.%d", i, j))
		}
		mustCommit(t, s, b, false)
		mustClose(t, s)
		s = mustOpen(t, fs, "d")
	}
	list := func(since int64) (got []string) {
		t.Helper()
		if err := s.Entries(since, func(_ int64, e []byte) error { got = append(got, string(e)); return nil }); err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := list(0); !slices.Equal(got, want) {
		t.Errorf("%v, not %v", got, want)
	}
	if got := list(Bucket/2 + 2); !slices.Equal(got, want[5:]) {
		t.Errorf("from a moment on: %v", got)
	}
	for _, c := range []struct {
		before int64
		left   int
	}{{Bucket - 1, 0}, {Bucket, 6}, {2*Bucket - 1, 6}, {2 * Bucket, 12}} {
		b := s.NewBatch()
		b.DropLog(c.before)
		mustCommit(t, s, b, false)
		if got := list(0); !slices.Equal(got, want[c.left:]) {
			t.Errorf("dropped before %d: %v", c.before, got)
		}
	}
	// Two batches that are committed in the other order than they were begun.
	first, second := s.NewBatch(), s.NewBatch()
	first.Log(9*Bucket, []byte("first"))
	second.Log(9*Bucket, []byte("second"))
	mustCommit(t, s, second, false)
	mustCommit(t, s, first, false)
	mustClose(t, s)
	s = mustOpen(t, fs, "d")
	b := s.NewBatch()
	b.Log(9*Bucket, []byte("third"))
	mustCommit(t, s, b, false)
	if got := list(9 * Bucket); !slices.Equal(got, []string{"first", "second", "third"}) {
		t.Errorf("%v", got)
	}
}

// TestDeleteRange: the range has its end and not its begin, and goes around.
func TestDeleteRange(t *testing.T) {
	const end = math.MaxUint64
	all := []uint64{0, 1, 2, 10, end - 1, end}
	rows := [][2]uint64{{0, 1}, {1, 10}, {10, 1}, {end, 0}, {end, 2}, {2, end}, {end - 1, end}, {end - 1, 0}, {5, 5}, {0, 0}, {end, end}, {0, end}}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		rows = append(rows, [2]uint64{all[rnd.IntN(len(all))], all[rnd.IntN(len(all))]})
	}
	s := mustOpen(t, vfs.NewMem(), "d")
	for _, r := range rows {
		b := s.NewBatch()
		b.SetHead(Head{Node: "n"})
		b.Log(1, []byte("entry"))
		for _, hash := range all {
			b.Put(hash, []byte("k"), nil, value(""))
		}
		mustCommit(t, s, b, false)
		b = s.NewBatch()
		b.Put(2, []byte("before"), nil, value(""))
		b.DeleteRange(r[0], r[1])
		b.Put(2, []byte("after"), nil, value(""))
		mustCommit(t, s, b, false)
		want := map[string]bool{`o 2 "after" ""`: true}
		holds := func(h uint64) bool { return h-r[0]-1 < r[1]-r[0] || r[0] == r[1] }
		for _, hash := range all {
			want[fmt.Sprintf(`o %d "k" ""`, hash)] = !holds(hash)
		}
		want[`o 2 "before" ""`] = !holds(2)
		got := mustContent(t, s)
		if _, ok := got["head"]; !ok || got["i 0"] == "" {
			t.Errorf("%v: the head or the log is gone", r)
		}
		for k, there := range want {
			if _, ok := got[k]; ok != there {
				t.Errorf("(%d, %d]: %s is there: %v", r[0], r[1], k, ok)
			}
		}
		b = s.NewBatch()
		b.DeleteRange(0, 0)
		mustCommit(t, s, b, false)
	}
}

// TestRefused: what a store does not take, it says, and goes on.
func TestRefused(t *testing.T) {
	fs := vfs.NewMem()
	s := mustOpen(t, fs, "d")
	if _, err := Open("d", Options{FS: fs}); !errors.Is(err, ErrInUse) {
		t.Errorf("opened twice: %v", err)
	}
	b := s.NewBatch()
	b.Put(1, make([]byte, MaxKey+1), nil, nil)
	if s.Commit(b, true) == nil {
		t.Error("a key that is too long is taken")
	}
	s.maxBatch = 8 << 20
	b = s.NewBatch()
	for range 9 {
		b.Put(1, []byte("k"), nil, make([]byte, s.maxBatch/8))
	}
	if s.Commit(b, true) == nil || b.Size() > s.maxBatch {
		t.Error("a batch that is too large is taken")
	}
	b = s.NewBatch()
	b.Put(1, []byte("k"), nil, value("v"))
	mustCommit(t, s, b, true)
	if s.Commit(b, true) == nil {
		t.Error("a batch is taken twice")
	}
	if mustOpen(t, fs, "another").Commit(s.NewBatch(), true) == nil {
		t.Error("a batch of another store is taken")
	}
	mustCommit(t, s, s.NewBatch(), true)
	mustCommit(t, s, s.NewBatch(), false)
	stop := errors.New("enough")
	if err := s.Objects(func(uint64, []byte, []byte, []byte) error { return stop }); err != stop {
		t.Errorf("stopped by %v", err)
	}
	mustClose(t, s)
	mustClose(t, s)
	if err := s.Commit(s.NewBatch(), true); err != ErrClosed {
		t.Errorf("committed to a closed store: %v", err)
	}
	if err := s.Objects(nil); err != ErrClosed {
		t.Errorf("read from a closed store: %v", err)
	}
}

// TestReader: a reader changes nothing.
func TestReader(t *testing.T) {
	fs := vfs.NewCrashableMem()
	if _, err := Open("d", Options{FS: fs, Reader: true}); err == nil {
		t.Fatal("a store that is not there is read")
	}
	s := mustOpen(t, fs, "d")
	b := s.NewBatch()
	b.Put(1, []byte("k"), nil, value("v"))
	b.SetHead(Head{Node: "n"})
	mustCommit(t, s, b, true)
	want := mustContent(t, s)
	died := fs.CrashClone(vfs.CrashCloneCfg{})
	mustClose(t, s)
	for name, fs := range map[string]*vfs.MemFS{"closed": fs, "died": died} {
		before := files(t, fs, "d")
		r, err := Open("d", Options{FS: fs, Reader: true})
		if err != nil {
			t.Fatal(name, err)
		}
		if got := mustContent(t, r); !maps.Equal(got, want) {
			t.Errorf("%s: %v, not %v", name, got, want)
		}
		if report, err := r.Verify(context.Background(), nil); err != nil || report.Objects != 1 {
			t.Errorf("%s: %+v, %v", name, report, err)
		}
		if err := r.Commit(r.NewBatch(), true); err != ErrReader {
			t.Errorf("%s: a reader commits: %v", name, err)
		}
		mustClose(t, r)
		if after := files(t, fs, "d"); !maps.Equal(before, after) {
			t.Errorf("%s: the reader has changed the directory: %v", name, slices.Sorted(maps.Keys(after)))
		}
	}
}

// files is what a directory holds, by name.
func files(t testing.TB, fs vfs.FS, dir string) map[string]string {
	t.Helper()
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]string{}
	for _, n := range names {
		f, err := fs.Open(fs.PathJoin(dir, n))
		if err != nil {
			t.Fatal(err)
		}
		i, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, i.Size())
		if i.Size() > 0 {
			if _, err := f.ReadAt(b, 0); err != nil {
				t.Fatal(n, err)
			}
		}
		_ = f.Close()
		m[n] = string(b)
	}
	return m
}
