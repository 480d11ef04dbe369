package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/fallback"
	"github.com/keystead/keystead/internal/rate"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/zone"
)

// Parse reads a file. Its name is for what is said about it. The error is of type Problems.
func Parse(file string, data []byte) (*Set, error) {
	p := &parser{file: file, set: &Set{by: map[string]*Policy{}, admissions: map[string]*Admission{}}, lines: map[string]int{}}
	if len(data) > MaxFile {
		p.wrong(0, fmt.Sprintf("has %d bytes; at most %d are allowed", len(data), MaxFile), "is this the right file?")
	} else if !utf8.Valid(data) { // it goes to nodes as text
		p.wrong(0, "is not UTF-8", "save it as UTF-8 without a byte order mark")
	} else {
		p.document(data)
	}
	if len(p.problems) > 0 {
		return nil, p.problems
	}
	return p.set, nil
}

// parser reads nodes and not values: only nodes have lines, and show what is there twice.
type parser struct {
	file     string
	set      *Set
	lines    map[string]int // of policies, by name
	inOrder  []*Admission
	problems Problems
}

func (p *parser) wrong(line int, message, hint string) {
	if !p.full() {
		p.problems = append(p.problems, Problem{p.file, line, message, hint})
	}
}

func (p *parser) full() bool { return len(p.problems) >= maxProblems }

const example = "for example\n    policies:\n      login:\n        limit: 5/15m"

func (p *parser) document(data []byte) {
	d := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	if err := d.Decode(&doc); errors.Is(err, io.EOF) {
		p.wrong(0, "has no policies", "write `policies: {}` to say that there are none; "+example)
		return
	} else if err != nil {
		p.notYAML(err)
		return
	}
	p.root(doc.Content[0])
	if err := d.Decode(&second); err == nil {
		p.wrong(second.Line, "a second document starts here", "remove the `---`")
	} else if !errors.Is(err, io.EOF) {
		p.notYAML(err)
	}
}

func (p *parser) root(n *yaml.Node) {
	var policies, admissions *yaml.Node
	p.fields(n, "the file", []string{"policies", "admissions"}, func(name string, v *yaml.Node) {
		if name == "policies" {
			policies = v
		} else {
			admissions = v
		}
	})
	if len(p.problems) == 0 && (policies != nil || admissions == nil) {
		p.policies(n, policies)
	}
	if admissions != nil && !p.full() {
		p.admissions(admissions)
	}
}

func (p *parser) policies(n, policies *yaml.Node) {
	switch {
	case policies == nil:
		p.wrong(n.Line, "there is no `policies:`", example)
	case policies.Kind != yaml.MappingNode:
		p.wrong(policies.Line, "`policies` is a map of names, found "+describe(policies), "write `policies: {}` to say that there are none; "+example)
	case len(policies.Content)/2 > MaxCount:
		p.wrong(policies.Line, fmt.Sprintf("there are %d policies; at most %d are allowed", len(policies.Content)/2, MaxCount), "a limit for each key needs one policy, and not one for each key")
	default:
		for i := 0; i+1 < len(policies.Content) && !p.full(); i += 2 {
			p.policy(policies.Content[i], policies.Content[i+1])
		}
	}
}

// fields hands the values of a map to set, by name.
func (p *parser) fields(n *yaml.Node, of string, known []string, set func(name string, v *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		p.wrong(n.Line, of+" is a map, found "+describe(n), example)
		return
	}
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content) && !p.full(); i += 2 {
		key, v := n.Content[i], n.Content[i+1]
		name := key.Value
		switch line, twice := lines[name]; {
		case key.Kind != yaml.ScalarNode || key.Tag == "!!merge":
			p.wrong(key.Line, "a field has a plain name, found "+describe(key), "write one `name: value` a line")
		case twice:
			p.wrong(key.Line, fmt.Sprintf("`%s` is there a second time", name), fmt.Sprintf("the first is on line %d", line))
		case !slices.Contains(known, name):
			p.wrong(key.Line, fmt.Sprintf("%s has no field `%s`", of, shorten(name)), nearest(name, known))
		default:
			lines[name] = key.Line
			set(name, v)
		}
	}
}

