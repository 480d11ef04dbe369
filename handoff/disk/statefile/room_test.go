package statefile

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func size(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// TestReserve: the room grows, and shrinks when it is far too much; a Write goes into it,
// and leaves it if it fails.
func TestReserve(t *testing.T) {
	dir := t.TempDir()
	spare := filepath.Join(dir, Spare)
	for _, tc := range []struct{ need, want int64 }{{1, roomStep}, {3*roomStep + 1, 4 * roomStep}, {2 * roomStep, 4 * roomStep}, {40 * roomStep, 40 * roomStep}, {roomStep, roomStep}} {
		missing, err := Reserve(dir, tc.need)
		if errors.Is(err, errNoReserve) {
			t.Fatal("room cannot be set aside in the directory of the tests")
		}
		if missing != 0 || err != nil || size(t, spare) != tc.want {
			t.Errorf("for %d bytes: %d missing, %v, and %d are set aside, want %d", tc.need, missing, err, size(t, spare), tc.want)
		}
	}
	if missing, err := Reserve(dir, 1<<60); missing == 0 || err == nil || size(t, spare) != roomStep {
		t.Errorf("more than there is: %d missing, %v, %d set aside", missing, err, size(t, spare))
	}
	broken := errors.New("broken")
	if _, err := Write(dir, Header{Node: "n1"}, func(func([]byte) error) error { return broken }); !errors.Is(err, broken) || size(t, spare) != roomStep {
		t.Errorf("%v", err)
	}
	record := bytes.Repeat([]byte{7}, 100)
	write(t, dir, record)
	if got := names(t, dir); !slices.Equal(got, []string{Name}) || size(t, filepath.Join(dir, Name)) > 1000 {
		t.Errorf("there are %v, and the state has %d bytes", got, size(t, filepath.Join(dir, Name)))
	}
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Records(func(b []byte) error {
		if !bytes.Equal(b, record) {
			t.Errorf("the record is %x", b)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if err := errors.Join(s.Done(), Release(dir), Release(dir)); err != nil {
		t.Error(err)
	}
}

// TestPeek: whose state is there is read without a change, whatever is there.
func TestPeek(t *testing.T) {
	dir := t.TempDir()
	if _, found, err := Peek(dir); found || err != nil {
		t.Errorf("nothing: %v %v", found, err)
	}
	write(t, dir, []byte("r"))
	if h, found, err := Peek(dir); !found || err != nil || h.Node != "n1" || h.Cluster != "c" {
		t.Errorf("%+v %v %v", h, found, err)
	}
	path := filepath.Join(dir, Name)
	if err := os.Truncate(path, 30); err != nil {
		t.Fatal(err)
	}
	if _, found, err := Peek(dir); found || err != nil || size(t, path) != 30 {
		t.Errorf("a torn one: %v %v", found, err)
	}
}

// TestNewer: the file of a newer program is of no use here, and stays where it is.
func TestNewer(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, Name)
	if err := os.WriteFile(path, []byte(state.Word+"2\nwhatever"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := Open(dir); s != nil || !errors.Is(err, ErrNewer) || errors.Is(err, ErrDamaged) {
		t.Errorf("%v %v", s, err)
	}
	if got := names(t, dir); !slices.Equal(got, []string{Name}) {
		t.Errorf("there are %v", got)
	}
}
