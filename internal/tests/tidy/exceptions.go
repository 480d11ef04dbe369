package tidy

import (
	"fmt"
	"slices"
	"strings"
)

// excusable holds the rules that may have exceptions.
var excusable = []string{"function", "file", "sleep", "skip"}

// Exceptions is the list of findings that are let pass, by Finding.Key, with
// their lines in the list.
type Exceptions map[string]int

// ParseExceptions reads lines of the form "rule path[:Name] # reason". Empty
// lines and lines that start with "#" do not count.
func ParseExceptions(text string) (Exceptions, error) {
	e := Exceptions{}
	for i, line := range strings.Split(text, "\n") {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		entry, reason, _ := strings.Cut(line, "#")
		fields := strings.Fields(entry)
		key := strings.Join(fields, " ")
		switch {
		case len(fields) != 2:
			return nil, fmt.Errorf("line %d: want \"rule path[:Name] # reason\", found %q", i+1, line)
		case !slices.Contains(excusable, fields[0]):
			return nil, fmt.Errorf("line %d: no exceptions from %q, only from %s", i+1, fields[0], strings.Join(excusable, ", "))
		case strings.TrimSpace(reason) == "":
			return nil, fmt.Errorf("line %d: no reason given", i+1)
		case e[key] != 0:
			return nil, fmt.Errorf("line %d: the same as line %d", i+1, e[key])
		}
		e[key] = i + 1
	}
	return e, nil
}

// Apply returns the findings that are not excused, and the entries that excuse
// nothing.
func (e Exceptions) Apply(found []Finding) (left []Finding, stale []string) {
	used := map[string]bool{}
	for _, f := range found {
		if _, ok := e[f.Key()]; ok {
			used[f.Key()] = true
		} else {
			left = append(left, f)
		}
	}
	for key, line := range e {
		if !used[key] {
			stale = append(stale, fmt.Sprintf("exceptions.txt:%d: nothing needs %q any more: remove it", line, key))
		}
	}
	slices.Sort(stale)
	return left, stale
}
