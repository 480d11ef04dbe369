package client

import (
	"time"

	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// CalendarUnit is what the periods of a calendar are.
type CalendarUnit uint8

// The units. The zero one is that of Rate.Aligned: periods by the clock.
const (
	ByClock CalendarUnit = iota
	CalendarDay
	CalendarWeek
	CalendarMonth
	CalendarYear
)

// Calendar says where the periods of a CalendarWindow begin.
type Calendar struct {
	Unit       CalendarUnit
	TimeZone   string     // IANA name, such as Europe/Berlin; "" = UTC
	FirstMonth time.Month // in which a year begins; 0 = January
	FirstDay   int        // on which a week (1 = Monday to 7), a month or a year begins; 0 = 1
	CarryOver  uint64     // most tokens that what is left of a period adds to the next one
}

// PerCalendar is at most n tokens in each day, week, month or year of UTC, whenever the first one
// is spent.
func PerCalendar(n uint64, unit CalendarUnit) Rate {
	return Rate{Limit: n, Algorithm: CalendarWindow, Calendar: Calendar{Unit: unit}}
}

// Aligned returns the rate as windows by the clock: with a Period of an hour they begin on the hour.
// The Period has whole seconds.
func (r Rate) Aligned() Rate {
	r.Algorithm = CalendarWindow
	return r
}

// In returns the rate with periods of a time zone, by its IANA name, such as Europe/Berlin.
func (r Rate) In(timeZone string) Rate {
	r.Calendar.TimeZone = timeZone
	return r
}

// From returns the rate with periods that begin on a day: of a week 1, Monday, to 7, of a month 1 to
// 31. A month that does not have the day begins on its last one.
func (r Rate) From(day int) Rate {
	r.Calendar.FirstDay = day
	return r
}

// FromDate returns the rate with years that begin on a day of a month.
func (r Rate) FromDate(month time.Month, day int) Rate {
	r.Calendar.FirstMonth, r.Calendar.FirstDay = month, day
	return r
}

// CarryingOver returns the rate with at most n tokens that are left of a period added to the next
// one. Of a period in which nothing was spent nothing is.
func (r Rate) CarryingOver(n uint64) Rate {
	r.Calendar.CarryOver = n
	return r
}

// onto writes the calendar into a check.
func (c *Calendar) onto(req *limitpb.CheckRequest) {
	req.Calendar, req.TimeZone, req.CarryOver = limitpb.CalendarUnit(c.Unit), c.TimeZone, c.CarryOver
	req.FirstDay, req.FirstMonth = uint32(c.FirstDay), uint32(c.FirstMonth) // below 0 it is out of range there
}
