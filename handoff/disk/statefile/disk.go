// Package statefile keeps what a node held in a file while no process of it runs: it
// is written when the node stops in order, and read back once.
//
// # Guarantee
//
// Either the whole state is read back, or nothing of it: the file is written
// beside its place, synced, and renamed; every part of it is covered by a
// checksum, and the end says how many records there are. The file is there until
// Done, which its reader calls before it acts by what it has read: as long
// as the file is there, nobody has acted since it was written. A file that cannot
// be used stays aside under another name, for people to look at.
//
// # Format
//
//	"keystead state 1\n" | length, CRC, header (JSON) | length, CRC, block … | 0, count, CRC
//
// Numbers are 4 bytes, big-endian, but for the count, which has 8. A block holds
// records, each behind its length as a varint. What the records are is not this
// package's business.
package statefile

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Names in the data directory.
const (
	Name    = "state"         // the file, when it is whole
	Partial = "state.partial" // while it is written
	Refused = "state.refused" // one that could not be used, the last of them
	Spare   = "state.reserve" // room that is set aside for it
)

// Bounds.
const (
	maxHeader = 1 << 20 // bytes
	blockSize = 1 << 20 // bytes after which a block is closed
	maxBlock  = blockSize + MaxRecord + binary.MaxVarintLen64

	// MaxRecord bounds a record, in bytes.
	MaxRecord = 2 << 20
	magicName = "keystead state "
	magic     = magicName + "1\n"
)

// Header says whose state it is.
type Header struct {
	// Cluster and UID name the cluster; both are empty for a node that ran alone.
	Cluster string `json:"cluster,omitempty"`
	UID     string `json:"uid,omitempty"`
	Node    string `json:"node"`
	// Incarnation is that of the process that wrote it; 0 for a node alone.
	Incarnation uint64 `json:"incarnation,omitempty"`
	// Next is the incarnation of the process that is to go on from it; 0 for a
	// node alone. It is chosen here so that a process that dies before it has
	// acted, and the one after it, are the same to others.
	Next uint64 `json:"next,omitempty"`
	// Epoch is the last one under which the process acted.
	Epoch uint64 `json:"epoch"`
	// Unknown is how long ago the request ids begin that it has, in ns; 0 = it has
	// all that count. It is that of a node alone: in a cluster, rows tell.
	Unknown int64 `json:"unknown_ns,omitempty"`
	// Lost is the epoch of a loss that answers name still, and LostLeft for how long,
	// ns. They are those of a node alone.
	Lost     uint64 `json:"lost_epoch,omitempty"`
	LostLeft int64  `json:"lost_left_ns,omitempty"`
	// Versions is the greatest version of an object that the process knew of: of those that
	// are gone, too. 0 in files of before.
	Versions uint64 `json:"versions,omitempty"`
	// Version is that of the program, for people.
	Version string `json:"version,omitempty"`
}

// ErrNewer is the error of a file of a newer program: it is of use to that.
var ErrNewer = errors.New("the state file is of a newer Keystead")

// ErrDamaged is the error of a file that is torn, changed or of a format that
// this program does not know.
var ErrDamaged = errors.New("the state file is damaged")

var table = crc32.MakeTable(crc32.Castagnoli)

