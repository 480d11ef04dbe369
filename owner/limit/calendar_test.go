package limit

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/owner/zone"
)

var unitNames = map[string]Unit{"day": Day, "week": Week, "month": Month, "year": Year}

func calendarOf(t failer, name, in string, month, day int) Calendar {
	id, ok := zone.Find(in)
	if !ok {
		t.Fatalf("no zone %s", in)
	}
	c, err := NewCalendar(unitNames[name], id, month, day)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return c
}

// TestAgainstPython compares 50 years of 15 zones with Python's zoneinfo: see
// testdata/calendar/zones.py.
func TestAgainstPython(t *testing.T) {
	f, err := os.Open("testdata/calendar/zones.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := 0
	for in := bufio.NewScanner(f); in.Scan(); lines++ {
		var name, unit, digest string
		var month, day, decade, n int
		if _, err := fmt.Sscan(in.Text(), &name, &unit, &month, &day, &decade, &n, &digest); err != nil {
			t.Fatalf("%s: %v", in.Text(), err)
		}
		c := calendarOf(t, unit, name, month, day)
		from := time.Date(decade, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano()
		until := time.Date(decade+10, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano()
		sum, got := sha256.New(), 0
		at, end := c.Period(from)
		if at < from {
			at = end
		}
		for at < until {
			fmt.Fprintln(sum, at/oneSecond)
			got++
			start, end := c.Period(at)
			if before, last := c.Period(at - 1); start != at || last != at || before >= at || end <= at {
				t.Fatalf("%s from %d: %d is in %d to %d, the one before in %d to %d", c, decade, at, start, end, before, last)
			}
			at = end
		}
		if is := fmt.Sprintf("%x", sum.Sum(nil))[:16]; got != n || is != digest {
			t.Errorf("%s from %d: %d periods begin, %s; Python has %d, %s", c, decade, got, is, n, digest)
		}
	}
	if lines != 15*9*5 {
		t.Errorf("%d lines", lines)
	}
}

// TestPeriods: some that everybody can check.
func TestPeriods(t *testing.T) {
	for _, tc := range []struct {
		calendar   Calendar
		at         string
		start, end string
	}{
		{calendarOf(t, "month", "UTC", 0, 31), "2026-02-10T00:00:00Z", "2026-01-31T00:00:00Z", "2026-02-28T00:00:00Z"},
		{calendarOf(t, "month", "UTC", 0, 31), "2026-02-28T00:00:00Z", "2026-02-28T00:00:00Z", "2026-03-31T00:00:00Z"},
		{calendarOf(t, "month", "UTC", 0, 30), "2028-02-29T12:00:00Z", "2028-02-29T00:00:00Z", "2028-03-30T00:00:00Z"},
		{calendarOf(t, "month", "UTC", 0, 0), "2026-12-31T23:59:59Z", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"},
		{calendarOf(t, "year", "UTC", 2, 29), "2027-03-01T00:00:00Z", "2027-02-28T00:00:00Z", "2028-02-29T00:00:00Z"},
		{calendarOf(t, "year", "Europe/London", 4, 6), "2026-04-05T22:59:59Z", "2025-04-05T23:00:00Z", "2026-04-05T23:00:00Z"},
		{calendarOf(t, "week", "UTC", 0, 0), "2026-11-22T23:59:59Z", "2026-11-16T00:00:00Z", "2026-11-23T00:00:00Z"},
		{calendarOf(t, "week", "UTC", 0, 7), "2026-11-22T00:00:00Z", "2026-11-22T00:00:00Z", "2026-11-29T00:00:00Z"},
		// 23 and 25 hours.
		{calendarOf(t, "day", "Europe/Berlin", 0, 0), "2026-03-29T12:00:00Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"},
		{calendarOf(t, "day", "Europe/Berlin", 0, 0), "2026-10-25T12:00:00Z", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"},
		// There was no midnight: clocks went from 24:00 to 1:00.
		{calendarOf(t, "day", "America/Sao_Paulo", 0, 0), "2018-11-04T12:00:00Z", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"},
		// There were two: clocks went from 1:00 to 0:00.
		{calendarOf(t, "day", "America/Havana", 0, 0), "2026-11-01T05:30:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"},
		// A minute after midnight, clocks went back to 23:01.
		{calendarOf(t, "day", "America/St_Johns", 0, 0), "2010-11-07T03:00:00Z", "2010-11-07T02:30:00Z", "2010-11-08T03:30:00Z"},
		// December 30 was left out.
		{calendarOf(t, "day", "Pacific/Apia", 0, 0), "2011-12-30T11:00:00Z", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"},
		{calendarOf(t, "day", "Pacific/Apia", 0, 0), "2011-12-30T09:00:00Z", "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z"},
		{aligned(t, time.Minute), "2026-11-22T10:11:12Z", "2026-11-22T10:11:00Z", "2026-11-22T10:12:00Z"},
		{aligned(t, 7*24*time.Hour), "2026-11-22T10:11:12Z", "2026-11-19T00:00:00Z", "2026-11-26T00:00:00Z"}, // weeks of Unix time begin on Thursdays
		{calendarOf(t, "year", "UTC", 0, 0), "1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "1971-01-01T00:00:00Z"},
		{calendarOf(t, "week", "Asia/Tokyo", 0, 0), "1970-01-01T00:00:00Z", "1969-12-28T15:00:00Z", "1970-01-04T15:00:00Z"},
	} {
		start, end := tc.calendar.Period(wallOf(t, tc.at))
		if start != wallOf(t, tc.start) || end != wallOf(t, tc.end) {
			t.Errorf("%s: %s is in %s to %s", tc.calendar, tc.at, time.Unix(0, start).UTC(), time.Unix(0, end).UTC())
		}
	}
}

func aligned(t failer, length time.Duration) Calendar {
	c, err := NewAligned(int64(length))
	if err != nil {
		t.Fatalf("%v", err)
	}
	return c
}

func wallOf(t failer, text string) int64 {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return at.UnixNano()
}

var calendars = rapid.Custom(func(t *rapid.T) Calendar {
	unit := Unit(rapid.IntRange(int(Aligned), int(Year)).Draw(t, "unit"))
	if unit == Aligned {
		return aligned(t, time.Duration(rapid.Int64Range(1, MaxPeriod/oneSecond).Draw(t, "seconds"))*time.Second)
	}
	month, day := 0, 0
	if unit == Year {
		month = rapid.IntRange(0, 12).Draw(t, "month")
	}
	if most := map[Unit]int{Week: 7, Month: 31, Year: 31}[unit]; most > 0 {
		day = rapid.IntRange(0, most).Draw(t, "day")
	}
	c, err := NewCalendar(unit, zone.ID(rapid.IntRange(0, len(zone.Names())-1).Draw(t, "zone")), month, day)
	if err != nil {
		t.Fatal(err)
	}
	return c
})

// Of all zones, periods have no gaps and do not overlap, at any time up to the last.
func TestPeriodsTile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := calendars.Draw(t, "calendar")
		if !c.valid() {
			t.Fatalf("%d is none", c)
		}
		wall := rapid.Int64Range(0, MaxWall).Draw(t, "wall")
		start, end := c.Period(wall)
		if start > wall || end <= wall || end-start > 2*MaxPeriod {
			t.Fatalf("%s: %d is in %d to %d", c, wall, start, end)
		}
		if s, e := c.Period(end - 1); s != start || e != end {
			t.Fatalf("%s: the end of %d to %d is in %d to %d", c, start, end, s, e)
		}
		if s, _ := c.Period(end); s != end {
			t.Fatalf("%s: what follows on %d to %d begins at %d", c, start, end, s)
		}
	})
}

func TestNoCalendar(t *testing.T) {
	for _, c := range []struct {
		unit       Unit
		in         zone.ID
		month, day int
		field      string
		says       string
	}{
		{0, 0, 0, 0, "calendar", "is unknown"}, {Aligned, 0, 0, 0, "calendar", "is unknown"}, {Year + 1, 0, 0, 0, "calendar", "is unknown"},
		{Day, 4000, 0, 0, "time_zone", "is unknown"},
		{Day, 0, 0, 1, "first_day", "per week, month or year only"}, {Week, 0, 0, 8, "first_day", "is 8; it says on which day a week begins, 1 to 7"},
		{Month, 0, 0, 32, "first_day", "month begins, 1 to 31"}, {Month, 0, 0, -1, "first_day", "is -1"},
		{Month, 0, 1, 1, "first_month", "per year only: a month begins"}, {Year, 0, 13, 1, "first_month", "is 13"}, {Year, 0, -1, 1, "first_month", "is -1"},
	} {
		if _, err := NewCalendar(c.unit, c.in, c.month, c.day); err == nil || fieldOf(err) != c.field || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for _, c := range []Calendar{0, -1, 1, 1 << unitShift, 2<<unitShift | 1, 3 << unitShift, 4<<unitShift | 1<<monthShift | 1, 5<<unitShift | 1, 5<<unitShift | 13<<monthShift | 1,
		4<<unitShift | 1<<21 | 1, 2<<unitShift | 4000<<zoneShift, 6 << unitShift, 2<<unitShift | 1<<40, 3<<unitShift | 8} {
		if c.valid() {
			t.Errorf("%d is %s", c, c)
		}
	}
	for _, length := range []int64{0, -1, 1, 1_500_000_000, MaxPeriod + oneSecond, -oneSecond} {
		if _, err := NewAligned(length); err == nil || fieldOf(err) != "period_ns" {
			t.Errorf("%d ns: %v", length, err)
		}
	}
}

func BenchmarkPeriod(b *testing.B) {
	for _, c := range []Calendar{aligned(b, time.Hour), calendarOf(b, "day", "UTC", 0, 0), calendarOf(b, "month", "Europe/Berlin", 0, 15), calendarOf(b, "year", "America/New_York", 4, 6)} {
		b.Run(c.String(), func(b *testing.B) {
			wall := wallOf(b, "2026-11-22T10:11:12Z")
			for b.Loop() {
				c.Period(wall)
			}
		})
	}
}
