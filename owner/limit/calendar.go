package limit

import (
	"fmt"
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/zone"
)

// Unit is what the periods of a calendar are.
type Unit uint8

const (
	_       Unit = iota
	Aligned      // so many seconds, counted from the beginning of Unix time
	Day          // of a zone, as the rest
	Week
	Month
	Year
)

// Calendar says where periods begin and end. It is a small number, so that a state has room
// for it, and means the same for as long as the process runs; the zero Calendar is none.
//
//	day 5 | month 4 | zone 12 | … | unit 3, from bit 28 on; of an Aligned one, the seconds 28
type Calendar int64

const (
	monthShift = 5
	zoneShift  = 9
	unitShift  = 28
)

// NewCalendar returns the calendar of a unit from Day on, in a zone. month and day say where
// its periods begin: a week on a day from 1, Monday, to 7; a month on a day from 1 to 31; a
// year on a day of a month. 0 is the first. A month that does not have the day begins on its
// last one.
func NewCalendar(unit Unit, in zone.ID, month, day int) (Calendar, error) {
	last := 0
	if unit >= Day && unit <= Year {
		last = lastDay[unit]
	}
	switch {
	case unit < Day || unit > Year:
		return 0, failure.Invalidf("calendar", "is unknown")
	case !in.Known():
		return 0, failure.Invalidf("time_zone", "is unknown")
	case month != 0 && unit != Year:
		return 0, failure.Invalidf("first_month", "goes with a limit per year only: a %s begins in no month of its own", unitWords[unit])
	case month < 0 || month > 12:
		return 0, failure.Invalidf("first_month", "is %d; it says in which month a year begins, 1 to 12", month)
	case day != 0 && unit == Day:
		return 0, failure.Invalidf("first_day", "goes with a limit per week, month or year only: a day begins on no day of its own")
	case day < 0 || day > last:
		return 0, failure.Invalidf("first_day", "is %d; it says on which day a %s begins, 1 to %d", day, unitWords[unit], last)
	}
	if unit != Day {
		day = max(day, 1)
	}
	if unit == Year {
		month = max(month, 1)
	}
	return Calendar(unit)<<unitShift | Calendar(in)<<zoneShift | Calendar(month)<<monthShift | Calendar(day), nil
}

// NewAligned returns the calendar whose periods are so long, in ns, and begin when the time
// since 1970 is a multiple of that: an hour begins on the hour, a day with that of UTC.
func NewAligned(period int64) (Calendar, error) {
	if seconds := period / oneSecond; seconds*oneSecond == period && seconds > 0 && period <= MaxPeriod {
		return Calendar(Aligned)<<unitShift | Calendar(seconds), nil
	}
	return 0, failure.Invalidf("period_ns", "is %s; a period by the clock has whole seconds, 1s to 366d", time.Duration(period))
}

const oneSecond = int64(time.Second)

// lastDay is the last day on which a period may begin; 0 = there is no choice.
var lastDay = [...]int{Day: 0, Week: 7, Month: 31, Year: 31}

var unitWords = [...]string{Day: "day", Week: "week", Month: "month", Year: "year"}

// Unit returns what the periods are.
func (c Calendar) Unit() Unit { return Unit(uint64(c) >> unitShift) }

// Length returns the length of the periods of an Aligned calendar, in ns, and 0 for others.
func (c Calendar) Length() int64 {
	if c.Unit() != Aligned {
		return 0
	}
	return int64(c&(1<<unitShift-1)) * oneSecond
}

// Zone returns the zone.
func (c Calendar) Zone() zone.ID {
	if c.Unit() == Aligned {
		return 0
	}
	return zone.ID(c >> zoneShift & (1<<zone.Bits - 1))
}

// First returns where periods begin, as NewCalendar takes it.
func (c Calendar) First() (month, day int) {
	if c.Unit() == Aligned {
		return 0, 0
	}
	return int(c >> monthShift & 15), int(c & 31)
}

// valid reports whether one of the constructors has made it.
func (c Calendar) valid() bool {
	unit := c.Unit()
	if unit == Aligned {
		return c.Length() > 0 && c.Length() <= MaxPeriod
	}
	if unit < Day || unit > Year || c>>(zoneShift+zone.Bits)<<(zoneShift+zone.Bits) != Calendar(unit)<<unitShift {
		return false
	}
	month, day := c.First()
	return min(day, 1) == min(lastDay[unit], 1) && day <= lastDay[unit] && (month > 0) == (unit == Year) && month <= 12 && c.Zone().Known()
}

