package cli

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// slow is where output goes that is taken late.
type slow struct {
	bytes.Buffer
	taken <-chan struct{}
}

func (s *slow) Write(b []byte) (int, error) {
	<-s.taken
	return s.Buffer.Write(b)
}

// full takes nothing.
type full struct{}

var errFull = errors.New("no space left on device")

func (full) Write([]byte) (int, error) { return 0, errFull }

// What a command printed before it ended is passed on whole, however late it is taken.
func TestSlowOutputIsWhole(t *testing.T) {
	taken := make(chan struct{})
	out := &slow{taken: taken}
	tee, err := newTee(out)
	if err != nil {
		t.Fatal(err)
	}
	printed := strings.Repeat("0123456789", 6_000) // fits the pipe beside what is under way
	if _, err := tee.to.WriteString(printed); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(2*teeRest, func() { close(taken) })
	kept, cut, err := tee.end()
	if out.String() != printed || string(kept) != printed || cut || err != nil {
		t.Errorf("passed on %d, kept %d, of %d; cut %v, %v", out.Len(), len(kept), len(printed), cut, err)
	}
}

// A command does not wait for ever when its output cannot be passed on, and all is kept.
func TestOutputThatIsNotTaken(t *testing.T) {
	tee, err := newTee(full{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tee.to.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if kept, cut, err := tee.end(); len(kept) != maxPrinted || !cut || !errors.Is(err, errFull) {
		t.Errorf("kept %d, cut %v: %v", len(kept), cut, err)
	}
}

// What a command left in the background, and prints for ever, is not waited for.
func TestBackgroundOutput(t *testing.T) {
	tee, err := newTee(&bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	fd, err := syscall.Dup(int(tee.to.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	background, over := os.NewFile(uintptr(fd), "background"), make(chan struct{})
	go func() {
		defer close(over)
		for err := error(nil); err == nil; {
			_, err = background.WriteString("still here\n") // until nobody reads
		}
	}()
	if _, _, err := tee.end(); err != nil {
		t.Error(err)
	}
	<-over
}

func TestBySignal(t *testing.T) {
	for code, want := range map[int]bool{0: false, 128: false, 129: true, 137: true, 192: true, 193: false, 255: false} {
		if bySignal(code) != want {
			t.Errorf("%d", code)
		}
	}
}
