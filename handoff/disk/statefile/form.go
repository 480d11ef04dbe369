package statefile

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"
	"strings"
)

// Bounds.
const (
	maxHeader = 1 << 20 // bytes
	blockSize = 1 << 20 // bytes after which a block is closed
	maxBlock  = blockSize + MaxRecord + binary.MaxVarintLen64
)

// Form is the format of the file under another first word, with a header and errors of its own:
// other files that are written once and read whole are like it.
type Form struct {
	Word    string // that the file begins with, and the version behind it
	Damaged error  // of a file that is torn, changed, or no such file
	Newer   error  // of a later version
}

var table = crc32.MakeTable(crc32.Castagnoli)

func (f Form) magic() string { return f.Word + "1\n" }

// Writer writes a file.
type Writer struct {
	Count uint64 // records
	w     *bufio.Writer
	block []byte
}

// NewWriter begins a file: header is what json makes of it. The writer has 2 MiB of buffers.
func (f Form) NewWriter(to io.Writer, header any) (*Writer, error) {
	w := &Writer{w: bufio.NewWriterSize(to, 1<<20)}
	b, err := json.Marshal(header)
	if err != nil {
		return nil, err
	}
	if _, err := w.w.WriteString(f.magic()); err != nil {
		return nil, err
	}
	return w, w.part(b)
}

func (w *Writer) part(b []byte) error {
	var head [8]byte
	binary.BigEndian.PutUint32(head[:], uint32(len(b)))
	binary.BigEndian.PutUint32(head[4:], crc32.Checksum(b, table))
	if _, err := w.w.Write(head[:]); err != nil {
		return err
	}
	_, err := w.w.Write(b)
	return err
}

// Put appends a record of at most MaxRecord bytes.
func (w *Writer) Put(record []byte) error {
	if len(record) > MaxRecord {
		return fmt.Errorf("a record of %d bytes is larger than the state file takes", len(record))
	}
	w.block = binary.AppendUvarint(w.block, uint64(len(record)))
	w.block = append(w.block, record...)
	w.Count++
	if len(w.block) < blockSize {
		return nil
	}
	err := w.part(w.block)
	w.block = w.block[:0]
	return err
}

// End writes the end of the file.
func (w *Writer) End() error {
	if len(w.block) > 0 {
		if err := w.part(w.block); err != nil {
			return err
		}
	}
	var tail [16]byte
	binary.BigEndian.PutUint64(tail[4:], w.Count)
	binary.BigEndian.PutUint32(tail[12:], crc32.Checksum(tail[:12], table))
	if _, err := w.w.Write(tail[:]); err != nil {
		return err
	}
	return w.w.Flush()
}

// Read reads a file through: the header first, and then each record, which is valid until record
// returns. All that was read counts only if the error is nil.
func (f Form) Read(from io.Reader, header any, record func([]byte) error) error {
	r := bufio.NewReaderSize(from, 1<<20)
	if err := f.readHead(r, header); err != nil {
		return err
	}
	var b []byte
	for count := uint64(0); ; {
		var err error
		if b, err = f.part(r, b, maxBlock); err != nil {
			return err
		}
		if len(b) == 0 {
			return f.end(r, count)
		}
		for rest := b; len(rest) > 0; count++ {
			n, k := binary.Uvarint(rest)
			if k <= 0 || n > uint64(len(rest)-k) {
				return fmt.Errorf("%w: record %d is longer than its block", f.Damaged, count)
			}
			if err := record(rest[k : k+int(n)]); err != nil {
				return err
			}
			rest = rest[k+int(n):]
		}
	}
}

// readHead reads what stands before the records.
func (f Form) readHead(r io.Reader, h any) error {
	head := make([]byte, len(f.magic()))
	if _, err := io.ReadFull(r, head); err != nil || string(head) != f.magic() {
		if f.newer(head) {
			return f.Newer
		}
		return fmt.Errorf("%w: it does not begin as one of version 1", f.Damaged)
	}
	b, err := f.part(r, nil, maxHeader)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, h); err != nil {
		return fmt.Errorf("%w: %v", f.Damaged, err)
	}
	return nil
}

// newer reports whether a file begins as one of a later version of the format.
func (f Form) newer(head []byte) bool {
	version, ok := strings.CutPrefix(string(head), f.Word)
	n, err := strconv.Atoi(strings.TrimSpace(version))
	return ok && err == nil && n > 1
}

// early is the error of a file that cannot be read on: torn, or the error of the medium.
func (f Form) early(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it ends too early", f.Damaged)
	}
	return fmt.Errorf("%w: it ends too early: %w", f.Damaged, err)
}

// part reads a length, a checksum and what they are of. A length of 0 is the
// mark of the end, and has no checksum.
func (f Form) part(r io.Reader, b []byte, limit int) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, f.early(err)
	}
	n := int(binary.BigEndian.Uint32(head[:]))
	if n == 0 {
		return nil, nil
	}
	if n > limit {
		return nil, fmt.Errorf("%w: a part of %d bytes", f.Damaged, n)
	}
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, f.early(err)
	}
	if cap(b) < n {
		b = make([]byte, n)
	}
	b = b[:n]
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, f.early(err)
	}
	if crc32.Checksum(b, table) != binary.BigEndian.Uint32(head[:]) {
		return nil, fmt.Errorf("%w: a checksum is wrong", f.Damaged)
	}
	return b, nil
}

// end reads what follows the mark of the end.
func (f Form) end(r *bufio.Reader, count uint64) error {
	var tail [16]byte
	if _, err := io.ReadFull(r, tail[4:]); err != nil {
		return f.early(err)
	}
	if crc32.Checksum(tail[:12], table) != binary.BigEndian.Uint32(tail[12:]) {
		return fmt.Errorf("%w: a checksum is wrong", f.Damaged)
	}
	if want := binary.BigEndian.Uint64(tail[4:]); want != count {
		return fmt.Errorf("%w: it has %d records of %d", f.Damaged, count, want)
	}
	if _, err := r.ReadByte(); err != io.EOF {
		return fmt.Errorf("%w: something follows its end", f.Damaged)
	}
	return nil
}
