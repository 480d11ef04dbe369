package forget

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// program is forgetfs, as it is built.
var program string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "forgetfs-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := 1
	if program, err = Build(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		code = m.Run()
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// fresh mounts an empty disk.
func fresh(t *testing.T, names string) *Disk {
	t.Helper()
	if _, err := os.Stat(Device); err != nil {
		t.Fatalf("there is no %s: the tests of what a power cut leaves need it, and root", Device)
	}
	d, err := New(program, filepath.Join(t.TempDir(), "disk"), names)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

func do(t *testing.T, d *Disk, command string) string {
	t.Helper()
	answer, err := d.Do(strings.Fields(command)...)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// cut cuts the power and mounts what is left.
func cut(t *testing.T, d *Disk, how string) {
	t.Helper()
	do(t, d, "crash"+how)
	if err := d.Remount(); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// create writes a new file and leaves it open.
func create(t *testing.T, path, text string) *os.File {
	t.Helper()
	f, err := os.Create(path)
	must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	_, err = f.WriteString(text)
	must(t, err)
	return f
}

func syncDir(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	must(t, f.Sync())
	must(t, f.Close())
}

// stored makes a file of which all is kept.
func stored(t *testing.T, path, text string) *os.File {
	t.Helper()
	f := create(t, path, text)
	must(t, f.Sync())
	syncDir(t, filepath.Dir(path))
	return f
}

// holds checks what all files hold, by their path in the disk.
func holds(t *testing.T, d *Disk, want map[string]string) {
	t.Helper()
	got := map[string]string{}
	must(t, filepath.WalkDir(d.Path, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		got[strings.TrimPrefix(path, d.Path+"/")] = string(b)
		return err
	}))
	for name, text := range want {
		if is, ok := got[name]; !ok || is != text {
			t.Errorf("%s is %.40q, %v; want %.40q", name, is, ok, text)
		}
		delete(got, name)
	}
	if len(got) > 0 {
		t.Errorf("there is also %.200q", fmt.Sprint(got))
	}
}

func fails(t *testing.T, what string, err error, want syscall.Errno) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}