// String describes it: "day Europe/Berlin", "year UTC from 4-6", "1h0m0s by the clock".
func (c Calendar) String() string {
	if c.Unit() == Aligned {
		return time.Duration(c.Length()).String() + " by the clock"
	}
	month, day := c.First()
	name := unitWords[c.Unit()] + " " + c.Zone().Name()
	switch c.Unit() {
	case Week, Month:
		return fmt.Sprintf("%s from %d", name, day)
	case Year:
		return fmt.Sprintf("%s from %d-%d", name, month, day)
	}
	return name
}

// MaxWall is the last moment for which there is a calendar, in ns since 1970: some time in the year
// 2200.
const MaxWall = 230 * 366 * 24 * 3600 * oneSecond

// Period returns the period that a moment is in, in ns since 1970: from start on until before
// end. wall is from 0 to MaxWall. Periods have no gaps: one ends where the next one begins.
//
// A day begins at the first moment at which the clocks of its zone show its date, or a later
// one. So one that begins twice, because clocks are set back over midnight, begins the first
// time, and one that is left out is not there.
func (c Calendar) Period(wall int64) (start, end int64) {
	at := wall / oneSecond
	if c.Unit() == Aligned {
		length := c.Length() / oneSecond
		at -= at % length
		return at * oneSecond, (at + length) * oneSecond
	}
	loc := c.Zone().Location()
	was := c.begins(dateOf(at + offset(at, loc)))
	for {
		next := c.after(was)
		if end = begins(next, loc); end > at {
			return begins(was, loc) * oneSecond, end * oneSecond
		}
		was = next
	}
}

// date is a day, as days since 1970.
type date int64

const daySeconds = 86_400

// dateOf returns the date of a moment by the clocks of a zone, in seconds.
func dateOf(local int64) date {
	if local < 0 {
		local -= daySeconds - 1
	}
	return date(local / daySeconds)
}

// ymd returns the date in words.
func (d date) ymd() (year int, month time.Month, day int) {
	return time.Unix(int64(d)*daySeconds, 0).UTC().Date()
}

// dayIn returns the date of a day of a month, or of the month's last one if it does not
// have that. Months go on beyond 1 to 12.
func dayIn(year int, month time.Month, day int) date {
	last := time.Date(year, month+1, 0, 0, 0, 0, 0, time.UTC).Day()
	return dateOf(time.Date(year, month, min(day, last), 0, 0, 0, 0, time.UTC).Unix())
}

// begins returns the date on which the period of a date begins.
func (c Calendar) begins(d date) date {
	month, day := c.First()
	year, m, _ := d.ymd()
	var first date
	switch c.Unit() {
	case Week:
		weekday := (int64(d) + 3) % 7 // Monday is 0: 1970 began on a Thursday
		if weekday < 0 {
			weekday += 7
		}
		return d - date((weekday+7-int64(day-1))%7)
	case Month:
		if first = dayIn(year, m, day); first > d {
			first = dayIn(year, m-1, day)
		}
	case Year:
		if first = dayIn(year, time.Month(month), day); first > d {
			first = dayIn(year-1, time.Month(month), day)
		}
	default:
		return d
	}
	return first
}

// after returns the date on which the next period begins, after one that begins on a date.
func (c Calendar) after(d date) date {
	month, day := c.First()
	year, m, _ := d.ymd()
	switch c.Unit() {
	case Week:
		return d + 7
	case Month:
		return dayIn(year, m+1, day)
	case Year:
		return dayIn(year+1, time.Month(month), day)
	}
	return d + 1
}

// maxAhead is more than the clocks of any zone are, or were, ahead of UTC or behind, in seconds.
const maxAhead = 26 * 3600

// begins returns the first moment, in seconds since 1970, at which the clocks of a zone show a
// date or a later one. Clocks change at most once around a midnight.
func begins(d date, loc *time.Location) int64 {
	midnight := int64(d) * daySeconds
	low, high := midnight-maxAhead, midnight+maxAhead
	before, after := offset(low, loc), offset(high, loc)
	//guard:calendar-clocks-change true
	if before == after {
		return midnight - before
	}
	for low+1 < high { // high is when they change, in the end
		if mid := low + (high-low)/2; offset(mid, loc) == before {
			low = mid
		} else {
			high = mid
		}
	}
	if at := midnight - before; at < high {
		return at
	}
	return max(high, midnight-after)
}

// offset returns by how much the clocks of a zone are ahead of UTC, in seconds. What
// time.Time.ZoneBounds says at the end of a leap year is not so.
func offset(at int64, loc *time.Location) int64 {
	_, ahead := time.Unix(at, 0).In(loc).Zone()
	return int64(ahead)
}
