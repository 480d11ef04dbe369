package accesslog

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// fields are what entries may be told apart by, in the order of Fields.
var fields = []struct {
	name string
	get  func(e *Entry) []byte // nil for status
}{
	{"client_ip", func(e *Entry) []byte { return e.ClientIP }},
	{"user", func(e *Entry) []byte { return e.User }},
	{"method", func(e *Entry) []byte { return e.Method }},
	{"path", func(e *Entry) []byte { return e.Path }},
	{"status", nil},
	{"user_agent", func(e *Entry) []byte { return e.UserAgent }},
	{"referer", func(e *Entry) []byte { return e.Referer }},
}

// Fields lists the names that ParseBy knows.
func Fields() []string {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
	}
	return names
}

// By says by which fields entries are told apart.
type By struct{ fields []int } // indexes into fields

// ParseBy reads the names of one or more fields, with commas between them.
func ParseBy(text string) (By, error) {
	var by By
	for name := range strings.SplitSeq(text, ",") {
		name = strings.TrimSpace(name)
		i := slices.Index(Fields(), name)
		switch {
		case i < 0 && name == "":
			return By{}, errors.New("name a field: choose from " + strings.Join(Fields(), ", "))
		case i < 0:
			return By{}, fmt.Errorf("there is no field %q: choose from %s", name, strings.Join(Fields(), ", "))
		case slices.Contains(by.fields, i):
			return By{}, fmt.Errorf("the field %s is named twice", name)
		}
		by.fields = append(by.fields, i)
	}
	return by, nil
}

// String returns what ParseBy reads.
func (b By) String() string {
	names := make([]string, len(b.fields))
	for i, f := range b.fields {
		names[i] = fields[f].name
	}
	return strings.Join(names, ",")
}

// Key returns the key of an entry: see AppendKey.
func (b By) Key(e *Entry) string { return string(b.AppendKey(nil, e)) }

// AppendKey appends the key of an entry to dst. One field gives its text, or
// "-" if it is empty. Several fields are joined with "|", within them "|" is
// written `\|` and `\` is written `\\`: different fields have different keys.
func (b By) AppendKey(dst []byte, e *Entry) []byte {
	if len(b.fields) == 1 {
		return appendField(dst, b.fields[0], e)
	}
	for i, f := range b.fields {
		if i > 0 {
			dst = append(dst, '|')
		}
		from := len(dst)
		dst = escape(appendField(dst, f, e), from)
	}
	return dst
}

func appendField(dst []byte, f int, e *Entry) []byte {
	if fields[f].get == nil {
		if e.Status == 0 {
			return append(dst, '-')
		}
		return strconv.AppendInt(dst, int64(e.Status), 10)
	}
	if text := fields[f].get(e); len(text) > 0 {
		return append(dst, text...)
	}
	return append(dst, '-')
}

// escape escapes what was appended to dst from the given place on.
func escape(dst []byte, from int) []byte {
	n := 0
	for _, c := range dst[from:] {
		if special(c) {
			n++
		}
	}
	if n == 0 {
		return dst
	}
	i := len(dst) - 1
	dst = append(dst, make([]byte, n)...)
	for j := len(dst) - 1; i >= from; i-- {
		dst[j] = dst[i]
		j--
		if special(dst[i]) {
			dst[j] = '\\'
			j--
		}
	}
	return dst
}

func special(c byte) bool { return c == '|' || c == '\\' }
