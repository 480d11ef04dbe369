package clock

import "golang.org/x/sys/unix"

// Boot is CLOCK_BOOTTIME: time since the machine started, suspended time
// included. Reading it is a system call of about 0.3 µs.
type Boot struct{}

// System is the best clock of this platform.
func System() Clock { return Boot{} }

// Now returns the time since the machine started.
func (Boot) Now() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("clock: CLOCK_BOOTTIME: " + err.Error()) // every kernel since 2.6.39 has it
	}
	return ts.Nano()
}
