package httpapi

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/keystead/keystead/internal/config"
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/rate"
)

// maxElements is how many elements the lists of a request have at most, in all. Two bytes
// of JSON can be an element of a hundred bytes in memory: a bound of bytes does not bound
// that. It is above the items of a batch, which has an error of its own.
const maxElements = 2*10_000 + 16

// reader reads a request.
type reader struct {
	scanner
	elements int
}

// readMessage reads a request: one JSON object; nothing at all is an empty one. It returns
// how many elements its lists have.
func readMessage(s *shape, data []byte, m protoreflect.Message) (elements int, err error) {
	if notUTF8(data) {
		return 0, &failure.Error{Reason: failure.Invalid, Message: "the body is in UTF-16, or begins with a byte order mark", Hint: "send it as UTF-8 without one"}
	}
	r := reader{scanner: scanner{data: data}}
	if r.next() == 0 && r.at == len(data) {
		return 0, nil
	}
	err = r.message(s, m)
	if err == nil && (r.next() != 0 || r.at < len(data)) {
		err = r.expected("the end of the request")
	}
	var bad *syntaxError
	if errors.As(err, &bad) {
		err = &failure.Error{Reason: failure.Invalid, Message: "the body is not the JSON that is expected here: " + bad.Error(),
			Hint: "send one JSON object with the fields of the request; /openapi.json has them"}
	}
	return r.elements, err
}

// notUTF8 reports whether a body is not as JSON is exchanged, but as some editors and shells
// write files.
func notUTF8(data []byte) bool {
	for _, mark := range []string{"\xef\xbb\xbf", "\xff\xfe", "\xfe\xff", "{\x00", "\x00{"} {
		if bytes.HasPrefix(data, []byte(mark)) {
			return true
		}
	}
	return false
}

// message reads an object into a message.
func (r *reader) message(s *shape, m protoreflect.Message) error {
	if err := r.expect('{'); err != nil {
		return err
	}
	if r.take('}') {
		return nil
	}
	var seen fieldSet
	for {
		if err := r.member(s, m, &seen); err != nil {
			return err
		}
		if r.take('}') {
			return nil
		}
		if !r.take(',') {
			return r.expected("',' or '}'")
		}
	}
}

// fieldSet is which fields of a message were read.
type fieldSet struct {
	some  [2 * maxFields / 64]uint64 // by index
	given [2 * maxFields / 64]uint64 // … those that were not null
	rate  bool
}

// add reports whether a field was not there yet.
func (s *fieldSet) add(i int) bool {
	word, bit := &s.some[i/64], uint64(1)<<(i%64)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	return true
}

// give notes that a field has a value, and gave reports whether it has.
func (s *fieldSet) give(i int)      { s.given[i/64] |= 1 << (i % 64) }
func (s *fieldSet) gave(i int) bool { return s.given[i/64]&(1<<(i%64)) != 0 }

// member reads a field and its value.
func (r *reader) member(s *shape, m protoreflect.Message, seen *fieldSet) error {
	text, err := r.text()
	if err != nil {
		return err
	}
	if err := r.expect(':'); err != nil {
		return err
	}
	f := s.byName[string(text)]
	if f == nil {
		if s.rate == nil || string(text) != rateName {
			return s.unknown(string(text))
		}
		return r.rate(s.rate, m, seen)
	}
	if !seen.add(f.index) {
		return twice(s, f)
	}
	if r.literal("null") {
		return nil // as if it were not there
	}
	if f.desc.IsList() {
		return r.list(f, m.Mutable(f.desc).List())
	}
	if f.message != nil {
		return r.nested(f, f.name, m.Mutable(f.desc).Message())
	}
	v, err := r.value(f)
	if err == nil {
		err = f.set(m, v, seen)
	}
	return err
}

// set puts a value into its field. Bytes may stand there twice, as such and as text, if they
// are the same.
func (f *field) set(m protoreflect.Message, v protoreflect.Value, seen *fieldSet) error {
	seen.give(f.index)
	if f.hasText() && seen.gave((f.index+maxFields)%(2*maxFields)) && !bytes.Equal(m.Get(f.desc).Bytes(), v.Bytes()) {
		return failure.Invalidf(f.name, "has two values: send it as base64, or as text")
	}
	m.Set(f.desc, v)
	return nil
}

// rate reads "20/1m" into the two fields that it stands for.
func (r *reader) rate(fields *rateFields, m protoreflect.Message, seen *fieldSet) error {
	if seen.rate {
		return failure.Invalidf(rateName, "stands there twice")
	}
	seen.rate = true
	if r.literal("null") {
		return nil
	}
	if r.next() != '"' {
		return failure.Invalidf(rateName, `is not a string: write it like "20/1m"`)
	}
	text, err := r.text()
	if err != nil {
		return err
	}
	return fields.set(string(text), m, seen)
}

