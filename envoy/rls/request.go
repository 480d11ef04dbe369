package rls

import (
	"errors"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// maxRequest is the largest request, in bytes. Envoy's have a few hundred.
const maxRequest = 64 << 10

// request is a RateLimitRequest as it is read from the wire. Reading it by hand
// costs one copy of the bytes, which all its strings share, and bounds its size
// before anything is made of it.
type request struct {
	size        int // bytes; beyond maxRequest nothing was read
	domain      string
	hits        uint32
	descriptors []descriptor
	entries     []entry // of all descriptors, which have parts of it
}

// What most requests need. It is made in one piece.
const (
	usualDescriptors = 4
	usualEntries     = 8
)

// descriptor is one of a request.
type descriptor struct {
	entries  []entry
	override *override
	hits     uint64
	hasHits  bool
	negative bool
}

// override is a limit that comes with the request.
type override struct {
	requests   uint32
	unit       Unit
	multiplier uint32 // 0 = none
}

var (
	errNotUTF8  = errors.New("a string is not UTF-8")
	errWireType = errors.New("a field has another type than rls.proto gives it")
)

// SizeVT returns the size in bytes; the server bounds it.
func (r *request) SizeVT() int { return r.size }

// MarshalToSizedBufferVT makes a request one of the messages that the server's
// codec reads by UnmarshalVT. Requests are not written.
func (r *request) MarshalToSizedBufferVT([]byte) (int, error) {
	return 0, errors.New("rls: a request is only read")
}

// UnmarshalVT reads a request. One that is too large is not read: it is refused
// by its size, with an error that says so.
func (r *request) UnmarshalVT(data []byte) error {
	*r = request{size: len(data)}
	if r.size > maxRequest {
		return nil
	}
	r.descriptors, r.entries = make([]descriptor, 0, usualDescriptors), make([]entry, 0, usualEntries)
	return each(string(data), func(f field) (err error) {
		switch f.number {
		case 1:
			r.domain, err = f.text()
		case 2:
			var body string
			if body, err = f.bytes(); err != nil {
				return err
			}
			first := len(r.entries)
			r.descriptors = append(r.descriptors, descriptor{})
			d := &r.descriptors[len(r.descriptors)-1]
			r.entries, err = d.read(body, r.entries)
			d.entries = r.entries[first:len(r.entries):len(r.entries)]
		case 3:
			var v uint64
			v, err = f.varint()
			r.hits = uint32(v)
		}
		return err
	})
}

// read reads a descriptor, but for its entries, which it adds to those before.
func (d *descriptor) read(body string, entries []entry) ([]entry, error) {
	err := each(body, func(f field) (err error) {
		var v uint64
		var in string
		switch f.number {
		case 1:
			if in, err = f.bytes(); err != nil {
				return err
			}
			entries = append(entries, entry{})
			err = entries[len(entries)-1].read(in)
		case 2:
			if in, err = f.bytes(); err != nil {
				return err
			}
			if d.override == nil {
				d.override = new(override)
			}
			err = d.override.read(in)
		case 3:
			if in, err = f.bytes(); err != nil {
				return err
			}
			d.hasHits = true
			err = wrapped(in, &d.hits)
		case 4:
			v, err = f.varint()
			d.negative = v != 0
		}
		return err
	})
	return entries, err
}

func (e *entry) read(body string) error {
	return each(body, func(f field) (err error) {
		switch f.number {
		case 1:
			e.key, err = f.text()
		case 2:
			e.value, err = f.text()
		}
		return err
	})
}

func (o *override) read(body string) error {
	return each(body, func(f field) (err error) {
		var v uint64
		switch f.number {
		case 1:
			v, err = f.varint()
			o.requests = uint32(v)
		case 2:
			v, err = f.varint()
			o.unit = Unit(int32(v))
		case 3:
			var in string
			if in, err = f.bytes(); err != nil {
				return err
			}
			v = uint64(o.multiplier)
			err = wrapped(in, &v)
			o.multiplier = uint32(v)
		}
		return err
	})
}

// wrapped reads a UInt32Value or UInt64Value.
func wrapped(body string, v *uint64) error {
	return each(body, func(f field) (err error) {
		if f.number == 1 {
			*v, err = f.varint()
		}
		return err
	})
}

// field is one field of a message.
type field struct {
	number protowire.Number
	kind   protowire.Type
	value  uint64 // of a varint
	body   string // of what has a length
}

func (f field) varint() (uint64, error) {
	if f.kind != protowire.VarintType {
		return 0, errWireType
	}
	return f.value, nil
}

func (f field) bytes() (string, error) {
	if f.kind != protowire.BytesType {
		return "", errWireType
	}
	return f.body, nil
}

func (f field) text() (string, error) {
	s, err := f.bytes()
	if err == nil && !utf8.ValidString(s) {
		err = errNotUTF8
	}
	return s, err
}

// each hands over the fields of a message, in order. Fields of other types than
// these two are passed over.
func each(body string, take func(f field) error) error {
	for len(body) > 0 {
		head := []byte(body[:min(len(body), maxHead)])
		number, kind, n := protowire.ConsumeTag(head)
		if n < 0 {
			return protowire.ParseError(n)
		}
		if !number.IsValid() {
			return errNumber
		}
		f := field{number: number, kind: kind}
		switch kind {
		case protowire.VarintType:
			v, m := protowire.ConsumeVarint(head[n:])
			if m < 0 {
				return protowire.ParseError(m)
			}
			f.value, body = v, body[n+m:]
		case protowire.BytesType:
			size, m := protowire.ConsumeVarint(head[n:])
			if m < 0 {
				return protowire.ParseError(m)
			}
			if body = body[n+m:]; size > uint64(len(body)) {
				return errShort
			}
			f.body, body = body[:size], body[size:]
		default:
			m := protowire.ConsumeFieldValue(number, kind, []byte(body[n:]))
			if m < 0 {
				return protowire.ParseError(m)
			}
			f, body = field{kind: kind}, body[n+m:]
		}
		if err := take(f); err != nil {
			return err
		}
	}
	return nil
}

var (
	errShort  = errors.New("a field is longer than its message")
	errNumber = errors.New("a field has a number that none may have")
)

// maxHead is the longest tag with the varint after it, in bytes.
const maxHead = 20
