package main

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
)

// Mark is where a guard stands, and how it is switched off there.
type Mark struct {
	Name  string
	File  string // from the root of the repository, with slashes
	Line  int
	Edits []Edit
}

// Edit replaces a piece of a file.
type Edit struct {
	From, To int // bytes
	Text     string
}

// splice returns the text with its edits.
func splice(text []byte, edits []Edit) ([]byte, error) {
	edits = slices.SortedStableFunc(slices.Values(edits), func(a, b Edit) int { return a.From - b.From })
	var out []byte
	at := 0
	for _, e := range edits {
		if e.From < at {
			return nil, errors.New("two marks of one guard stand in each other's way")
		}
		out = append(append(out, text[at:e.From]...), e.Text...)
		at = e.To
	}
	return append(out, text[at:]...), nil
}

// switchOff returns the edits by which what the mark stands at does what the mark
// says. See the package comment for the operations. What no longer decides is still
// there for the compiler, so that it misses no use of a variable, and lines keep
// their numbers.
func (s *source) switchOff(p place, op string) ([]Edit, error) {
	old, replaced, is := strings.Cut(" "+op, " -> ")
	insert, also := strings.CutPrefix(op, "insert ")
	switch {
	case op == "":
		return s.drop(p)
	case op == "true":
		return s.condition(p, "(true || (", "))")
	case op == "false":
		return s.condition(p, "(false && (", "))")
	case op == "not":
		return s.condition(p, "!(", ")")
	case also:
		return s.insert(p, insert)
	case is:
		return s.replace(p, strings.TrimSpace(old), replaced)
	}
	return nil, errors.New("is not true, false, not, insert STATEMENT or OLD -> NEW")
}

// around puts text before and after a node.
func (s *source) around(n ast.Node, before, after string) []Edit {
	from, to := s.at.Offset(n.Pos()), s.at.Offset(n.End())
	return []Edit{{from, from, before}, {to, to, after}}
}

// instead puts text in the place of a piece that has lines.
func (s *source) instead(from, to token.Pos, text string) []Edit {
	a, b := s.at.Offset(from), s.at.Offset(to)
	return []Edit{{a, b, text + strings.Repeat("\n", bytes.Count(s.text[a:b], []byte("\n")))}}
}

// drop leaves out what the mark stands at: a statement does not run, a condition is
// not met, an operand does not count.
func (s *source) drop(p place) ([]Edit, error) {
	switch p.chain {
	case token.LAND:
		return s.condition(p, "(true || (", "))")
	case token.LOR:
		return s.condition(p, "(false && (", "))")
	case token.COMMA:
		rest := bytes.TrimLeft(s.text[s.at.Offset(p.to):], " ")
		if !bytes.HasPrefix(rest, []byte(",")) {
			return nil, errors.New("has no comma after it")
		}
		return s.instead(p.node.Pos(), p.to+token.Pos(bytes.IndexByte(s.text[s.at.Offset(p.to):], ',')+1), ""), nil
	}
	switch n := p.node.(type) {
	case *ast.IfStmt:
		return s.condition(p, "(false && (", "))")
	case *ast.ForStmt:
		if n.Cond != nil {
			return s.condition(p, "(false && (", "))")
		}
	case *ast.CaseClause:
		if p.tagless && n.List != nil {
			return s.condition(p, "(false && (", "))")
		}
		return s.instead(n.Pos(), n.End(), ""), nil
	case *ast.CommClause:
		return s.instead(n.Pos(), n.End(), ""), nil
	case *ast.GenDecl, *ast.DeclStmt:
		return nil, errors.New("declares something: it cannot go")
	case *ast.AssignStmt:
		if n.Tok == token.DEFINE {
			return nil, errors.New("declares something: it cannot go")
		}
	}
	return s.around(p.node, "if false { ", " }"), nil
}

// condition puts text around the condition of what the mark stands at.
func (s *source) condition(p place, before, after string) ([]Edit, error) {
	c := conditionOf(p)
	if c == nil {
		return nil, errors.New("has no condition, or more than one")
	}
	return s.around(c, before, after), nil
}

// conditionOf returns that of an if, a for, a clause, an operand, and what is returned or
// assigned; or nil.
func conditionOf(p place) ast.Expr {
	var list []ast.Expr
	switch n := p.node.(type) {
	case ast.Expr:
		return n
	case *ast.IfStmt:
		return n.Cond
	case *ast.ForStmt:
		return n.Cond
	case *ast.SwitchStmt:
		return n.Tag
	case *ast.CaseClause:
		list = n.List
	case *ast.ReturnStmt:
		list = n.Results
	case *ast.AssignStmt:
		list = n.Rhs
	}
	if len(list) != 1 {
		return nil
	}
	return list[0]
}

// insert has a statement run first.
func (s *source) insert(p place, statement string) ([]Edit, error) {
	if p.chain != 0 {
		return nil, errors.New("is no statement that another one could run before")
	}
	at := p.node.Pos()
	if n, ok := p.node.(ast.Stmt); ok && isClause(n) {
		at = p.to
	}
	return s.instead(at, at, " "+statement+"; "), nil
}

// replace puts something in the place of an expression, or of all that the mark
// stands at: of a statement with a body, its condition.
func (s *source) replace(p place, old, replaced string) ([]Edit, error) {
	if old == "" {
		n := p.node
		if stmt, ok := n.(ast.Stmt); ok && p.to != stmt.End() {
			c := conditionOf(p)
			if c == nil {
				return nil, errors.New("has no condition, or more than one")
			}
			n = c
		}
		return s.instead(n.Pos(), n.End(), replaced), nil
	}
	if _, err := parser.ParseExpr(old); err != nil {
		return nil, fmt.Errorf("%q is no expression: %w", old, err)
	}
	want, found := words([]byte(old)), []ast.Node(nil)
	ast.Inspect(p.node, func(n ast.Node) bool {
		if n == nil || n.Pos() >= p.to {
			return false
		}
		if e, ok := n.(ast.Expr); ok && e.End() <= p.to && words(s.text[s.at.Offset(e.Pos()):s.at.Offset(e.End())]) == want {
			found = append(found, e)
			return false
		}
		return true
	})
	if len(found) != 1 {
		return nil, fmt.Errorf("has %d times %s, not once", len(found), old)
	}
	return s.instead(found[0].Pos(), found[0].End(), replaced), nil
}
