package config

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// Kind is one of the places a value can come from; the larger is the stronger.
type Kind int

// The places, weakest first.
const (
	Default Kind = iota
	File
	Environment
	CommandLine
)

// Source says where a value stands.
type Source struct {
	Kind Kind
	// Name is the file's name as it was given, the environment variable's name,
	// or the flag's name without its hyphens; "" for a default.
	Name string
	// Line counts from 1 and is 0 where there is none.
	Line int
}

// String returns "keystead.yaml:12", "environment variable KEYSTEAD_X", "flag --x" or "default".
func (s Source) String() string {
	switch {
	case s.Kind == Environment:
		return "environment variable " + s.Name
	case s.Kind == CommandLine:
		return "flag --" + s.Name
	case s.Kind == File && s.Line > 0:
		return fmt.Sprintf("%s:%d", s.Name, s.Line)
	case s.Kind == File:
		return s.Name
	}
	return "default"
}

// Setting is one setting of a command as [Load] left it.
type Setting struct {
	Name string
	// Value is the flag's value as text, or "(hidden)" for a secret one.
	Value  string
	Source Source
}

// Ignored is a name that stands in the environment or in the file and is known
// not to be a setting of the command.
type Ignored struct {
	Source Source
	Why    string
}

// Sources is what [Load] found.
type Sources struct {
	// Settings holds every setting of the command, by name.
	Settings []Setting
	// Ignored holds what was passed over, the file's before the environment's.
	Ignored []Ignored
}

// Of returns where the value of a setting came from. ok is false when the
// command has no such setting.
func (s Sources) Of(name string) (source Source, ok bool) {
	i, ok := slices.BinarySearchFunc(s.Settings, name, func(t Setting, n string) int { return strings.Compare(t.Name, n) })
	if !ok {
		return Source{}, false
	}
	return s.Settings[i].Source, true
}

// Print writes a table of name, value and source, and a line for each name that
// was passed over.
func (s Sources) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	var errs []error
	for _, v := range s.Settings {
		_, err := fmt.Fprintf(t, "%s\t%s\t%s\n", v.Name, printable(v.Value), v.Source)
		errs = append(errs, err)
	}
	errs = append(errs, t.Flush())
	for _, i := range s.Ignored {
		_, err := fmt.Fprintf(w, "# ignored: %s (%s)\n", i.Source, i.Why)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// printable quotes a value that would break the table.
func printable(value string) string {
	if value == "" || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' }) {
		return fmt.Sprintf("%q", value)
	}
	return value
}

// Error is one thing that is wrong with the file or the environment. [Load]
// returns all that it found, joined; errors.As yields the first.
type Error struct {
	// Setting is the name as it was given, in the flag's spelling; "" when the
	// file as a whole is at fault.
	Setting string
	Source  Source
	// Problem names Setting where there is one.
	Problem string
	// Hint says what to do about it; it may be empty.
	Hint string
	// Err is the cause, such as fs.ErrNotExist, or nil.
	Err error
}

// Error returns "unknown setting `grpc-adr` in keystead.yaml:3; did you mean `grpc-addr`?".
func (e *Error) Error() string {
	text := fmt.Sprintf("%s in %s", e.Problem, e.Source)
	if e.Setting == "" {
		text = fmt.Sprintf("%s: %s", e.Source, e.Problem)
	}
	if e.Hint != "" {
		text += "; " + e.Hint
	}
	return text
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
