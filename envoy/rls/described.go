package rls

import (
	"fmt"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// MaxMetadata bounds the metadata of a descriptor, in bytes on the wire: answers
// carry it.
const MaxMetadata = 16 << 10

// metadata reads what a descriptor says to Envoy: names and values of any kind, as
// YAML 1.1 has them. nil = nothing.
func (l *loader) metadata(n *yaml.Node) *structpb.Struct {
	t := described{loader: l, left: MaxMetadata}
	if isNull(l.visit(n)) {
		return nil
	}
	if l.visit(n).Kind != yaml.MappingNode {
		l.wrong(n.Line, "write `name: value` lines", "`metadata` must be a map, found %s", describe(l.visit(n)))
		return nil
	}
	s := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	t.fields(s.Fields, l.visit(n), 1)
	if t.left < 0 || proto.Size(s) > MaxMetadata {
		l.wrong(n.Line, "Envoy gets it with every answer; shorten it", "`metadata` has more than %d bytes", MaxMetadata)
	}
	if len(s.Fields) == 0 {
		return nil
	}
	return s
}

// described reads the metadata of one descriptor.
type described struct {
	*loader
	left int // nodes that may come, each of which takes a byte at least; < 0 = too many
}

// fields reads a map into fields, and then those that it merges, whose values count
// where it has none.
func (t *described) fields(fields map[string]*structpb.Value, n *yaml.Node, depth int) {
	if depth > MaxDepth {
		t.wrong(n.Line, "", "`metadata` is nested more than %d deep", MaxDepth)
		return
	}
	here := map[string]int{}
	var merged []*yaml.Node
	for i := 0; i+1 < len(n.Content) && !t.full() && t.left >= 0; i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Tag == "!!merge" {
			merged = append(merged, value)
			continue
		}
		name := t.name(key)
		if line, twice := here[name]; twice {
			t.wrong(key.Line, fmt.Sprintf("the first is on line %d", line), "`%s` comes a second time", name)
			continue
		}
		here[name] = key.Line
		if _, given := fields[name]; !given {
			fields[name] = t.value(value, depth)
		}
	}
	for _, m := range merged {
		t.merge(fields, m, depth+1)
	}
}

// merge reads what `<<:` brings in: a map, or a list of maps.
func (t *described) merge(fields map[string]*structpb.Value, n *yaml.Node, depth int) {
	switch n = t.visit(n); {
	case n.Kind == yaml.MappingNode:
		t.fields(fields, n, depth)
	case n.Kind == yaml.SequenceNode && depth <= MaxDepth:
		for _, e := range n.Content {
			t.merge(fields, e, depth+1)
		}
	default:
		t.wrong(n.Line, "", "`<<` merges maps, found %s", describe(n))
	}
}

// name returns the name of a value: whatever is written, as text.
func (t *described) name(n *yaml.Node) string {
	n = t.visit(n)
	if n.Kind != yaml.ScalarNode {
		t.wrong(n.Line, "", "a name was expected, found %s", describe(n))
		return ""
	}
	return t.text(n, "the name of a value")
}

// value reads a value of any kind.
func (t *described) value(n *yaml.Node, depth int) *structpb.Value {
	n = t.visit(n)
	if t.left--; t.left < 0 {
		return structpb.NewNullValue()
	}
	switch {
	case n.Kind == yaml.MappingNode:
		s := &structpb.Struct{Fields: map[string]*structpb.Value{}}
		t.fields(s.Fields, n, depth+1)
		return structpb.NewStructValue(s)
	case n.Kind == yaml.SequenceNode && depth < MaxDepth:
		list := &structpb.ListValue{}
		for _, e := range n.Content {
			if t.full() || t.left < 0 {
				break
			}
			list.Values = append(list.Values, t.value(e, depth+1))
		}
		return structpb.NewListValue(list)
	case n.Kind == yaml.ScalarNode:
		return t.scalar(n)
	}
	t.wrong(n.Line, "", "`metadata` is nested more than %d deep", MaxDepth)
	return structpb.NewNullValue()
}

// scalar reads a text, a number, a truth or nothing. Dates are texts, as upstream.
func (t *described) scalar(n *yaml.Node) *structpb.Value {
	var number float64
	var truth bool
	text := n.Value
	switch tag := n.ShortTag(); {
	case tag == "!!null":
		return structpb.NewNullValue()
	case tag == "!!bool" || tag == "!!str" && n.Style == 0 && oldTruths[text]:
		if n.Decode(&truth) == nil {
			return structpb.NewBoolValue(truth)
		}
	case tag == "!!int" || tag == "!!float":
		if n.Decode(&number) == nil {
			return structpb.NewNumberValue(number)
		}
	case n.Decode(&text) == nil && utf8.ValidString(text):
		return structpb.NewStringValue(text)
	}
	t.wrong(n.Line, "", "a value of `metadata` is a text, a number, true, false, a list or a map, found %s", describe(n))
	return structpb.NewNullValue()
}

// oldTruths are the words that YAML 1.1, which upstream reads, has for true and
// false beside these.
var oldTruths = map[string]bool{
	"y": true, "Y": true, "yes": true, "Yes": true, "YES": true, "on": true, "On": true, "ON": true,
	"n": true, "N": true, "no": true, "No": true, "NO": true, "off": true, "Off": true, "OFF": true,
}