// set puts a rate into its two fields.
func (f *rateFields) set(text string, m protoreflect.Message, seen *fieldSet) error {
	x, err := rate.Parse(text)
	if errors.Is(err, rate.ErrCalendar) {
		_, unit, _ := strings.Cut(text, "/")
		return &failure.Error{Reason: failure.Invalid, Field: rateName, Message: err.Error(),
			Hint: fmt.Sprintf(`send "limit" and "calendar": %q in place of rate, with "algorithm": "calendar_window"`, unit)}
	}
	if err != nil {
		return failure.Invalidf(rateName, "%s", err)
	}
	if !seen.add(f.limit.index) || !seen.add(f.period.index) {
		return twiceRate()
	}
	m.Set(f.limit.desc, protoreflect.ValueOfUint64(x.Limit))
	m.Set(f.period.desc, protoreflect.ValueOfInt64(int64(x.Period)))
	return nil
}

// twice returns the error of a field that is there already.
func twice(s *shape, f *field) error {
	if s.rate != nil && (f == s.rate.limit || f == s.rate.period) {
		return twiceRate()
	}
	return failure.Invalidf(f.name, "stands there twice")
}

func twiceRate() error {
	return failure.Invalidf(rateName, "stands for limit and period: send one rate, or one limit and one period")
}

// list reads an array into a list.
func (r *reader) list(f *field, l protoreflect.List) error {
	if err := r.expect('['); err != nil {
		return err
	}
	if r.take(']') {
		return nil
	}
	for {
		if r.elements++; r.elements > maxElements {
			return &failure.Error{Reason: failure.TooLarge, Message: fmt.Sprintf("the request has more than %d items", maxElements),
				Hint: "send several batches"}
		}
		if f.message != nil {
			item := l.AppendMutable().Message()
			if err := r.nested(f, f.name+"["+strconv.Itoa(l.Len()-1)+"]", item); err != nil {
				return err
			}
		} else {
			v, err := r.value(f)
			if err != nil {
				return err
			}
			l.Append(v)
		}
		if r.take(']') {
			return nil
		}
		if !r.take(',') {
			return r.expected("',' or ']'")
		}
	}
}

// nested reads a message that is the value of a field, or an element of it.
func (r *reader) nested(f *field, name string, m protoreflect.Message) error {
	if c := r.next(); c != '{' && c != 0 {
		return failure.Invalidf(name, "is not an object: write it in braces, with the fields %s", strings.Join(f.message.known(), ", "))
	}
	return within(name, r.message(f.message, m))
}

// within has an error say in which field or element it is.
func within(name string, err error) error {
	var bad *failure.Error
	if errors.As(err, &bad) && bad.Field != "" {
		in := *bad
		in.Field = name + "." + bad.Field
		return &in
	}
	return err
}

// unknown returns the error of a field that the message does not have.
func (s *shape) unknown(name string) error {
	hint := "the fields are " + strings.Join(s.known(), ", ")
	near := config.Nearest(name, s.known())
	if f := s.byName[jsonName(name)]; f != nil && f.duration {
		near = f.name
	}
	if near != "" {
		hint = fmt.Sprintf("did you mean %s?", near)
	}
	return &failure.Error{Reason: failure.Invalid, Field: shown(name), Message: "there is no such field", Hint: hint}
}

// maxNameShown is how many bytes of a name from outside an error repeats.
const maxNameShown = 64

// shown returns a name from outside as errors repeat it.
func shown(name string) string {
	if len(name) > maxNameShown {
		return name[:maxNameShown] + "…"
	}
	return name
}

// value reads a value that is no message.
func (r *reader) value(f *field) (protoreflect.Value, error) {
	if f.desc.Kind() == protoreflect.BoolKind {
		if r.literal("true") {
			return protoreflect.ValueOfBool(true), nil
		}
		if r.literal("false") {
			return protoreflect.ValueOfBool(false), nil
		}
		return protoreflect.Value{}, failure.Invalidf(f.name, "is neither true nor false")
	}
	quoted := r.next() == '"'
	var text string
	if quoted {
		b, err := r.text()
		if err != nil {
			return protoreflect.Value{}, err
		}
		text = string(b)
	} else {
		if f.duration || f.desc.Kind() == protoreflect.StringKind || f.desc.Kind() == protoreflect.BytesKind {
			return protoreflect.Value{}, f.wrong()
		}
		n, err := r.number()
		if err != nil {
			return protoreflect.Value{}, err
		}
		if text = n; f.desc.Kind() != protoreflect.DoubleKind && f.desc.Kind() != protoreflect.FloatKind {
			text = plain(n)
		}
	}
	if f.enum != nil && !quoted {
		return protoreflect.Value{}, f.wrong()
	}
	return f.parse(text)
}