// Write writes the state to the directory, into the room that was set aside for it.
// records calls put with each record; its error is returned. If it fails, a file that is
// there already stays as it is, and the room stays set aside.
func Write(dir string, h Header, records func(put func(record []byte) error) error) (n int64, err error) {
	partial, spare := filepath.Join(dir, Partial), filepath.Join(dir, Spare)
	noRoom := os.Rename(spare, partial)
	if noRoom != nil && !errors.Is(noRoom, os.ErrNotExist) {
		return 0, fmt.Errorf("writing the state: %w", noRoom)
	}
	f, err := os.OpenFile(partial, os.O_WRONLY|os.O_CREATE, 0o600) // not cut: its blocks are the room
	if err != nil {
		return 0, fmt.Errorf("writing the state: %w", err)
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			if noRoom == nil {
				_ = os.Rename(partial, spare)
			} else {
				_ = os.Remove(partial)
			}
		}
	}()
	w := &writer{w: bufio.NewWriterSize(f, 1<<20)}
	if err := w.head(h); err != nil {
		return 0, fmt.Errorf("writing the state: %w", err)
	}
	if err := records(w.put); err != nil {
		return 0, fmt.Errorf("writing the state: %w", err)
	}
	if err := w.end(); err != nil {
		return 0, fmt.Errorf("writing the state: %w", err)
	}
	size, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return 0, fmt.Errorf("writing the state: %w", err)
	}
	if err := errors.Join(f.Truncate(size), f.Sync(), f.Close()); err != nil {
		return 0, fmt.Errorf("writing the state: %w", err)
	}
	if err := os.Rename(partial, filepath.Join(dir, Name)); err != nil {
		return 0, fmt.Errorf("writing the state: %w", err)
	}
	return int64(w.count), syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

type writer struct {
	w     *bufio.Writer
	block []byte
	count uint64
}

func (w *writer) head(h Header) error {
	b, err := json.Marshal(h)
	if err != nil {
		return err
	}
	if _, err := w.w.WriteString(magic); err != nil {
		return err
	}
	return w.part(b)
}

func (w *writer) part(b []byte) error {
	var head [8]byte
	binary.BigEndian.PutUint32(head[:], uint32(len(b)))
	binary.BigEndian.PutUint32(head[4:], crc32.Checksum(b, table))
	if _, err := w.w.Write(head[:]); err != nil {
		return err
	}
	_, err := w.w.Write(b)
	return err
}

func (w *writer) put(record []byte) error {
	if len(record) > MaxRecord {
		return fmt.Errorf("a record of %d bytes is larger than the state file takes", len(record))
	}
	w.block = binary.AppendUvarint(w.block, uint64(len(record)))
	w.block = append(w.block, record...)
	w.count++
	if len(w.block) < blockSize {
		return nil
	}
	err := w.part(w.block)
	w.block = w.block[:0]
	return err
}

func (w *writer) end() error {
	if len(w.block) > 0 {
		if err := w.part(w.block); err != nil {
			return err
		}
	}
	var tail [16]byte
	binary.BigEndian.PutUint64(tail[4:], w.count)
	binary.BigEndian.PutUint32(tail[12:], crc32.Checksum(tail[:12], table))
	if _, err := w.w.Write(tail[:]); err != nil {
		return err
	}
	return w.w.Flush()
}

// State is a file that was found.
type State struct {
	Header Header
	dir    string
	f      *os.File
}

// Open finds the state in the directory; nil = there is none. The file is read
// through to see that it is whole; if it is not, the error is ErrDamaged, and the
// file stays as Refused. One that is ErrNewer stays where it is.
func Open(dir string) (*State, error) {
	_ = os.Remove(filepath.Join(dir, Partial))
	f, err := os.Open(filepath.Join(dir, Name))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the state: %w", err)
	}
	s := &State{dir: dir, f: f}
	//guard:state-newer
	if err := s.read(&s.Header, func([]byte) error { return nil }); errors.Is(err, ErrNewer) {
		return nil, errors.Join(err, f.Close())
	} else if err != nil {
		return nil, errors.Join(err, s.Refuse())
	}
	return s, nil
}

// Peek reads whose state is in the directory, and changes nothing there. found is
// false if there is none, or one whose head cannot be read.
func Peek(dir string) (h Header, found bool, err error) {
	f, err := os.Open(filepath.Join(dir, Name))
	if errors.Is(err, os.ErrNotExist) {
		return h, false, nil
	}
	if err != nil {
		return h, false, fmt.Errorf("reading the state: %w", err)
	}
	defer f.Close()
	if err := readHead(bufio.NewReader(f), &h); err != nil {
		return Header{}, false, nil
	}
	return h, true, nil
}