// names are of what can stand in a URL, on a command line and in a metric as it is.
var names = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]*$`)

// ValidName reports whether a policy can have a name.
func ValidName(name string) bool { return len(name) <= MaxName && names.MatchString(name) }

func (p *parser) policy(key, value *yaml.Node) {
	name := key.Value
	if !p.named(key) {
		return
	}
	before := len(p.problems)
	pol := &draft{Policy: &Policy{Name: name, Line: key.Line}, lines: map[string]int{}}
	p.fields(value, "the policy `"+name+"`", policyFields, func(field string, v *yaml.Node) {
		pol.lines[field] = v.Line
		p.field(pol, field, v)
	})
	if len(p.problems) > before {
		return
	}
	if pol.lines["limit"] == 0 {
		p.wrong(key.Line, fmt.Sprintf("the policy `%s` has no limit", name), "write how many per period, like `limit: 100/1m`")
		return
	}
	err := pol.finish()
	if err == nil { // what an owner would refuse is wrong here already
		err = limit.Op{Params: pol.Params, Cost: 1, MaxDelay: pol.MaxDelay}.Validate()
	}
	if err == nil {
		err = pol.judgeFallback()
	}
	if bad := (*failure.Error)(nil); errors.As(err, &bad) {
		field := bad.Field
		if field == "period_ns" || field == "calendar" {
			field = "limit"
		}
		field = strings.TrimSuffix(field, "_ns")
		p.wrong(max(pol.lines[field], key.Line), fmt.Sprintf("`%s` of the policy `%s` %s", field, name, bad.Message), bad.Hint)
		return
	}
	p.set.by[name] = pol.Policy
}

// named reports whether a policy can have a name, which no other has.
func (p *parser) named(key *yaml.Node) bool {
	name := key.Value
	switch line, twice := p.lines[name]; {
	case key.Kind != yaml.ScalarNode || key.Tag == "!!merge":
		p.wrong(key.Line, "the name of a policy is a plain value, found "+describe(key), "")
	case twice:
		p.wrong(key.Line, fmt.Sprintf("the policy `%s` is there a second time", name), fmt.Sprintf("the first is on line %d", line))
	case !ValidName(name):
		p.wrong(key.Line, fmt.Sprintf("`%s` cannot be the name of a policy", shorten(name)), fmt.Sprintf("use up to %d letters, digits, `.`, `_`, `-` and `/`, and begin with a letter or a digit", MaxName))
	default:
		p.lines[name] = key.Line
		return true
	}
	return false
}

var policyFields = []string{"limit", "burst", "algorithm", "about", "max_delay", "time_zone", "first_day", "first_month", "carry_over", "fallback", "budget"}

func (p *parser) field(pol *draft, field string, v *yaml.Node) {
	if v.Kind != yaml.ScalarNode || v.Tag == "!!null" {
		p.wrong(v.Line, fmt.Sprintf("`%s` is a plain value, found %s", field, describe(v)), "")
		return
	}
	switch field {
	case "limit":
		if err := pol.rate(v.Value); err != nil {
			p.wrong(v.Line, fmt.Sprintf("`limit: %s` is not a limit", shorten(v.Value)), "write how many per period: 20/1m, 100/s, 5000/24h, 1000/7d, or 1000/month of a calendar-window")
		}
	case "burst":
		pol.Burst = p.count(field, v, math.MaxUint64, "leave it out for as many as the limit has")
	case "carry_over":
		pol.carry = p.count(field, v, math.MaxUint64, "leave it out to carry nothing over")
	case "first_day":
		pol.day = int(p.count(field, v, math.MaxInt16, "1 is Monday, or the first of a month"))
	case "first_month":
		pol.month = int(p.count(field, v, math.MaxInt16, "1 is January"))
	case "time_zone":
		var known bool
		if pol.zone, known = zone.Find(v.Value); !known {
			p.wrong(v.Line, fmt.Sprintf("`time_zone: %s` is unknown", shorten(v.Value)), "write an IANA name, such as Europe/Berlin; the rules are those of tzdata "+zone.Release)
		}
	case "fallback":
		r, err := fallback.Parse(v.Value)
		if err != nil {
			p.wrong(v.Line, fmt.Sprintf("`fallback: %s` is none", shorten(v.Value)), "write none, local-cap:10/1m or last-known:30s")
		}
		r.Budget = pol.Fallback.Budget // which may stand first
		pol.Fallback = r
	case "budget":
		d, err := rate.ParseDuration(v.Value)
		if err != nil || d <= 0 {
			p.wrong(v.Line, fmt.Sprintf("`budget: %s` is no time", shorten(v.Value)), "write one such as 100ms; leave it out for 250ms")
		}
		pol.Fallback.Budget = d
	case "max_delay":
		d, err := rate.ParseDuration(v.Value)
		if err != nil || d <= 0 {
			p.wrong(v.Line, fmt.Sprintf("`max_delay: %s` is no time", shorten(v.Value)), "write one such as 2s; leave it out to give any turn")
		}
		pol.MaxDelay = int64(d)
	case "algorithm":
		i := slices.IndexFunc(algorithms, func(a algorithm) bool { return a.name == strings.ReplaceAll(v.Value, "_", "-") })
		if i < 0 {
			p.wrong(v.Line, fmt.Sprintf("`algorithm: %s` is unknown", shorten(v.Value)), "choose "+algorithmNames())
			return
		}
		pol.Algorithm = algorithms[i].is
	case "about":
		pol.About = p.about(v)
	}
}

// count reads a number from 1 on.
func (p *parser) count(field string, v *yaml.Node, most uint64, hint string) uint64 {
	n, err := strconv.ParseUint(strings.ReplaceAll(v.Value, "_", ""), 10, 64)
	if err != nil || n == 0 || n > most {
		p.wrong(v.Line, fmt.Sprintf("`%s: %s` is no count of 1 or more", field, shorten(v.Value)), hint)
	}
	return n
}

var yamlLine = regexp.MustCompile(`^yaml: line ([0-9]+): `)

// notYAML reports what the YAML parser says; it gives lines only as text.
func (p *parser) notYAML(err error) {
	text, line := err.Error(), 0
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		line, _ = strconv.Atoi(m[1])
		text = text[len(m[0]):]
	}
	p.wrong(line, "this is not YAML: "+strings.TrimPrefix(text, "yaml: "), "")
}

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
	case n.Tag == "!!null":
		return "nothing"
	}
	return "a plain value"
}

func shorten(text string) string {
	const most = 80
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// nearest hints at a known name that one was meant to be.
func nearest(name string, known []string) string {
	flat := func(s string) string {
		return strings.Map(func(r rune) rune {
			if strings.ContainsRune("-_ ", r) {
				return -1
			}
			return r
		}, strings.ToLower(s))
	}
	for _, k := range known {
		if common(flat(name), flat(k)) >= 4 {
			return "is `" + k + "` meant? It knows " + strings.Join(known, ", ")
		}
	}
	return "it knows " + strings.Join(known, ", ")
}

// common returns how many bytes two words begin with both.
func common(a, b string) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}
