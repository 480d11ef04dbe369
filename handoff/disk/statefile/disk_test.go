package statefile

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func write(t testing.TB, dir string, records ...[]byte) {
	t.Helper()
	n, err := Write(dir, Header{Cluster: "c", UID: "u", Node: "n1", Incarnation: 7, Next: 8, Epoch: 9}, func(put func([]byte) error) error {
		for _, r := range records {
			if err := put(r); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || n != int64(len(records)) {
		t.Fatalf("%d records, %v", n, err)
	}
}

func names(t *testing.T, dir string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// TestOnce: what was written is read back whole, until somebody acts by it.
func TestOnce(t *testing.T) {
	dir := t.TempDir()
	var records [][]byte
	for i := range 30_000 {
		records = append(records, bytes.Repeat([]byte{byte(i)}, i%200))
	}
	write(t, dir, records...)
	died, err := Open(dir)
	if err != nil || died.Close() != nil {
		t.Fatal(err)
	}
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if h := (Header{Cluster: "c", UID: "u", Node: "n1", Incarnation: 7, Next: 8, Epoch: 9}); s.Header != h {
		t.Errorf("the header is %+v", s.Header)
	}
	i := 0
	err = s.Records(func(r []byte) error {
		if !bytes.Equal(r, records[i]) {
			return fmt.Errorf("record %d is %x", i, r)
		}
		i++
		return nil
	})
	if err != nil || i != len(records) {
		t.Errorf("%d records, %v", i, err)
	}
	if err := s.Done(); err != nil {
		t.Error(err)
	}
	if left := names(t, dir); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if again, err := Open(dir); again != nil || err != nil {
		t.Errorf("found again: %v %v", again, err)
	}
}

// TestWriterFails: a state that could not be written whole leaves nothing, and
// does not touch the one that is there.
func TestWriterFails(t *testing.T) {
	dir, why := t.TempDir(), errors.New("no")
	write(t, dir, []byte("old"))
	_, err := Write(dir, Header{}, func(put func([]byte) error) error { return errors.Join(put([]byte("x")), why) })
	if !errors.Is(err, why) {
		t.Errorf("the error is %v", err)
	}
	if left := names(t, dir); !slices.Equal(left, []string{Name}) {
		t.Errorf("left: %v", left)
	}
	if _, err := Write(dir, Header{}, func(put func([]byte) error) error { return put(make([]byte, MaxRecord+1)) }); err == nil {
		t.Error("a record that is too large was written")
	}
}

// TestLargestRecord: one that is as large as may be, behind others in its block.
func TestLargestRecord(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, make([]byte, blockSize-10), make([]byte, MaxRecord), []byte("x"))
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	sizes := []int{}
	if err := s.Records(func(r []byte) error { sizes = append(sizes, len(r)); return nil }); err != nil || !slices.Equal(sizes, []int{blockSize - 10, MaxRecord, 1}) {
		t.Errorf("%v, %v", sizes, err)
	}
	if err := s.Done(); err != nil {
		t.Error(err)
	}
}

// TestDamage changes each byte of a file in turn, and cuts it at each length: it
// is never taken for whole, and is kept aside.
func TestDamage(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, []byte("one"), []byte("two"), nil)
	whole, err := os.ReadFile(filepath.Join(dir, Name))
	if err != nil {
		t.Fatal(err)
	}
	try := func(what string, b []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, Name), b, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(dir)
		if !errors.Is(err, ErrDamaged) || s != nil {
			t.Fatalf("%s: %v", what, err)
		}
		kept, err := os.ReadFile(filepath.Join(dir, Refused))
		if err != nil || !bytes.Equal(kept, b) {
			t.Fatalf("%s: kept %d of %d bytes, %v", what, len(kept), len(b), err)
		}
	}
	for i := range whole {
		b := bytes.Clone(whole)
		b[i] ^= 0x10
		try(fmt.Sprintf("byte %d changed", i), b)
		try(fmt.Sprintf("cut at %d", i), whole[:i])
	}
	try("longer", append(bytes.Clone(whole), 0))
}

// TestGolden reads a file of version 1.
func TestGolden(t *testing.T) {
	dir := t.TempDir()
	golden, err := os.ReadFile("testdata/version1")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, Name), golden, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	if err := s.Records(func(r []byte) error { got = append(got, string(r)); return nil }); err != nil || !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("%q, %v", got, err)
	}
	write(t, dir, []byte("one"), []byte("two"))
	if again, err := os.ReadFile(filepath.Join(dir, Name)); err != nil || !bytes.Equal(again, golden) {
		t.Errorf("it is written as %q now, %v", again, err)
	}
	if err := s.Refuse(); err != nil {
		t.Error(err)
	}
	if left := names(t, dir); !slices.Equal(left, []string{Refused}) {
		t.Errorf("left: %v", left)
	}
}

func FuzzOpen(f *testing.F) {
	dir := f.TempDir()
	write(f, dir, []byte("one"), bytes.Repeat([]byte("x"), 500))
	b, err := os.ReadFile(filepath.Join(dir, Name))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte("keystead state 3\n")) // of a newer program
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, Name), b, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(dir)
		if err != nil {
			if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNewer) {
				t.Fatal(err)
			}
			return
		}
		if err := errors.Join(s.Records(func([]byte) error { return nil }), s.Done()); err != nil {
			t.Fatal(err)
		}
	})
}
