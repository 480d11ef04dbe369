package policy

import (
	"fmt"
	"strings"
)

// Problem is something wrong with a file.
type Problem struct {
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"` // from 1; 0 = the file as a whole
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"` // what to do
}

// String says where and what, and the hint on a line of its own.
func (p Problem) String() string {
	at := p.File
	switch {
	case p.Line > 0 && at != "":
		at = fmt.Sprintf("%s:%d: ", at, p.Line)
	case p.Line > 0:
		at = fmt.Sprintf("line %d: ", p.Line)
	case at != "":
		at += ": "
	}
	if p.Hint != "" {
		return at + p.Message + "\n  hint: " + p.Hint
	}
	return at + p.Message
}

// Problems are what is wrong with a file, by line. It is the error of Parse.
type Problems []Problem

// maxProblems bounds what is reported at once: a file of another kind is wrong on every
// line.
const maxProblems = 20

// Error lists all of them.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i := range p {
		lines[i] = p[i].String()
	}
	return strings.Join(lines, "\n")
}
