package rls

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// visit follows an alias, and counts.
func (l *loader) visit(n *yaml.Node) *yaml.Node {
	for range MaxDepth {
		if n.Kind != yaml.AliasNode {
			break
		}
		n = n.Alias
	}
	if l.visits++; l.visits == maxVisits {
		l.wrong(n.Line, "use fewer aliases", "with what its aliases stand for the file is too large")
		l.stop = true
	}
	return n
}

// belongs says where a name that stands in the wrong place belongs.
var belongs = map[string]string{
	"domain": "at the top of the file",
	"key":    "in a descriptor", "value": "in a descriptor", "rate_limit": "in a descriptor", "descriptors": "at the top of the file, or in a descriptor",
	"shadow_mode": "in the descriptor, beside `rate_limit:`", "quota_mode": "in the descriptor, beside `rate_limit:`",
	"detailed_metric": "in the descriptor, beside `rate_limit:`", "value_to_metric": "in the descriptor, beside `rate_limit:`", "share_threshold": "in the descriptor, beside `rate_limit:`",
	"metadata": "in the descriptor, beside `rate_limit:`",
	"unit":     "in `rate_limit:`", "requests_per_unit": "in `rate_limit:`", "unlimited": "in `rate_limit:`", "name": "in `rate_limit:`", "replaces": "in `rate_limit:`", "keystead": "in `rate_limit:`",
	"algorithm": "in `keystead:` in `rate_limit:`", "burst": "in `keystead:` in `rate_limit:`", "all_or_nothing": "in `keystead:` in `rate_limit:`",
	"on_failure": "in `keystead:` in `rate_limit:`", "over_limit": "in `keystead:` in `rate_limit:`",
}

// fields hands the values of a map over to the functions that take them, by name. It says
// whether n is a map.
func (l *loader) fields(n *yaml.Node, what string, takes map[string]func(*yaml.Node)) bool {
	n = l.visit(n)
	if n.Kind != yaml.MappingNode {
		l.wrong(n.Line, "write `name: value` lines", "%s must be a map, found %s", what, describe(n))
		return false
	}
	lines := map[string]int{}
	l.pairs(n, what, takes, lines, 0)
	return true
}

// pairs does so for one map, and then for those that it merges, whose values
// count where it has none.
func (l *loader) pairs(n *yaml.Node, what string, takes map[string]func(*yaml.Node), lines map[string]int, depth int) {
	var merged []*yaml.Node
	here := map[string]int{}
	for i := 0; i+1 < len(n.Content) && !l.full(); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		take, known := takes[key.Value]
		line, twice := here[key.Value]
		switch {
		case key.Tag == "!!merge":
			merged = append(merged, value)
		case key.Kind != yaml.ScalarNode:
			l.wrong(key.Line, "", "a name was expected, found %s", describe(key))
		case !known:
			l.unknown(key, what, takes)
		case twice:
			l.wrong(key.Line, fmt.Sprintf("the first is on line %d", line), "`%s` comes a second time", key.Value)
		default:
			here[key.Value] = key.Line
			if _, given := lines[key.Value]; !given {
				lines[key.Value] = key.Line
				take(value)
			}
		}
	}
	for _, m := range merged {
		l.merge(m, what, takes, lines, depth+1)
	}
}

// merge takes what `<<:` brings in: a map, or a list of maps.
func (l *loader) merge(n *yaml.Node, what string, takes map[string]func(*yaml.Node), lines map[string]int, depth int) {
	n = l.visit(n)
	switch {
	case depth > MaxDepth:
		l.wrong(n.Line, "", "maps are merged more than %d deep", MaxDepth)
	case n.Kind == yaml.MappingNode:
		l.pairs(n, what, takes, lines, depth)
	case n.Kind == yaml.SequenceNode:
		for _, e := range n.Content {
			if l.full() {
				return
			}
			l.merge(e, what, takes, lines, depth+1)
		}
	default:
		l.wrong(n.Line, "", "`<<` merges maps, found %s", describe(n))
	}
}

func (l *loader) unknown(key *yaml.Node, what string, takes map[string]func(*yaml.Node)) {
	if place, ok := belongs[key.Value]; ok {
		l.wrong(key.Line, "it belongs "+place, "%s has no `%s`", what, key.Value)
		return
	}
	hint := "it knows " + strings.Join(slices.Sorted(maps.Keys(takes)), ", ")
	l.wrong(key.Line, hint, "%s has no %s", what, quote(key.Value))
}

// text reads a string. Whole numbers, truths and dates are taken as they are
// written, as upstream does; nothing is "".
func (l *loader) text(n *yaml.Node, name string) string {
	n = l.visit(n)
	if n.Kind == yaml.ScalarNode {
		switch n.ShortTag() {
		case "!!str", "!!int", "!!bool", "!!timestamp":
			return n.Value
		case "!!null":
			return ""
		case "!!float":
			l.wrong(n.Line, "put it in quotes", "`%s` is the number %s, which can be written in several ways", name, n.Value)
			return ""
		}
	}
	l.wrong(n.Line, "", "`%s` takes a text, found %s", name, describe(n))
	return ""
}

// truth reads true or false.
func (l *loader) truth(n *yaml.Node, name string) (yes bool) {
	n = l.visit(n)
	if n.Kind != yaml.ScalarNode || isNull(n) || n.Decode(&yes) != nil {
		l.wrong(n.Line, "", "`%s` takes true or false, found %s", name, describe(n))
	}
	return yes
}

// number reads a whole number from 0 to most.
func (l *loader) number(n *yaml.Node, name string, most uint64) (v uint64) {
	n = l.visit(n)
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" || n.Decode(&v) != nil || v > most {
		l.wrong(n.Line, "", "`%s` takes a whole number from 0 to %d, found %s", name, most, describe(n))
		return 0
	}
	return v
}

// choice reads one of several words, and returns its index.
func (l *loader) choice(n *yaml.Node, name string, among []string) int {
	n = l.visit(n)
	if i := slices.Index(among, n.Value); n.Kind == yaml.ScalarNode && i >= 0 {
		return i
	}
	l.wrong(n.Line, "choose "+strings.Join(among[:len(among)-1], ", ")+" or "+among[len(among)-1], "`%s` is %s", name, describe(n))
	return 0
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

func describe(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a map"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Kind == yaml.AliasNode:
		return "an alias of aliases"
	case isNull(n):
		return "nothing"
	}
	return quote(n.Value)
}

// maxQuoted is how much of a text a message repeats, in bytes.
const maxQuoted = 80

// quote is a text of a file as it stands in a message.
func quote(s string) string {
	if len(s) > maxQuoted {
		return fmt.Sprintf("%q…", strings.ToValidUTF8(s[:maxQuoted], ""))
	}
	return fmt.Sprintf("%q", s)
}
