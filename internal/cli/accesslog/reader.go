// Package accesslog reads the logs of web servers: the common and the combined
// log format of Apache, nginx and those that follow them.
//
//	203.0.113.9 - alice [02/Mar/2024:23:59:58 +0100] "GET /a?b=1 HTTP/1.1" 200 512 "http://from/" "agent/1.0"
//
// A Reader goes through a log of any size in bounded memory, unpacks gzip by
// itself, and counts lines that have another shape instead of stopping at them.
// A line whose request is not HTTP has the shape all the same: its client did
// call. By makes the key under which an entry is counted or limited.
//
// Texts are kept as they stand in the log. Escape sequences (\" and \x16) are
// understood as far as needed to find the end of a field, and not resolved: a
// key is then what a search in the file finds, and printable as the server that
// wrote it made it.
package accesslog

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// Bounds of a Reader.
const (
	MaxLine    = 64 << 10 // bytes of a line, its end not counted; a longer one is broken
	MaxSamples = 5        // broken lines that are kept
	sampleLen  = 80       // bytes of a broken line that are kept

	// MaxStrange is how many lines may be broken before the first entry. A file with
	// more of them is no log in these formats: ErrStrange.
	MaxStrange = 100_000

	bufferSize = MaxLine + len("\r\n")
)

// ErrStrange is the error of a file of which many lines were read, and not one has the
// shape of the format.
var ErrStrange = fmt.Errorf("none of the first %d lines is one of an access log", MaxStrange)

// BrokenLine is a line that does not have the shape of the format.
type BrokenLine struct {
	Line   int64  `json:"line"`   // its number, from 1
	Reason string `json:"reason"` // what is missing
	Text   string `json:"text"`   // its first 80 bytes, made printable
}

// Reader reads entries from a log. It is not safe for concurrent use.
type Reader struct {
	src   io.Reader
	buf   *bufio.Reader // nil before the first line
	end   error         // why there is nothing more to read
	entry Entry

	lines, entries, empty, broken int64 // Invariant: lines = entries + empty + broken
	samples                       []BrokenLine
}

// NewReader returns a reader of the log in r, plain or packed by gzip (of any
// number of members). It reads nothing before the first Next.
func NewReader(r io.Reader) *Reader { return &Reader{src: r} }

// Next returns the next entry; it is valid until the next call. The error is
// io.EOF at the end of the log, ErrStrange for a file that is none, else why the log could not be read to its end.
func (r *Reader) Next() (*Entry, error) {
	for {
		line, whole, ok := r.line()
		if !ok {
			return nil, r.end
		}
		r.lines++
		err := errTooLong
		if whole {
			if len(line) == 0 {
				r.empty++
				continue
			}
			err = Parse(line, &r.entry)
		}
		if err == nil {
			r.entries++
			return &r.entry, nil
		}
		r.broken++
		if len(r.samples) < MaxSamples {
			r.samples = append(r.samples, BrokenLine{Line: r.lines, Reason: err.Error(), Text: printable(line)})
		}
		if r.entries == 0 && r.broken >= MaxStrange {
			r.end = ErrStrange
		}
	}
}

// Lines returns the number of lines read so far, empty and broken ones included.
func (r *Reader) Lines() int64 { return r.lines }

// Entries returns the number of entries returned so far.
func (r *Reader) Entries() int64 { return r.entries }

// Empty returns the number of empty lines so far.
func (r *Reader) Empty() int64 { return r.empty }

// Broken returns the number of broken lines so far.
func (r *Reader) Broken() int64 { return r.broken }

// Samples returns the first broken lines, at most MaxSamples.
func (r *Reader) Samples() []BrokenLine { return r.samples }

// line returns the next line without its end, or no more than its beginning if
// it is too long to be whole. If there is none, r.end says why.
func (r *Reader) line() (line []byte, whole, ok bool) {
	if r.buf == nil {
		r.open()
	}
	if r.end != nil {
		return nil, false, false
	}
	line, err := r.buf.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		line = bytes.Clone(line[:sampleLen])
		r.skip()
		return line, false, true
	}
	if err != nil {
		r.setEnd(err)
		if r.end != io.EOF || len(line) == 0 {
			return nil, false, false
		}
	}
	line = bytes.TrimSuffix(line, []byte{'\n'})
	line = bytes.TrimSuffix(line, []byte{'\r'})
	return line, len(line) <= MaxLine, true
}

// skip reads to the end of a line.
func (r *Reader) skip() {
	for {
		_, err := r.buf.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			r.setEnd(err)
		}
		return
	}
}

// gzipMagic begins every gzip member (RFC 1952 §2.3.1).
var gzipMagic = []byte{0x1f, 0x8b}

// open looks at the first bytes of the log.
func (r *Reader) open() {
	r.buf = bufio.NewReaderSize(r.src, bufferSize)
	if head, _ := r.buf.Peek(len(gzipMagic)); !bytes.Equal(head, gzipMagic) {
		return // an error of Peek comes back with the next read
	}
	z, err := gzip.NewReader(r.buf)
	if err != nil {
		r.setEnd(err)
		return
	}
	r.buf = bufio.NewReaderSize(z, bufferSize)
}

func (r *Reader) setEnd(err error) {
	if r.end = err; err != io.EOF {
		r.end = fmt.Errorf("reading the log after line %d: %w", r.lines, err)
	}
}

// printable returns the beginning of a line with everything that could disturb a
// terminal escaped.
func printable(line []byte) string {
	line = line[:min(len(line), sampleLen)]
	out := make([]byte, 0, len(line)+8)
	for _, c := range line {
		if c < ' ' || c >= utf8.RuneSelf || c == 0x7f {
			out = fmt.Appendf(out, `\x%02x`, c)
		} else {
			out = append(out, c)
		}
	}
	return string(out)
}
