// Package clock is where time comes from: nanoseconds of a clock that never
// goes back and that runs on while the machine is suspended, so that a TTL is
// over when it is over for everybody else.
//
// The cores take `now` as an argument; only the edges of the program read a
// Clock, once per request or batch.
package clock

import "time"

// Clock tells nanoseconds since some fixed moment of this boot or process.
type Clock interface {
	Now() int64
}

// Process is a clock that starts at 0 when it is made and follows the runtime's
// monotonic clock. It stands still while the machine is suspended. In a
// testing/synctest bubble it follows the bubble's time.
type Process struct{ start time.Time }

// NewProcess returns a Process clock that starts now.
func NewProcess() *Process { return &Process{time.Now()} }

// Now returns the time since the clock was made.
func (p *Process) Now() int64 { return int64(time.Since(p.start)) }
