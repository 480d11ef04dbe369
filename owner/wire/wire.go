// Package wire writes and reads the parts of records: numbers, moments and texts, as few
// bytes as they need.
//
// # Guarantee
//
// A Reader reads what a Writer wrote, by the clock of its own process: moments travel as
// durations before now. A duration lengthens by the time that the bytes are on their way
// and never shortens. A Reader reads any bytes without a panic and without more memory than
// they take.
//
// # Picture
//
//	number   varint; signed ones zigzag
//	moment   the ns before now, as a number
//	text     its length, its bytes
//	part     its length, whatever it consists of
//
// # Non-guarantee
//
// There are no types and no checksums: the reader has to know what was written.
package wire

import (
	"bytes"
	"encoding/binary"
)

// MaxAge bounds durations, in ns: 73 years, which no process has seen. Longer ones are
// cut.
const MaxAge = 1 << 61

// MaxNumber is the most bytes that a number takes.
const MaxNumber = binary.MaxVarintLen64

// Writer appends to B.
type Writer struct {
	B   []byte
	Now int64 // of the clock of the moments that are written, and not before any of them
}

// Uint writes a number.
func (w *Writer) Uint(v uint64) { w.B = binary.AppendUvarint(w.B, v) }

// Int writes a signed number.
func (w *Writer) Int(v int64) { w.B = binary.AppendVarint(w.B, v) }

// Byte writes a byte.
func (w *Writer) Byte(v byte) { w.B = append(w.B, v) }

// Fixed32 writes 4 bytes.
func (w *Writer) Fixed32(v uint32) { w.B = binary.BigEndian.AppendUint32(w.B, v) }

// Fixed64 writes 8 bytes.
func (w *Writer) Fixed64(v uint64) { w.B = binary.BigEndian.AppendUint64(w.B, v) }

// Moment writes how long ago a moment was.
func (w *Writer) Moment(at int64) { w.Uint(Age(w.Now, at)) }

// Age returns how long before now a moment was, as it is written.
func Age(now, at int64) uint64 {
	if at >= now {
		return 0
	}
	return min(uint64(now)-uint64(at), MaxAge)
}

// Bytes writes a length and bytes.
func (w *Writer) Bytes(v []byte) {
	w.Uint(uint64(len(v)))
	w.B = append(w.B, v...)
}

// Text writes a length and a text.
func (w *Writer) Text(v string) {
	w.Uint(uint64(len(v)))
	w.B = append(w.B, v...)
}

// Begin begins a part, which has its length before it. End ends it.
func (w *Writer) Begin() (part int) {
	w.B = append(w.B, 0)
	return len(w.B)
}

// End ends the part that Begin began.
func (w *Writer) End(part int) {
	size := len(w.B) - part
	if size < 1<<7 {
		w.B[part-1] = byte(size)
		return
	}
	var head [MaxNumber]byte
	n := binary.PutUvarint(head[:], uint64(size))
	w.B = append(w.B, head[1:n]...) // room
	copy(w.B[part-1+n:], w.B[part:part+size])
	copy(w.B[part-1:], head[:n])
}

// Reader takes values off the front of B. After the first one that is not there, or out of
// range, Bad is true and all values are zero.
type Reader struct {
	B   []byte
	Now int64 // of the clock of the moments that are read, and not before the bytes came
	Bad bool
}

// Fail makes all that follows zero.
func (r *Reader) Fail() { r.B, r.Bad = nil, true }

// Next reads some bytes. They are part of B.
func (r *Reader) Next(n int) []byte {
	if n > len(r.B) {
		r.Fail()
		return nil
	}
	v := r.B[:n:n]
	r.B = r.B[n:]
	return v
}

// Uint reads a number that is not above most.
func (r *Reader) Uint(most uint64) uint64 {
	v, n := binary.Uvarint(r.B)
	if n <= 0 || v > most {
		r.Fail()
		return 0
	}
	r.B = r.B[n:]
	return v
}

// Int reads a signed number.
func (r *Reader) Int() int64 {
	v, n := binary.Varint(r.B)
	if n <= 0 {
		r.Fail()
		return 0
	}
	r.B = r.B[n:]
	return v
}

// Byte reads a byte.
func (r *Reader) Byte() byte {
	if len(r.B) == 0 {
		r.Fail()
		return 0
	}
	v := r.B[0]
	r.B = r.B[1:]
	return v
}

// Fixed32 reads 4 bytes.
func (r *Reader) Fixed32() uint32 {
	v := r.Next(4)
	if v == nil {
		return 0
	}
	return binary.BigEndian.Uint32(v)
}

// Fixed64 reads 8 bytes.
func (r *Reader) Fixed64() uint64 {
	v := r.Next(8)
	if v == nil {
		return 0
	}
	return binary.BigEndian.Uint64(v)
}

// Moment reads a moment.
func (r *Reader) Moment() int64 { return r.Now - int64(r.Uint(MaxAge)) }

// Bytes reads bytes behind their length, which is not above most. They are part of B.
func (r *Reader) Bytes(most int) []byte { return r.Next(int(r.Uint(uint64(most)))) }

// Copied is Bytes in memory of their own, nil if there are none.
func (r *Reader) Copied(most int) []byte {
	v := r.Bytes(most)
	if len(v) == 0 {
		return nil
	}
	return bytes.Clone(v)
}

// Part reads a part. It is part of B.
func (r *Reader) Part() []byte { return r.Next(int(r.Uint(uint64(len(r.B))))) }

// Ends reports whether all was read, and nothing was missing.
func (r *Reader) Ends() bool { return !r.Bad && len(r.B) == 0 }

// Count reads the number of things that follow, each of which takes some bytes at least.
func (r *Reader) Count(least int) int { return int(r.Uint(uint64(len(r.B) / least))) }
