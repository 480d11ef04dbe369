package config

import (
	"encoding/csv"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// Input is what [Load] reads beside the flags.
type Input struct {
	// Environ holds "NAME=value" strings, as os.Environ gives them.
	Environ []string
	// Program holds the settings of all commands of the program, as [Program]
	// gives them: names that are no mistake though this command lacks them. Nil
	// means that this command's settings are all there are.
	Program []string
}

// maxErrors bounds how many errors one Load reports.
const maxErrors = 20

// Load sets each flag of fs that the command line did not set to its value from
// the environment or from the file, and returns where each value came from. It is
// to be called once, after fs has parsed the command line; the flags it sets
// count as Changed from then on, which is what cobra's required flags look at.
//
// It returns all that is wrong as [*Error] values, joined. The flags may then
// have been set in part.
func Load(fs *pflag.FlagSet, in Input) (Sources, error) {
	l := &loader{flags: map[string]*pflag.Flag{}, values: map[string]any{}, from: map[string]Source{}, program: in.Program}
	var settings []*pflag.Flag // by name, as VisitAll walks
	fs.VisitAll(func(f *pflag.Flag) {
		if isSetting(f) {
			settings = append(settings, f)
			l.flags[f.Name] = f
		}
	})
	slices.SortFunc(settings, func(a, b *pflag.Flag) int { return strings.Compare(a.Name, b.Name) })
	mustBeSettings(settings)
	l.known = known(settings, in.Program)

	// The weakest first: a later one takes the place of an earlier one.
	if path := filePath(fs, in.Environ); path != "" {
		l.file(path)
	}
	l.environment(in.Environ)
	for _, f := range settings {
		if f.Changed {
			l.from[f.Name] = Source{Kind: CommandLine, Name: f.Name}
		}
	}
	for _, f := range settings {
		l.apply(fs, f)
	}
	if len(l.errs) > 0 {
		return Sources{}, errors.Join(l.errs...)
	}
	return l.sources(settings), nil
}

// filePath returns the file that was asked for, or "". An explicit --config=""
// asks for none, whatever the environment says.
func filePath(fs *pflag.FlagSet, environ []string) string {
	if f := fs.Lookup(fileFlag); f != nil && f.Changed {
		return f.Value.String()
	}
	for _, pair := range environ {
		if path, ok := strings.CutPrefix(pair, Variable(fileFlag)+"="); ok {
			return path
		}
	}
	return ""
}

// loader gathers what the file, the environment and the command line say.
type loader struct {
	flags   map[string]*pflag.Flag
	program []string
	// known holds the names of flags and program, sorted.
	known []string
	// from is the strongest place so far that gives a setting, and values what the
	// file or the environment gives: a string, or the elements of a list.
	from    map[string]Source
	values  map[string]any
	ignored []Ignored
	errs    []error
}

func (l *loader) report(err error) {
	if !l.full() {
		l.errs = append(l.errs, err)
	}
}

// full reports whether there are errors enough: reading on would be wasted.
func (l *loader) full() bool { return len(l.errs) >= maxErrors }

func (l *loader) ignore(s Source, why string) {
	l.ignored = append(l.ignored, Ignored{Source: s, Why: why})
}

// known returns all names that are no mistake.
func known(settings []*pflag.Flag, program []string) []string {
	names := slices.Clone(program)
	for _, f := range settings {
		names = append(names, f.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (l *loader) unknown(name string, s Source) {
	if l.full() {
		return
	}
	e := &Error{Setting: shorten(name), Source: s, Problem: fmt.Sprintf("unknown setting `%s`", shorten(name))}
	switch near := Nearest(name, l.known); {
	case near == "":
		e.Hint = "--help lists the settings"
	case s.Kind == Environment:
		e.Hint = fmt.Sprintf("did you mean %s?", Variable(near))
	default:
		e.Hint = fmt.Sprintf("did you mean `%s`?", near)
	}
	l.report(e)
}

// environment reads the KEYSTEAD_* variables. They are read in order of their names, so
// that errors come in the same order every time.
func (l *loader) environment(environ []string) {
	for _, pair := range slices.Sorted(slices.Values(environ)) {
		if variable, value, ok := strings.Cut(pair, "="); ok && strings.HasPrefix(variable, envPrefix) {
			l.variable(variable, value)
		}
	}
}

func (l *loader) variable(variable, value string) {
	source := Source{Kind: Environment, Name: variable}
	name, wellFormed := settingOf(variable)
	_, mine := l.flags[name]
	switch why := reserved(variable); {
	case variable == Variable(fileFlag):
	case why != "":
		l.ignore(source, why)
	case mine && wellFormed && value == "":
		l.ignore(source, "empty")
	case mine && wellFormed:
		l.from[name], l.values[name] = source, value
	case wellFormed && slices.Contains(l.program, name):
		l.ignore(source, "a setting of another command")
	case tolerated(variable, value) != "":
		l.ignore(source, tolerated(variable, value))
	default:
		source.Name = shorten(variable)
		l.unknown(name, source)
	}
}

// apply gives a flag the value that won, unless the flag has it already.
func (l *loader) apply(fs *pflag.FlagSet, f *pflag.Flag) {
	source := l.from[f.Name]
	if source.Kind != File && source.Kind != Environment {
		return
	}
	if err := setFlag(fs, f, l.values[f.Name]); err != nil {
		l.report(badValue(f, source, l.values[f.Name], err))
	}
}

// badValue returns the error of a value that the parser of its flag refused. What the
// parsers of the standard library write names their functions, so only those of the
// program's own types are quoted.
func badValue(f *pflag.Flag, source Source, value any, err error) *Error {
	e := &Error{Setting: f.Name, Source: source, Err: err, Problem: fmt.Sprintf("`%s` is not valid", f.Name)}
	if isSecret(f) { // what the parser says repeats the value
		e.Err = nil
		return e
	}
	if text, ok := value.(string); ok {
		e.Problem = fmt.Sprintf("`%s` cannot be %q", f.Name, shorten(text))
		e.Hint = Wanted(f.Value.Type(), text)
	} else {
		e.Hint = Wanted(f.Value.Type(), "")
	}
	if e.Hint != "" {
		return e
	}
	if bad := (*pflag.InvalidValueError)(nil); errors.As(err, &bad) {
		err = bad.Unwrap()
	}
	e.Problem += fmt.Sprintf(" (%v)", err)
	return e
}

// Wanted returns what to write for a flag of one of pflag's types where text cannot be
// read; "" for types that are not pflag's own, whose errors say it themselves.
func Wanted(kind, text string) string {
	switch kind {
	case "duration":
		if _, err := strconv.ParseFloat(text, 64); err == nil {
			return "missing unit; write " + text + "s for seconds, or like 300ms and 1h30m"
		}
		return "write a time with its unit, like 300ms, 10s or 1h30m"
	case "bool":
		return "write true or false"
	case "int", "int64", "int32":
		return "write a whole number"
	case "uint", "uint64", "uint32":
		return "write a whole number of 0 or more"
	case "float64":
		return "write a number"
	case "intSlice":
		return "write whole numbers, with commas"
	}
	return ""
}

func isList(f *pflag.Flag) bool {
	_, ok := f.Value.(pflag.SliceValue)
	return ok
}

// setFlag parses a string or a []string into a flag. A string for a list is
// comma-separated.
func setFlag(fs *pflag.FlagSet, f *pflag.Flag, value any) error {
	list, ok := f.Value.(pflag.SliceValue)
	if !ok {
		return fs.Set(f.Name, value.(string))
	}
	elements, ok := value.([]string)
	if !ok {
		var err error
		if elements, err = split(value.(string)); err != nil {
			return err
		}
	}
	// Replace takes elements as they are, where Set would split them again.
	if err := list.Replace(elements); err != nil {
		return err
	}
	f.Changed = true
	return nil
}

// split reads one record of comma-separated values.
func split(s string) ([]string, error) {
	if strings.TrimSpace(s) == "" {
		return nil, nil
	}
	r := csv.NewReader(strings.NewReader(s))
	r.TrimLeadingSpace = true
	records, err := r.ReadAll()
	if err != nil {
		return nil, err
	}
	if len(records) != 1 {
		return nil, errors.New("the values stand on more than one line")
	}
	return records[0], nil
}

// shorten keeps a name from outside from filling an error.
func shorten(name string) string {
	if len(name) <= maxNameLen {
		return name
	}
	return strings.ToValidUTF8(name[:maxNameLen], "") + "…"
}

func (l *loader) sources(settings []*pflag.Flag) Sources {
	s := Sources{Ignored: l.ignored}
	for _, f := range settings {
		value := f.Value.String()
		if isSecret(f) && value != "" {
			value = "(hidden)"
		}
		s.Settings = append(s.Settings, Setting{Name: f.Name, Value: value, Source: l.from[f.Name]})
	}
	return s
}
