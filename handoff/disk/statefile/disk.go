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
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/keystead/keystead/internal/durably"
)

// Names in the data directory.
const (
	Name    = "state"         // the file, when it is whole
	Partial = "state.partial" // while it is written
	Refused = "state.refused" // one that could not be used, the last of them
	Spare   = "state.reserve" // room that is set aside for it
)

// MaxRecord bounds a record, in bytes.
const MaxRecord = 2 << 20

// state is the form of the file.
var state = Form{Word: "keystead state ", Damaged: ErrDamaged, Newer: ErrNewer}

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
	w, err := state.NewWriter(f, h)
	if err != nil {
		return 0, fmt.Errorf("writing the state: %w", err)
	}
	if err := records(w.Put); err != nil {
		return 0, fmt.Errorf("writing the state: %w", err)
	}
	if err := w.End(); err != nil {
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
	return int64(w.Count), durably.Names(dir)
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
	if err := state.readHead(bufio.NewReader(f), &h); err != nil {
		return Header{}, false, nil
	}
	return h, true, nil
}

// Records calls f with each record, which is valid until f returns.
func (s *State) Records(f func(record []byte) error) error {
	var again Header
	return s.read(&again, f)
}

// Done removes the file: what was read from it is acted by from now on.
func (s *State) Done() error {
	return errors.Join(s.f.Close(), os.Remove(filepath.Join(s.dir, Name)), durably.Names(s.dir))
}

// Refuse puts the file aside: it is not to be used.
func (s *State) Refuse() error {
	return errors.Join(s.f.Close(), os.Rename(filepath.Join(s.dir, Name), filepath.Join(s.dir, Refused)), durably.Names(s.dir))
}

// Close leaves the file for the next process.
func (s *State) Close() error { return s.f.Close() }

func (s *State) read(h *Header, f func([]byte) error) error {
	if _, err := s.f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return state.Read(s.f, h, f)
}
