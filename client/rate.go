package client

import (
	"time"

	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// Algorithm is how a limit refills.
type Algorithm uint8

// The algorithms. The zero Algorithm is a token bucket.
const (
	TokenBucket Algorithm = iota
	FixedWindow
	SlidingWindow
	CalendarWindow
	LeakyBucket
)

// algorithms are the names of the algorithms, as the commands write them, and what they
// are on the wire.
var algorithms = [...]struct {
	name string
	wire limitpb.Algorithm
}{
	TokenBucket:    {"token-bucket", limitpb.Algorithm_ALGORITHM_TOKEN_BUCKET},
	FixedWindow:    {"fixed-window", limitpb.Algorithm_ALGORITHM_FIXED_WINDOW},
	SlidingWindow:  {"sliding-window", limitpb.Algorithm_ALGORITHM_SLIDING_WINDOW},
	CalendarWindow: {"calendar-window", limitpb.Algorithm_ALGORITHM_CALENDAR_WINDOW},
	LeakyBucket:    {"leaky-bucket", limitpb.Algorithm_ALGORITHM_LEAKY_BUCKET},
}

// String returns the name, such as "token-bucket".
func (a Algorithm) String() string {
	if int(a) < len(algorithms) {
		return algorithms[a].name
	}
	return "unknown"
}

// onWire returns what the algorithm is on the wire. A node refuses one that there is not.
func (a Algorithm) onWire() limitpb.Algorithm {
	if int(a) < len(algorithms) {
		return algorithms[a].wire
	}
	return -1
}

// Rate is a limit: so many tokens in a period.
type Rate struct {
	Limit     uint64        // tokens that come back per period, or that a window holds
	Period    time.Duration // 1 µs to 366 days; 0 with a Calendar that has a Unit
	Burst     uint64        // most tokens that a bucket holds, or that wait in a leaky bucket; 0 = Limit
	Algorithm Algorithm
	Calendar  Calendar // of a CalendarWindow; see PerCalendar
}

// Per is a token bucket of n tokens a period.
func Per(n uint64, period time.Duration) Rate { return Rate{Limit: n, Period: period} }

// PerSecond is a token bucket of n tokens a second.
func PerSecond(n uint64) Rate { return Per(n, time.Second) }

// PerMinute is a token bucket of n tokens a minute.
func PerMinute(n uint64) Rate { return Per(n, time.Minute) }

// PerHour is a token bucket of n tokens an hour.
func PerHour(n uint64) Rate { return Per(n, time.Hour) }

// PerDay is a token bucket of n tokens in 24 hours.
func PerDay(n uint64) Rate { return Per(n, 24*time.Hour) }

// WithBurst returns the rate with a bucket that holds burst tokens, or a queue of so many.
func (r Rate) WithBurst(burst uint64) Rate {
	r.Burst = burst
	return r
}

// Windowed returns the rate as fixed windows, which open with their first hit.
func (r Rate) Windowed() Rate {
	r.Algorithm = FixedWindow
	return r
}

// Spaced returns the rate as a leaky bucket: each token has its turn Period/Limit after the one
// before it. Burst is for how many tokens there are places in the queue, those of the request
// that runs included. See Limit.Wait and WithMaxDelay.
func (r Rate) Spaced() Rate {
	r.Algorithm = LeakyBucket
	return r
}

// Sliding returns the rate as a sliding window: at most Limit in any time shorter than
// Period. What was spent counts for less than nine eighths of the period.
func (r Rate) Sliding() Rate {
	r.Algorithm = SlidingWindow
	return r
}
