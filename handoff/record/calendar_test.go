package record

import (
	"bytes"
	"encoding/hex"
	"testing"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/zone"
)

// The bytes of limits by the calendar never change, from the level on at which there are such. They
// have no moments of a clock.
func TestGoldenCalendars(t *testing.T) {
	berlin, _ := zone.Find("Europe/Berlin")
	year, err := limit.NewCalendar(limit.Year, berlin, 4, 6)
	if err != nil {
		t.Fatal(err)
	}
	hour, err := limit.NewAligned(3600 * second)
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]limit.State{
		"calendar-year":  {Algorithm: limit.CalendarWindow, At: 1_806_962_400 * second, Spent: 1234, Carry: 50, Limit: 10_000, Period: int64(year)},
		"calendar-clock": {Algorithm: limit.CalendarWindow, At: 1_795_399_200 * second, Limit: 7, Period: int64(hour)},
	} {
		r := (&owner.Record{Key: []byte("203.0.113.7"), Name: []byte("quota"), Version: 1234, At: 99 * second, Hash: owner.Hash("203.0.113.7")}).SetLimit(s, nil)
		if err := r.Validate(100 * second); err != nil {
			t.Fatal(name, err)
		}
		got := AppendAt(owner.CalendarLevel, nil, r, 100*second)
		want := golden(t, "level8", name, got)
		if !bytes.Equal(got, want) {
			t.Errorf("%s is written as:\n%s\ngolden:\n%s", name, hex.Dump(got), hex.Dump(want))
		}
		var back owner.Record
		if err := Decode(want, 5000*second, &back); err != nil || back.Validate(5000*second) != nil {
			t.Fatalf("%s: read: %v", name, err)
		}
		if is, marks := back.Limit(); is != s || len(marks) != 0 {
			t.Errorf("%s is read as %+v, written as %+v", name, is, s)
		}
	}
}
