package main

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// prefix begins a mark.
const prefix = "//guard:"

// form is what a mark looks like.
var form = regexp.MustCompile(`^//guard:([a-z0-9]+(?:-[a-z0-9]+)*)(?: (.+))?$`)

// readMarks reads the marks of all Go files of a tree but its tests, by their names.
// The error tells of each mark that cannot be read.
func readMarks(root string) (map[string][]Mark, error) {
	marks := map[string][]Mark{}
	var wrong []error
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		name := d.Name()
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (name == "testdata" || strings.HasPrefix(name, ".")):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(text, []byte(prefix)) {
			return err
		}
		file, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		some, err := marksOf(filepath.ToSlash(file), text)
		wrong = append(wrong, err)
		for _, m := range some {
			marks[m.Name] = append(marks[m.Name], m)
		}
		return nil
	})
	return marks, errors.Join(append(wrong, err)...)
}

// marksOf reads the marks of one file.
func marksOf(file string, text []byte) ([]Mark, error) {
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, file, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	s := &source{file: file, text: text, at: set.File(tree.Pos())}
	s.find(tree)
	var marks []Mark
	var wrong []error
	for _, group := range tree.Comments {
		for _, c := range group.List {
			if !strings.HasPrefix(c.Text, prefix) {
				continue
			}
			m, err := s.mark(c, group)
			if err != nil {
				wrong = append(wrong, fmt.Errorf("%s:%d: %s: %w", file, s.line(c.Pos()), c.Text, err))
				continue
			}
			marks = append(marks, m)
		}
	}
	return marks, errors.Join(wrong...)
}

// source is a file, and all in it at which a mark can stand.
type source struct {
	file   string
	text   []byte
	at     *token.File
	places []place // each after those that it is within
}

// place is something at which a mark can stand: a declaration, a statement, a clause,
// an operand of a chain of && or ||, an element of a literal or an argument.
type place struct {
	node ast.Node
	// to is where what the mark speaks of ends: of a statement with a body, its head.
	to token.Pos
	// chain is && or || of an operand, and COMMA of an element or argument.
	chain token.Token
	// tagless: a clause of a switch over conditions.
	tagless bool
}

func (s *source) line(p token.Pos) int { return s.at.Line(p) }

// find collects the places of the tree.
func (s *source) find(tree *ast.File) {
	statements := func(list []ast.Stmt, tagless bool) {
		for _, n := range list {
			s.places = append(s.places, place{node: n, to: headEnd(n), tagless: tagless})
		}
	}
	parts := func(chain token.Token, list ...ast.Expr) {
		for _, n := range list {
			s.places = append(s.places, place{node: n, to: n.End(), chain: chain})
		}
	}
	for _, n := range tree.Decls {
		if n, ok := n.(*ast.GenDecl); ok {
			s.places = append(s.places, place{node: n, to: n.End()})
		}
	}
	within := map[ast.Node]bool{} // the left side of a chain: it is one with the whole
	ast.Inspect(tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SwitchStmt:
			statements(n.Body.List, n.Tag == nil)
		case *ast.TypeSwitchStmt:
			statements(n.Body.List, false)
		case *ast.SelectStmt:
			statements(n.Body.List, false)
		case *ast.BlockStmt:
			if len(n.List) > 0 && !isClause(n.List[0]) {
				statements(n.List, false)
			}
		case *ast.CaseClause:
			statements(n.Body, false)
		case *ast.CommClause:
			statements(n.Body, false)
		case *ast.IfStmt:
			if more, ok := n.Else.(*ast.IfStmt); ok {
				statements([]ast.Stmt{more}, false)
			}
		case *ast.BinaryExpr:
			if (n.Op == token.LAND || n.Op == token.LOR) && !within[n] {
				parts(n.Op, operands(n, n.Op, within)...)
			}
		case *ast.CompositeLit:
			parts(token.COMMA, n.Elts...)
		case *ast.CallExpr:
			parts(token.COMMA, n.Args...)
		}
		return true
	})
}

