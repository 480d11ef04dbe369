package rpc

import (
	"fmt"
	"math"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/zone"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// calendarUnits are the units of the API.
var calendarUnits = map[limitpb.CalendarUnit]limit.Unit{
	limitpb.CalendarUnit_CALENDAR_UNIT_DAY:   limit.Day,
	limitpb.CalendarUnit_CALENDAR_UNIT_WEEK:  limit.Week,
	limitpb.CalendarUnit_CALENDAR_UNIT_MONTH: limit.Month,
	limitpb.CalendarUnit_CALENDAR_UNIT_YEAR:  limit.Year,
}

// byCalendar makes an operation one of a calendar window. That its limit is in range is for
// the operation to say.
func byCalendar(req *limitpb.CheckRequest, op *limit.Op) error {
	op.Algorithm = limit.CalendarWindow
	bad := func(field, message, hint string) error {
		return &failure.Error{Reason: failure.Invalid, Field: field, Message: message, Hint: hint}
	}
	switch {
	case req.Burst != 0:
		return bad("burst", "goes with token buckets and leaky buckets only; a window holds its limit", "carry_over adds what is left of one period to the next")
	case req.CarryOver > limit.MaxLimit || req.Limit <= limit.MaxLimit && req.Limit+req.CarryOver > limit.MaxLimit:
		return bad("carry_over", fmt.Sprintf("is %d; with limit at most %d is allowed", req.CarryOver, uint64(limit.MaxLimit)), "")
	case req.CarryOver != 0 && req.Limit <= limit.MaxLimit:
		op.Burst = req.Limit + req.CarryOver
	}
	if req.Calendar == limitpb.CalendarUnit_CALENDAR_UNIT_UNSPECIFIED {
		if field, ok := placed(req); ok {
			return bad(field, "goes with a calendar unit: periods by the clock begin with Unix time", "set calendar to DAY, WEEK, MONTH or YEAR")
		}
		c, err := limit.NewAligned(req.PeriodNs)
		op.Period = int64(c)
		return err
	}
	unit, known := calendarUnits[req.Calendar]
	in, found := zone.Find(req.TimeZone)
	switch {
	case !known:
		return bad("calendar", "is unknown to this node", "use DAY, WEEK, MONTH or YEAR")
	case req.PeriodNs != 0:
		return bad("period_ns", "does not go with a calendar unit, which says how long a period is", "leave it out, or calendar")
	case !found:
		return bad("time_zone", fmt.Sprintf("%.64q is unknown to this node", req.TimeZone), "write an IANA name, such as Europe/Berlin; the rules are those of tzdata "+zone.Release)
	case req.FirstDay > math.MaxInt16 || req.FirstMonth > math.MaxInt16:
		return bad("first_day", "or first_month is out of range", "")
	}
	c, err := limit.NewCalendar(unit, in, int(req.FirstMonth), int(req.FirstDay))
	op.Period = int64(c)
	return err
}

// placed returns a field of a check that says where periods of a calendar begin, if one does.
func placed(req *limitpb.CheckRequest) (field string, ok bool) {
	switch {
	case req.TimeZone != "":
		return "time_zone", true
	case req.FirstDay != 0:
		return "first_day", true
	case req.FirstMonth != 0:
		return "first_month", true
	}
	return "", false
}

// noCalendar reports a field of a check that is for calendar windows.
func noCalendar(req *limitpb.CheckRequest) error {
	field, ok := placed(req)
	switch {
	case req.Calendar != 0:
		field, ok = "calendar", true
	case req.CarryOver != 0:
		field, ok = "carry_over", true
	}
	if !ok {
		return nil
	}
	return &failure.Error{Reason: failure.Invalid, Field: field, Message: "goes with calendar windows only",
		Hint: "set algorithm to CALENDAR_WINDOW, or leave it out"}
}