// wrong returns the error of a value of another kind than is expected.
func (f *field) wrong() error {
	switch {
	case f.duration:
		return failure.Invalidf(f.name, `is not a duration: write it as a string, like "10s", "250ms" or "7d"`)
	case f.enum != nil:
		return failure.Invalidf(f.name, "is none of %s", strings.Join(f.enum.known, ", "))
	case f.text:
		return failure.Invalidf(f.name, "is not text in a string")
	case f.desc.Kind() == protoreflect.BytesKind:
		return failure.Invalidf(f.name, "is not base64 in a string")
	case f.desc.Kind() == protoreflect.StringKind:
		return failure.Invalidf(f.name, "is not a string")
	}
	switch f.desc.Kind() {
	case protoreflect.Uint32Kind:
		return failure.Invalidf(f.name, "is not a whole number from 0 to 2^32 - 1")
	case protoreflect.Uint64Kind:
		return failure.Invalidf(f.name, "is not a whole number from 0 to 2^64 - 1")
	case protoreflect.Int32Kind:
		return failure.Invalidf(f.name, "is not a whole number from -2^31 to 2^31 - 1")
	case protoreflect.Int64Kind:
		return failure.Invalidf(f.name, "is not a whole number from -2^63 to 2^63 - 1")
	}
	return failure.Invalidf(f.name, "is not a number that it can hold")
}

// parse reads a value as it stands in a string or, of a number, without one.
func (f *field) parse(text string) (v protoreflect.Value, err error) {
	switch k := f.desc.Kind(); {
	case f.duration:
		d, derr := rate.ParseDuration(text)
		if derr != nil {
			return v, failure.Invalidf(f.name, "%s", derr)
		}
		return protoreflect.ValueOfInt64(int64(d)), nil
	case k == protoreflect.BoolKind: // of a query
		b, berr := strconv.ParseBool(text)
		v, err = protoreflect.ValueOfBool(b), berr
	case k == protoreflect.StringKind:
		if !utf8.ValidString(text) {
			return v, failure.Invalidf(f.name, "is not UTF-8")
		}
		return protoreflect.ValueOfString(text), nil
	case f.text && utf8.ValidString(text):
		return protoreflect.ValueOfBytes([]byte(text)), nil
	case k == protoreflect.BytesKind && !f.text:
		b, berr := decodeBase64(text)
		v, err = protoreflect.ValueOfBytes(b), berr
	case f.enum != nil:
		n, ok := f.enum.values[strings.ToUpper(text)]
		if !ok {
			return v, f.wrong()
		}
		return protoreflect.ValueOfEnum(n), nil
	case f.text:
		return v, f.wrong()
	default:
		v, err = parseNumber(k, text)
	}
	if err != nil {
		return v, f.wrong()
	}
	return v, nil
}

// plain returns a number of JSON that has a fraction or an exponent and is whole as people
// write it, exactly: 20.0 is 20 and 1e+05 is 100000. Languages without integers write those.
// What is not whole, or too large, is returned as it is.
func plain(text string) string {
	mantissa, power, _ := strings.Cut(strings.ToLower(text), "e")
	whole, fraction, _ := strings.Cut(mantissa, ".")
	if len(whole)+len(fraction) == len(text) {
		return text
	}
	sign, whole := "", whole
	if digits, minus := strings.CutPrefix(whole, "-"); minus {
		sign, whole = "-", digits
	}
	shift := 0
	if power != "" {
		var err error
		if shift, err = strconv.Atoi(power); err != nil {
			return text
		}
	}
	digits := strings.TrimLeft(whole+fraction, "0")
	zeros := len(digits) - len(strings.TrimRight(digits, "0"))
	digits = digits[:len(digits)-zeros]
	switch zeros += shift - len(fraction); {
	case digits == "":
		return "0"
	case zeros < 0 || zeros > maxDigits:
		return text
	}
	return sign + digits + strings.Repeat("0", zeros)
}

// maxDigits is more than 64 bits need.
const maxDigits = 20

func parseNumber(k protoreflect.Kind, text string) (protoreflect.Value, error) {
	switch k {
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		n, err := strconv.ParseInt(text, 10, 32)
		return protoreflect.ValueOfInt32(int32(n)), err
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		n, err := strconv.ParseUint(text, 10, 32)
		return protoreflect.ValueOfUint32(uint32(n)), err
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		n, err := strconv.ParseInt(text, 10, 64)
		return protoreflect.ValueOfInt64(n), err
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		n, err := strconv.ParseUint(text, 10, 64)
		return protoreflect.ValueOfUint64(n), err
	}
	x, err := strconv.ParseFloat(text, 64)
	if k == protoreflect.FloatKind {
		if math.Abs(x) > math.MaxFloat32 && !math.IsInf(x, 0) {
			err = strconv.ErrRange
		}
		return protoreflect.ValueOfFloat32(float32(x)), err
	}
	return protoreflect.ValueOfFloat64(x), err
}

// decodeBase64 reads both alphabets, with padding or without.
func decodeBase64(text string) ([]byte, error) {
	enc := base64.RawStdEncoding
	if strings.ContainsAny(text, "-_") {
		enc = base64.RawURLEncoding
	}
	return enc.Strict().DecodeString(strings.TrimRight(text, "="))
}
