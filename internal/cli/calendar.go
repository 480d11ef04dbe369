package cli

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/keystead/keystead/client"
)

// calendarFlags are those of a limit by the calendar.
type calendarFlags struct {
	zone       string
	firstDay   int
	firstMonth int
	carryOver  uint64
}

func (f *calendarFlags) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.zone, "time-zone", "", "of a calendar-window: where its periods begin, like Europe/Berlin (default UTC)")
	cmd.Flags().IntVar(&f.firstDay, "first-day", 0, "on which day a week (1 is Monday), a month or a year begins (default 1)")
	cmd.Flags().IntVar(&f.firstMonth, "first-month", 0, "in which month a year begins, 1 to 12 (default 1)")
	cmd.Flags().Uint64Var(&f.carryOver, "carry-over", 0, "of a calendar-window: most tokens left of a period that add to the next")
}

// judge reports flags that do not go together.
func (f *calendarFlags) judge(r *rate, as client.Algorithm) error {
	switch {
	case as == client.CalendarWindow && (f.firstDay < 0 || f.firstMonth < 0):
		return usageError{errors.New("--first-day and --first-month are counted from 1")}
	case as == client.CalendarWindow:
		return nil
	case *f != (calendarFlags{}):
		return usageError{errors.New("--time-zone, --first-day, --first-month and --carry-over go with --algorithm calendar-window")}
	case r.limit != 0 && r.period == 0:
		return usageError{fmt.Errorf("--limit %s goes with --algorithm calendar-window: it is not always as long\n  hint: or name a length, like %d/30d", r, r.limit)}
	}
	return nil
}

// onto makes the limit one by the calendar.
func (f *calendarFlags) onto(r client.Rate, unit client.CalendarUnit) client.Rate {
	if r.Algorithm != client.CalendarWindow {
		return r
	}
	if unit != client.ByClock {
		r.Period = 0
	}
	r.Calendar = client.Calendar{Unit: unit, TimeZone: f.zone, FirstDay: f.firstDay, FirstMonth: time.Month(f.firstMonth), CarryOver: f.carryOver}
	return r
}

// periodEnds says when the period of a limit by the calendar ends, "" if it goes by none.
func periodEnds(d *client.Decision) string {
	if d.PeriodEnds.IsZero() {
		return ""
	}
	return d.PeriodEnds.UTC().Format(time.RFC3339)
}

func endsMark(d *client.Decision) string {
	if ends := periodEnds(d); ends != "" {
		return ", period ends " + ends
	}
	return ""
}
