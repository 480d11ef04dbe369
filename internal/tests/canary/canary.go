package main

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Canary is a guard, how it is switched off, and the tests that have to notice.
type Canary struct {
	Name  string // words of lower-case letters and digits with dashes between
	Guard string // what it does
	Marks []Mark // that switch it off, all of them together
	Tests Tests
}

// Tests are what go test runs.
type Tests struct {
	Module  string // directory of the package's module, or "" for that of the repository
	Package string // its directory, from the root of the repository, with slashes
	Run     string // pattern of -run
	Tries   int    // how often they are run until they fail
}

// Bounds, with their reasons.
const (
	// testTime is for tests that take some seconds, on a machine that does much else.
	testTime = 2 * time.Minute
	// buildTime is what a build may take: all of the modules, on a cold cache.
	buildTime = 10 * time.Minute
)

// guards says of each guard what it is, below the tests that have to notice.
//
//go:embed guards.txt
var guards string

// Forms of the lines of guards.txt.
var (
	testsForm = regexp.MustCompile(`^(\S+) -run '([^']+)'(?: -tries ([2-9]))?$`)
	guardForm = regexp.MustCompile(`^\t([a-z0-9]+(?:-[a-z0-9]+)*): (.+)$`)
)

// parseGuards reads what guards.txt says. They have no marks yet.
func parseGuards(text string) ([]Canary, error) {
	var all []Canary
	var tests Tests
	have := map[string]bool{}
	for i, line := range strings.Split(text, "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		if f := testsForm.FindStringSubmatch(line); f != nil {
			tries, _ := strconv.Atoi("0" + f[3])
			tests = Tests{Package: f[1], Run: f[2], Tries: max(tries, 1)}
			continue
		}
		f := guardForm.FindStringSubmatch(line)
		switch {
		case f == nil:
			return nil, fmt.Errorf("guards.txt:%d: %q is neither tests nor a guard", i+1, line)
		case tests.Run == "":
			return nil, fmt.Errorf("guards.txt:%d: no test notices %s", i+1, f[1])
		case have[f[1]]:
			return nil, fmt.Errorf("guards.txt:%d: %s is there twice", i+1, f[1])
		}
		have[f[1]] = true
		all = append(all, Canary{Name: f[1], Guard: f[2], Tests: tests})
	}
	return all, nil
}

// readCanaries returns all there are in a tree. The error tells of each mark and each
// guard that does not make one.
func readCanaries(root, text string) ([]Canary, error) {
	all, err := parseGuards(text)
	if err != nil {
		return nil, err
	}
	marks, err := readMarks(root)
	wrong := []error{err}
	for i, c := range all {
		all[i].Tests.Module = moduleOf(root, c.Tests.Package)
		if all[i].Marks = marks[c.Name]; len(marks[c.Name]) == 0 {
			wrong = append(wrong, fmt.Errorf("guards.txt: %s has no mark //guard:%s", c.Name, c.Name))
		} else if _, err := apply(root, all[i].Marks); err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %w", c.Name, err))
		}
		delete(marks, c.Name)
	}
	for _, some := range marks {
		for _, m := range some {
			wrong = append(wrong, fmt.Errorf("%s:%d: guards.txt does not know %s", m.File, m.Line, m.Name))
		}
	}
	return all, errors.Join(wrong...)
}

// moduleOf returns the directory with the go.mod of a package, or "".
func moduleOf(root, pkg string) string {
	for ; pkg != "."; pkg = path.Dir(pkg) {
		if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(pkg), "go.mod")); err == nil {
			return pkg
		}
	}
	return ""
}

// apply returns the content of the files with marks, as it is without their guard.
func apply(root string, marks []Mark) (map[string][]byte, error) {
	edits := map[string][]Edit{}
	for _, m := range marks {
		edits[m.File] = append(edits[m.File], m.Edits...)
	}
	files := map[string][]byte{}
	for name, some := range edits {
		text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if err != nil {
			return nil, err
		}
		if files[name], err = splice(text, some); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return files, nil
}
