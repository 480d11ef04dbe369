package epoch

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A log that cannot be read is not opened, and the error names the way out, however the
// file was damaged.
func TestDamagedLog(t *testing.T) {
	whole := t.TempDir()
	s, err := OpenStorage(whole)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Identity("c", "n1"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile(filepath.Join(whole, Directory, "log.db"))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"noise":      bytes.Repeat([]byte{0xa5}, 64<<10),
		"a page":     bytes.Repeat([]byte{0xa5}, 4<<10),
		"a sector":   bytes.Repeat([]byte{0xa5}, 512),
		"first page": log[:4<<10],
		"zeros":      make([]byte, len(log)),
	} {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, Directory), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, Directory, "log.db"), content, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := OpenStorage(dir)
		if err == nil {
			_ = s.Close()
			t.Errorf("%s: it was opened", name)
			continue
		}
		if !strings.Contains(err.Error(), "it is damaged") || !strings.Contains(err.Error(), "start with --join") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
