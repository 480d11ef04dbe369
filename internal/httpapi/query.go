package httpapi

import (
	"net/url"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/keystead/keystead/internal/failure"
)

// readQuery reads the parameters of a GET into a request: its fields but messages. Those
// that are lists may stand there several times. It returns how many parameters there are.
func readQuery(s *shape, query string, m protoreflect.Message) (elements int, err error) {
	if query == "" {
		return 0, nil
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return 0, &failure.Error{Reason: failure.Invalid, Message: "the query of the URL cannot be read: " + err.Error(),
			Hint: "write %XX for each byte that has a meaning in URLs; curl -G --data-urlencode does"}
	}
	var seen fieldSet
	for name, texts := range values {
		if s.rate != nil && name == rateName {
			if len(texts) != 1 {
				return 0, failure.Invalidf(rateName, "stands there twice")
			}
			if err := s.rate.set(texts[0], m, &seen); err != nil {
				return 0, err
			}
			continue
		}
		f := s.byName[name]
		switch {
		case f == nil:
			return 0, s.unknown(name)
		case !f.simple():
			return 0, failure.Invalidf(f.name, "does not fit into a query: send the request by POST, as JSON")
		case !seen.add(f.index), len(texts) > 1 && !f.desc.IsList():
			return 0, twice(s, f)
		}
		if elements += len(texts); elements > maxElements {
			return 0, failure.Invalidf(f.name, "stands there too often: send the request by POST, as JSON")
		}
		if err := f.setAll(m, texts, &seen); err != nil {
			return 0, err
		}
	}
	return elements, nil
}

// setAll sets a field to the value, or the values, of a query.
func (f *field) setAll(m protoreflect.Message, texts []string, seen *fieldSet) error {
	for _, text := range texts {
		v, err := f.parse(text)
		if err != nil {
			return err
		}
		if f.desc.IsList() {
			m.Mutable(f.desc).List().Append(v)
		} else if err := f.set(m, v, seen); err != nil {
			return err
		}
	}
	return nil
}
