package epoch

import (
	"time"

	"github.com/keystead/keystead/ring/epoch/table"
)

// stops is what a leader goes by when processes are about to stop. They are collected
// for a moment, as joins are: when all are told to stop at once, each keeps what it has
// (table.Drain), instead of giving it to the last one, which could not keep a copy
// anywhere. Those that have stopped like that are waited for as those of a cold start.
type stops struct {
	stopping int   // members
	at       int64 // when there was one more, as far as this leader knows
}

// learned is told of each table.
func (s *stops) learned(t *table.Table, now int64) {
	n := 0
	for _, m := range t.Members {
		if m.Stopping {
			n++
		}
	}
	if n > s.stopping {
		s.at = now
	}
	s.stopping = n
}

// all reports whether members have stopped together with all others and are waited for.
func (s *stops) all(t *table.Table, now int64, wait time.Duration) bool {
	if s.stopping == 0 || now-s.at >= int64(wait) {
		return false
	}
	for _, m := range t.Members {
		if t.Stopped(m.Holder()) {
			return true
		}
	}
	return false
}
