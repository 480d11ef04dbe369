package tidy

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/format"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// Sizes, in lines.
const (
	maxFunction = 60
	maxFile     = 500
	maxTestFile = 800
)

// minSentences is what a package comment has at least.
const minSentences = 2

// Proto checks that proto holds the API and what is made from it.
func Proto(t *Tree) []Finding {
	var found []Finding
	generated := map[string]bool{}
	for _, f := range t.Go {
		generated[f.Path] = f.Generated
	}
	for _, p := range t.Paths {
		base := path.Base(p)
		buf, _ := path.Match("buf*.yaml", base)
		if !within(p, "proto") || generated[p] || buf || path.Ext(base) == ".proto" || p == "proto/generate.go" || p == protoSum {
			continue
		}
		found = append(found, Finding{Rule: "proto", Path: p, What: "proto holds .proto files and generated Go, nothing else"})
	}
	return found
}

// Clock checks that the cores take the time as an argument.
func Clock(t *Tree) []Finding {
	var found []Finding
	for _, f := range t.written() {
		if f.test() || !pure(f.dir()) || slices.Contains(drivers, f.dir()) {
			continue
		}
		wrong := func(pkg string) func(ast.Node, string) {
			return func(n ast.Node, name string) {
				found = append(found, Finding{Rule: "clock", Path: f.Path, Line: t.line(n.Pos()), What: pkg + "." + name + ": a core takes the time as an argument"})
			}
		}
		f.uses("time", []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick"}, wrong("time"))
		f.uses("context", []string{"WithTimeout", "WithTimeoutCause", "WithDeadline", "WithDeadlineCause"}, wrong("context"))
	}
	return found
}

// Docs checks that packages say what they are.
func Docs(t *Tree) []Finding {
	docs, first := map[string]int{}, map[string]string{}
	for _, f := range t.written() {
		if f.test() {
			continue
		}
		if _, ok := first[f.dir()]; !ok {
			first[f.dir()] = f.Path
		}
		docs[f.dir()] += sentences(f.AST.Doc.Text())
	}
	var found []Finding
	for dir, n := range docs {
		if n < minSentences {
			found = append(found, Finding{Rule: "doc", Path: first[dir], What: fmt.Sprintf("the package comment has %d sentences; %d or more tell what it is for", n, minSentences)})
		}
	}
	slices.SortFunc(found, func(a, b Finding) int { return strings.Compare(a.Path, b.Path) })
	return found
}

// sentences counts the full stops (and the like) after which no lower-case
// letter goes on.
func sentences(text string) int {
	n := 0
	words := strings.Fields(text)
	for i, w := range words {
		w = strings.TrimRight(w, "\"')`*_")
		if !strings.HasSuffix(w, ".") && !strings.HasSuffix(w, "!") && !strings.HasSuffix(w, "?") {
			continue
		}
		if i+1 == len(words) || !unicode.IsLower([]rune(words[i+1])[0]) {
			n++
		}
	}
	return n
}

// Sizes checks functions and files.
func Sizes(t *Tree) []Finding {
	var found []Finding
	for _, f := range t.written() {
		limit := maxFile
		if f.test() {
			limit = maxTestFile
		}
		all := bytes.SplitAfter(f.Text, []byte("\n"))
		if lines := counted(all[:len(all)-1]); lines > limit {
			found = append(found, Finding{Rule: "file", Path: f.Path, What: fmt.Sprintf("%d lines, more than %d", lines, limit)})
		}
		if f.test() {
			continue
		}
		for _, d := range f.AST.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			from := t.line(fn.Pos())
			if lines := counted(all[from-1 : t.line(fn.End())]); lines > maxFunction {
				found = append(found, Finding{Rule: "function", Path: f.Path, Name: functionName(fn), Line: from,
					What: fmt.Sprintf("%s has %d lines, more than %d", functionName(fn), lines, maxFunction)})
			}
		}
	}
	return found
}

// counted returns how many lines there are but for marks of internal/tests/canary, of which
// each has one or shares one with code.
func counted(lines [][]byte) int {
	n := 0
	for _, l := range lines {
		if !bytes.HasPrefix(bytes.TrimSpace(l), []byte("//guard:")) {
			n++
		}
	}
	return n
}

