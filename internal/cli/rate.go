package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/keystead/keystead/client"
	words "github.com/keystead/keystead/internal/rate"
	"github.com/keystead/keystead/owner/limit"
)

// rate is a limit as people write it: 20/1m, 100/s, 5000/24h, 1000/7d.
type rate struct {
	limit  uint64
	period time.Duration // 0 with a unit that is not always as long
	unit   client.CalendarUnit
}

// calendarUnits are the periods that only a calendar has, and a day, which is 24 hours without one.
var calendarUnits = map[string]client.CalendarUnit{
	"day": client.CalendarDay, "week": client.CalendarWeek, "month": client.CalendarMonth, "year": client.CalendarYear,
}

func parseRate(text string) (rate, error) {
	count, period, _ := strings.Cut(text, "/")
	if unit, ok := calendarUnits[period]; ok {
		r, err := words.Parse(count + "/day")
		if unit != client.CalendarDay {
			r.Period = 0
		}
		return rate{r.Limit, r.Period, unit}, err
	}
	r, err := words.Parse(text)
	if err != nil {
		return rate{}, fmt.Errorf("%w; of a calendar-window also 1000/day, /week, /month and /year", err)
	}
	if r.Period < limit.MinPeriod || r.Period > limit.MaxPeriod {
		_, period, _ := strings.Cut(text, "/")
		return rate{}, fmt.Errorf("a period of %s: choose 1us to 366d", period)
	}
	return rate{r.Limit, r.Period, client.ByClock}, nil
}

// String implements pflag.Value.
func (r *rate) String() string {
	if r.limit == 0 {
		return ""
	}
	for name, unit := range calendarUnits {
		if r.unit == unit {
			return fmt.Sprintf("%d/%s", r.limit, name)
		}
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