// operands returns those of a chain, in their order.
func operands(n ast.Expr, op token.Token, within map[ast.Node]bool) []ast.Expr {
	b, ok := n.(*ast.BinaryExpr)
	if !ok || b.Op != op {
		return []ast.Expr{n}
	}
	within[b] = true
	return append(operands(b.X, op, within), operands(b.Y, op, within)...)
}

func isClause(n ast.Stmt) bool {
	switch n.(type) {
	case *ast.CaseClause, *ast.CommClause:
		return true
	}
	return false
}

// headEnd returns where a statement ends, but for its body.
func headEnd(n ast.Stmt) token.Pos {
	switch n := n.(type) {
	case *ast.IfStmt:
		return n.Body.Lbrace + 1
	case *ast.ForStmt:
		return n.Body.Lbrace + 1
	case *ast.RangeStmt:
		return n.Body.Lbrace + 1
	case *ast.SwitchStmt:
		return n.Body.Lbrace + 1
	case *ast.TypeSwitchStmt:
		return n.Body.Lbrace + 1
	case *ast.SelectStmt:
		return n.Body.Lbrace + 1
	case *ast.CaseClause:
		return n.Colon + 1
	case *ast.CommClause:
		return n.Colon + 1
	}
	return n.End()
}

// mark reads one.
func (s *source) mark(c *ast.Comment, group *ast.CommentGroup) (Mark, error) {
	parts := form.FindStringSubmatch(c.Text)
	if parts == nil {
		return Mark{}, errors.New("is no mark: //guard:NAME, and what happens if it does not just go")
	}
	m := Mark{Name: parts[1], File: s.file, Line: s.line(c.Pos())}
	p, err := s.placeOf(c, group)
	if err != nil {
		return m, err
	}
	if m.Edits, err = s.switchOff(p, parts[2]); err != nil {
		return m, err
	}
	after, err := splice(s.text, m.Edits)
	if err == nil {
		_, err = parser.ParseFile(token.NewFileSet(), s.file, after, parser.SkipObjectResolution)
	}
	return m, err
}

// placeOf finds what a mark stands at: above it, or at the end of its line.
func (s *source) placeOf(c *ast.Comment, group *ast.CommentGroup) (place, error) {
	line := s.line(c.Pos())
	begin := s.at.Offset(s.at.LineStart(line))
	if len(bytes.TrimSpace(s.text[begin:s.at.Offset(c.Pos())])) == 0 {
		line = s.line(group.End()) + 1
		i := slices.IndexFunc(s.places, func(p place) bool { return s.first(p.node.Pos()) && s.line(p.node.Pos()) == line })
		if i < 0 {
			return place{}, errors.New("stands at nothing")
		}
		return s.places[i], nil
	}
	var last place // of those that end furthest to the right, the outermost
	for _, p := range s.places {
		if s.line(p.node.Pos()) == line && s.line(p.to-1) == line && p.to > last.to {
			last = p
		}
	}
	if last.node == nil {
		return place{}, errors.New("stands at nothing")
	}
	return last, nil
}

// first reports whether nothing stands before pos in its line.
func (s *source) first(pos token.Pos) bool {
	begin := s.at.Offset(s.at.LineStart(s.line(pos)))
	return len(bytes.TrimSpace(s.text[begin:s.at.Offset(pos)])) == 0
}

// words returns the tokens of a piece of Go, however it is laid out.
func words(text []byte) string {
	var all []string
	var s scanner.Scanner
	set := token.NewFileSet()
	s.Init(set.AddFile("", -1, len(text)), text, nil, 0)
	for {
		_, tok, lit := s.Scan()
		if tok == token.EOF {
			return strings.Join(all, " ")
		}
		if tok == token.SEMICOLON && lit == "\n" {
			continue
		}
		if lit == "" {
			lit = tok.String()
		}
		all = append(all, lit)
	}
}
