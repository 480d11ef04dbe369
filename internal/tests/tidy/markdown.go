package tidy

import (
	"fmt"
	"io/fs"
	"iter"
	"path"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxProse is the length of the longest line of prose in a page, in characters. Tables,
// code and drawings may be wider.
const maxProse = 120

var (
	fence       = regexp.MustCompile("^ *(?:[-*>] *)?(```+|~~~+)")
	heading     = regexp.MustCompile(`^ {0,3}#{1,6} +(.*?) *#* *$`)
	linkText    = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
	namedAnchor = regexp.MustCompile(`<a (?:id|name)="([^"]+)"`)
)

// pages yields the Markdown files of a tree, with their text.
func (t *Tree) pages() ([]page, error) {
	var pages []page
	for _, p := range t.Paths {
		if path.Ext(p) != ".md" {
			continue
		}
		text, err := fs.ReadFile(t.FS, p)
		if err != nil {
			return nil, err
		}
		pages = append(pages, page{path: p, text: string(text)})
	}
	return pages, nil
}

// page is a Markdown file.
type page struct{ path, text string }

// lines yields the lines that are not within a fence of code, with their numbers.
func (p page) lines() iter.Seq2[int, string] {
	return func(yield func(int, string) bool) {
		fenced := ""
		for i, line := range strings.Split(p.text, "\n") {
			if m := fence.FindStringSubmatch(line); m != nil {
				switch {
				case fenced == "":
					fenced = m[1]
				case strings.HasPrefix(m[1], fenced):
					fenced = ""
				}
				continue
			}
			if fenced == "" && !yield(i+1, line) {
				return
			}
		}
	}
}

// anchors returns what a link into the page may end in, as code hosts make it of the
// headings.
func (p page) anchors() map[string]bool {
	anchors := make(map[string]bool)
	for _, line := range p.lines() {
		for _, m := range namedAnchor.FindAllStringSubmatch(line, -1) {
			anchors[m[1]] = true
		}
		m := heading.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		name := anchor(m[1])
		for n := 1; anchors[name]; n++ {
			name = fmt.Sprintf("%s-%d", anchor(m[1]), n)
		}
		anchors[name] = true
	}
	return anchors
}

// anchor returns the anchor of a heading.
func anchor(heading string) string {
	heading = linkText.ReplaceAllString(heading, "$1")
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
}

// Prose checks that no line of prose is longer than 120 characters. CHANGELOG.md has one
// line for each change, so that branches merge.
func Prose(t *Tree) ([]Finding, error) {
	pages, err := t.pages()
	var found []Finding
	for _, p := range pages {
		if p.path == "CHANGELOG.md" {
			continue
		}
		for i, line := range p.lines() {
			if n := utf8.RuneCountInString(line); n > maxProse && !strings.HasPrefix(strings.TrimSpace(line), "|") {
				found = append(found, Finding{Rule: "prose", Path: p.path, Line: i, What: fmt.Sprintf("%d characters, at most %d", n, maxProse)})
			}
		}
	}
	return found, err
}
