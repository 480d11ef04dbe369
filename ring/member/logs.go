package member

import (
	"context"
	"log"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// Loud lines of serf and memberlist, those at Warn. When the network is cut they
// write one a second and member; the rest of a minute goes to Debug.
const (
	loudLines  = 10
	loudWindow = time.Minute
)

// quiet begins warnings of serf and memberlist that are part of normal work, or
// that this package says itself.
var quiet = []string{
	"Shutdown without a Leave",
	"Refuting a",
	"Name conflict for",
	"Node name conflicts with",
	"Conflicting address for",
	"Was able to connect to",
	"Got ping for unexpected node",
	"Bad state when leave",
}

// logWriter turns the lines that serf and memberlist write, "[WARN] serf: …",
// into records. Their errors are warnings here: nothing in gossip is an error of
// the node.
type logWriter struct {
	log *slog.Logger

	mu    sync.Mutex // guards what is below
	ended bool       // nothing is written any more
	since time.Time  // start of the window
	loud  int        // loud lines in the window
	muted int        // lines that were not loud for want of room
}

// newLogger returns a logger for serf and memberlist, and its writer.
func newLogger(l *slog.Logger) (*log.Logger, *logWriter) {
	w := &logWriter{log: l}
	return log.New(w, "", 0), w
}

// Write logs one line.
func (w *logWriter) Write(line []byte) (int, error) {
	level, from, text := parseLine(string(line))
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return len(line), nil
	}
	if level > slog.LevelDebug && !w.allowedLocked(time.Now()) {
		level = slog.LevelDebug
	}
	w.log.Log(context.Background(), level, text, "from", from)
	return len(line), nil
}

// end drops all later lines: those of sockets that were closed under their users.
func (w *logWriter) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
}

// allowedLocked reports whether one more loud line may be written now.
func (w *logWriter) allowedLocked(now time.Time) bool {
	if now.Sub(w.since) >= loudWindow {
		if w.muted > 0 {
			w.log.Warn("gossip had more warnings than are shown at this level", "lines", w.muted)
		}
		w.since, w.loud, w.muted = now, 0, 0
	}
	if w.loud == loudLines {
		w.muted++
		return false
	}
	w.loud++
	return true
}

// parseLine splits "[LEVEL] library: text".
func parseLine(line string) (level slog.Level, from, text string) {
	level, from, text = slog.LevelDebug, "serf", strings.TrimSpace(line)
	if tag, rest, ok := strings.Cut(text, "] "); ok && strings.HasPrefix(tag, "[") {
		if tag == "[ERR" || tag == "[ERROR" || tag == "[WARN" {
			level = slog.LevelWarn
		}
		text = rest
	}
	for _, library := range []string{"serf", "memberlist"} {
		if rest, ok := strings.CutPrefix(text, library+": "); ok {
			from, text = library, rest
		}
	}
	for _, q := range quiet {
		if strings.HasPrefix(text, q) {
			level = slog.LevelDebug
		}
	}
	return level, from, text
}
