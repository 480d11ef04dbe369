package epoch

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/hashicorp/go-hclog"
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
type raftLog struct {
	hclog.Logger
	log *slog.Logger
}

func newRaftLog(log *slog.Logger) hclog.Logger { return raftLog{hclog.NewNullLogger(), log} }

func (l raftLog) say(level slog.Level, msg string, args []any) {
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
func (l raftLog) Trace(string, ...any)           {}
func (l raftLog) Debug(msg string, args ...any)  { l.say(slog.LevelDebug, msg, args) }
func (l raftLog) Info(msg string, args ...any)   { l.say(slog.LevelDebug, msg, args) }
func (l raftLog) Warn(msg string, args ...any)   { l.say(slog.LevelInfo, msg, args) }
func (l raftLog) Error(msg string, args ...any)  { l.say(slog.LevelInfo, msg, args) }
func (l raftLog) IsDebug() bool                  { return l.log.Enabled(context.Background(), slog.LevelDebug) }
func (l raftLog) With(args ...any) hclog.Logger  { return raftLog{l.Logger, l.log.With(args...)} }
func (l raftLog) Named(string) hclog.Logger      { return l }
func (l raftLog) ResetNamed(string) hclog.Logger { return l }
