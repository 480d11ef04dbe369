// Package rate reads limits and durations as people write them: 20/1m, 250ms, 7d. The
// command line and the HTTP API share the words.
package rate

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Rate is a limit as people write it: 20/1m, 100/s, 5000/24h, 1000/7d.
type Rate struct {
	Limit  uint64
	Period time.Duration
}

var units = map[string]time.Duration{
	"ns": time.Nanosecond, "us": time.Microsecond, "µs": time.Microsecond, "ms": time.Millisecond,
	"s": time.Second, "sec": time.Second, "second": time.Second,
	"m": time.Minute, "min": time.Minute, "minute": time.Minute,
	"h": time.Hour, "hour": time.Hour,
	"d": day, "day": day,
}

const day = 24 * time.Hour

var errRate = errors.New("write a limit as COUNT/PERIOD: 20/1m, 100/s, 5000/24h, 1000/7d")

// ErrCalendar says that a period is one of the calendar, which is not always as long.
var ErrCalendar = errors.New("is a period of the calendar, which has no length of its own")

// calendar are the periods of the calendar that are no lengths.
var calendar = []string{"week", "month", "year"}

// Parse reads COUNT/PERIOD. Whether the limit and the period are in range is for the
// limit to say.
func Parse(text string) (Rate, error) {
	count, period, ok := strings.Cut(strings.TrimSpace(text), "/")
	if !ok {
		return Rate{}, errRate
	}
	n, err := strconv.ParseUint(strings.ReplaceAll(count, "_", ""), 10, 64)
	if err != nil || n == 0 {
		return Rate{}, fmt.Errorf("%q is not a count of 1 or more: %w", count, errRate)
	}
	d, err := parsePeriod(period)
	if err != nil {
		return Rate{}, err
	}
	return Rate{n, d}, nil
}

func parsePeriod(text string) (time.Duration, error) {
	if unit, ok := units[text]; ok {
		return unit, nil
	}
	if slices.Contains(calendar, text) {
		return 0, fmt.Errorf("%q %w", text, ErrCalendar)
	}
	d, err := ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%q is not a period: %w", text, errRate)
	}
	return d, nil
}

var errDuration = errors.New("write a duration as 10s, 1.5s, 250ms, 2h45m or 7d")

// maxDays is how many days a duration can hold.
const maxDays = uint64(1<<63-1) / uint64(day)

// ParseDuration reads a duration: that of Go, or whole days.
func ParseDuration(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 64); err == nil && n <= maxDays {
			return time.Duration(n) * day, nil
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%q is not a duration: %w", text, errDuration)
	}
	return d, nil
}
