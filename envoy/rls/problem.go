package rls

import (
	"fmt"
	"strings"
)

// Problem is something wrong with a configuration.
type Problem struct {
	File    string `json:"file"`
	Line    int    `json:"line,omitempty"` // from 1; 0 = the file as a whole
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"` // what to do
}

// String says where and what, and the hint on a line of its own.
func (p Problem) String() string {
	text := p.File
	if p.Line > 0 {
		text = fmt.Sprintf("%s:%d", text, p.Line)
	}
	text += ": " + p.Message
	if p.Hint != "" {
		text += "\n  hint: " + p.Hint
	}
	return text
}

// Problems are what is wrong with a configuration, in the order of the files. It
// is the error of Load.
type Problems []Problem

// maxProblems bounds what is reported at once: a file of another kind is wrong on
// every line.
const maxProblems = 20

// Error lists all of them.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i := range p {
		lines[i] = p[i].String()
	}
	return strings.Join(lines, "\n")
}