// readHead reads what stands before the records.
func readHead(r io.Reader, h *Header) error {
	head := make([]byte, len(magic))
	if _, err := io.ReadFull(r, head); err != nil || string(head) != magic {
		if newer(head) {
			return ErrNewer
		}
		return fmt.Errorf("%w: it does not begin as one of version 1", ErrDamaged)
	}
	b, err := part(r, nil, maxHeader)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, h); err != nil {
		return fmt.Errorf("%w: %v", ErrDamaged, err)
	}
	return nil
}

// newer reports whether a file begins as one of a later version of the format.
func newer(head []byte) bool {
	version, ok := strings.CutPrefix(string(head), magicName)
	n, err := strconv.Atoi(strings.TrimSpace(version))
	return ok && err == nil && n > 1
}

// Records calls f with each record, which is valid until f returns.
func (s *State) Records(f func(record []byte) error) error {
	var again Header
	return s.read(&again, f)
}

// Done removes the file: what was read from it is acted by from now on.
func (s *State) Done() error {
	return errors.Join(s.f.Close(), os.Remove(filepath.Join(s.dir, Name)), syncDir(s.dir))
}

// Refuse puts the file aside: it is not to be used.
func (s *State) Refuse() error {
	return errors.Join(s.f.Close(), os.Rename(filepath.Join(s.dir, Name), filepath.Join(s.dir, Refused)), syncDir(s.dir))
}

// Close leaves the file for the next process.
func (s *State) Close() error { return s.f.Close() }

func (s *State) read(h *Header, f func([]byte) error) error {
	if _, err := s.f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	r := bufio.NewReaderSize(s.f, 1<<20)
	if err := readHead(r, h); err != nil {
		return err
	}
	var b []byte
	for count := uint64(0); ; {
		var err error
		if b, err = part(r, b, maxBlock); err != nil {
			return err
		}
		if len(b) == 0 {
			return end(r, count)
		}
		for rest := b; len(rest) > 0; count++ {
			n, k := binary.Uvarint(rest)
			if k <= 0 || n > uint64(len(rest)-k) {
				return fmt.Errorf("%w: record %d is longer than its block", ErrDamaged, count)
			}
			if err := f(rest[k : k+int(n)]); err != nil {
				return err
			}
			rest = rest[k+int(n):]
		}
	}
}

// part reads a length, a checksum and what they are of. A length of 0 is the
// mark of the end, and has no checksum.
func part(r io.Reader, b []byte, limit int) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, fmt.Errorf("%w: it ends too early", ErrDamaged)
	}
	n := int(binary.BigEndian.Uint32(head[:]))
	if n == 0 {
		return nil, nil
	}
	if n > limit {
		return nil, fmt.Errorf("%w: a part of %d bytes", ErrDamaged, n)
	}
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, fmt.Errorf("%w: it ends too early", ErrDamaged)
	}
	if cap(b) < n {
		b = make([]byte, n)
	}
	b = b[:n]
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, fmt.Errorf("%w: it ends too early", ErrDamaged)
	}
	if crc32.Checksum(b, table) != binary.BigEndian.Uint32(head[:]) {
		return nil, fmt.Errorf("%w: a checksum is wrong", ErrDamaged)
	}
	return b, nil
}

// end reads what follows the mark of the end.
func end(r *bufio.Reader, count uint64) error {
	var tail [16]byte
	if _, err := io.ReadFull(r, tail[4:]); err != nil {
		return fmt.Errorf("%w: it ends too early", ErrDamaged)
	}
	if crc32.Checksum(tail[:12], table) != binary.BigEndian.Uint32(tail[12:]) {
		return fmt.Errorf("%w: a checksum is wrong", ErrDamaged)
	}
	if want := binary.BigEndian.Uint64(tail[4:]); want != count {
		return fmt.Errorf("%w: it has %d records of %d", ErrDamaged, count, want)
	}
	if _, err := r.ReadByte(); err != io.EOF {
		return fmt.Errorf("%w: something follows its end", ErrDamaged)
	}
	return nil
}
