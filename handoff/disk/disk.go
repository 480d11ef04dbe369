package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Errors of a store.
var (
	// ErrNewer is the error of a store that a newer program has written.
	ErrNewer = errors.New("the disk's store is of a newer Keystead: start that, or move its directory away")
	// ErrDamaged is the error of a store of which a part is missing, changed or not a store's.
	ErrDamaged = errors.New("the disk's store is damaged")
	// ErrInUse is the error of a store that another process has open.
	ErrInUse = errors.New("the disk's store is in use by another process")
	// ErrFailed is the error of a store after a write or a sync has failed. It wraps the cause.
	ErrFailed = errors.New("the disk's store has failed and takes nothing any more")
	// ErrClosed is the error of a store that is closed.
	ErrClosed = errors.New("the disk's store is closed")
	// ErrReader is the error of a change to a store that is open for reading only.
	ErrReader = errors.New("the disk's store is open for reading only")
)

// Options say how a store is opened.
type Options struct {
	FS     vfs.FS       // the file system; nil is the system's
	Log    *slog.Logger // for what the engine reports; nil is none
	Reader bool         // read only: nothing in the directory changes

	tune func(*pebble.Options) // of tests: small tables
}

// Store is the store in one directory. Its methods may be called at the same time.
type Store struct {
	dir    string
	gate   *gate
	log    *slog.Logger
	reader bool
	db     *pebble.DB
	head   atomic.Pointer[Head]

	order     sync.Mutex    // held while a batch gets its place among the others
	rounds    atomic.Uint64 // the last number of a batch, see Batch.Log
	crowded   atomic.Bool   // a flush has ended since the last look at the first level
	compacted chan struct{} // one item: a flush or a compaction has ended

	// Invariant: the engine is closed only when no call uses it.
	mu        sync.Mutex // guards what follows
	calls     int        // that use the engine
	idle      chan struct{}
	closed    bool
	snapshots map[*Snapshot]struct{} // that are open
	ended     chan struct{}          // closed when the engine is, or is given up
	endErr    error

	patience time.Duration
	maxBatch int          // MaxBatch, but in tests
	given    atomic.Int64 // bytes of the batches
	counted  count        // see Stats
}

// closePatience bounds how long Close waits for the engine: a disk that does not answer
// for so long keeps nobody from ending.
const closePatience = 10 * time.Second

// Open opens the store in the directory, and makes one if there is none. The error is
// ErrNewer, ErrDamaged or ErrInUse, or that of the file system.
func Open(dir string, o Options) (*Store, error) {
	s, err := open(dir, o)
	if err != nil {
		return nil, fmt.Errorf("opening the store of %s: %w", dir, err)
	}
	return s, nil
}

func open(dir string, o Options) (*Store, error) {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	dir = filepath.Clean(dir)
	s := &Store{dir: dir, log: o.Log, reader: o.Reader, compacted: make(chan struct{}, 1), ended: make(chan struct{}), patience: closePatience, maxBatch: MaxBatch}
	s.gate = newGate(o.FS, dir, o.Reader)
	lock, fresh, err := s.prepare()
	if err == nil {
		err = s.start(lock, fresh, o.tune)
		_ = lock.Close() // the engine has a reference of its own
	}
	if err != nil {
		if s.db != nil {
			s.shut()
		}
		s.gate.release()
		return nil, err
	}
	go s.watch()
	return s, nil
}

// start opens the engine and reads what is needed before the first call.
func (s *Store) start(lock *pebble.Lock, fresh bool, tune func(*pebble.Options)) error {
	opts := s.options(lock, fresh)
	if tune != nil {
		tune(opts)
	}
	err := s.guarded(func() (err error) {
		s.db, err = pebble.Open(s.dir, opts)
		return err
	})
	switch {
	case s.Err() != nil:
		return s.Err()
	case err != nil:
		return s.judge(err)
	}
	if fresh {
		if err := s.writeFormat(); err != nil {
			return err
		}
	}
	if err := s.guarded(s.recall); err != nil {
		return s.judge(err)
	}
	if !s.reader {
		s.gate.note(true)
	}
	return s.Err()
}

// recall reads the head and the number of the last batch.
func (s *Store) recall() error {
	h, err := s.readHead()
	if err != nil {
		return err
	}
	if h != nil {
		s.head.Store(h)
	}
	n, err := s.readRounds()
	s.rounds.Store(n)
	return err
}

