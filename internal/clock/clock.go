// Package clock is where time comes from: nanoseconds of a clock that never
// goes back and that runs on while the machine is suspended, so that a TTL is
// over when it is over for everybody else.
//
// The cores take `now` as an argument; only the edges of the program read a
// Clock, once per request or batch.
package clock

import "time"

// Clock tells nanoseconds since some fixed moment of this boot or process. Whatever has
// its method is one: packages outside internal, such as ring/epoch, may ask for it without
// their users naming it.
type Clock interface {
	Now() int64
}

// Steady is a Clock with a second reading, at the rate of the hardware. NTP slews the
// other one: by up to 0.05 % in the ordinary course, and by up to 8.3 % when chrony corrects
// a clock that is wrong by seconds. Reading it costs several times as much, and two
// readings in turn may differ by some microseconds backwards.
type Steady interface {
	Clock
	// Steady tells nanoseconds since some fixed moment, another one than Now.
	Steady() int64
}

// SteadyOf returns the steady reading of a clock, or its Now if it has none.
func SteadyOf(c Clock) func() int64 {
	if s, ok := c.(Steady); ok {
		return s.Steady
	}
	return c.Now
}

// MaxSlew is more than any clock is slewed by on purpose: chrony's maxslewrate is 83,333
// ppm by default, the kernel's ticks can be set by 10 %.
const MaxSlew = 0.1

// Process is a clock that starts at 0 when it is made and follows the runtime's
// monotonic clock. It stands still while the machine is suspended. In a
// testing/synctest bubble it follows the bubble's time.
type Process struct{ start time.Time }

// NewProcess returns a Process clock that starts now.
func NewProcess() *Process { return &Process{time.Now()} }

// Now returns the time since the clock was made.
func (p *Process) Now() int64 { return int64(time.Since(p.start)) }
