package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// Boot is CLOCK_BOOTTIME: time since the machine started, suspended time
// included. Reading it is a system call of about 0.3 µs.
type Boot struct{}

// System returns the best clock of this platform.
func System() Clock { return Boot{} }

// Now returns the time since the machine started.
func (Boot) Now() int64 { return read(unix.CLOCK_BOOTTIME) }

// Bounds of Steady.
const (
	steadyWithin = 50 * time.Microsecond // in which its clocks are read
	steadyTries  = 8                     // then it is content with the reading that took least
)

// Steady implements Steady: CLOCK_MONOTONIC_RAW, which nobody slews, with the suspended
// time that it does not count, which is what CLOCK_BOOTTIME is ahead of CLOCK_MONOTONIC.
func (Boot) Steady() int64 {
	best, took := int64(0), int64(-1)
	for range steadyTries {
		before := read(unix.CLOCK_MONOTONIC)
		raw, boot := read(unix.CLOCK_MONOTONIC_RAW), read(unix.CLOCK_BOOTTIME)
		after := read(unix.CLOCK_MONOTONIC)
		if took < 0 || after-before < took {
			best, took = raw+boot-before, after-before
		}
		if took < int64(steadyWithin) {
			break
		}
	}
	return best
}

func read(id int32) int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		panic("clock: reading a clock of the system: " + err.Error()) // every kernel since 2.6.39 has them
	}
	return ts.Nano()
}
