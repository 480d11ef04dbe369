package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// promiseName is the file that says what has been synced: how long each log and manifest is
// at least, and the checksum of that much. The engine cuts a log or a manifest
// where it cannot read it, as it must after a crash; with the promise, what a crash has left
// unwritten is told from what was there and has changed.
//
// It has two slots, written in turn: one that is torn leaves the other. It is synced with
// each manifest, not with each log: a promise that is old is still true.
const (
	promiseName  = "synced"
	promiseSlot  = 512 // bytes; what a disk writes in one piece
	promiseFiles = 16  // in a slot: the logs of all memtables and two manifests have room
	promiseEntry = 21  // bytes: kind, number, length, checksum
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// written is how much of a file was written, from its beginning.
type written struct {
	manifest bool
	num      uint64

	mu  sync.Mutex // guards what follows
	n   int64
	sum uint32
}

func (w *written) add(p []byte) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.n += int64(len(p))
	w.sum = crc32.Update(w.sum, castagnoli, p)
}

func (w *written) state() (n int64, sum uint32) {
	if w == nil {
		return 0, 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.n, w.sum
}

// promised is a line of the promise: the first n bytes of a file are synced.
type promised struct {
	manifest bool
	num      uint64
	n        int64
	sum      uint32
}

func (p promised) name() string {
	if p.manifest {
		return fmt.Sprintf("MANIFEST-%06d", p.num)
	}
	return fmt.Sprintf("%06d.log", p.num)
}

// promise is the file and what it is to say.
type promise struct {
	mu    sync.Mutex // guards what follows
	file  vfs.File
	seq   uint64
	lines []promised // the newest last
	buf   [promiseSlot]byte
}

// account returns the account of a log or a manifest that begins; nil for another file.
func account(name string) *written {
	digits, manifest := strings.CutPrefix(name, "MANIFEST-")
	if !manifest {
		var ok bool
		if digits, ok = strings.CutSuffix(name, ".log"); !ok {
			return nil
		}
	}
	num, err := strconv.ParseUint(digits, 10, 64)
	if err != nil {
		return nil
	}
	return &written{manifest: manifest, num: num}
}

// forget drops the line of a file, before that is removed or renamed: a log that is
// missing was not removed by the engine.
func (g *gate) forget(name string) {
	//guard:disk-forget-first g.promise.drop(w) -> false
	if w := account(name); w != nil && g.promise.drop(w) && !w.manifest {
		g.note(true)
	}
}

func (p *promise) drop(w *written) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.lines)
	p.lines = slices.DeleteFunc(p.lines, func(l promised) bool { return l.manifest == w.manifest && l.num == w.num })
	return len(p.lines) < n
}

// synced notes that the first n bytes of a file are synced.
func (p *promise) synced(w *written, n int64, sum uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.lines {
		if l := &p.lines[i]; l.manifest == w.manifest && l.num == w.num {
			l.n, l.sum = max(l.n, n), sum
			return
		}
	}
	p.lines = append(p.lines, promised{w.manifest, w.num, n, sum})
	if len(p.lines) > promiseFiles {
		p.lines = p.lines[1:]
	}
}

// note writes the promise, and syncs it if that is due.
func (g *gate) note(sync bool) {
	if f := g.write(); f != nil && sync {
		_ = f.SyncData() // the gate takes note of errors
	}
}

// write writes the promise to its next slot; nil if there is none to be kept.
func (g *gate) write() vfs.File {
	p := &g.promise
	p.mu.Lock()
	defer p.mu.Unlock()
	if g.reader || g.shut() || p.file == nil {
		return nil
	}
	p.seq++
	_, _ = p.file.WriteAt(encodePromise(p.buf[:0], p.seq, p.lines), int64(p.seq%2)*promiseSlot)
	return p.file
}

func encodePromise(b []byte, seq uint64, lines []promised) []byte {
	b = binary.BigEndian.AppendUint64(b, seq)
	b = append(b, byte(len(lines)))
	for _, l := range lines {
		kind := byte(0)
		if l.manifest {
			kind = 1
		}
		b = append(b, kind)
		b = binary.BigEndian.AppendUint64(b, l.num)
		b = binary.BigEndian.AppendUint64(b, uint64(l.n))
		b = binary.BigEndian.AppendUint32(b, l.sum)
	}
	b = append(b, make([]byte, promiseSlot-4-len(b))...)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// decodePromise reads a slot; ok is false for one that is torn or was never written.
func decodePromise(b []byte) (seq uint64, lines []promised, ok bool) {
	if len(b) < promiseSlot || crc32.Checksum(b[:promiseSlot-4], castagnoli) != binary.BigEndian.Uint32(b[promiseSlot-4:]) {
		return 0, nil, false
	}
	seq, n := binary.BigEndian.Uint64(b), int(b[8])
	if n > promiseFiles {
		return 0, nil, false
	}
	for b = b[9:]; n > 0; n, b = n-1, b[promiseEntry:] {
		lines = append(lines, promised{b[0] == 1, binary.BigEndian.Uint64(b[1:]), int64(binary.BigEndian.Uint64(b[9:])), binary.BigEndian.Uint32(b[17:])})
	}
	return seq, lines, true
}

// kept checks that what was promised is there.
func (s *Store) kept() error {
	b, err := s.readAll(promiseName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it was being made
	}
	if err != nil {
		return err
	}
	var lines []promised
	for off := 0; off < len(b) && off < 2*promiseSlot; off += promiseSlot {
		if seq, l, ok := decodePromise(b[off:]); ok && seq >= s.gate.promise.seq {
			s.gate.promise.seq, lines = seq, l
		}
	}
	for _, l := range lines {
		if err := s.keptFile(l); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) keptFile(l promised) error {
	f, err := s.gate.Open(s.path(l.name()))
	if errors.Is(err, fs.ErrNotExist) {
		//guard:disk-log-missing l.manifest -> true
		if l.manifest {
			return nil // the machine may have stopped before the engine went by it
		}
		return fmt.Errorf("%w: %s is missing", ErrDamaged, l.name())
	}
	if err != nil {
		return err
	}
	defer f.Close()
	sum := crc32.New(castagnoli)
	n, err := io.Copy(sum, io.LimitReader(f, l.n))
	if err != nil {
		return err
	}
	//guard:disk-promise sum.Sum32() != l.sum -> false
	if n < l.n || sum.Sum32() != l.sum {
		return fmt.Errorf("%w: the %d bytes of %s that had been synced are not what they were", ErrDamaged, l.n, l.name())
	}
	return nil
}

// beginPromise opens the file for what comes, and gives it its room.
func (s *Store) beginPromise() error {
	f, err := s.gate.FS.OpenReadWrite(s.path(promiseName), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	s.gate.promise.file = s.gate.file(f, other, nil)
	return nil
}