// judge tells damage from a file system that refuses.
func (s *Store) judge(err error) error {
	var number syscall.Errno
	switch {
	case err == nil || errors.Is(err, ErrDamaged) || errors.Is(err, ErrFailed) || errors.Is(err, ErrClosed):
		return err
	case pebble.IsCorruptionError(err):
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	case s.gate.refused() != nil || errors.As(err, &number) && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return fmt.Errorf("%w: %w", ErrDamaged, err)
}

// guarded runs f, which calls the engine, so that neither a panic nor a fatal error in it
// ends more than the call.
func (s *Store) guarded(f func() error) error {
	done := make(chan error, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				s.gate.stuck.Store(true)
				done <- fmt.Errorf("%w: the engine has panicked: %v", ErrDamaged, r)
			}
		}()
		done <- f()
	}()
	select {
	case err := <-done:
		return err
	case <-s.gate.parked:
		return s.Err()
	}
}

// Failed is closed when a write or a sync has failed.
func (s *Store) Failed() <-chan struct{} { return s.gate.failed }

// Err is nil, or what has failed: it wraps ErrFailed and the cause.
func (s *Store) Err() error { return s.gate.err() }

// Head returns what the last batch that had one says of the store. ok is false for a store
// that nobody has written to.
func (s *Store) Head() (h Head, ok bool) {
	if p := s.head.Load(); p != nil {
		return *p, true
	}
	return Head{}, false
}

// enter begins a call that uses the engine; leave ends it.
func (s *Store) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	if err := s.Err(); err != nil {
		return err
	}
	s.calls++
	return nil
}

func (s *Store) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls--; s.calls == 0 && s.idle != nil {
		close(s.idle)
		s.idle = nil
	}
}

// watch closes the engine of a store that has failed: nobody can use it, and it would try
// for ever what has failed.
func (s *Store) watch() {
	select {
	case <-s.gate.failed:
		s.log.Error("the disk's store has failed", "dir", s.dir, "error", s.Err())
		s.shut()
	case <-s.ended:
	}
}

// Close ends the store. All that was committed is synced then, unless the store has failed. It
// returns at the latest when the disk has not answered for ten seconds.
func (s *Store) Close() error {
	s.mu.Lock()
	again := s.closed
	s.closed = true
	s.mu.Unlock()
	s.shut()
	if again {
		return nil
	}
	if err := s.Err(); err != nil && s.endErr == nil {
		return err
	}
	return s.endErr
}

// shut closes the engine, once; it returns when that is done or given up.
func (s *Store) shut() {
	s.mu.Lock()
	select {
	case <-s.ended:
		s.mu.Unlock()
		return
	default:
	}
	first := !s.gate.ending.Swap(true)
	idle := s.idle
	if idle == nil {
		idle = make(chan struct{})
		if s.calls == 0 {
			close(idle)
		} else {
			s.idle = idle
		}
	}
	s.mu.Unlock()
	if !first {
		<-s.ended
		return
	}
	s.end(idle)
	close(s.ended)
}

func (s *Store) end(idle <-chan struct{}) {
	timer := time.NewTimer(s.patience)
	defer timer.Stop()
	done := make(chan error, 1)
	go func() {
		<-idle
		done <- s.finish()
	}()
	select {
	case s.endErr = <-done:
	case <-s.gate.parked:
	case <-timer.C:
		s.gate.fail(errors.New("the disk has not answered for " + s.patience.String()))
		s.endErr = s.Err()
	}
	s.gate.release()
}

// finish closes the engine in order. A clean store has nothing in its log.
func (s *Store) finish() (err error) {
	if s.gate.stuck.Load() {
		return s.Err() // a lock of the engine may be held for ever
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("closing the store of %s: %v", s.dir, r)
		}
	}()
	if !s.reader && s.Err() == nil {
		err = s.db.Flush()
	}
	s.closeSnapshots()
	err = errors.Join(err, s.db.Close())
	if !s.reader {
		s.gate.note(true)
	}
	if failed := s.Err(); failed != nil {
		return failed
	}
	if err != nil {
		return fmt.Errorf("closing the store of %s: %w", s.dir, err)
	}
	return nil
}
