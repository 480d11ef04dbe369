package tidy

import (
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
	codeSpan       = regexp.MustCompile("``[^`]*``|`[^`]*`")
	fence          = regexp.MustCompile("^ *(?:[-*>] *)?(```+|~~~+)")
	scheme         = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9+.-]*:|^//`)
)

// Links checks that relative links in Markdown lead to files or directories of
// the tree. Addresses with a scheme and anchors within a page are not followed.
func Links(t *Tree) ([]Finding, error) {
	var found []Finding
	for _, p := range t.Paths {
		if path.Ext(p) != ".md" {
			continue
		}
		text, err := fs.ReadFile(t.FS, p)
		if err != nil {
			return nil, err
		}
		fenced := ""
		for i, line := range strings.Split(string(text), "\n") {
			if m := fence.FindStringSubmatch(line); m != nil {
				switch {
				case fenced == "":
					fenced = m[1]
				case strings.HasPrefix(m[1], fenced):
					fenced = ""
				}
				continue
			}
			if fenced != "" {
				continue
			}
			line = codeSpan.ReplaceAllString(line, "")
			targets := inlineLink.FindAllStringSubmatch(line, -1)
			if m := linkDefinition.FindStringSubmatch(line); m != nil {
				targets = append(targets, m)
			}
			for _, m := range targets {
				if why := t.broken(p, strings.Trim(m[1], "<>")); why != "" {
					found = append(found, Finding{Rule: "link", Path: p, Line: i + 1, What: m[1] + ": " + why})
				}
			}
		}
	}
	return found, nil
}

// broken says what is wrong with the target of a link in file, or "".
func (t *Tree) broken(file, target string) string {
	target, _, _ = strings.Cut(target, "#")
	target, _, _ = strings.Cut(target, "?")
	if target == "" || scheme.MatchString(target) {
		return ""
	}
	target, err := url.PathUnescape(target)
	if err != nil {
		return err.Error()
	}
	if strings.HasPrefix(target, "/") { // from the top, as code hosts read it
		target = path.Clean(strings.TrimLeft(target, "/"))
	} else {
		target = path.Join(path.Dir(file), target)
	}
	if within(target, "..") {
		return "leads out of the repository"
	}
	if _, err := fs.Stat(t.FS, target); err != nil {
		return "no such file"
	}
	return ""
}
