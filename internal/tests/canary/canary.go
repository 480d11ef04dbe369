package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Canary is a guard, how it is switched off, and the tests that have to notice.
type Canary struct {
	Name  string // words of lower-case letters and digits with dashes between
	Guard string // what it does
	Edits []Edit // that switch it off, all of them together
	Tests Tests
}

// Edit replaces a piece of a file.
type Edit struct {
	File string // from the root of the repository, with slashes
	Old  string // stands in the file exactly once
	New  string
}

// Tests are what go test runs.
type Tests struct {
	Package string        // its directory, from the root of the repository, with slashes
	Run     string        // pattern of -run
	Flags   []string      // further flags of go test
	Timeout time.Duration // of a run, without the build; 0 = defaultTimeout
	Tries   int           // how often they are run until they fail; 0 = once
}

// Bounds, with their reasons.
const (
	// defaultTimeout is for tests that take a second or two, on a machine that does
	// much else.
	defaultTimeout = time.Minute
	// buildTime is what a build may take: all of the modules, on a cold cache.
	buildTime = 10 * time.Minute
)

// errStale is the error of a canary that does not fit the code any more.
var errStale = errors.New("the canary is out of date")

// validate reports what in a canary cannot be.
func (c *Canary) validate() error {
	switch {
	case c.Name == "" || strings.Trim(c.Name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "":
		return fmt.Errorf("%q is no name of a canary", c.Name)
	case c.Guard == "":
		return fmt.Errorf("%s does not say what it guards", c.Name)
	case len(c.Edits) == 0:
		return fmt.Errorf("%s changes nothing", c.Name)
	case c.Tests.Package == "" || c.Tests.Run == "":
		return fmt.Errorf("%s names no tests", c.Name)
	}
	for _, e := range c.Edits {
		if e.Old == e.New || !filepath.IsLocal(filepath.FromSlash(e.File)) || strings.HasSuffix(e.File, "_test.go") {
			return fmt.Errorf("%s has an edit that is none, or not one of the product", c.Name)
		}
	}
	return nil
}

// apply returns the content of the edited files, by their names. What does not fit
// is an errStale.
func apply(root string, edits []Edit) (map[string]string, error) {
	files := map[string]string{}
	for _, e := range edits {
		text, have := files[e.File]
		if !have {
			b, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(e.File)))
			if err != nil {
				return nil, fmt.Errorf("%w: %v", errStale, err)
			}
			text = string(b)
		}
		if n := strings.Count(text, e.Old); n != 1 {
			return nil, fmt.Errorf("%w: %s has %d times %q, not once", errStale, e.File, n, e.Old)
		}
		files[e.File] = strings.Replace(text, e.Old, e.New, 1)
	}
	return files, nil
}
