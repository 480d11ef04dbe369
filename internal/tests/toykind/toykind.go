// Package toykind builds the program with the kind of object that docs/adding-a-kind.md
// adds: the page is the kind's source. Its test drives what was built.
package toykind

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// block is one of the page: a language, a file and its text.
var block = regexp.MustCompile("(?ms)^```(go|diff) (\\S+)\n(.*?)^```$")

// Change is what the page does to the tree.
type Change struct {
	New    []string       // files that it adds
	Edited map[string]int // lines that it adds to files, by file
}

// Overlay writes the files of a page, and copies of those that it edits, below dir, and an
// overlay for the go command. root is that of the tree.
func Overlay(root, page, dir string) (overlay string, c Change, err error) {
	text, err := os.ReadFile(page)
	if err != nil {
		return "", c, err
	}
	if root, err = filepath.Abs(root); err != nil {
		return "", c, err
	}
	c.Edited = map[string]int{}
	files := map[string]string{}
	for _, m := range block.FindAllStringSubmatch(string(text), -1) {
		language, file, body := m[1], m[2], m[3]
		if language == "go" {
			c.New, files[file] = append(c.New, file), body
			continue
		}
		if _, ok := files[file]; !ok {
			was, err := os.ReadFile(filepath.Join(root, file))
			if err != nil {
				return "", c, err
			}
			files[file] = string(was)
		}
		old, next, lines := hunk(body)
		if strings.Count(files[file], old) != 1 {
			return "", c, fmt.Errorf("%s has %d times, not once:\n%s", file, strings.Count(files[file], old), old)
		}
		files[file] = strings.Replace(files[file], old, next, 1)
		c.Edited[file] += lines
	}
	replace := map[string]string{}
	for file, text := range files {
		to := filepath.Join(dir, strconv.Itoa(len(replace))+".go")
		replace[filepath.Join(root, file)] = to
		if err := os.WriteFile(to, []byte(text), 0o600); err != nil {
			return "", c, err
		}
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", c, err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, c, os.WriteFile(overlay, list, 0o600)
}

// hunk returns what a diff replaces, by what, and how many lines are new or others.
func hunk(diff string) (old, next string, lines int) {
	for line := range strings.Lines(diff) {
		switch line[0] {
		case '-':
			old += line[1:]
		case '+':
			next += line[1:]
			lines++
		default:
			old += line[1:]
			next += line[1:]
		}
	}
	return old, next, lines
}
