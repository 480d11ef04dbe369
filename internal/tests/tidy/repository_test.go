package tidy

import (
	"os"
	"path/filepath"
	"testing"
)

// top is the repository, seen from this package.
const top = "../../.."

// TestRepository holds this repository to its rules.
func TestRepository(t *testing.T) {
	tree, err := Load(os.DirFS(top))
	if err != nil {
		t.Fatal(err)
	}
	if len(tree.Go) < 5 {
		t.Fatalf("%d Go files: this is not the repository", len(tree.Go))
	}
	var found []Finding
	for _, rule := range []func(*Tree) []Finding{Proto, Generated, Clock, Docs, Sizes, Sleeps, Formatted, Words, Skips, Names} {
		found = append(found, rule(tree)...)
	}
	for _, rule := range []func(*Tree) ([]Finding, error){Links, Prose} {
		of, err := rule(tree)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, of...)
	}

	list, err := os.ReadFile("exceptions.txt")
	if err != nil {
		t.Fatal(err)
	}
	exceptions, err := ParseExceptions(string(list))
	if err != nil {
		t.Fatalf("exceptions.txt: %v", err)
	}
	left, stale := exceptions.Apply(found)
	for _, f := range left {
		t.Error(f)
	}
	for _, s := range stale {
		t.Error(s)
	}
}

// TestRepositoryImports asks the go command, which resolves what other modules
// import, too.
func TestRepositoryImports(t *testing.T) {
	dir, err := filepath.Abs(top)
	if err != nil {
		t.Fatal(err)
	}
	g, err := ReadGraph(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(g["internal/tests/tidy"]) == 0 {
		t.Fatalf("%d packages, and not this one: this is not the repository", len(g))
	}
	for _, f := range Imports(g) {
		t.Error(f)
	}
	page, err := os.ReadFile(filepath.Join(top, PictureFile))
	if err != nil {
		t.Fatal(err)
	}
	if drawn, err := Redraw(string(page), Picture(g)); err != nil || drawn != string(page) {
		t.Errorf("the picture of the packages is another one: `go generate ./internal/tests/tidy` draws it (%v)", err)
	}
}
