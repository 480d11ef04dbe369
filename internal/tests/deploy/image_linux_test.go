//go:build system

package deploy

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// maxImage is what the program may take in an image, in bytes, so that nothing large comes in
// unseen. It took 25 million with three kinds of objects, 43 million with nine, their
// messages and the time zones (0.4 million), and takes 53 million with the engine of the store
// on disk.
const maxImage = 56 << 20

// build runs the build command of the Dockerfile for this machine.
func build(t *testing.T) string {
	t.Helper()
	m := theImage(t)
	if m.Build == "" {
		t.Fatal("the Dockerfile builds nothing")
	}
	to := filepath.Join(t.TempDir(), "keystead")
	cmd := exec.Command("sh", "-c", strings.Replace(m.Build, m.Binary, to, 1))
	cmd.Dir = top
	cmd.Env = append(os.Environ(), "TARGETOS="+runtime.GOOS, "TARGETARCH="+runtime.GOARCH, "VERSION=of-the-tests")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", m.Build, err, out)
	}
	return to
}

// TestImage: the program is static and small, says its version, and all that it is
// built from goes to the builder.
func TestImage(t *testing.T) {
	t.Parallel()
	static := build(t)
	f, err := elf.Open(static)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	libs, err := f.ImportedLibraries()
	if len(libs) > 0 || f.Section(".interp") != nil {
		t.Errorf("it needs %v, %v", libs, err)
	}
	info, err := os.Stat(static)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes", info.Size())
	if info.Size() > maxImage {
		t.Errorf("it has %d bytes, more than %d", info.Size(), maxImage)
	}
	if got, err := exec.Command(static, "--version").CombinedOutput(); err != nil || !strings.Contains(string(got), "of-the-tests") {
		t.Errorf("--version: %q, %v", got, err)
	}
	list := exec.Command("go", "list", "-deps", "-f", `{{if not .Standard}}{{with .Module}}{{if .Main}}{{$.Dir}} {{$.EmbedFiles}}{{end}}{{end}}{{end}}`, "./cmd/keystead")
	list.Dir = top
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs(top)
	if err != nil {
		t.Fatal(err)
	}
	ignore, n := readFile(t, ".dockerignore"), 0
	for line := range strings.Lines(string(out)) {
		dir, embeds, _ := strings.Cut(strings.TrimSpace(line), " ")
		rel, err := filepath.Rel(root, dir)
		if err != nil {
			t.Fatal(err)
		}
		first, _, _ := strings.Cut(rel, "/")
		if !strings.Contains(ignore, "\n!"+first+"\n") || strings.Contains(embeds, "testdata") {
			t.Errorf(".dockerignore keeps %s from the builder (embeds %s)", rel, embeds)
		}
		n++
	}
	if n < 10 {
		t.Errorf("%d packages", n)
	}
}
