//go:build system

package cluster

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestDisk: a disk that is full takes nothing, one that hangs takes it when it goes on.
func TestDisk(t *testing.T) {
	dir := t.TempDir()
	d, err := newDisk(filepath.Join(dir, "image"), filepath.Join(dir, "disk"))
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	write := func() error {
		f, err := os.Create(filepath.Join(d.mount, "file"))
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.Write(make([]byte, 4096))
		return errors.Join(err, f.Sync())
	}
	if err := write(); err != nil {
		t.Fatal(err)
	}
	if err := d.fill(true); err != nil {
		t.Fatal(err)
	}
	if f, err := os.Create(filepath.Join(d.mount, "more")); err == nil {
		if _, err = f.Write(make([]byte, 64<<10)); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("a full disk takes more: %v", err)
		}
		_ = f.Close()
	} else if !errors.Is(err, syscall.ENOSPC) {
		t.Error(err)
	}
	if err := errors.Join(d.fill(false), write(), d.hang(true)); err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() { written <- write() }()
	select {
	case err := <-written:
		t.Errorf("written while the disk hangs: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	if err := d.hang(false); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-written:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("not written when the disk goes on")
	}
}
