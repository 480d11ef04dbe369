package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/keystead/keystead/internal/failure"
)

// Template is a key or a name with fields of requests in it: user:{user}/rpm.
//
// It consists of segments with `:` and `/` between them. A segment is plain text, or has one
// field. What a field has is written so that there are no `:` and `/` in it, see escape. So
// what a template becomes says which fields it was made of: two requests have the same only if
// the fields in it are the same, and two templates that differ() never become the same.
type Template struct {
	text     string
	segments []segment
}

type segment struct {
	before, field, after string // before = all of it, if there is no field
	end                  string // the separator behind it
}

const (
	separators = ":/"
	// longValue is how long a value is in a template at most: of a longer one it has the hash.
	longValue = 40
	hashed    = 16 // bytes of it
)

// plainText is what a template may have beside fields and separators, as what is not escaped.
func plainText(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._@+", c) >= 0
}

// newTemplate reads a template, or says what is wrong with it.
func newTemplate(text string, fields []string, most int) (t Template, wrong string) {
	t.text = text
	longest := 0
	for rest := text; ; {
		part, end := rest, ""
		if i := strings.IndexAny(rest, separators); i >= 0 {
			part, end, rest = rest[:i], rest[i:i+1], rest[i+1:]
		} else {
			rest = ""
		}
		s := segment{before: part, end: end}
		if before, inner, has := strings.Cut(part, "{"); has {
			field, after, closed := strings.Cut(inner, "}")
			switch {
			case !closed:
				return t, "has a `{` without a `}`"
			case !slices.Contains(fields, field):
				return t, fmt.Sprintf("names the field `%s`, which is not among `fields`", shorten(field))
			case strings.ContainsAny(after, "{}"):
				return t, "has two fields without a `:` or `/` between them: nobody could tell what belongs to which"
			}
			s = segment{before, field, after, end}
			longest += longValue
		}
		for _, c := range []byte(s.before + s.after) {
			if !plainText(c) {
				return t, fmt.Sprintf("has %q; use letters, digits, `-._@+`, `:` and `/`, and fields in `{}`", string(rune(c)))
			}
		}
		longest += len(s.before) + len(s.after) + len(end)
		t.segments = append(t.segments, s)
		if end == "" {
			break
		}
	}
	switch {
	case text == "":
		return t, "is empty"
	case longest > most:
		return t, fmt.Sprintf("may become %d bytes, with %d for a field; at most %d are allowed", longest, longValue, most)
	}
	return t, ""
}

// String returns the template as it was written.
func (t Template) String() string { return t.text }

// differ reports whether two templates can never become the same.
func (t Template) differ(other Template) bool {
	if len(t.segments) != len(other.segments) {
		return true
	}
	for i, s := range t.segments {
		o := other.segments[i]
		first := min(len(s.before), len(o.before))
		if s.end != o.end || s.field == "" && o.field == "" && s.before != o.before || s.before[:first] != o.before[:first] {
			return true
		}
	}
	return false
}

// fill puts the fields of a request into a template.
func (t Template) fill(a *Admission, fields map[string]string, isKey bool) (string, error) {
	var b strings.Builder
	for _, s := range t.segments {
		b.WriteString(s.before)
		if s.field != "" {
			v := fields[s.field]
			switch {
			case v == "":
				what, hint := "demand", "send it, or have the demand be `when: {"+s.field+": \"*\"}`"
				if isKey {
					what, hint = "key", "send it: each request needs it, whatever it demands"
				}
				return "", &failure.Error{Reason: failure.Invalid, Field: "fields." + s.field,
					Message: fmt.Sprintf("is missing or empty: the admission policy %q has it in the %s %q", a.Name, what, t.text), Hint: hint}
			case !utf8.ValidString(v):
				return "", failure.Invalidf("fields."+s.field, "is not valid UTF-8")
			}
			b.WriteString(escape(v))
			b.WriteString(s.after)
		}
		b.WriteString(s.end)
	}
	return b.String(), nil
}

// escape writes a value so that it has only plain text and %, and that two values never become the
// same: a byte that is not plain is % and two digits, and of what is longer than longValue then,
// there are two % and its hash.
func escape(v string) string {
	b := make([]byte, 0, longValue)
	for _, c := range []byte(v) {
		//guard:policy-escape true
		if plainText(c) {
			b = append(b, c)
		} else {
			b = append(b, '%', "0123456789abcdef"[c>>4], "0123456789abcdef"[c&15])
		}
	}
	if len(b) <= longValue {
		return string(b)
	}
	sum := sha256.Sum256([]byte(v))
	return "%%" + hex.EncodeToString(sum[:hashed])
}
