package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// progress is a bar on a terminal, and nothing elsewhere. Its methods may be
// called from any goroutine.
type progress struct {
	mu    sync.Mutex
	w     io.Writer // guarded by mu; nil = not a terminal
	last  time.Time // guarded by mu: when it was drawn last
	drawn bool      // guarded by mu
}

const (
	barWidth = 30
	barEvery = 100 * time.Millisecond
)

func newProgress(w io.Writer) *progress {
	if f, ok := w.(*os.File); ok && isTerminal(f) {
		return &progress{w: w}
	}
	return &progress{}
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	return err == nil
}

// show draws the bar; part is from 0 to 1, or negative if it is not known.
func (p *progress) show(part float64, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.w == nil || time.Since(p.last) < barEvery {
		return
	}
	p.last, p.drawn = time.Now(), true
	if part < 0 {
		fmt.Fprintf(p.w, "\r\x1b[K%s", text)
		return
	}
	full := int(min(part, 1) * barWidth)
	fmt.Fprintf(p.w, "\r\x1b[K[%s%s] %3.0f%%  %s", strings.Repeat("#", full), strings.Repeat("·", barWidth-full), 100*min(part, 1), text)
}

// clear removes the bar.
func (p *progress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.drawn {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.drawn = false
	}
}
