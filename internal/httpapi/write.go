package httpapi

import (
	"encoding/base64"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// append writes a message.
func (s *shape) append(b []byte, m protoreflect.Message) []byte {
	b = append(b, '{')
	first := true
	for _, f := range s.fields {
		switch {
		case f.desc.HasPresence() && !m.Has(f.desc):
			continue
		case f.enum != nil && !f.desc.IsList() && !m.Has(f.desc):
			continue // unspecified
		case f.text && !utf8.Valid(m.Get(f.desc).Bytes()):
			continue // only base64 has it
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		b = append(b, f.start...)
		if f.desc.IsList() {
			b = f.appendList(b, m.Get(f.desc).List())
		} else {
			b = f.appendValue(b, m.Get(f.desc))
		}
	}
	return append(b, '}')
}

func (f *field) appendList(b []byte, l protoreflect.List) []byte {
	b = append(b, '[')
	for i := range l.Len() {
		if i > 0 {
			b = append(b, ',')
		}
		b = f.appendValue(b, l.Get(i))
	}
	return append(b, ']')
}

func (f *field) appendValue(b []byte, v protoreflect.Value) []byte {
	switch f.desc.Kind() {
	case protoreflect.BoolKind:
		return strconv.AppendBool(b, v.Bool())
	case protoreflect.EnumKind:
		return appendEnum(b, f.enum, v.Enum())
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return strconv.AppendInt(b, v.Int(), 10)
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return strconv.AppendUint(b, v.Uint(), 10)
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		b = append(b, '"')
		if f.duration {
			b = appendSeconds(b, v.Int())
		} else {
			b = strconv.AppendInt(b, v.Int(), 10)
		}
		return append(b, '"')
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		b = strconv.AppendUint(append(b, '"'), v.Uint(), 10)
		return append(b, '"')
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return appendFloat(b, v.Float())
	case protoreflect.StringKind:
		if f.words {
			return appendString(b, inJSON(v.String()))
		}
		return appendString(b, v.String())
	case protoreflect.BytesKind:
		if f.text {
			return appendString(b, string(v.Bytes()))
		}
		b = base64.StdEncoding.AppendEncode(append(b, '"'), v.Bytes())
		return append(b, '"')
	case protoreflect.MessageKind:
		return f.message.append(b, v.Message())
	}
	panic("no JSON for " + f.desc.Kind().String()) // groups are not of proto3
}

// appendEnum writes a value; one of a newer version is its number.
func appendEnum(b []byte, e *enum, n protoreflect.EnumNumber) []byte {
	if name, ok := e.names[n]; ok {
		return appendString(b, name)
	}
	return strconv.AppendInt(b, int64(n), 10)
}

// appendSeconds writes a duration as seconds, exactly: 0.25s. Everybody can read that.
func appendSeconds(b []byte, ns int64) []byte {
	u := uint64(ns)
	if ns < 0 {
		b, u = append(b, '-'), -u
	}
	b = strconv.AppendUint(b, u/1e9, 10)
	if rest := u % 1e9; rest > 0 {
		digits := strconv.FormatUint(1e9+rest, 10)[1:]
		b = append(b, '.')
		b = append(b, strings.TrimRight(digits, "0")...)
	}
	return append(b, 's')
}

// appendFloat writes a number; JSON has none for those that are not finite.
func appendFloat(b []byte, x float64) []byte {
	switch {
	case math.IsNaN(x):
		return append(b, `"NaN"`...)
	case math.IsInf(x, 1):
		return append(b, `"Infinity"`...)
	case math.IsInf(x, -1):
		return append(b, `"-Infinity"`...)
	}
	return strconv.AppendFloat(b, x, 'g', -1, 64)
}

const hexDigits = "0123456789abcdef"

// appendString writes a string; bytes that are no UTF-8 become U+FFFD.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	done := 0 // what is before it is written
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && size == 1 {
				b = append(append(b, s[done:i]...), "\uFFFD"...)
				done = i + 1
			}
			i += size
			continue
		}
		b = append(b, s[done:i]...)
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, `\n`...)
		case '\t':
			b = append(b, `\t`...)
		case '\r':
			b = append(b, `\r`...)
		default:
			b = append(b, `\u00`...)
			b = append(b, hexDigits[c>>4], hexDigits[c&15])
		}
		i++
		done = i
	}
	return append(append(b, s[done:]...), '"')
}
