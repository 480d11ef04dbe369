package durably

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestReplace: the file has what it was given last, and nothing is left beside it. Whether it outlives
// a power cut is what internal/tests/forgetfs tests.
func TestReplace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	for _, text := range []string{"one", "a longer one", ""} {
		if err := Replace(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != text {
			t.Errorf("it has %q, %v, want %q", b, err, text)
		}
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("there are %v, %v", entries, err)
	}
}

// TestNowhere: a directory that is missing is an error.
func TestNowhere(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "missing")
	for _, err := range []error{Names(dir), Replace(filepath.Join(dir, "f"), nil)} {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the error is %v", err)
		}
	}
}
