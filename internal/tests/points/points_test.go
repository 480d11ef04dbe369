package points_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/keystead/keystead/internal/tests/points"
)

// root is that of this repository.
var root = filepath.Join("..", "..", "..")

// TestPointsAreListed compares the points that there are with the package comment
// and the page about clusters.
func TestPointsAreListed(t *testing.T) {
	t.Parallel()
	_, all, err := points.Overlay(root, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var there []string
	for _, p := range all {
		there = append(there, p.Name)
		if dir := filepath.Base(filepath.Dir(p.File)); !strings.HasPrefix(p.Name, dir) {
			t.Errorf("%s: the name of the point %s does not begin with that of its package", p.File, p.Name)
		}
	}
	text, err := os.ReadFile("points.go")
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for _, m := range regexp.MustCompile(`(?m)^//\t([a-z]+[A-Z]\w+)  *`).FindAllSubmatch(text, -1) {
		listed = append(listed, string(m[1]))
	}
	slices.Sort(there)
	slices.Sort(listed)
	page, err := os.ReadFile(filepath.Join(root, "docs", "cluster.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range there {
		if !bytes.Contains(page, []byte("`"+name+"`")) {
			t.Errorf("docs/cluster.md does not name %s", name)
		}
	}
	if !slices.Equal(there, listed) || len(there) == 0 {
		t.Errorf("there are the points\n%v\nand the package comment lists\n%v", there, listed)
	}
}

// TestOverlay replaces the files that have points, adds one to each package that has
// any, and leaves the work tree and all lines where they are.
func TestOverlay(t *testing.T) {
	t.Parallel()
	from, to := t.TempDir(), t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(from, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const text = "package other\n\nfunc f() int {\n\t// gofail: var dirDone int\n\t// return dirDone\n\n\treturn 1\n}\n"
	with := write("dir/with.go", text)
	write("dir/without.go", "package other\n\n// gofail is a word here.\n")
	write("dir/with_test.go", text)
	write("testdata/with.go", text)
	write(".hidden/with.go", text)
	overlay, found, err := points.Overlay(from, to)
	if err != nil || !slices.Equal(found, []points.Point{{Name: "dirDone", File: "dir/with.go"}}) {
		t.Fatalf("%v %v", found, err)
	}
	b, err := os.ReadFile(overlay)
	if err != nil {
		t.Fatal(err)
	}
	var o struct{ Replace map[string]string }
	if err := json.Unmarshal(b, &o); err != nil {
		t.Fatal(err)
	}
	added := filepath.Join(from, "dir", "points.fail.go")
	if got := slices.Sorted(maps.Keys(o.Replace)); !slices.Equal(got, []string{added, with}) {
		t.Fatalf("it replaces %v", got)
	}
	if b, err := os.ReadFile(o.Replace[added]); err != nil || !bytes.Contains(b, []byte("package other\n")) || !bytes.Contains(b, []byte(`NewFailpoint("dirDone")`)) {
		t.Errorf("%s %v", b, err)
	}
	if b, err := os.ReadFile(o.Replace[with]); err != nil || bytes.Count(b, []byte("\n")) != strings.Count(text, "\n") || !bytes.Contains(b, []byte("__fp_dirDone.Acquire()")) {
		t.Errorf("%s %v", b, err)
	}
	if b, err := os.ReadFile(with); err != nil || string(b) != text {
		t.Errorf("the work tree has changed: %s %v", b, err)
	}
	if _, err := os.Stat(added); err == nil {
		t.Error("the work tree has one more file")
	}
}

// TestMalformed has a comment that is no point refused.
func TestMalformed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.go"), []byte("package a\n\n// gofail: var x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := points.Overlay(dir, t.TempDir()); err == nil || !strings.Contains(err.Error(), "a.go: failpoint: malformed") {
		t.Error(err)
	}
}

// TestNoCost: without an overlay, the program knows nothing of gofail.
func TestNoCost(t *testing.T) {
	t.Parallel()
	list := exec.Command("go", "list", "-deps", "./cmd/keystead")
	list.Dir = root
	out, err := list.Output()
	if err != nil || !bytes.Contains(out, []byte("github.com/keystead/keystead/handoff\n")) || bytes.Contains(out, []byte("gofail")) {
		t.Errorf("%s %v", out, err)
	}
}
