package xds

import (
	"sync"
	"time"
)

// logEvery is how often the log says that a client refuses what it was sent. All
// refuse the same thing at once, and one that is broken does it again and again.
const logEvery = time.Second

// logLimiter lets one line pass in each logEvery.
type logLimiter struct {
	mu   sync.Mutex // guards what follows
	next time.Time  // when a line may pass again
	left int        // lines that did not since the last one that did
}

// allow reports whether a allow may pass, and how many did not since the last one.
func (s *logLimiter) allow(now time.Time) (left int, pass bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Before(s.next) {
		s.left++
		return 0, false
	}
	left, s.left, s.next = s.left, 0, now.Add(logEvery)
	return left, true
}
