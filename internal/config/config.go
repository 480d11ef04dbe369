package config

import (
	"encoding/csv"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/posflag"
	"github.com/knadh/koanf/v2"
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

// keyDelim is what koanf splits names by: a character that no name has, so that
// `tls` and `tls-cert` can both be settings.
const keyDelim = "."

// Load sets each flag of fs that the command line did not set to its value from
// the environment or from the file, and says where each value came from. It is
// to be called once, after fs has parsed the command line; the flags it sets
// count as Changed from then on, which is what cobra's required flags look at.
//
// It returns all that is wrong as [*Error] values, joined. The flags may then
// have been set in part.
func Load(fs *pflag.FlagSet, in Input) (Sources, error) {
	l := &loader{flags: map[string]*pflag.Flag{}, from: map[string]Source{}, program: in.Program}
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

	ko := koanf.New(keyDelim)
	if path := filePath(fs, in.Environ); path != "" {
		l.load(ko, boundedFile{path}, &parser{loader: l, path: path})
	}
	l.load(ko, l.environment(in.Environ), nil)
	l.load(ko, posflag.ProviderWithFlag(fs, keyDelim, nil, l.commandLine), nil)

	for _, f := range settings {
		l.apply(fs, f, ko.Get(f.Name))
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

// loader gathers what the layers say. koanf merges their values, the weakest
// first; loader keeps where the value that koanf holds came from.
type loader struct {
	flags   map[string]*pflag.Flag
	program []string
	// known holds the names of flags and program, sorted.
	known   []string
	from    map[string]Source
	ignored []Ignored
	errs    []error
}

func (l *loader) load(ko *koanf.Koanf, p koanf.Provider, parser koanf.Parser) {
	if err := ko.Load(p, parser); err != nil {
		l.report(err)
	}
}

func (l *loader) report(err error) {
	if !l.full() {
		l.errs = append(l.errs, err)
	}
}

// full says that there are errors enough: reading on would be wasted.
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

// environment returns the layer of KEYSTEAD_* variables. They are taken in
// order of their names, so that errors come in the same order every time.
func (l *loader) environment(environ []string) koanf.Provider {
	return env.Provider(keyDelim, env.Opt{
		Prefix:      envPrefix,
		EnvironFunc: func() []string { return slices.Sorted(slices.Values(environ)) },
		TransformFunc: func(variable, value string) (string, any) {
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
				l.from[name] = source
				return name, value
			case wellFormed && slices.Contains(l.program, name):
				l.ignore(source, "a setting of another command")
			case tolerated(variable, value) != "":
				l.ignore(source, tolerated(variable, value))
			default:
				source.Name = shorten(variable)
				l.unknown(name, source)
			}
			return "", nil
		},
	})
}

// commandLine is the layer of flags that were given.
func (l *loader) commandLine(f *pflag.Flag) (string, any) {
	if !f.Changed || !isSetting(f) {
		return "", nil
	}
	l.from[f.Name] = Source{Kind: CommandLine, Name: f.Name}
	return f.Name, f.Value.String()
}

// apply gives a flag the value that won, unless the flag has it already.
func (l *loader) apply(fs *pflag.FlagSet, f *pflag.Flag, value any) {
	source := l.from[f.Name]
	if source.Kind != File && source.Kind != Environment {
		return
	}
	if err := setFlag(fs, f, value); err != nil {
		e := &Error{Setting: f.Name, Source: source, Hint: hints[f.Value.Type()], Err: err}
		cause := err
		if bad := (*pflag.InvalidValueError)(nil); errors.As(err, &bad) {
			cause = bad.Unwrap()
		}
		e.Problem = fmt.Sprintf("`%s` is not a valid %s: %v", f.Name, f.Value.Type(), cause)
		if isSecret(f) { // what the parser says repeats the value
			e.Problem, e.Err = fmt.Sprintf("`%s` is not a valid %s", f.Name, f.Value.Type()), nil
		}
		l.report(e)
	}
}

// hints are by pflag's names of types.
var hints = map[string]string{
	"bool":     "write true or false",
	"duration": "write a number with its unit, such as 250ms, 10s or 1m30s",
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
