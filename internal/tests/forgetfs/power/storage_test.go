package power

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/keystead/keystead/ring/epoch"
)

// A new storage of raft, the first entry of its log and a snapshot are kept when the calls
// return that should keep them: what raft removes from the log is in a snapshot only.
func TestStorageKept(t *testing.T) {
	t.Parallel()
	d := mounted(t, filepath.Join(t.TempDir(), "disk"))
	open := func() *epoch.Storage {
		s, err := epoch.OpenStorage(d.Path)
		must(t, err)
		return s
	}
	cut := func() {
		_, err := d.Do("crash")
		must(t, err)
		must(t, d.Remount())
	}
	s := open()
	must(t, s.Logs.StoreLog(&raft.Log{Index: 1, Term: 1, Data: []byte("first")}))
	cut()
	s = open()
	var entry raft.Log
	if err := s.Logs.GetLog(1, &entry); err != nil || string(entry.Data) != "first" {
		t.Fatalf("the entry is %q, %v", entry.Data, err)
	}
	for _, text := range []string{"one", "two", "three"} { // the oldest one is removed
		w, err := s.Snapshots.Create(raft.SnapshotVersionMax, 1, 1, raft.Configuration{}, 1, nil)
		must(t, err)
		_, err = io.WriteString(w, text)
		must(t, err)
		must(t, w.Close())
		cut()
		s = open()
		list, err := s.Snapshots.List()
		must(t, err)
		if len(list) == 0 {
			names, _ := filepath.Glob(filepath.Join(d.Path, "raft", "snapshots", "*", "*"))
			t.Fatalf("there is no snapshot after %q; the directory has %q", text, names)
		}
		_, r, err := s.Snapshots.Open(list[0].ID)
		must(t, err)
		got, err := io.ReadAll(r)
		must(t, err)
		if string(got) != text {
			t.Errorf("the newest snapshot holds %q, want %q", got, text)
		}
		_ = r.Close()
	}
	if _, err := os.Stat(filepath.Join(d.Path, "raft", "log.db")); err != nil {
		t.Error(err)
	}
}
