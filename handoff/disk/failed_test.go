package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.uber.org/goleak"
)

// noLeak fails the test if a goroutine is left, but for those that the engine has ended the process in.
func noLeak(t *testing.T) {
	t.Helper()
	goleak.VerifyNone(t, goleak.IgnoreTopFunction("github.com/keystead/keystead/handoff/disk.(*gate).park"))
}

// until waits for a condition.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 60_000 {
		if ok() {
			return
		}
		<-time.After(time.Millisecond)
	}
	t.Fatal(what)
}

// hung is a file system whose syncs of the log wait while it is held.
type hung struct {
	mu   sync.Mutex // guards held
	held chan struct{}
}

func (h *hung) String() string { return "hung" }

func (h *hung) MaybeError(op errorfs.Op) error {
	if (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData) && strings.HasSuffix(op.Path, ".log") {
		h.mu.Lock()
		held := h.held
		h.mu.Unlock()
		if held != nil {
			<-held
		}
	}
	return nil
}

func (h *hung) hold(c chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.held = c
}

func put(s *Store, sync bool) error {
	b := s.NewBatch()
	b.Put(1, []byte("k"), nil, value("v"))
	return s.Commit(b, sync)
}

// TestHungDisk: a disk that does not answer keeps Commit, and Close only for a while. Then calls that
// wait have an error, and the directory is free.
func TestHungDisk(t *testing.T) {
	defer noLeak(t)
	h, mem := &hung{}, vfs.NewCrashableMem()
	s, err := Open("d", Options{FS: errorfs.Wrap(mem, h)})
	if err != nil {
		t.Fatal(err)
	}
	if err := put(s, true); err != nil {
		t.Fatal(err)
	}
	s.patience = 50 * time.Millisecond
	held := make(chan struct{})
	h.hold(held)
	waits := make(chan error)
	go func() { waits <- put(s, true) }()
	within(t, "Close", func() {
		if err := s.Close(); !errors.Is(err, ErrFailed) {
			t.Errorf("closed while the disk hangs: %v", err)
		}
	})
	if err := <-waits; err == nil {
		t.Error("Commit succeeds without a sync")
	}
	beside := mustOpen(t, mem, "d")
	mustClose(t, beside)
	h.hold(nil)
	close(held)
}

// TestFatal: where the engine ends the process, the store is failed, and nobody waits.
func TestFatal(t *testing.T) {
	mem := vfs.NewMem()
	s := mustOpen(t, mem, "d")
	opts := s.options(nil, false)
	go opts.Logger.Fatalf("no way on: %d", 7)
	<-s.Failed()
	if err := s.Err(); !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), "no way on: 7") {
		t.Errorf("failed: %v", err)
	}
	if err := put(s, true); !errors.Is(err, ErrFailed) {
		t.Errorf("committed: %v", err)
	}
	within(t, "Close", func() { _ = s.Close() })
	mustClose(t, mustOpen(t, mem, "d"))
}

// TestWaitingFail: a call that waits when another one's sync fails has an error, too.
func TestWaitingFail(t *testing.T) {
	defer noLeak(t)
	held := make(chan struct{})
	h := &hung{}
	f := &fault{what: errorfs.OpIsWrite, forever: true, err: syscall.EIO}
	f.at.Store(1 << 40)
	s, err := Open("d", Options{FS: errorfs.Wrap(vfs.NewMem(), errorfs.Any(h, f))})
	if err != nil {
		t.Fatal(err)
	}
	h.hold(held)
	results := make(chan error)
	for range 10 {
		go func() { results <- put(s, true) }()
	}
	until(t, "not all commits are on their way", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.calls == 10
	})
	f.at.Store(0)
	close(held)
	failures := 0
	for range 10 {
		if err := <-results; err != nil {
			failures++
			if !errors.Is(err, syscall.EIO) || !errors.Is(err, ErrFailed) {
				t.Errorf("%v", err)
			}
		}
	}
	if failures == 0 {
		t.Error("nobody has an error")
	}
	<-s.Failed()
	if err := s.Close(); !errors.Is(err, syscall.EIO) {
		t.Errorf("closed: %v", err)
	}
	if st := s.Stats(); st.Given == 0 || st.ToLog == 0 {
		t.Errorf("the figures are gone: %+v", st)
	}
}

