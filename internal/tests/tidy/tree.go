package tidy

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Finding is one place where a rule is broken.
type Finding struct {
	Rule string
	// Path is relative to the top of the tree. In the rule "imports" it is a
	// package, elsewhere a file.
	Path string
	// Name is the function within the file, or "".
	Name string
	// Line counts from 1; 0 means the file as a whole.
	Line int
	What string
}

// Key names the finding in the list of exceptions. It holds no line, so that an
// entry survives edits elsewhere in the file.
func (f Finding) Key() string {
	key := f.Rule + " " + f.Path
	if f.Name != "" {
		key += ":" + f.Name
	}
	return key
}

func (f Finding) String() string {
	where := f.Path
	if f.Line > 0 {
		where = fmt.Sprintf("%s:%d", f.Path, f.Line)
	}
	return fmt.Sprintf("%s: %s: %s", where, f.Rule, f.What)
}

// File is a Go file.
type File struct {
	Path string
	Text []byte
	// AST is nil when the file does not parse; Err then says why.
	AST       *ast.File
	Err       error
	Generated bool
}

func (f *File) dir() string { return path.Dir(f.Path) }

func (f *File) test() bool { return strings.HasSuffix(f.Path, "_test.go") }

// Tree is a repository.
type Tree struct {
	FS fs.FS
	// Paths holds every file, Go those that are Go, both in order.
	Paths []string
	Go    []*File
	Fset  *token.FileSet
}

// Load reads a tree. It leaves out testdata and vendor directories, and hidden
// ones (.git and the like).
func Load(fsys fs.FS) (*Tree, error) {
	t := &Tree{FS: fsys, Fset: token.NewFileSet()}
	err := fs.WalkDir(fsys, ".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			if name := d.Name(); p != "." && (name == "testdata" || name == "vendor" || strings.HasPrefix(name, ".")) {
				return fs.SkipDir
			}
			return nil
		}
		t.Paths = append(t.Paths, p)
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		f := &File{Path: p}
		if f.Text, err = fs.ReadFile(fsys, p); err != nil {
			return err
		}
		if f.AST, f.Err = parser.ParseFile(t.Fset, p, f.Text, parser.ParseComments); f.Err != nil {
			f.AST = nil
		} else {
			f.Generated = ast.IsGenerated(f.AST)
		}
		t.Go = append(t.Go, f)
		return nil
	})
	return t, err
}

func (t *Tree) line(p token.Pos) int { return t.Fset.Position(p).Line }

// written returns the files that a person wrote and that parse.
func (t *Tree) written() []*File {
	return slices.DeleteFunc(slices.Clone(t.Go), func(f *File) bool { return f.Generated || f.AST == nil })
}

// importedAs returns the name under which a file imports a package, or "". A
// dot import returns ".".
func (f *File) importedAs(importPath string) string {
	for _, i := range f.AST.Imports {
		if strings.Trim(i.Path.Value, `"`) != importPath {
			continue
		}
		if i.Name != nil {
			return i.Name.Name
		}
		return path.Base(importPath)
	}
	return ""
}

// uses calls found for each mention of one of the names of a package, called or
// not.
func (f *File) uses(importPath string, names []string, found func(n ast.Node, name string)) {
	as := f.importedAs(importPath)
	if as == "" {
		return
	}
	ast.Inspect(f.AST, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && x.Name == as && slices.Contains(names, n.Sel.Name) {
				found(n, n.Sel.Name)
			}
		case *ast.Ident:
			if as == "." && slices.Contains(names, n.Name) {
				found(n, n.Name)
			}
		}
		return true
	})
}

// within reports whether p is dir or below it.
func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }
