package epoch

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// quiet is a logger that says nothing.
type quiet struct{ hclog.Logger }

func (quiet) Log(hclog.Level, string, ...any) {}
func (quiet) Trace(string, ...any)            {}
func (quiet) Debug(string, ...any)            {}
func (quiet) Info(string, ...any)             {}
func (quiet) Warn(string, ...any)             {}
func (quiet) Error(string, ...any)            {}
func (q quiet) With(...any) hclog.Logger      { return q }
func (q quiet) Named(string) hclog.Logger     { return q }

// raftLog passes what raft says on. What it calls news is our debugging; what it
// warns of happens whenever a node is down, and is news.
// It says the same of the same server once a minute: while a node is down, each attempt to
// reach it is a line, several a second. Those that follow go to debugging.
type raftLog struct {
	hclog.Logger
	log   *slog.Logger
	lines *said // shared with the loggers that come from this one
}

// Bounds of what raft may say, with their reasons.
const (
	// sayAgain is after how long the same is news again.
	sayAgain = time.Minute
	// maxLines is how many different lines are remembered: some for each server.
	maxLines = 8 * maxServers
)

// said is what was said a moment ago.
type said struct {
	now func() time.Time
	mu  sync.Mutex
	at  map[string]time.Time // guarded by mu: by what was said, and of whom
}

// news reports whether a line was not said within the last minute.
func (l *said) news(line string) bool {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	//guard:raft-says-once sayAgain -> 0
	if at, is := l.at[line]; is && now.Sub(at) < sayAgain {
		return false
	}
	if len(l.at) >= maxLines {
		maps.DeleteFunc(l.at, func(_ string, at time.Time) bool { return now.Sub(at) >= sayAgain })
	}
	if len(l.at) < maxLines {
		l.at[line] = now
	}
	return true
}

func newRaftLog(log *slog.Logger) hclog.Logger {
	return raftLog{hclog.NewNullLogger(), log, &said{now: time.Now, at: map[string]time.Time{}}}
}

// serverOf returns the server that a line is about, "" if about none.
func serverOf(args []any) string {
	for i := 0; i+1 < len(args); i += 2 {
		switch args[i] {
		case "peer", "server-id", "id", "target", "from", "candidate":
			server := args[i+1]
			if s, is := server.(raft.Server); is {
				server = s.ID
			}
			return fmt.Sprint(server)
		}
	}
	return ""
}

func (l raftLog) say(level slog.Level, msg string, args []any) {
	if level > slog.LevelDebug {
		if server := serverOf(args); server != "" && !l.lines.news(msg+" "+server) {
			level = slog.LevelDebug
		}
	}
	if !l.log.Enabled(context.Background(), level) {
		return
	}
	for i, a := range args {
		if f, ok := a.(hclog.Format); ok && len(f) > 0 {
			args[i] = fmt.Sprintf(fmt.Sprint(f[0]), f[1:]...)
		}
	}
	l.log.Log(context.Background(), level, msg, args...)
}

func (l raftLog) Log(level hclog.Level, msg string, args ...any) {
	switch {
	case level >= hclog.Error:
		l.Error(msg, args...)
	case level >= hclog.Warn:
		l.Warn(msg, args...)
	default:
		l.Debug(msg, args...)
	}
}
func (l raftLog) Trace(string, ...any)          {}
func (l raftLog) Debug(msg string, args ...any) { l.say(slog.LevelDebug, msg, args) }
func (l raftLog) Info(msg string, args ...any)  { l.say(slog.LevelDebug, msg, args) }
func (l raftLog) Warn(msg string, args ...any)  { l.say(slog.LevelInfo, msg, args) }
func (l raftLog) Error(msg string, args ...any) { l.say(slog.LevelInfo, msg, args) }
func (l raftLog) IsDebug() bool                 { return l.log.Enabled(context.Background(), slog.LevelDebug) }
func (l raftLog) With(args ...any) hclog.Logger {
	return raftLog{l.Logger, l.log.With(args...), l.lines}
}
func (l raftLog) Named(string) hclog.Logger      { return l }
func (l raftLog) ResetNamed(string) hclog.Logger { return l }