// functionName returns "Name" or "Type.Name".
func functionName(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return fn.Name.Name
	}
	receiver := fn.Recv.List[0].Type
	for {
		switch r := receiver.(type) {
		case *ast.StarExpr:
			receiver = r.X
		case *ast.IndexExpr:
			receiver = r.X
		case *ast.IndexListExpr:
			receiver = r.X
		case *ast.Ident:
			return r.Name + "." + fn.Name.Name
		default:
			return fn.Name.Name
		}
	}
}

// Sleeps checks that tests wait for conditions, or in a bubble.
func Sleeps(t *Tree) []Finding {
	var found []Finding
	for _, f := range t.written() {
		if !f.test() || f.importedAs("testing/synctest") != "" {
			continue
		}
		f.uses("time", []string{"Sleep"}, func(n ast.Node, _ string) {
			found = append(found, Finding{Rule: "sleep", Path: f.Path, Line: t.line(n.Pos()), What: "time.Sleep outside a bubble"})
		})
	}
	return found
}

// Formatted checks gofmt's form.
func Formatted(t *Tree) []Finding {
	var found []Finding
	for _, f := range t.Go {
		if f.AST == nil {
			found = append(found, Finding{Rule: "gofmt", Path: f.Path, What: f.Err.Error()})
			continue
		}
		if f.Generated {
			continue
		}
		if want, err := format.Source(f.Text); err != nil || !bytes.Equal(want, f.Text) {
			found = append(found, Finding{Rule: "gofmt", Path: f.Path, What: "not formatted"})
		}
	}
	return found
}

// forbiddenWord is put together here so that this file does not hold the words.
var forbiddenWord = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|X` + `XX)\b`)

// Words checks that nothing is left for later.
func Words(t *Tree) []Finding {
	var found []Finding
	for _, f := range t.written() {
		for i, line := range strings.Split(string(f.Text), "\n") {
			if w := forbiddenWord.FindString(line); w != "" {
				found = append(found, Finding{Rule: "word", Path: f.Path, Line: i + 1, What: w + " belongs in an issue"})
			}
		}
	}
	return found
}

// Skips checks that no test, benchmark or fuzz target skips itself. rapid's own
// T.Skip, which only discards one input, is none of its business.
func Skips(t *Tree) []Finding {
	var found []Finding
	for _, f := range t.written() {
		testing := f.importedAs("testing")
		if testing == "" {
			continue
		}
		for _, d := range f.AST.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			s := skips{testing: testing, found: func(n ast.Node) {
				found = append(found, Finding{Rule: "skip", Path: f.Path, Name: functionName(fn), Line: t.line(n.Pos()), What: functionName(fn) + " may skip itself"})
			}}
			ast.Walk(s.enter(fn.Type), fn.Body)
		}
	}
	return found
}

// skips walks a function. Its scope says which parameters of the functions
// around are testing's.
type skips struct {
	testing string
	scope   map[string]bool
	found   func(ast.Node)
}

// enter returns the walk within a function of this type.
func (s skips) enter(fn *ast.FuncType) skips {
	scope := map[string]bool{}
	for name, is := range s.scope {
		scope[name] = is
	}
	for _, p := range fn.Params.List {
		typ := p.Type
		if star, ok := typ.(*ast.StarExpr); ok {
			typ = star.X
		}
		sel, ok := typ.(*ast.SelectorExpr)
		if ok {
			pkg, isIdent := sel.X.(*ast.Ident)
			ok = isIdent && pkg.Name == s.testing && slices.Contains([]string{"T", "B", "F", "TB"}, sel.Sel.Name)
		}
		for _, name := range p.Names {
			scope[name.Name] = ok
		}
	}
	s.scope = scope
	return s
}

// Visit makes skips an ast.Visitor.
func (s skips) Visit(n ast.Node) ast.Visitor {
	switch n := n.(type) {
	case *ast.FuncLit:
		return s.enter(n.Type)
	case *ast.SelectorExpr:
		x, ok := n.X.(*ast.Ident)
		if ok && s.scope[x.Name] && slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, n.Sel.Name) {
			s.found(n)
		}
	}
	return s
}

// Names checks that packages are called after what they hold.
func Names(t *Tree) []Finding {
	var found []Finding
	for _, f := range t.written() {
		name := strings.TrimSuffix(f.AST.Name.Name, "_test")
		switch strings.TrimSuffix(name, "s") {
		case "util", "helper", "common", "manager":
			found = append(found, Finding{Rule: "name", Path: f.Path, Line: t.line(f.AST.Name.Pos()), What: "package " + name + " says nothing about what it holds"})
		}
	}
	return found
}
