package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// MaxFileSize is the largest configuration file that is read, in bytes. Real
// ones have a few hundred; the bound keeps a wrong path (a log, a device) from
// filling memory.
const MaxFileSize = 1 << 20

// file reads the configuration file. All that is wrong with it is reported.
func (l *loader) file(path string) {
	data, err := readFile(path)
	if err != nil {
		l.report(err)
		return
	}
	p := &parser{loader: l, path: path, seen: map[string]int{}}
	p.parse(data)
}

// readFile reads no more than MaxFileSize, and therefore takes pipes too.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, unreadable(path, err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxFileSize+1))
	if err != nil {
		return nil, unreadable(path, err)
	}
	if len(data) > MaxFileSize {
		return nil, &Error{
			Source:  Source{Kind: File, Name: path},
			Problem: "the file is too large",
			Hint:    fmt.Sprintf("the limit is %d bytes; is this the right file?", MaxFileSize),
		}
	}
	return data, nil
}

func unreadable(path string, err error) error {
	e := &Error{Source: Source{Kind: File, Name: path}, Problem: "cannot read the file", Err: err}
	if cause := (*fs.PathError)(nil); errors.As(err, &cause) {
		e.Problem += ": " + cause.Err.Error()
	}
	if errors.Is(err, fs.ErrNotExist) {
		e.Problem, e.Hint = "no such file", "it was named by --config or KEYSTEAD_CONFIG"
	}
	return e
}

// parser reads YAML into the values of settings. It reads nodes and not values, because
// only nodes have lines, show duplicate keys, and keep a scalar as it was written.
type parser struct {
	*loader
	path string
	// seen holds the line of each setting that the file has given.
	seen map[string]int
}

func (p *parser) parse(data []byte) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := decoder.Decode(&doc); err == io.EOF {
		return // nothing but comments
	} else if err != nil {
		p.notYAML(err)
		return
	}
	root := doc.Content[0]
	switch {
	case root.Kind == yaml.MappingNode:
		p.mapping("", root)
	case !isNull(root):
		p.wrong(root, "", "expected settings, found "+describe(root), "write one `name: value` a line")
	}
	var second yaml.Node
	if err := decoder.Decode(&second); err == nil {
		p.wrong(&second, "", "a second document starts here", "remove the `---`")
	} else if err != io.EOF {
		p.notYAML(err)
	}
}

// mapping walks a map whose keys continue prefix. Its depth is bounded by the
// names of the settings: it goes only where a known name goes on.
func (p *parser) mapping(prefix string, m *yaml.Node) {
	seen := map[string]int{}
	for i := 0; i+1 < len(m.Content) && !p.full(); i += 2 {
		key, value := m.Content[i], m.Content[i+1]
		if key.Kind != yaml.ScalarNode || key.Tag == "!!merge" {
			p.wrong(key, "", "a key must be the name of a setting, found "+describe(key), "write one `name: value` a line")
			continue
		}
		name := prefix + strings.ReplaceAll(key.Value, "_", "-")
		if line, twice := seen[name]; twice {
			p.twice(key, name, line)
			continue
		}
		seen[name] = key.Line
		p.entry(name, key, value)
	}
}

func (p *parser) entry(name string, key, value *yaml.Node) {
	_, mine := p.flags[name]
	other := slices.Contains(p.program, name)
	group := slices.ContainsFunc(p.known, func(k string) bool { return strings.HasPrefix(k, name+"-") })
	switch {
	case value.Kind == yaml.MappingNode && group:
		p.mapping(name+"-", value)
	case isNull(value) && (mine || other || group):
		// Not set here: `grpc:` with every line below it commented out, say.
	case mine:
		p.set(name, key, value)
	case other:
		p.ignore(p.source(key), "a setting of another command")
	case group:
		p.wrong(value, name, fmt.Sprintf("`%s` is a group of settings, found %s", shorten(name), describe(value)), "")
	default:
		p.unknown(name, p.source(key))
	}
}

// set takes the value of a setting of this command.
func (p *parser) set(name string, key, value *yaml.Node) {
	if line, twice := p.seen[name]; twice {
		p.twice(key, name, line)
		return
	}
	p.seen[name] = key.Line
	switch {
	case value.Kind == yaml.ScalarNode:
		p.values[name] = value.Value
	case value.Kind == yaml.SequenceNode && isList(p.flags[name]):
		elements := make([]string, 0, len(value.Content))
		for _, e := range value.Content {
			if e.Kind != yaml.ScalarNode || isNull(e) {
				p.wrong(e, name, fmt.Sprintf("`%s` is a list of plain values, found %s", name, describe(e)), "")
				return
			}
			elements = append(elements, e.Value)
		}
		p.values[name] = elements
	default:
		p.wrong(value, name, fmt.Sprintf("`%s` takes one %s, found %s", name, p.flags[name].Value.Type(), describe(value)), "")
		return
	}
	p.from[name] = p.source(key)
}

func (p *parser) source(n *yaml.Node) Source { return Source{Kind: File, Name: p.path, Line: n.Line} }

func (p *parser) wrong(n *yaml.Node, setting, problem, hint string) {
	p.report(&Error{Setting: shorten(setting), Source: p.source(n), Problem: problem, Hint: hint})
}

func (p *parser) twice(key *yaml.Node, name string, line int) {
	p.wrong(key, name, fmt.Sprintf("`%s` is set a second time", shorten(name)), fmt.Sprintf("the first is on line %d", line))
}

var yamlLine = regexp.MustCompile(`^yaml: line ([0-9]+): `)

// notYAML reports what the YAML parser says; it gives lines only as text.
func (p *parser) notYAML(err error) {
	e := &Error{Source: Source{Kind: File, Name: p.path}, Err: err}
	text := err.Error()
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		e.Source.Line, _ = strconv.Atoi(m[1])
		text = text[len(m[0]):]
	}
	e.Problem = "this is not YAML: " + strings.TrimPrefix(text, "yaml: ")
	p.report(e)
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

func describe(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a map"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Kind == yaml.AliasNode:
		return "an alias, which is not supported"
	case n.Tag == "!!merge":
		return "a merge key, which is not supported"
	case isNull(n):
		return "nothing"
	}
	return "a plain value"
}
