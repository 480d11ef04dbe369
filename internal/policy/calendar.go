package policy

import (
	"fmt"
	"math/big"
	"sort"
	"strings"
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/rate"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/zone"
)

// draft is a policy whose fields are being read, in any order.
type draft struct {
	*Policy
	unit  limit.Unit // that the limit is of; 0 = Period is its length
	zone  zone.ID
	month int
	day   int
	carry uint64
	lines map[string]int // of fields
}

// unit is what a file calls a period of the calendar.
type unit struct {
	name string
	is   limit.Unit
	span time.Duration // about as long
}

const aDay = 24 * time.Hour

var units = []unit{{"day", limit.Day, aDay}, {"week", limit.Week, 7 * aDay}, {"month", limit.Month, 30 * aDay}, {"year", limit.Year, 365 * aDay}}

// rate reads a limit: COUNT/PERIOD.
func (d *draft) rate(text string) error {
	count, period, _ := strings.Cut(text, "/")
	for _, u := range units {
		if period == u.name {
			d.unit, text = u.is, count+"/day"
		}
	}
	r, err := rate.Parse(text)
	d.Limit, d.Period = r.Limit, int64(r.Period)
	return err
}

// finish puts together what all the fields say of the calendar.
func (d *draft) finish() error {
	bad := func(field, message, hint string) error {
		return &failure.Error{Reason: failure.Invalid, Field: field, Message: message, Hint: hint}
	}
	placed := ""
	for _, field := range []string{"time_zone", "first_day", "first_month"} {
		if d.lines[field] != 0 {
			placed = field
		}
	}
	switch dated := d.Algorithm == limit.CalendarWindow; {
	case !dated && placed != "":
		return bad(placed, "goes with a calendar-window only", "write `algorithm: calendar-window`, or leave it out")
	case !dated && d.carry != 0:
		return bad("carry_over", "goes with a calendar-window only", "write `algorithm: calendar-window`, or leave it out")
	case !dated && d.unit > limit.Day:
		return bad("limit", "is of a period that is not always as long", fmt.Sprintf("write `algorithm: calendar-window`, or a length such as %d/7d", d.Limit))
	case !dated:
		return nil
	case d.Burst != 0:
		return bad("burst", "goes with token buckets and leaky buckets only; a window holds its limit", "carry_over adds what is left of one period to the next")
	case d.carry > limit.MaxLimit || d.Limit <= limit.MaxLimit && d.Limit+d.carry > limit.MaxLimit:
		return bad("carry_over", fmt.Sprintf("is %d; with the limit at most %d is allowed", d.carry, uint64(limit.MaxLimit)), "")
	case d.unit == 0 && placed != "":
		return bad(placed, "goes with a limit per day, week, month or year: periods by the clock begin with Unix time", "write for example `limit: 1000/month`")
	case d.carry != 0 && d.Limit <= limit.MaxLimit:
		d.Burst = d.Limit + d.carry
	}
	var c limit.Calendar
	var err error
	if d.unit == 0 {
		c, err = limit.NewAligned(d.Period)
	} else {
		c, err = limit.NewCalendar(d.unit, d.zone, d.month, d.day)
	}
	d.Period = int64(c)
	return err
}

// Calendar returns where the periods of a calendar window begin and end; ok is false for others.
func (p *Policy) Calendar() (c limit.Calendar, ok bool) {
	return limit.Calendar(p.Period), p.Algorithm == limit.CalendarWindow
}

// Unit returns the name of the periods of a calendar that have no fixed length, "" if they have
// one.
func (p *Policy) Unit() string {
	if c, ok := p.Calendar(); ok {
		for _, u := range units {
			if u.is == c.Unit() {
				return u.name
			}
		}
	}
	return ""
}

// CarryOver returns how many tokens of a period are left for the next one at most.
func (p *Policy) CarryOver() uint64 {
	if p.Algorithm != limit.CalendarWindow {
		return 0
	}
	return p.Capacity() - p.Limit
}

// Length returns how long a period is; about as long, if it is one of the calendar.
func (p *Policy) Length() time.Duration {
	c, ok := p.Calendar()
	if !ok {
		return time.Duration(p.Period)
	}
	for _, u := range units {
		if u.is == c.Unit() {
			return u.span
		}
	}
	return time.Duration(c.Length())
}

// period is the period in words: 1m, month of UTC from day 15.
func (p *Policy) period() string {
	c, ok := p.Calendar()
	if !ok {
		return Span(time.Duration(p.Period))
	}
	name := p.Unit()
	if name == "" {
		return Span(time.Duration(c.Length())) + " by the clock"
	}
	name += " of " + c.Zone().Name()
	month, day := c.First()
	switch {
	case c.Unit() == limit.Week && day != 1:
		name += " from " + time.Weekday(day%7).String()
	case c.Unit() == limit.Month && day != 1:
		name += fmt.Sprintf(" from day %d", day)
	case c.Unit() == limit.Year && (day != 1 || month != 1):
		name += fmt.Sprintf(" from %s %d", time.Month(month), day)
	}
	return name
}

// The time of which all periods are looked at: one in which leap years, weekdays and the rules
// of zones have met in all ways that they do.
var (
	lookFrom  = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano()
	lookUntil = time.Date(2056, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano()
)

// lookTime is the longest time for which periods are counted; a longer one is several of it.
const lookTime = int64(4 * 365 * aDay)

// periods returns how many periods of a calendar there are at most in a time shorter than t,
// which is at least 2 ns, those at its ends included.
func periods(c limit.Calendar, t int64) *big.Int {
	if length := c.Length(); length != 0 {
		return big.NewInt((t-2)/length + 2)
	}
	times := big.NewInt(1)
	if t > lookTime {
		times.SetInt64((t + lookTime - 1) / lookTime)
		t = lookTime
	}
	var starts []int64
	for at := lookFrom; at < lookUntil; {
		_, at = c.Period(at)
		starts = append(starts, at)
	}
	most := 0
	for i, first := range starts {
		if first > lookUntil-t {
			break
		}
		// The last moment before it, and all that begin in time.
		rest := starts[i:]
		most = max(most, 1+sort.Search(len(rest), func(j int) bool { return rest[j]-first > t-2 }))
	}
	return times.Mul(times, big.NewInt(int64(most)))
}

// atMostDated is AtMost of a calendar window.
func (p *Policy) atMostDated(c limit.Calendar, t time.Duration) *big.Int {
	n := periods(c, int64(t))
	n.Mul(n, new(big.Int).SetUint64(p.Limit))
	if p.Limit > 1 { // of a period in which nothing was spent nothing is carried over
		n.Add(n, new(big.Int).SetUint64(p.CarryOver()))
	}
	return n
}
