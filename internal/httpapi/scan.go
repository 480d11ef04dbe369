package httpapi

import (
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// scanner takes JSON (RFC 8259) apart. It reads what messages are made of, and nothing
// else: values that no field asks for are errors before they are read.
type scanner struct {
	data []byte
	at   int
}

// syntaxError is JSON that is none.
type syntaxError struct {
	at   int
	what string
}

func (e *syntaxError) Error() string { return fmt.Sprintf("byte %d: %s", e.at+1, e.what) }

func (s *scanner) fail(what string) error { return &syntaxError{s.at, what} }

// next returns the first byte of what follows; 0 at the end.
func (s *scanner) next() byte {
	for ; s.at < len(s.data); s.at++ {
		switch c := s.data[s.at]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

// take reads a byte of structure, if it follows.
func (s *scanner) take(c byte) bool {
	if s.next() != c {
		return false
	}
	s.at++
	return true
}

func (s *scanner) expect(c byte) error {
	if s.take(c) {
		return nil
	}
	return s.expected(strconv.QuoteRune(rune(c)))
}

func (s *scanner) expected(what string) error {
	if s.next() == 0 && s.at >= len(s.data) {
		return s.fail("the JSON ends where " + what + " should be")
	}
	r, _ := utf8.DecodeRune(s.data[s.at:])
	return s.fail(fmt.Sprintf("%q stands where %s should be", r, what))
}

// literal reads null, true or false, if it follows.
func (s *scanner) literal(word string) bool {
	s.next()
	end := s.at + len(word)
	if end > len(s.data) || string(s.data[s.at:end]) != word {
		return false
	}
	s.at = end
	return true
}

// number reads a number, and returns it as it stands.
func (s *scanner) number() (string, error) {
	s.next()
	start := s.at
	digits := func() bool {
		from := s.at
		for s.at < len(s.data) && '0' <= s.data[s.at] && s.data[s.at] <= '9' {
			s.at++
		}
		return s.at > from
	}
	one := func(set ...byte) bool {
		for _, c := range set {
			if s.at < len(s.data) && s.data[s.at] == c {
				s.at++
				return true
			}
		}
		return false
	}
	one('-')
	whole := s.at
	ok := digits()
	if ok && s.data[whole] == '0' && s.at > whole+1 {
		ok = false
	}
	if ok && one('.') {
		ok = digits()
	}
	if ok && one('e', 'E') {
		one('+', '-')
		ok = digits()
	}
	if !ok {
		return "", s.expected("a number")
	}
	return string(s.data[start:s.at]), nil
}

// text reads a string. What is returned is valid until the data changes. Nothing is
// replaced in silence: a key would be another one.
func (s *scanner) text() ([]byte, error) {
	if err := s.expect('"'); err != nil {
		return nil, err
	}
	start := s.at
	for ; s.at < len(s.data); s.at++ {
		switch c := s.data[s.at]; {
		case c == '"':
			s.at++
			return s.valid(s.data[start:s.at-1], start)
		case c == '\\':
			return s.unescape(append([]byte(nil), s.data[start:s.at]...), start)
		case c < ' ':
			return nil, s.fail("a control character in a string: write it as \\u00XX")
		}
	}
	return nil, s.fail("the JSON ends within a string")
}

// valid returns a string, if it is UTF-8.
func (s *scanner) valid(b []byte, start int) ([]byte, error) {
	if !utf8.Valid(b) {
		return nil, &syntaxError{start, "a string that is not UTF-8"}
	}
	return b, nil
}

// unescape reads the rest of a string from its first escape on.
func (s *scanner) unescape(b []byte, start int) ([]byte, error) {
	for s.at < len(s.data) {
		c := s.data[s.at]
		s.at++
		switch {
		case c == '"':
			return s.valid(b, start)
		case c < ' ':
			s.at--
			return nil, s.fail("a control character in a string: write it as \\u00XX")
		case c != '\\':
			b = append(b, c)
		default:
			r, err := s.escaped()
			if err != nil {
				return nil, err
			}
			b = utf8.AppendRune(b, r)
		}
	}
	return nil, s.fail("the JSON ends within a string")
}

// escaped reads what stands behind a backslash.
func (s *scanner) escaped() (rune, error) {
	if s.at >= len(s.data) {
		return 0, s.fail("the JSON ends within a string")
	}
	c := s.data[s.at]
	s.at++
	switch c {
	case '"', '\\', '/':
		return rune(c), nil
	case 'b':
		return '\b', nil
	case 'f':
		return '\f', nil
	case 'n':
		return '\n', nil
	case 'r':
		return '\r', nil
	case 't':
		return '\t', nil
	case 'u':
		return s.unit()
	}
	s.at--
	return 0, s.fail("an escape that JSON does not have")
}

// unit reads the hexadecimal digits of a \u, and those of the second half of a pair.
func (s *scanner) unit() (rune, error) {
	r, err := s.hex4()
	if err != nil || !utf16.IsSurrogate(r) {
		return r, err
	}
	if s.at+1 < len(s.data) && s.data[s.at] == '\\' && s.data[s.at+1] == 'u' {
		s.at += 2
		low, err := s.hex4()
		if err != nil {
			return 0, err
		}
		if r = utf16.DecodeRune(r, low); r != utf8.RuneError {
			return r, nil
		}
	}
	return 0, s.fail("half of a surrogate pair, which is no character")
}

func (s *scanner) hex4() (rune, error) {
	if s.at+4 <= len(s.data) {
		if n, err := strconv.ParseUint(string(s.data[s.at:s.at+4]), 16, 16); err == nil {
			s.at += 4
			return rune(n), nil
		}
	}
	return 0, s.fail("four hexadecimal digits should be here")
}
