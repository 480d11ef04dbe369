package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/keystead/keystead/owner/limit"
)

// rate is a limit as people write it: 20/1m, 100/s, 5000/24h, 1000/7d.
type rate struct {
	limit  uint64
	period time.Duration
}

var rateUnits = map[string]time.Duration{
	"ns": time.Nanosecond, "us": time.Microsecond, "µs": time.Microsecond, "ms": time.Millisecond,
	"s": time.Second, "sec": time.Second, "second": time.Second,
	"m": time.Minute, "min": time.Minute, "minute": time.Minute,
	"h": time.Hour, "hour": time.Hour,
	"d": 24 * time.Hour, "day": 24 * time.Hour,
}

var errRate = errors.New("write a limit as COUNT/PERIOD: 20/1m, 100/s, 5000/24h, 1000/7d")

func parseRate(text string) (rate, error) {
	count, period, ok := strings.Cut(strings.TrimSpace(text), "/")
	if !ok {
		return rate{}, errRate
	}
	n, err := strconv.ParseUint(strings.ReplaceAll(count, "_", ""), 10, 64)
	if err != nil || n == 0 {
		return rate{}, fmt.Errorf("%q is not a count of 1 or more: %w", count, errRate)
	}
	d, err := parsePeriod(period)
	if err != nil {
		return rate{}, err
	}
	if d < limit.MinPeriod || d > limit.MaxPeriod {
		return rate{}, fmt.Errorf("a period of %s: choose 1us to 366d", period)
	}
	return rate{n, d}, nil
}

func parsePeriod(text string) (time.Duration, error) {
	if unit, ok := rateUnits[text]; ok {
		return unit, nil
	}
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil && n > 0 {
			return time.Duration(n) * 24 * time.Hour, nil
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%q is not a period: %w", text, errRate)
	}
	return d, nil
}

// String implements pflag.Value.
func (r *rate) String() string {
	if r.limit == 0 {
		return ""
	}
	period := r.period.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(period, zero) {
			period = strings.TrimSuffix(period, zero[1:])
		}
	}
	return fmt.Sprintf("%d/%s", r.limit, period)
}

// Set implements pflag.Value.
func (r *rate) Set(text string) (err error) {
	*r, err = parseRate(text)
	return err
}

// Type implements pflag.Value.
func (r *rate) Type() string { return "COUNT/PERIOD" }
