package disk

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// fault fails one operation of writing, or all from it on.
type fault struct {
	at, seen atomic.Int64
	forever  bool
	what     errorfs.OpReadWrite
	err      error
	hit      atomic.Pointer[string]
}

func (f *fault) String() string { return "fault" }

func (f *fault) MaybeError(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() != f.what || op.Kind == errorfs.OpFilePreallocate {
		return nil
	}
	n, at := f.seen.Add(1)-1, f.at.Load()
	if n == at || f.forever && n > at {
		s := fmt.Sprintf("operation %d, kind %d of %s", n, op.Kind, op.Path)
		f.hit.CompareAndSwap(nil, &s)
		return f.err
	}
	return nil
}

// run opens a store, commits some batches and closes it. It returns how many of them are known to
// be on disk, and the first error.
func (w *work) run(fs vfs.FS, rounds int) (acked int, err error) {
	s, err := Open("d", Options{FS: fs, tune: small})
	if err != nil {
		return 0, err
	}
	for i := range rounds {
		b := s.NewBatch()
		w.next(b)
		if err = s.Commit(b, i%2 == 1); err != nil {
			break
		}
		if i%2 == 1 {
			acked = len(w.states) - 1
		}
	}
	failed := s.Err() != nil
	if cerr := s.Close(); err == nil && cerr == nil {
		return len(w.states) - 1, nil
	} else if err == nil {
		err = cerr
	} else if !failed {
		err = fmt.Errorf("Commit fails, the store has not: %w", err)
	}
	return acked, err
}

// TestEveryWriteFails: each write, sync, creation, renaming and removal fails in its turn, alone
// or with all after it. Nothing that Commit has taken with sync is missing after a
// crash, nothing hangs or panics, and a store can be made beside.
func TestEveryWriteFails(t *testing.T) {
	defer noLeak(t)
	for _, forever := range []bool{false, true} {
		failures := 0
		for at := int64(0); ; at++ {
			f := &fault{forever: forever, what: errorfs.OpIsWrite, err: syscall.ENOSPC}
			f.at.Store(at)
			mem := vfs.NewCrashableMem()
			w, acked := newWork(uint64(at)%5), 0
			var err error
			within(t, fmt.Sprint("operation ", at), func() { acked, err = w.run(errorfs.Wrap(mem, f), 40) })
			hit := f.hit.Load()
			if hit == nil {
				if at < 100 || err != nil {
					t.Fatalf("all works after %d operations: %v", at, err)
				}
				break
			}
			if err != nil {
				failures++
				if !errors.Is(err, syscall.ENOSPC) {
					t.Fatalf("%s fails, and the error is: %v", *hit, err)
				}
			}
			for i, c := range []vfs.CrashCloneCfg{{}, {UnsyncedDataPercent: 50, RNG: rand.New(rand.NewPCG(uint64(at), 3))}} {
				what := fmt.Sprintf("%s, forever: %v, clone %d, error: %v", *hit, forever, i, err)
				clone := mem.CrashClone(c)
				s, err := Open("d", Options{FS: clone, tune: small})
				if err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				w.check(t, s, acked, what)
				mustClose(t, s)
			}
			if err := mem.RemoveAll("d"); err != nil {
				t.Errorf("%s: %v", *hit, err)
			}
			beside := mustOpen(t, mem, "beside")
			mustClose(t, beside)
		}
		t.Logf("forever: %v: %d of the faults are errors of the store", forever, failures)
	}
}

// TestEveryReadFails: each read fails in its turn. It is an error of the call that reads, and a failure
// of the store where that is the engine.
func TestEveryReadFails(t *testing.T) {
	defer noLeak(t)
	mem := vfs.NewCrashableMem()
	w := newWork(1)
	s, err := Open("d", Options{FS: mem, tune: small})
	if err != nil {
		t.Fatal(err)
	}
	for range 60 {
		b := s.NewBatch()
		w.next(b)
		mustCommit(t, s, b, true)
	}
	died := mem.CrashClone(vfs.CrashCloneCfg{})
	mustClose(t, s)
	for at := int64(0); ; at++ {
		f := &fault{what: errorfs.OpIsRead, err: syscall.EIO}
		f.at.Store(at)
		mem := died.CrashClone(vfs.CrashCloneCfg{})
		within(t, fmt.Sprint("read ", at), func() {
			s, err := Open("d", Options{FS: errorfs.Wrap(mem, f), tune: small})
			if err != nil {
				if !errors.Is(err, syscall.EIO) || errors.Is(err, ErrDamaged) {
					t.Errorf("%s: %v", *f.hit.Load(), err)
				}
				return
			}
			if m, _, err := content(s); err == nil && len(m) != len(w.states[60]) {
				t.Errorf("%d of %d are there, and no error", len(m), len(w.states[60]))
			} else if err != nil && !errors.Is(err, syscall.EIO) {
				t.Errorf("%s: %v", *f.hit.Load(), err)
			}
			_, _ = s.Verify(context.Background(), nil)
			_ = s.Close()
		})
		s, err := Open("d", Options{FS: mem, tune: small})
		if err != nil {
			t.Fatal(err)
		}
		w.check(t, s, 60, fmt.Sprint("after read ", at))
		mustClose(t, s)
		if f.hit.Load() == nil {
			if at < 50 {
				t.Fatalf("only %d reads", at)
			}
			return
		}
	}
}

// TestListsAgain: a directory that can be listed only once fails the store, and the engine sees the names of
// before: it must not give up its opening then.
func TestListsAgain(t *testing.T) {
	f := &fault{what: errorfs.OpIsRead, forever: true, err: syscall.EIO}
	mem := vfs.NewMem()
	if err := mem.MkdirAll("d/name", 0o755); err != nil {
		t.Fatal(err)
	}
	f.at.Store(1)
	g := newGate(errorfs.Wrap(mem, f), "d", false)
	for i := range 2 {
		names, err := g.List("d")
		if err != nil || len(names) != 1 {
			t.Errorf("listed %d times: %v, %v", i, names, err)
		}
		if failed := g.err() != nil; failed != (i == 1) {
			t.Errorf("listed %d times: failed: %v", i, failed)
		}
	}
	if _, err := newGate(errorfs.Wrap(mem, f), "d", false).List("d"); !errors.Is(err, syscall.EIO) {
		t.Errorf("the first list: %v", err)
	}
}
