package rpc

import (
	"errors"
	"testing"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/limit"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// What a check says of its calendar, and what does not go together.
func TestByCalendar(t *testing.T) {
	const month = limitpb.CalendarUnit_CALENDAR_UNIT_MONTH
	for want, req := range map[string]*limitpb.CheckRequest{
		"month Europe/Berlin from 31": {Limit: 5, Calendar: month, TimeZone: "Europe/Berlin", FirstDay: 31},
		"month UTC from 1":            {Limit: 5, Calendar: month, CarryOver: 3},
		"day Asia/Tokyo":              {Limit: 5, Calendar: limitpb.CalendarUnit_CALENDAR_UNIT_DAY, TimeZone: "Asia/Tokyo"},
		"week UTC from 7":             {Limit: 5, Calendar: limitpb.CalendarUnit_CALENDAR_UNIT_WEEK, FirstDay: 7},
		"year Europe/London from 4-6": {Limit: 5, Calendar: limitpb.CalendarUnit_CALENDAR_UNIT_YEAR, TimeZone: "Europe/London", FirstMonth: 4, FirstDay: 6},
		"1m0s by the clock":           {Limit: 5, PeriodNs: 60e9},
	} {
		var op limit.Op
		op.Limit, op.Cost = req.Limit, 1
		if err := byCalendar(req, &op); err != nil || op.Validate() != nil || limit.Calendar(op.Period).String() != want || op.Capacity() != 5+req.CarryOver {
			t.Errorf("%s: %s, %v, %v", want, limit.Calendar(op.Period), err, op.Validate())
		}
	}
	for _, tc := range []struct {
		field string
		req   *limitpb.CheckRequest
	}{
		{"burst", &limitpb.CheckRequest{Limit: 5, Burst: 9, Calendar: month}},
		{"carry_over", &limitpb.CheckRequest{Limit: 5, CarryOver: limit.MaxLimit - 4, Calendar: month}},
		{"carry_over", &limitpb.CheckRequest{Limit: 5, CarryOver: 1<<64 - 1, Calendar: month}},
		{"period_ns", &limitpb.CheckRequest{Limit: 5, PeriodNs: 60e9, Calendar: month}},
		{"period_ns", &limitpb.CheckRequest{Limit: 5}},
		{"period_ns", &limitpb.CheckRequest{Limit: 5, PeriodNs: 15e8}},
		{"calendar", &limitpb.CheckRequest{Limit: 5, Calendar: 9}},
		{"time_zone", &limitpb.CheckRequest{Limit: 5, Calendar: month, TimeZone: "Local"}},
		{"time_zone", &limitpb.CheckRequest{Limit: 5, PeriodNs: 60e9, TimeZone: "UTC"}},
		{"first_day", &limitpb.CheckRequest{Limit: 5, PeriodNs: 60e9, FirstDay: 1}},
		{"first_day", &limitpb.CheckRequest{Limit: 5, Calendar: month, FirstDay: 32}},
		{"first_day", &limitpb.CheckRequest{Limit: 5, Calendar: month, FirstDay: 1<<32 - 1}},
		{"first_month", &limitpb.CheckRequest{Limit: 5, Calendar: month, FirstMonth: 1}},
		{"first_month", &limitpb.CheckRequest{Limit: 5, PeriodNs: 60e9, FirstMonth: 1}},
	} {
		var e *failure.Error
		var op limit.Op
		op.Limit = tc.req.Limit
		if err := byCalendar(tc.req, &op); !errors.As(err, &e) || e.Field != tc.field || e.Reason != failure.Invalid {
			t.Errorf("%s: %v", tc.field, err)
		}
	}
	for field, req := range map[string]*limitpb.CheckRequest{
		"calendar": {Calendar: month}, "time_zone": {TimeZone: "UTC"}, "first_day": {FirstDay: 1}, "first_month": {FirstMonth: 1}, "carry_over": {CarryOver: 1},
	} {
		var e *failure.Error
		if err := noCalendar(req); !errors.As(err, &e) || e.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	if level := checkLevel(&limitpb.CheckRequest{Algorithm: limitpb.Algorithm_ALGORITHM_CALENDAR_WINDOW}); level != 8 {
		t.Errorf("level %d", level)
	}
}