// TestReadOnlyDisk: a store on a disk that cannot be written is refused, and can be read.
func TestReadOnlyDisk(t *testing.T) {
	defer noLeak(t)
	mem := vfs.NewMem()
	for range 2 {
		f := &fault{what: errorfs.OpIsWrite, forever: true, err: &fs.PathError{Op: "open", Path: "d", Err: syscall.EROFS}}
		ro := errorfs.Wrap(mem, f)
		if _, err := Open("d", Options{FS: ro}); !errors.Is(err, syscall.EROFS) || errors.Is(err, ErrInUse) {
			t.Errorf("%v", err)
		}
		s := mustOpen(t, mem, "d")
		if err := put(s, true); err != nil {
			t.Fatal(err)
		}
		mustClose(t, s)
		r, err := Open("d", Options{FS: ro, Reader: true})
		if err != nil {
			t.Fatal(err)
		}
		if m := mustContent(t, r); len(m) != 1 {
			t.Errorf("it holds %v", m)
		}
		mustClose(t, r)
	}
}

// TestNotOurs: a directory of somebody else stays as it is; one of a newer program, too.
func TestNotOurs(t *testing.T) {
	ours, _ := few(t, true)
	delete(ours, formatName)
	for name, c := range map[string]struct {
		files map[string]string
		want  error
	}{
		"somebody's": {map[string]string{"letter.txt": "dear"}, ErrDamaged},
		"nameless":   {ours, ErrDamaged},
		"words":      {map[string]string{formatName: "keystead disk one\n"}, ErrDamaged},
		"flipped":    {map[string]string{formatName: strings.Replace(formatLine(1), "1", "3", 1)}, ErrDamaged},
		"empty":      {map[string]string{formatName: ""}, ErrDamaged},
		"alone":      {map[string]string{formatName: formatLine(1)}, ErrDamaged},
		"newer":      {map[string]string{formatName: formatLine(2), "store": "x"}, ErrNewer},
	} {
		m := lay(t, c.files, "d")
		for _, reader := range []bool{true, false} {
			if reader && c.files[formatName] == "" && name != "empty" {
				continue // there is no store to be read
			}
			if _, err := Open("d", Options{FS: m, Reader: reader}); !errors.Is(err, c.want) {
				t.Errorf("%s: reader: %v: %v", name, reader, err)
			}
		}
		got := files(t, m, "d")
		for k, v := range c.files {
			if got[k] != v {
				t.Errorf("%s: %s has changed", name, k)
			}
		}
	}
}

// TestCrowded: commits wait while the first level is crowded, and no longer when the store fails.
func TestCrowded(t *testing.T) {
	defer noLeak(t)
	s, err := Open("d", Options{FS: vfs.NewMem(), tune: func(o *pebble.Options) {
		small(o)
		o.DisableAutomaticCompactions = true
	}})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	var last int
	go func() {
		for i := 0; ; i++ {
			b := s.NewBatch()
			for j := range 10 {
				b.Put(uint64(j), []byte("k"), nil, value(strings.Repeat("x", 900)))
			}
			if err := s.Commit(b, false); err != nil {
				last = i
				done <- err
				return
			}
		}
	}()
	until(t, "nothing piles up", func() bool { return s.Stats().Sublevels >= stallSublevels })
	select {
	case err := <-done:
		t.Fatalf("%d batches: %v", last, err)
	case <-time.After(50 * time.Millisecond):
	}
	if n := s.Stats().Sublevels; n > stallSublevels+memtables {
		t.Errorf("%d tables on top of each other", n)
	}
	s.gate.fail(fmt.Errorf("enough"))
	if err := <-done; !errors.Is(err, ErrFailed) {
		t.Errorf("%v", err)
	}
	_ = s.Close()
}
