package tidy

import (
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"regexp"
	"strings"
)

var (
	// inlineLink and linkDefinition capture the target of [text](target "title")
	// and of [name]: target.
	inlineLink     = regexp.MustCompile(`\]\(\s*(<[^>]*>|[^\s()]+(?:\([^\s()]*\)[^\s()]*)*)(?:\s+["'(][^)]*)?\s*\)`)
	linkDefinition = regexp.MustCompile(`^ {0,3}\[[^\]^]+\]:\s*(<[^>]*>|\S+)`)
	// source captures the file of <img src="…"> and <source srcset="…">.
	source   = regexp.MustCompile(`<(?:img|source)\b[^>]*\bsrc(?:set)?="([^"]+)"`)
	codeSpan = regexp.MustCompile("``[^`]*``|`[^`]*`")
	scheme   = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9+.-]*:|^//`)
	// decision captures the numbers of [decision 7](decisions/0007-title.md), also over the
	// end of a line.
	decision = regexp.MustCompile(`[dD]ecision\s+(\d+)\]\((?:[^\s()]*/)?(\d{4})-`)
	// mention is a page of docs that code, settings or alerts name.
	mention = regexp.MustCompile(`\bdocs/[A-Za-z0-9_/.-]+\.(?:md|svg)\b(?:#[A-Za-z0-9_-]+)?`)
)

// Links checks that relative links in Markdown lead to files, directories or headings of
// the tree, and so do the pages of docs that other files name. Addresses with a scheme
// are not followed.
func Links(t *Tree) ([]Finding, error) {
	pages, err := t.pages()
	if err != nil {
		return nil, err
	}
	l := links{tree: t, anchors: make(map[string]map[string]bool)}
	for _, p := range pages {
		l.anchors[p.path] = p.anchors()
	}
	for _, p := range pages {
		for i, line := range p.lines() {
			line = codeSpan.ReplaceAllString(line, "")
			targets := append(inlineLink.FindAllStringSubmatch(line, -1), source.FindAllStringSubmatch(line, -1)...)
			if m := linkDefinition.FindStringSubmatch(line); m != nil {
				targets = append(targets, m)
			}
			for _, m := range targets {
				l.follow(p.path, i, m[1], strings.Trim(m[1], "<>"))
			}
		}
		l.decisions(p)
	}
	err = l.mentions()
	return l.found, err
}

// links follows links.
type links struct {
	tree    *Tree
	anchors map[string]map[string]bool // of each page
	found   []Finding
}

// decisions notes links that call a decision by the number of another one.
func (l *links) decisions(p page) {
	for _, m := range decision.FindAllStringSubmatchIndex(p.text, -1) {
		said, file := p.text[m[2]:m[3]], p.text[m[4]:m[5]]
		if fmt.Sprintf("%04s", said) != file {
			line := strings.Count(p.text[:m[4]], "\n") + 1
			l.found = append(l.found, Finding{Rule: "link", Path: p.path, Line: line, What: "decision " + said + " leads to " + file})
		}
	}
}

// mentions follows the pages that are named in files other than pages and tests.
func (l *links) mentions() error {
	for _, p := range l.tree.Paths {
		switch path.Ext(p) {
		case ".go", ".proto", ".yaml", ".yml", ".service":
		default:
			continue
		}
		if strings.HasSuffix(p, "_test.go") {
			continue
		}
		text, err := fs.ReadFile(l.tree.FS, p)
		if err != nil {
			return err
		}
		for i, line := range strings.Split(string(text), "\n") {
			for _, m := range mention.FindAllString(line, -1) {
				l.follow(p, i+1, m, "/"+m)
			}
		}
	}
	return nil
}

// follow notes a link in a line of file that leads nowhere.
func (l *links) follow(file string, line int, written, target string) {
	if why := l.broken(file, target); why != "" {
		l.found = append(l.found, Finding{Rule: "link", Path: file, Line: line, What: written + ": " + why})
	}
}

// broken says what is wrong with the target of a link in file, or "".
func (l *links) broken(file, target string) string {
	if scheme.MatchString(target) {
		return ""
	}
	target, anchor, _ := strings.Cut(target, "#")
	target, _, _ = strings.Cut(target, "?")
	target, err := url.PathUnescape(target)
	if err != nil {
		return err.Error()
	}
	switch {
	case target == "":
		target = file
	case strings.HasPrefix(target, "/"): // from the top, as code hosts read it
		target = path.Clean(strings.TrimLeft(target, "/"))
	default:
		target = path.Join(path.Dir(file), target)
	}
	if within(target, "..") {
		return "leads out of the repository"
	}
	if _, err := fs.Stat(l.tree.FS, target); err != nil {
		return "no such file"
	}
	if anchors := l.anchors[target]; anchor != "" && anchors != nil && !anchors[anchor] {
		return "no such heading"
	}
	return ""
}
