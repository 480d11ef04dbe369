package httpapi

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// shape is how a message looks in JSON.
type shape struct {
	desc   protoreflect.MessageDescriptor
	fields []*field          // in the order of the .proto file
	byName map[string]*field // in all spellings that are read
	rate   *rateFields       // nil if it has none
}

// field is a field of a message.
type field struct {
	desc     protoreflect.FieldDescriptor
	name     string // in JSON
	start    string // `"name":`
	index    int    // of its message's fields
	duration bool   // nanoseconds in the message
	words    bool   // a text that names fields: of an error
	text     bool   // of bytes, as text: another name for the same field
	message  *shape // of a field that holds messages
	enum     *enum  // of a field that holds values of an enum
}

// rateFields are what the field rate of a request stands for.
type rateFields struct{ limit, period *field }

// errorName is the message by which one item of a batch fails.
const errorName = "Error"

// rateName is the field of requests that stands for a limit and its period.
const rateName = "rate"

// enum is how values of an enum are written.
type enum struct {
	names  map[protoreflect.EnumNumber]string
	values map[string]protoreflect.EnumNumber // in upper case, with and without prefix
	known  []string
}

// shapes are those of messages by their full names.
type shapes map[protoreflect.FullName]*shape

// of returns the shape of a message. It panics where two fields would have one name: that
// is a mistake in the .proto files, which a test finds.
func (all shapes) of(d protoreflect.MessageDescriptor) *shape {
	if s := all[d.FullName()]; s != nil {
		return s
	}
	s := &shape{desc: d, byName: map[string]*field{}}
	all[d.FullName()] = s
	fds := d.Fields()
	for i := range fds.Len() {
		f := all.field(fds.Get(i), i)
		if s.add(f); f.hasText() {
			s.add(f.asText())
		}
	}
	limit, period := s.byName["limit"], s.byName["period"]
	if limit != nil && period != nil && period.duration && limit.desc.Kind() == protoreflect.Uint64Kind {
		if s.byName[rateName] != nil {
			panic(fmt.Sprintf("%s has a field %s, and may not", d.FullName(), rateName))
		}
		s.rate = &rateFields{limit, period}
	}
	return s
}

func (all shapes) field(d protoreflect.FieldDescriptor, i int) *field {
	if i >= maxFields {
		panic(fmt.Sprintf("%s has more fields than there is room for", d.Parent().FullName()))
	}
	f := &field{desc: d, index: i, name: jsonName(string(d.Name()))}
	f.duration = f.name != string(d.Name())
	f.words = d.Parent().Name() == errorName && d.Kind() == protoreflect.StringKind
	f.start = `"` + f.name + `":`
	switch {
	case d.IsMap() || d.ContainingOneof() != nil && !d.HasOptionalKeyword():
		panic(fmt.Sprintf("%s is a map or one of several fields: there is no JSON for it yet", d.FullName()))
	case d.Message() != nil:
		f.message = all.of(d.Message())
	case d.Enum() != nil:
		f.enum = newEnum(d.Enum())
	}
	return f
}

// textSuffix is behind the name of a field of bytes, where it is text.
const textSuffix = "_text"

// maxFields is how many fields a message has at most, with those of them that are there twice
// behind the others.
const maxFields = 64

// idName is the message whose bytes are drawn at random, and never text.
const idName = "RequestId"

// hasText reports whether a field has a second name, under which its bytes are text.
func (f *field) hasText() bool {
	return f.desc.Kind() == protoreflect.BytesKind && !f.desc.IsList() && f.desc.Parent().Name() != idName
}

// hasText reports whether a message has such a field.
func (s *shape) hasText() bool { return slices.ContainsFunc(s.fields, (*field).hasText) }

func (f *field) asText() *field {
	as := *f
	as.name, as.text, as.index = f.name+textSuffix, true, f.index+maxFields
	as.start = `"` + as.name + `":`
	return &as
}

func (s *shape) add(f *field) {
	s.fields = append(s.fields, f)
	for _, name := range []string{f.name, lowerCamel(f.name)} {
		if other := s.byName[name]; other != nil && other != f {
			panic(fmt.Sprintf("%s and %s are both %q in JSON", f.desc.FullName(), other.desc.FullName(), name))
		}
		s.byName[name] = f
	}
}

// known returns the names that a request may have.
func (s *shape) known() []string {
	names := make([]string, 0, len(s.fields)+1)
	for _, f := range s.fields {
		names = append(names, f.name)
	}
	if s.rate != nil {
		names = append(names, rateName)
	}
	return names
}

// jsonName returns the name of a field in JSON: durations have no unit in it.
func jsonName(name string) string { return strings.TrimSuffix(name, "_ns") }

// lowerCamel returns a name of a .proto file as JSON libraries like it.
func lowerCamel(name string) string {
	words := strings.Split(name, "_")
	for i, w := range words[1:] {
		if w != "" {
			words[i+1] = strings.ToUpper(w[:1]) + w[1:]
		}
	}
	return strings.Join(words, "")
}

func newEnum(d protoreflect.EnumDescriptor) *enum {
	e := &enum{names: map[protoreflect.EnumNumber]string{}, values: map[string]protoreflect.EnumNumber{}}
	prefix := strings.ToUpper(strings.ReplaceAll(kebab(string(d.Name())), "-", "_")) + "_"
	for i := range d.Values().Len() {
		v := d.Values().Get(i)
		full := string(v.Name())
		short := strings.TrimPrefix(full, prefix)
		e.names[v.Number()] = short
		e.values[full], e.values[short] = v.Number(), v.Number()
		if v.Number() != 0 {
			e.known = append(e.known, short)
		}
	}
	return e
}

// kebab returns a name of the API in small letters with dashes: BatchCheck is batch-check.
func kebab(name string) string {
	var b []byte
	for i := range len(name) {
		c := name[i]
		upper := 'A' <= c && c <= 'Z'
		nextLower := i+1 < len(name) && 'a' <= name[i+1] && name[i+1] <= 'z'
		afterLower := i > 0 && ('a' <= name[i-1] && name[i-1] <= 'z' || '0' <= name[i-1] && name[i-1] <= '9')
		if upper && i > 0 && (afterLower || nextLower) {
			b = append(b, '-')
		}
		if upper {
			c += 'a' - 'A'
		}
		b = append(b, c)
	}
	return string(b)
}

// simple reports whether a field may be a query parameter: no message.
func (f *field) simple() bool { return f.message == nil }

// integer64 reports whether a kind is written as a string in JSON.
func integer64(k protoreflect.Kind) bool {
	return slices.Contains([]protoreflect.Kind{
		protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind,
		protoreflect.Uint64Kind, protoreflect.Fixed64Kind,
	}, k)
}
