package tidy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// The picture of the packages stands in this file between these lines.
const (
	PictureFile  = "docs/architecture.md"
	pictureBegin = "<!-- picture: made by `go generate ./internal/tests/tidy` -->\n"
	pictureEnd   = "<!-- end of the picture -->\n"
)

// Picture draws the packages of the product, floor above floor: a package stands above all
// that it imports. An arrow that follows from others is left out.
func Picture(g Graph) string {
	floors := map[string]int{}
	var rooms []string
	for pkg := range g {
		if product(pkg) {
			rooms = append(rooms, pkg)
		}
	}
	for _, r := range rooms {
		g.floor(r, floors)
	}
	slices.SortFunc(rooms, func(a, b string) int {
		return cmp.Or(cmp.Compare(floors[b], floors[a]), strings.Compare(a, b))
	})
	width := 0
	for _, r := range rooms {
		width = max(width, len(r))
	}
	var out strings.Builder
	for i, r := range rooms {
		label := ""
		if i == 0 || floors[r] != floors[rooms[i-1]] {
			label = fmt.Sprint(floors[r])
		}
		line := fmt.Sprintf("%2s  %-*s", label, width, r)
		if below := g.reduced(r); len(below) > 0 {
			line += "  → " + strings.Join(below, ", ")
		}
		out.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return out.String()
}

// product reports whether a package is one of the product's.
func product(pkg string) bool {
	first, _, _ := strings.Cut(pkg, "/")
	return slices.Contains([]string{"client", "cmd", "envoy", "handoff", "hotkey", "internal", "owner", "ring"}, first) &&
		!within(pkg, "internal/tests") && !within(pkg, "internal/tools")
}

// below returns what a package imports of the product.
func (g Graph) below(pkg string) []string {
	var below []string
	for _, p := range g[pkg] {
		if _, ours := g[p]; ours && product(p) {
			below = append(below, p)
		}
	}
	return below
}

// floor returns how many packages stand below each other under one, at most.
func (g Graph) floor(pkg string, known map[string]int) int {
	n, ok := known[pkg]
	if ok {
		return n
	}
	for _, p := range g.below(pkg) {
		n = max(n, g.floor(p, known)+1)
	}
	known[pkg] = n
	return n
}

// reduced returns what a package imports and reaches by no other import.
func (g Graph) reduced(pkg string) []string {
	below := g.below(pkg)
	kept := slices.DeleteFunc(slices.Clone(below), func(p string) bool {
		return slices.ContainsFunc(below, func(over string) bool {
			return over != p && g.path(over, func(q string) bool { return q == p }) != nil
		})
	})
	slices.Sort(kept)
	return kept
}

// Redraw returns a text with another picture in it.
func Redraw(text, picture string) (string, error) {
	before, rest, begun := strings.Cut(text, pictureBegin)
	_, after, ended := strings.Cut(rest, pictureEnd)
	if !begun || !ended {
		return "", fmt.Errorf("%s has no place for the picture of the packages", PictureFile)
	}
	return before + pictureBegin + "```text\n" + picture + "```\n" + pictureEnd + after, nil
}
